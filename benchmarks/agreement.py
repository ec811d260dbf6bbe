"""Two proofs and a third opinion on the same plans: `python -m benchmarks.agreement`.

The verdict by structure (`tilelink.mapping.verify`), the verdict on the lowered plan (`tilelink.mapping.judge`), and, where the
two differ and of each random plan, the exact graph of all events (`tilelink.mapping.exact`). Every difference belongs to a class, and
each class is explained in one sentence (`EXPLAINED`); a difference without one ends the run with 1.

Parts: `placed`, every placed operator of the library on 1 to 8 ranks and ragged sizes; `shelves`, plans as the planner makes them of
operators wired at random; `random`, the same, most of them spoilt in one place; `mutants`, every single change of every
signal of every placed operator; `lowered`, single changes of lowered plans, judged by the proof and, a sample, by
the checker of certificates.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.mutants.lowered import mutants
from benchmarks.mutants.lowered_table import representative
from benchmarks.mutants.mappings import DEVICE, Mapping, mappings, operators
from benchmarks.mutants.mutations import mutations
from tests.mapping import shelf, shelf_axes, shelf_graphs
from tests.mapping.corrupt import CORRUPTIONS
from tilelink.bench.running import commit
from tilelink.codegen import emit
from tilelink.errors import TilelinkError
from tilelink.ir.certificate import certificate
from tilelink.ir.lowered import Lowered, unplaced
from tilelink.ir.plan import Layout, Plan
from tilelink.ir.topology import Topology
from tilelink.mapping import make_plan
from tilelink.mapping.judge import judge
from tilelink.mapping.exact import NotExact, examine
from tilelink.mapping.lower import lower
from tilelink.mapping.verify import verify
from tilelink.proof.check import check
from tools.check_certificate import judge as certify

OUT = Path(__file__).parent / "results" / "agreement.json"
SHELVES = (shelf.sound_plan, shelf_graphs.sound_plan, shelf_graphs.sound_plan, shelf_axes.sound_plan)
PARTS = ("placed", "shelves", "random", "mutants", "lowered")
EVENTS = 4000
"""Of a mutant of a lowered plan, about as many as a certificate may have for the checker to be asked."""
SAME = "same"
EXPLAINED: dict[str, str] = {}


@dataclass(slots=True)
class Tally:
    """`kinds`: (old, new, what was spoilt, class of the difference) -> plans; `exact`: (old, new, exact) -> plans; `examples`: by class."""

    kinds: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    exact: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict[str, str])
    seconds: float = 0

    def add(self, of: str, spoilt: str, plan: Plan, sound: Plan | None = None, *, ask: bool = False) -> None:
        old, new = _old(plan), _new(plan)
        differ = (old == "proved") != (new == "proved")
        third = exact_of(plan) if differ or ask else "not asked"
        kind = f"{spoilt}: {_class(plan, sound, new)}" if differ else ""
        self.kinds[old, new, spoilt, kind] += 1
        self.exact["proved" if old == "proved" else "refused", "proved" if new == "proved" else "refused", third] += 1
        if differ and kind not in self.examples:
            self.examples[kind] = f"{of}: {old}, {new}, exact graph: {third}"
            print(f"{kind}: {self.examples[kind]}", flush=True)

    def report(self) -> dict[str, Any]:
        rows = [
            {"old": o, "new": n, "spoilt": s, "plans": c, **({"class": k} if k else {})}
            for (o, n, s, k), c in sorted(self.kinds.items())
        ]
        asked = {k: c for k, c in self.kinds.items() if k[0] != "not asked"}
        differ = sum(c for (o, n, *_), c in asked.items() if (o == "proved") != (n == "proved"))
        codes = sum(c for (o, n, *_), c in asked.items() if o != n and "refused" not in (o, n)) - differ
        return {
            "plans": self.kinds.total(),
            "same": sum(asked.values()) - differ - codes,
            "refused_with_another_code": codes,
            "differ": differ,
            "exact": [{"old": o, "new": n, "exact": e, "plans": c} for (o, n, e), c in sorted(self.exact.items())],
            "classes": {k: {"explained": "", "for example": v} for k, v in sorted(self.examples.items())},
            "rows": rows,
            "seconds": round(self.seconds),
        }


def _old(plan: Plan) -> str:
    try:
        verify(plan)
    except TilelinkError as error:
        return error.code
    return "proved"


def _new(plan: Plan) -> str:
    found = judge(plan)
    return "proved" if found.error is None else found.error.code


def exact_of(plan: Plan) -> str:
    """right | wrong | not played: too large, or data decides."""
    try:
        return "wrong" if examine(plan).findings else "right"
    except NotExact:
        return "not played"


def _class(plan: Plan, sound: Plan | None, new: str) -> str:
    """Whether what was spoilt is used at all; whether there are peers; else the code of the new verdict."""
    if new == "proved" and sound is not None and _does(plan) == _does(sound):
        return SAME
    return f"{new}{' on one rank' if plan.topology.ranks == 1 else ''}"


def _does(plan: Plan) -> tuple[Any, ...]:
    """What runs of a plan: its text, but for the words on top, and what its executors do."""
    lowered = lower(plan)
    loops = [(e.name, e.engine, e.after, e.workers, e.kernel, [_loop(t) for t in e.loops]) for e in lowered.executors]
    text = emit(plan, lowered).text.split('"""', 2)[-1]
    return text, loops, [replace(f, arrivals=None) if f.style == "epoch" else f for f in lowered.flags], lowered.buffers


def _loop(loop: Any) -> Any:
    return replace(loop, loc=None, body=tuple(unplaced(op) for op in loop.body))


