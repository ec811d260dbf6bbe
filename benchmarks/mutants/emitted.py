"""Emitted text, changed in one place: which of these changes translation validation sees.

    python -m benchmarks.mutants.emitted [--operators a,b] [--each N] [--out FILE]

Each change is to one call or line of one function of an emitted file: the number of a flag, another flag, the value that is
expected or added, the rank that is told, a scope, a release, a fence, an edge of a box, a mask, the order of two lines, a tile.
"""

from __future__ import annotations

import ast
import json
import random
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from benchmarks.harness import RESULTS, about, parser, save
from benchmarks.mutants.edits import Running, running
from benchmarks.mutants.mappings import DEVICE, RANKS, TILE, Mapping, mappings, operators, planned
from benchmarks.mutants.simulating import differences
from tilelink.errors import TilelinkError
from tilelink.mapping.lower import lower
from tilelink.runtime.call import Loaded
from tilelink.runtime.kernels import load
from tilelink.validation import Validation, compared, run
from tilelink.validation.running import Run

CALLS = 3
"""One more than there are slots."""
OUT = RESULTS / "mutants-emitted-cpu.json"
WAITS = ("signal_wait_until", "signal_wait_each", "local_wait_until")
SIGNALS = ("signal_op", "signal_all", "local_add", "local_set", "count", "ring_doorbell", "is_last")
FENCES = ("async_store_quiet", "async_load_fence")
COPIES = ("putmem_nbi_block", "getmem_nbi_block", "ll_store_block", "ll_load_block")
ACCESSES = (*COPIES, "load", "store", "ll_load", "ll_pack", "ptr")
VALUE = {"signal_wait_until": 2, "signal_wait_each": 2, "local_wait_until": 2, "signal_op": 1, "signal_all": 1,
         "local_add": 1, "local_set": 1, "is_last": 1}  # fmt: skip
"""Which argument is the value that is awaited, added or set."""

FENCED = "another fence comes before anything is touched"
LATER = "nobody looks at the number of the call before this kernel has ended"
TURNED = "every rank gets the same, in another order"


@dataclass(frozen=True, slots=True)
class Change:
    """`kind`: what is changed; `line`: of the text; `same`: why it does the same, where that is known beforehand."""

    kind: str
    function: str
    line: int
    was: str
    now: str
    same: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """`same`: as of `Change`; `by`: by what it is seen: events | it does not run | numbers | nothing; `how`: in words."""

    operator: str
    schedule: str
    kind: str
    function: str
    line: int
    was: str
    now: str
    same: str
    by: str
    how: str


