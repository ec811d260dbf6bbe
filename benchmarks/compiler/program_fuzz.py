"""Operators drawn as text, proved, run and held against what they mean.

    python -m benchmarks.compiler.program_fuzz --seeds 0:2000

Counts are merged in OUT, hundred seeds by hundred; what this commit has drawn before is not drawn again. What is proved and
wrong, and what is right and refused without a reason in the open list, is printed with its text.
"""

from __future__ import annotations

import json
import multiprocessing
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, about, parser
from tests.fuzz.programs.drawing import drawn
from tests.fuzz.programs.judging import Case, Judgement, judge
from tests.fuzz.programs.reasons import reason_of
from tests.fuzz.programs.shrinking import shrunk
from tilelink.bench import commit

OUT = RESULTS / "program-fuzz-cpu.json"
BLOCK = 100
"""Seeds that one process draws."""
PATIENCE = 90.0
"""Seconds after which a program counts as slow, and its process is ended."""
FAILING = ("proved and wrong", "crash", "slow")


@dataclass
class Tally:
    kinds: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    spoilt: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    failing: list[dict[str, Any]] = field(default_factory=list[Any])

    def add(self, row: dict[str, Any]) -> bool:
        """Whether it fails."""
        self.kinds[row["kind"]] += 1
        if row["code"]:
            self.codes[row["code"]] += 1
        if row["spoilt"]:
            self.spoilt[row["kind"]] += 1
        if row["reason"]:
            self.reasons[row["reason"]] += 1
        fails = row["kind"] in FAILING or (row["kind"] == "right and refused" and not row["reason"])
        if fails:
            self.failing.append({k: row[k] for k in ("seed", "kind", "outcome", "code", "text")})
        return fails

    def report(self) -> dict[str, Any]:
        counters = {"kinds": self.kinds, "codes": self.codes, "spoilt": self.spoilt, "reasons": self.reasons}
        return {**{n: dict(sorted(c.items())) for n, c in counters.items()}, "failing": self.failing}


def row_of(seed: int) -> dict[str, Any]:
    case = drawn(seed)
    found = judge(case)
    reason = reason_of(found) if found.kind == "right and refused" else ""
    faults = sorted({f.kind for f in found.faults or ()})
    return {"seed": seed, "kind": found.kind, "outcome": found.outcome, "code": found.code, "text": found.text[:300],
            "spoilt": case.spoilt, "reason": reason, "faults": faults}  # fmt: skip


def _draw(seeds: range, sink: Connection) -> None:
    for seed in seeds:
        sink.send(row_of(seed))


def rows_of(seeds: range) -> list[dict[str, Any]]:
    """In processes of their own, since a program may not end."""
    rows: list[dict[str, Any]] = []
    while len(rows) < len(seeds):
        source, sink = multiprocessing.Pipe(duplex=False)
        rest = seeds[len(rows) :]
        process = multiprocessing.get_context("spawn").Process(target=_draw, args=(rest, sink))
        process.start()
        sink.close()
        ended = False
        try:
            while len(rows) < len(seeds) and source.poll(PATIENCE):
                rows.append(source.recv())
        except EOFError:
            ended = True
        process.join(1)
        if ended and process.exitcode == 1:
            raise RuntimeError(f"seed {seeds[len(rows)]} cannot be judged")
        if len(rows) < len(seeds):
            kind = "crash" if ended else "slow"
            rows.append({"seed": seeds[len(rows)], "kind": kind, "outcome": kind, "code": "", "text": "does not end",
                         "spoilt": "", "reason": "", "faults": []})  # fmt: skip
        process.kill()
        process.join()
    return rows


def merged(out: Path, seeds: range, tally: Tally) -> dict[str, Any]:
    """All ranges of OUT that the new one does not overlap, the new one, and their sums."""
    kept = {k: v for k, v in _ranges(out).items() if not set(seeds) & set(_seeds(k))}
    mine = {**about(numpy=version("numpy")), **tally.report()}
    ranges = {**kept, f"{seeds.start}:{seeds.stop}": mine}
    total: Counter[str] = Counter()
    for found in ranges.values():
        total.update(found["kinds"])
    ordered = dict(sorted(ranges.items(), key=lambda r: _seeds(r[0]).start))
    return {"drawn": sum(total.values()), **dict(sorted(total.items())), "ranges": ordered}


def _ranges(out: Path) -> dict[str, Any]:
    return json.loads(out.read_text())["ranges"] if out.exists() else {}


def _seeds(text: str) -> range:
    return range(*map(int, text.split(":")))


def shown(seed: int, smaller: bool) -> None:
    case = drawn(seed)
    if smaller:
        sign = _sign(judge(case))

        def same(other: Case) -> bool:
            try:
                return _sign(judge(other, 8)) == sign
            except SyntaxError:
                return False

        case = shrunk(case, same)
    found = judge(case)
    print(case)
    print(
        f"-> {found.kind}: {found.outcome} {found.code} {found.text}\n   {found.line}\n   {found.meaningless or found.faults}"
    )
    print(f"   {found.assumed}" if found.assumed else "")


def _sign(found: Judgement) -> tuple[object, ...]:
    """What a smaller case has to have in common."""
    return found.kind, found.outcome, found.code, found.code and found.text.split("`")[-1][:20], bool(found.undefined)


def main() -> int:
    made = parser(__doc__, OUT)
    made.add_argument("--seeds", default="0:1000", help="first:stop")
    made.add_argument("--seed", type=int, help="show one whole, and write nothing")
    made.add_argument(
        "--shrink", action="store_true", help="of --seed: make it smaller, as long as the same becomes of it"
    )
    made.add_argument("--jobs", type=int, default=1)
    made.add_argument("--again", action="store_true", help="draw what this commit has drawn before, too")
    made.add_argument("--quiet", action="store_true", help="print no texts")
    given = made.parse_args()
    if given.seed is not None:
        shown(given.seed, given.shrink)
        return 0
    seeds, total = _seeds(given.seeds), Counter[str]()
    done = [_seeds(k) for k, v in _ranges(given.out).items() if v["commit"] == commit() and not given.again]
    blocks = [seeds[k : k + BLOCK] for k in range(0, len(seeds), BLOCK)]
    blocks = [b for b in blocks if not any(b.start in d and b[-1] in d for d in done)]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    failing = 0
    with ThreadPoolExecutor(given.jobs) as threads:
        for block, rows in zip(blocks, threads.map(rows_of, blocks), strict=True):
            tally = Tally()
            for row in rows:
                if tally.add(row):
                    said = f"{row['seed']}: {row['kind']}, {row['outcome']} {row['code']} {row['text']} {row['faults']}"
                    print(said, "" if given.quiet else f"\n{drawn(row['seed'])}", flush=True)
            # After each block, so that a run that is ended has not been for nothing.
            given.out.write_text(json.dumps(merged(given.out, block, tally), indent=1) + "\n")
            total += tally.kinds
            failing += len(tally.failing)
    print(f"{dict(total)}: {given.out}")
    return 1 if failing else 0


if __name__ == "__main__":
    raise SystemExit(main())
