"""What commands find, as JSON: the keys are those of docs/exploring.md, and stay."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tilelink.errors import TilelinkError
from tilelink.explore.cases import Case
from tilelink.explore.report_tables import bytes_of, tiles_on
from tilelink.ir import formula as F
from tilelink.ir.plan import Plan
from tilelink.ir.schedule import as_written
from tilelink.ir.verdict import Verdict
from tilelink.tuning.records import record_of

if TYPE_CHECKING:
    from tilelink.explore.anomalies import Walk
    from tilelink.explore.running import Outcome
    from tilelink.tracing import Trace
    from tilelink.tuning.study import Study
    from tilelink.tuning.tables import Entry
    from tilelink.validation import Validation

Document = dict[str, Any]


def asked(case: Case) -> Document:
    """What a command was asked about."""
    operator, topology = case.operator, case.topology
    return {
        "operator": operator.name,
        "signature": str(operator.signature),
        "sizes": dict(case.sizes),
        "dtype": case.dtype,
        "ranks": topology.ranks,
        "axes": {a.name: a.size for a in topology.axes},
        "schedule": str(operator.schedules),
    }


def plan_document(plan: Plan) -> Document:
    """The derived mapping; lists of numbers are by rank, and None where a table decides."""
    ranks = range(plan.topology.ranks)
    return {
        "schedule": str(plan.schedule),
        "steps": [
            {
                "step": s.path,
                "does": "compute" if not s.copies else "push" if s.push else "pull",
                "engine": str(s.engine),
                "into": s.into,
                "workers": s.workers,
                "tile": {g.dim: g.tile for g in (*s.grid, *s.loops)},
                "tiles": [tiles_on(plan, s, rank) for rank in ranks],
                "order": [word if isinstance(word, str) else as_written(word) for word in s.order_said],
            }
            for s in plan.steps
        ],
        "buffers": [
            {"tensor": b.name, "space": b.space, "slots": b.slots, "nbytes": [bytes_of(plan, b, r) for r in ranks]}
            for b in plan.buffers
        ],
        "channels": [
            {"tensor": c.tensor, "scope": c.scope, "count": [int(F.evaluate(c.flags, plan.env(r))) for r in ranks]}
            for c in plan.channels
        ],
        "kernels": [
            {"kernel": k.name, "workers": k.workers, "steps": [path for path, _ in k.roles]} for k in plan.kernels
        ],
        "notes": list(plan.notes),
    }


def verdict_document(verdict: Verdict, validation: Validation | None) -> Document:
    """What was shown, what is assumed, and what goes wrong."""
    found = verdict.counterexample
    error = verdict.error or (validation.error if validation is not None else None)
    return {
        "ok": verdict.ok and (validation is None or validation.ok),
        "verdict": verdict.said,
        "proofs": [asdict(proof) for proof in verdict.proofs],
        "assumed": list(verdict.assumed),
        "emitted": None if validation is None else validation.ok,
        "error": None if error is None else error_document(error),
        "counterexample": None
        if found is None
        else {
            "kind": found.kind,
            "example": found.sizes,
            "steps": [
                {
                    "rank": i.rank,
                    "call": i.call,
                    "step": i.path,
                    "tile": i.tile,
                    "does": i.does,
                    "line": None if i.loc is None else str(i.loc),
                }
                for i in found.steps
            ],
        },
    }


def outcome_document(outcome: Outcome, tolerance: float, ok: bool) -> Document:
    """How a run went."""
    return {"ok": ok, "tolerance": tolerance, **asdict(outcome)}


def trace_document(trace: Trace) -> Document:
    """Where the time of a call went, by worker and by stream."""
    totals = [
        {
            "rank": t.rank,
            "stream": t.stream,
            "worker": t.worker,
            "sm": t.sm,
            "label": t.label,
            "us": dict(t.kinds),
            "idle_us": t.idle,
        }
        for t in trace.totals()
    ]
    return {
        "backend": trace.backend,
        "ms": trace.ms,
        "ms_untraced": trace.ms_untraced,
        "span_us": trace.span,
        "totals": totals,
    }


def tuned_document(name: str, entry: Entry, study: Study | None) -> Document:
    """What tuning has found for one case; `study` is None where it was known."""
    return {
        "case": name,
        "known": study is None,
        "won": entry.won,
        "ms": entry.ms,
        "ms_unfused": entry.ms_unfused,
        "schedule": str(entry.schedule),
        "placements": record_of(entry.schedule),
        "measured": entry.measured,
        "study": None if study is None else study.record(),
    }


def walk_document(walk: Walk) -> Document:
    """Shapes that are far off their bound."""
    listed = [
        {
            "sizes": dict(a.sizes),
            "us": a.us,
            "bound_us": a.bound_us,
            "gap": a.gap,
            "binds": a.binds,
            "better": None if a.better is None else {"us": a.better.us, "schedule": str(a.better.schedule)},
        }
        for a in walk.anomalies
    ]
    return {"anomalies": listed, "looked": walk.looked, "refused": walk.refused, "median_gap": walk.median}


def error_document(error: TilelinkError) -> Document:
    """A diagnostic."""
    loc = error.loc
    return {
        "code": error.code,
        "message": error.message,
        "file": None if loc is None else loc.file,
        "line": None if loc is None else loc.line,
        "why": error.why,
        "hint": error.hint,
        "text": str(error),
    }


def finite(value: Any) -> Any:
    """The same with None for what JSON has no number for."""
    if isinstance(value, dict):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
