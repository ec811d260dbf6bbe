"""What the proof of a lowered plan costs, for every operator of the library in every form.

    python -m benchmarks.compiler.verify_time    (make bench-compiler)

Its table and all questions to it, in settings of ragged rows; lowering, some 2 ms, is left out. Milliseconds of this thread, the
best of three.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

from benchmarks.harness import RESULTS, about, parser, processor, save
from tests.mapping.plans import form, forms
from tilelink.ir.lowered import Lowered
from tilelink.mapping.lower import lower
from tilelink.proof.check import QUESTIONS
from tilelink.proof.table import Table

OUT = RESULTS / "verify-time-cpu.json"
TILE, ROWS = 128, 997
LIMITS = {(8, 15_000): 100.0, (72, 2_000): 200.0, (64, 100_000): 5000.0}
"""Ranks and tiles a rank, and the milliseconds that a plan may take."""


def main() -> int:
    made = parser(__doc__, OUT)
    made.add_argument("--ranks", type=int, nargs="*", default=[ranks for ranks, _ in LIMITS])
    made.add_argument("--forms", nargs="*", default=sorted(forms()))
    given = made.parse_args()
    said = about(cpu=processor())
    settings = [(size, limit) for size, limit in LIMITS.items() if size[0] in given.ranks]
    rows = [_row(name, *size, limit) for size, limit in settings for name in given.forms]
    save(given.out, said, {"rows": [asdict(r) for r in rows]})
    late = [r for r in rows if r.ms > r.limit]
    for r in late:
        print(f"over the limit: {r.form} on {r.ranks} ranks")
    return 1 if late else 0


@dataclass(frozen=True)
class Row:
    """`tiles`: of the largest step, on one rank, about; `slowest`: what of the proof took longest."""

    form: str
    ranks: int
    tiles: int
    ms: float
    limit: float
    slowest: str


def _row(name: str, ranks: int, tiles: int, limit: float) -> Row:
    columns = -(-tiles // (ranks * -(-ROWS // TILE)))
    lowered = lower(form(name, ranks, {"M": ranks * ROWS - 5, "K": 4096, "N": columns * TILE}, TILE))
    taken = min((_taken(lowered) for _ in range(3)), key=lambda found: sum(found.values()))
    ms, slowest = sum(taken.values()), max(taken, key=lambda part: taken[part])
    print(f"{ranks:5} ranks  {name:58} {ms:8.1f} ms, mostly {slowest}", flush=True)
    return Row(name, ranks, tiles, round(ms, 1), limit, slowest)


def _taken(lowered: Lowered) -> dict[str, float]:
    """Milliseconds for the table, and for each question."""
    begin = time.thread_time()
    table = Table.of(lowered)
    found = {"table": (time.thread_time() - begin) * 1e3}
    for question in QUESTIONS:
        begin = time.thread_time()
        assert not [*question.ask(table)], question.rule
        found[question.ask.__name__] = (time.thread_time() - begin) * 1e3
    return found


if __name__ == "__main__":
    raise SystemExit(main())