# -------------------------------------------------------------------------------------------------------------- parts
def placed(tally: Tally, most: int) -> None:
    """Spread over all operators and placements."""
    worlds = [
        (n, m, ranks, sizes)
        for n, op in operators().items()
        for m in mappings(op)
        for ranks in range(1, 9)
        for sizes in _ragged(m, ranks)
    ]
    for name, mapping, ranks, sizes in _spread(worlds, most):
        try:
            plan = _on(mapping, ranks, sizes)
        except TilelinkError:
            continue
        tally.add(f"{name} ({mapping.name}) on {ranks} ranks, {sizes}", "nothing", plan)


def _spread(found: list[Any], most: int) -> list[Any]:
    return found if len(found) <= most else random.Random(0).sample(found, most)


def _ragged(mapping: Mapping, ranks: int) -> Iterator[dict[str, int]]:
    """Its own sizes, as long as divide; and ones that divide by nothing."""
    named = {s for s in mapping.plan.wiring.sizes}
    found = {n: v for n, v in mapping.case.sizes if n in named}
    yield found
    yield {n: max(v * ranks // 3 - 1, 1) if n == next(iter(found)) else v for n, v in found.items()}


def _on(mapping: Mapping, ranks: int, sizes: dict[str, int]) -> Plan:
    case = replace(mapping.case, ranks=ranks, sizes=tuple({**dict(mapping.case.sizes), **sizes}.items()))
    wiring = case.wiring()
    shapes = dict(zip(wiring.arguments, case.operator.signature.inputs, strict=True))
    layouts: dict[str, Layout] = {}
    for name, shape in shapes.items():
        local = [case.local_shape(shape, rank) for rank in range(ranks)]
        layouts[name] = Layout(len(local[0]) - 1, aligned=all(s[-1] % 4 == 0 for s in local))
    return make_plan(wiring, Topology(ranks, device=DEVICE), case.operator.schedules, sizes, layouts)


def shelves(tally: Tally, most: int) -> None:
    for seed in range(10 * most):
        if tally.kinds.total() >= most:
            return
        made = random.Random(seed).choice(SHELVES)(random.Random(seed + 1_000_000))
        if made is not None:
            tally.add(f"seed {seed}, {made[0]}", "nothing", made[1], ask=True)


def by_chance(tally: Tally, most: int) -> None:
    for seed in range(10 * most):
        if tally.kinds.total() >= most:
            return
        rng = random.Random(seed)
        made = rng.choice(SHELVES)(rng)
        if made is None:
            continue
        name, plan = made
        what = rng.choice(["", *CORRUPTIONS, *CORRUPTIONS, *CORRUPTIONS]) if rng.random() < 0.8 else ""
        spoilt = CORRUPTIONS[what](rng, plan) if what else plan
        if spoilt is not None:
            tally.add(f"seed {seed}, {name}", what or "nothing", spoilt, plan, ask=True)


def of_signals(tally: Tally, most: int) -> None:
    """But for changes that no plan says: those are the check of the text's."""
    every = [
        (name, m, mutation)
        for name, op in operators().items()
        for m in mappings(op)
        for mutation in mutations(m.plan)
        if not mutation.always
    ]
    for name, mapping, m in _spread(every, most):
        tally.add(f"{name} ({mapping.name}), {m.signal}", m.name, m.plan, mapping.plan)


def of_lowered(tally: Tally, most: int) -> None:
    """Here `old` is the checker of certificates, and asked of one in ten."""
    every = [(op, where, *m) for op, where, plan in representative() for m in mutants(plan)]
    for k, (op, where, kind, site, mutant) in enumerate(_spread(every, most)):
        new = _code(mutant)
        old = ("refused" if certify(json.loads(certificate(mutant))) else "proved") if k % 10 == 0 else "not asked"
        differ = old != "not asked" and (old == "proved") != (new == "proved")
        label = f"{kind}: {new}, checker {old}" if differ else ""
        tally.kinds[old, new, kind, label] += 1
        if differ and label not in tally.examples:
            tally.examples[label] = f"{op} ({where}), {site}"
            print(f"{label}: {tally.examples[label]}", flush=True)


def _code(lowered: Lowered) -> str:
    found = check(lowered)
    return "proved" if found.error is None else found.error.code


RUNS = {"placed": placed, "shelves": shelves, "random": by_chance, "mutants": of_signals, "lowered": of_lowered}


def main(
    part: Annotated[list[str] | None, typer.Option(help="Only these; the others stay as they are in OUT.")] = None,
    most: Annotated[int, typer.Option(help="Plans of each part.")] = 5000,
    out: Annotated[Path, typer.Option(help="Where the counts go.")] = OUT,
) -> None:
    """Count verdicts, and name each difference."""
    head, report = commit(), json.loads(out.read_text()) if out.exists() else {}
    for name in PARTS if part is None else part:
        tally, started = Tally(), time.process_time()
        RUNS[name](tally, most)
        tally.seconds = time.process_time() - started
        report[name] = {"commit": head, **tally.report()}
        out.write_text(json.dumps(report, indent=1) + "\n")
        print(f"{name}: {tally.kinds.total()} plans, {report[name]['differ']} verdicts differ, {tally.seconds:.0f} s")
    unexplained: list[str] = []
    for found in report.values():
        for name, row in found["classes"].items():
            row["explained"] = explained(name)
            unexplained += [name] if not row["explained"] else []
    out.write_text(json.dumps(report, indent=1) + "\n")
    print("\n".join(f"not explained: {name}" for name in unexplained))
    raise typer.Exit(1 if unexplained else 0)


def explained(name: str) -> str:
    spoilt, _, rest = name.partition(": ")
    return EXPLAINED.get(name) or EXPLAINED.get(rest) or EXPLAINED.get(f"{spoilt}: any") or ""


if __name__ == "__main__":
    typer.run(main)