# ------------------------------------------------------------------------------------------------------------------ changes
@dataclass(slots=True)
class Changes:
    """All changes of a text of ASCII, each with what comes of it."""

    text: str
    starts: list[int] = field(init=False)
    """Where each line starts."""

    def __post_init__(self) -> None:
        assert self.text.isascii()  # what `ast` counts in bytes is as many characters
        self.starts = [0, *accumulate(map(len, self.text.splitlines(keepends=True)))]

    def all(self) -> Iterator[tuple[Change, str]]:
        for function in (n for n in ast.parse(self.text).body if isinstance(n, ast.FunctionDef)):
            for node in ast.walk(function):
                if isinstance(node, ast.Call):
                    yield from self._call(function, node)
                if isinstance(node, ast.Assign):
                    yield from self._edge(function, node)
            for block in _blocks(function):
                yield from self._turned(function, block)

    def _call(self, function: ast.FunctionDef, call: ast.Call) -> Iterator[tuple[Change, str]]:
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        args = [self._of(a) for a in call.args]
        if name in (*WAITS, *SIGNALS):
            first = call.args[0]
            for step in ("+ 1", "- 1"):
                yield self._put(function, f"flag {step}", first, f"({args[0]} {step})")
            others = [a.arg for a in function.args.args if a.arg.endswith("_flags")]
            pointer = first.left if isinstance(first, ast.BinOp) else first
            for other in [o for o in others if isinstance(pointer, ast.Name) and o != pointer.id][:1]:
                yield self._put(function, "another flag", pointer, other)
            if name in VALUE:
                for step in ("+ 1", "- 1"):
                    yield self._put(function, f"value {step}", call.args[VALUE[name]], f"({args[VALUE[name]]} {step})")
        if name == "signal_wait_until":
            yield self._put(function, "scope of an await", call.func, "shmem.local_wait_until")
            yield self._put(function, "await dropped", call, "None")
        if name == "signal_wait_each":
            yield self._put(function, "await of fewer", call.args[3], f"({args[3]}) & (tl.arange(0, 4) < RANKS - 1)")
            yield self._put(function, "await dropped", call, "None")
        if name == "local_wait_until":
            yield self._put(function, "await dropped", call, "None")
        if name == "signal_op":
            how = {"SIGNAL_ADD": "local_add", "SIGNAL_SET": "local_set"}[args[2].removeprefix("shmem.")]
            near = f"shmem.{how}(shmem.translate({args[0]}, {args[3]}, {args[4]}), {args[1]})"
            yield self._put(function, "scope of a signal", call, near)
            yield self._put(function, "target rank", call.args[3], f"({args[3]} + 1) % RANKS")
            yield self._put(function, "signal dropped", call, "None")
        if name == "signal_all":
            yield self._put(function, "fewer ranks told", call.args[3], "RANKS - 1")
            yield self._put(function, "signal dropped", call, "None")
        if name in ("local_add", "local_set", "count", "ring_doorbell") and "work_indices" not in args[0]:
            yield self._put(function, "signal dropped", call, "None")
        if name in ("local_add", "local_set") and "work_indices" not in args[0]:
            atomic = {"local_add": "add", "local_set": "xchg"}[name]
            relaxed = f'tl.atomic_{atomic}({args[0]}, tl.cast({args[1]}, tl.int64), sem="relaxed", scope="gpu")'
            yield self._put(function, "release of a signal", call, relaxed)
        if name in FENCES:
            yield self._put(function, "fence dropped", call, "None", self._fenced(function, call))
        if name in COPIES[:2]:
            for at, what in ((0, "target box"), (1, "source box"), (2, "count of a copy")):
                yield self._put(function, what, call.args[at], f"({args[at]} + 1)")
            turned = name == COPIES[0] and args[3] == "pe" and not any("pe" in a for a in args[:3])
            same = TURNED if turned and "for turn in range(RANKS):" in self._of(function) else ""
            yield self._put(function, "target rank", call.args[3], f"({args[3]} + 1) % RANKS", same)
        if name in ("load", "store"):
            yield from self._access(function, call, args)

    def _access(self, function: ast.FunctionDef, call: ast.Call, args: list[str]) -> Iterator[tuple[Change, str]]:
        plain = isinstance(call.func, ast.Attribute) and self._of(call.func.value) == "tl"
        pointer = args[0].split(" + ")[0]
        kept = pointer.endswith(("_expected", "_at", "_flags", "_order", "_counts"))  # what calls keep to themselves
        if plain and not kept and "+" in args[0]:
            yield self._put(function, "pointer + 1", call.args[0], f"({args[0]} + 1)")
        for keyword in call.keywords:
            if keyword.arg == "mask" and plain and not kept:
                mask = self._of(keyword.value)
                yield self._put(function, "mask dropped", keyword.value, f"({mask}) | True")
        if not plain and isinstance(call.args[0], ast.List):
            for k, entry in enumerate(call.args[0].elts[:-1]):
                yield self._put(function, f"box of a descriptor, axis {k}", entry, f"({self._of(entry)} + 1)")

    def _edge(self, function: ast.FunctionDef, node: ast.Assign) -> Iterator[tuple[Change, str]]:
        name = node.targets[0].id if isinstance(node.targets[0], ast.Name) else ""
        # A program may have names of its own that end so: what it computes is no business of the plan's.
        numbers = name in ("c", "owner", "pe", "c_each") or (name in ("first", "last") and "//" in self._of(node.value))
        if name.endswith(("_end", "_begin")) or numbers:
            for step in ("+ 1", "- 1"):
                kind = "edge" if name.endswith(("_end", "_begin")) else f"`{name}`"
                yield self._put(function, f"{kind} {step}", node.value, f"({self._of(node.value)}) {step}")

    def _turned(self, function: ast.FunctionDef, block: list[ast.stmt]) -> Iterator[tuple[Change, str]]:
        """A store or load that announces or is guarded, on the other side of the signal or wait."""
        for i, node in enumerate(block):
            if not self._has(node, ACCESSES) or self._has(node, (*WAITS, *SIGNALS)):
                continue
            after = next((j for j in range(i + 1, len(block)) if self._has(block[j], SIGNALS)), None)
            between = block[i + 1 : after] if after is not None else []
            if after is not None and not any(self._has(b, ACCESSES) for b in between):
                yield self._moved(function, "signal before the store", node, block[after], self._later(function, node))
        for i, node in enumerate(block):
            if not self._has(node, WAITS):
                continue
            after = next((j for j in range(i + 1, len(block)) if self._has(block[j], ACCESSES)), None)
            if after is not None and not self._has(block[after], (*WAITS, *SIGNALS)):
                same = self._later(function, block[after])
                yield self._moved(function, "load before the wait", node, block[after], same)

    def _later(self, function: ast.FunctionDef, access: ast.stmt) -> str:
        return LATER if function.name == "call_entry" and "epoch_at" in self._of(access) else ""

    def _fenced(self, function: ast.FunctionDef, call: ast.Call) -> str:
        """Why a fence may go: another one comes before anything else is touched."""
        for block in _blocks(function):
            at = next((i for i, node in enumerate(block) if isinstance(node, ast.Expr) and node.value is call), None)
            for node in block[at + 1 :] if at is not None else []:
                if self._of(node) == self._of(call):
                    return FENCED
                if self._has(node, (*ACCESSES, *SIGNALS)):
                    break
        return ""

    def _has(self, node: ast.stmt, names: Sequence[str]) -> bool:
        """Whether it calls one of these; what only loads what a flag comes to touches no data."""
        calls = (n for n in ast.walk(node) if isinstance(n, ast.Call))
        named = ((c.func.attr, self._of(c)) for c in calls if isinstance(c.func, ast.Attribute))
        return any(name in names and not (name == "load" and "_expected" in text) for name, text in named)

    # ---------------------------------------------------------------------------------------------------------------- text
    def _span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def _of(self, node: ast.stmt | ast.expr) -> str:
        start, end = self._span(node)
        return self.text[start:end]

    def _put(
        self, function: ast.FunctionDef, kind: str, node: ast.expr, now: str, same: str = ""
    ) -> tuple[Change, str]:
        start, end = self._span(node)
        text = self.text[:start] + now + self.text[end:]
        return Change(kind, function.name, node.lineno, self._of(node)[:120], now[:120], same), text

    def _moved(
        self, function: ast.FunctionDef, kind: str, node: ast.stmt, behind: ast.stmt, same: str = ""
    ) -> tuple[Change, str]:
        lines = self.text.splitlines(keepends=True)
        assert node.end_lineno is not None
        assert behind.end_lineno is not None
        moved = lines[node.lineno - 1 : node.end_lineno]
        rest = lines[node.end_lineno : behind.end_lineno]
        text = "".join([*lines[: node.lineno - 1], *rest, *moved, *lines[behind.end_lineno :]])
        return Change(kind, function.name, node.lineno, moved[0].strip()[:120], rest[-1].strip()[:120], same), text


