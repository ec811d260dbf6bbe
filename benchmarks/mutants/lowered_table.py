"""Mutants of lowered plans, and what the checker of certificates says of them; and the proof, which shares no code with it.

    python -m benchmarks.mutants.lowered_table --sample 400 --out benchmarks/results/mutants-lowered-cpu.json

Prints kinds × verdicts, and each mutant that survives; ends with 1 if one does.

A mutant that is not refused is *equivalent* if it does the same: all writes and reads of the plan, and each two accesses to one
element, each access to an argument or a result and the begin and end of its rank's call, in an order at least as strict.
(Signals are what makes the order. What is known between calls, and that flags go on counting, is left to the checker.) Of the
others `reads` only change which elements are read: that these are there in time is claimed, not that they are the ones that are
wanted. Of `data` the change is to what data decides, which is assumed to be right. What is left survives.

Where one of the two refuses and the other does not, the mutant is a row of the file, with what the checker accepts it as. Of an
equivalent one all that it leaves out is ordered by signals of others, which the checker follows from one to the next and the
proof does not.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from benchmarks.harness import about, parser, save
from benchmarks.mutants.lowered import mutants
from benchmarks.mutants.mappings import mappings, operators
from tilelink.ir.certificate import certificate
from tilelink.ir.lowered import Lowered
from tilelink.mapping.lower import lower
from tilelink.proof.check import check
from tools.check_certificate import Event, Judge, Plan, judge

VERDICTS = ("refused", "equivalent", "reads", "data", "survives")
Act: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Effects:
    """What anybody can see of a call: reads and writes (`acts`), and which of two surely comes first (`order`)."""

    acts: frozenset[Act]
    order: frozenset[tuple[Act, Act]]

    @staticmethod
    def of(text: Any) -> Effects:
        plan = Plan(text)
        found = Judge(plan)
        acts = [e for e in plan.events if e.kind in ("read", "write")]
        memory: dict[tuple[Any, ...], list[Event]] = {}
        for e in acts:
            memory.setdefault((e.what, e.ranks), []).append(e)
        pairs = [(a, b) for events in memory.values() for a, b in product(events, events) if _conflict(a, b)]
        for e in (e for e in acts if plan.buffers[e.what]["space"] in ("argument", "result")):
            pairs += [(plan.begin[e.ranks[0]], e), (e, plan.end[e.ranks[0]])]
        asked = {(_act(a), _act(b)) for a, b in pairs}
        unsure = {(_act(a), _act(b)) for a, b in pairs if not (found.is_past(a, b) or _by_data(found, a, b))}
        return Effects(frozenset(map(_act, acts)), frozenset(asked - unsure))

    def against(self, mutant: Effects) -> str:
        less, more = self.acts - mutant.acts, mutant.acts - self.acts
        lost = {pair for pair in self.order - mutant.order if not less & {*pair}}
        if not (less or more or lost):
            return "equivalent"
        if all(a[0] == "read" for a in less | more) and not lost:
            return "reads"
        changed = {a for a in less if (*a[:-1], True) not in more} | more
        if all(a[0] == "read" or a[-1] for a in changed) and all(a[-1] or b[-1] for a, b in lost):
            return "data"
        return "survives"


def _act(e: Event) -> Act:
    box = tuple((s.start, s.stop) for s in e.box)
    return (e.kind, e.at.rank, e.at.path, e.what, e.ranks, box, bool(e.maybe))


def _conflict(a: Event, b: Event) -> bool:
    """Whether both touch an element that one of them writes."""
    touching = all(p.start < q.stop and q.start < p.stop for p, q in zip(a.box, b.box, strict=True))
    return a is not b and "write" in (a.kind, b.kind) and touching


def _by_data(found: Judge, a: Event, b: Event) -> bool:
    return a.kind == "write" and b.kind == "read" and found.ordered(a, b)


def verdict_on(lowered: Lowered, mutant: Lowered) -> str:
    text = json.loads(certificate(mutant))
    if judge(text):
        return "refused"
    return Effects.of(json.loads(certificate(lowered))).against(Effects.of(text))


def representative() -> Iterable[tuple[str, str, Lowered]]:
    """Of each operator the first placement, the last one, and one between them."""
    for name, operator in operators().items():
        found = list(mappings(operator))
        for k in sorted({0, len(found) // 2, len(found) - 1}):
            yield name, found[k].name, lower(found[k].plan)


def main() -> int:
    made = parser(__doc__)
    made.add_argument("--sample", type=int, default=0, help="of the mutants, so many by chance; 0: all")
    made.add_argument("--seed", type=int, default=0, help="of that choice")
    made.add_argument("--only", default="", help="one kind of change")
    given = made.parse_args()

    every = [(op, placed, plan, *m) for op, placed, plan in representative() for m in mutants(plan)]
    every = [m for m in every if given.only in ("", m[3])]
    chosen = random.Random(given.seed).sample(every, given.sample) if 0 < given.sample < len(every) else every
    found: Counter[tuple[str, str]] = Counter()
    both: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    for op, placed, plan, kind, where, mutant in chosen:
        verdict, error = verdict_on(plan, mutant), check(mutant).error
        found[kind, verdict] += 1
        if verdict == "survives":
            print(f"survives: {op} ({placed}), {kind}: {where}", flush=True)
        proof = "proved" if error is None else error.code
        both[f"{proof}, {'refused' if verdict == 'refused' else 'accepted'}"] += 1
        row = {"operator": op, "schedule": placed, "kind": kind, "where": where, "proof": proof}
        if error is None and verdict == "refused":
            rows.append({**row, "says": judge(json.loads(certificate(mutant)))[0]})
        if error is not None and verdict != "refused":
            rows.append({**row, "says": error.message, "accepted as": verdict})
    print(f"| {'kind':24} | {' | '.join(VERDICTS)} |\n|---|{'---:|' * len(VERDICTS)}")
    for kind in dict.fromkeys(m[3] for m in every):
        print(f"| {kind:24} | {' | '.join(str(found[kind, v]) for v in VERDICTS)} |")
    totals = [sum(n for (_, v), n in found.items() if v == verdict) for verdict in VERDICTS]
    print(f"| {'all':24} | {' | '.join(map(str, totals))} |\n{len(rows)} judged differently by the proof")
    if given.out is not None:
        counts = {"mutants": len(every), "asked": len(chosen), "seed": given.seed, "judged differently": len(rows)}
        said = about(numpy=np.__version__, **counts, **{"proof and checker": dict(sorted(both.items()))})
        save(given.out, said, {"rows": rows})
    return 1 if totals[-1] else 0


if __name__ == "__main__":
    sys.exit(main())