def _blocks(function: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(function):
        for name in ("body", "orelse"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


# ------------------------------------------------------------------------------------------------------------------ running
@dataclass(eq=False)
class Placed:
    """A placed operator, its changes, and the same at other sizes, which take branches that the first do not."""

    mapping: Mapping
    original: Running = field(init=False)
    changes: list[tuple[Change, str]] = field(init=False)

    def __post_init__(self) -> None:
        self.original = running(self.mapping.plan)
        text = self.original.source.text
        self.changes = [c for c in Changes(text).all() if c[1] != text]

    def some(self, each: int) -> list[int]:
        """So many of each kind, by number."""
        kept: Counter[str] = Counter()
        out: list[int] = []
        for n in random.Random(0).sample(range(len(self.changes)), len(self.changes)):
            kind = self.changes[n][0].kind
            kept[kind] += 1
            if kept[kind] <= each:
                out.append(n)
        return out

    def of(self, change: Change) -> list[int]:
        """The changes of its kind in its function, in the order of the text."""
        return [n for n, (c, _) in enumerate(self.changes) if (c.kind, c.function) == (change.kind, change.function)]

    def like(self, other: Placed, number: int) -> int | None:
        """Which change of this text is `other`'s: sizes are printed, so lines may differ. None: the function is another."""
        asked = other.changes[number][0]
        here, there = self.of(asked), other.of(asked)
        return here[there.index(number)] if len(here) == len(there) else None

    def run(self, number: int | None = None, calls: int = CALLS) -> tuple[Validation, Run]:
        """The validation of its text, changed or not, and the run that it is of."""
        source, case = self.original.source, self.mapping.case
        if number is not None:
            source = replace(source, text=self.changes[number][1])
        loaded = [Loaded(self.mapping.plan, source, load(source), streams) for streams in self.original.streams]
        arguments = [case.arguments(rank) for rank in range(RANKS)]
        lowered = lower(self.mapping.plan)
        done = run(lowered, loaded, arguments, calls, device=DEVICE)
        return compared(self.mapping.operator.name, lowered, loaded[0], done), done

    @cached_property
    def right(self) -> Run:
        """Of the text as it is."""
        found, done = self.run()
        assert found.ok, found
        return done

    def seen(self, number: int) -> tuple[str, str]:
        """By what a change shows, in one call or in several, and how: by events, or, where data decides what is touched, by
        nothing but the numbers that come out. Nothing where it does not."""
        done = None
        for calls in (1, CALLS):
            try:
                found, done = self.run(number, calls)
            except (NameError, TypeError, ValueError, IndexError, AssertionError) as error:
                return "it does not run", type(error).__name__
            if not found.ok:
                first = found.differences[0]
                return "events", f"{first.does}; the plan says: {first.says}"
        assert done is not None
        differs = next(differences(done.results, self.right.results), "")
        return ("numbers", differs) if differs else ("", "")

    def elsewhere(self) -> Iterator[Placed]:
        """At sizes whose parts end one element before a tile does and whose last tiles are ragged everywhere; where data leaves
        whole tiles; where pieces of parts have several tiles; where the last of whole tiles lacks an element; and with five
        experts, which leave lanes over."""
        case = self.mapping.case
        long = (TILE + 1) * RANKS - 1
        variants: tuple[dict[int | str, int], ...] = (
            {long: (TILE - 1) * RANKS, 2 * TILE: 2 * TILE - 4},
            {long: 2 * long + 1, TILE + 3: 3},
            {long: 4 * long + 3},
            {2 * TILE * RANKS: 2 * TILE * RANKS - 1},
            {"e": 5, "experts": 5},
        )
        for instead in variants:
            sizes = {n: instead.get(n, instead.get(v, v) if v != TILE + 3 or n == "e" else v) for n, v in case.sizes}
            if sizes == dict(case.sizes):
                continue
            other = replace(case, sizes=tuple(sizes.items()))
            try:
                plan = planned(other, other.wiring())
            except TilelinkError:
                continue  # these sizes cannot be placed so
            yield Placed(replace(self.mapping, case=other, plan=plan))


def judged(placed: Placed, number: int) -> Row:
    """What becomes of a change: where it is not seen at the sizes of the suite, at others."""
    change, mapping = placed.changes[number][0], placed.mapping
    by, how = placed.seen(number)
    if by in ("", "numbers") and not change.same:
        for other in placed.elsewhere():
            like = other.like(placed, number)
            if like is not None:
                found = other.seen(like)
                by, how = found if found[0] else (by, how)
            if by not in ("", "numbers"):
                break
    return Row(
        mapping.operator.name, mapping.name, **asdict(change), by=by, how=re.sub("0x[0-9a-f]+", "an address", how)[:200]
    )


def main() -> None:
    given = parser(__doc__, OUT)
    given.add_argument("--operators", default="", help="of the library, with commas between; none: all")
    given.add_argument("--placements", type=int, default=1, help="of each operator")
    given.add_argument("--each", type=int, default=10**6, help="changes of each kind of a placed operator")
    given.add_argument("--again", action="store_true", help="only those of the file that events do not show")
    args = given.parse_args()
    rows = read(args.out) if args.again else []
    begin = time.monotonic()
    for name in args.operators.split(",") if args.operators else list(operators()):
        for mapping, _ in zip(mappings(operators()[name]), range(args.placements), strict=False):
            placed = Placed(mapping)
            numbers = {(c.kind, c.function, c.line, c.now): n for n, (c, _) in enumerate(placed.changes)}
            if args.again:
                for at, row in enumerate(rows):
                    if (
                        (row.operator, row.schedule) == (name, mapping.name)
                        and row.by in ("", "numbers")
                        and not row.same
                    ):
                        rows[at] = judged(placed, numbers[row.kind, row.function, row.line, row.now])
                        _say(rows[at])
            else:
                for number in placed.some(args.each):
                    rows.append(judged(placed, number))
                    _say(rows[-1])
            print(f"{name}, {mapping.name}: {len(rows)} changes, {time.monotonic() - begin:.0f} s", flush=True)
            write(rows, args.out)


def _say(row: Row) -> None:
    if row.by in ("", "numbers") and not row.same:
        print(f"seen by {row.by or 'nothing'}: {row}", flush=True)


def read(path: Path) -> list[Row]:
    return [Row(**row) for row in json.loads(path.read_text())["rows"]]


def write(rows: list[Row], path: Path) -> None:
    kinds = sorted({r.kind for r in rows})
    counted = {k: dict(Counter(r.by or r.same or "not seen" for r in rows if r.kind == k)) for k in kinds}
    said = {"changes": len(rows), **Counter(r.by or r.same or "not seen" for r in rows)}
    save(path, about(**said), {"kinds": counted, "rows": [asdict(r) for r in rows]})


if __name__ == "__main__":
    main()
