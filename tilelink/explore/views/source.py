"""The emitted file beside the tile programs: which line comes from which."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tilelink.errors import Loc
from tilelink.explore.views.page import lines_of
from tilelink.ir.kernel import KernelSource
from tilelink.ir.program import TileProgram, Wait, walk
from tilelink.ir.wiring import Wiring
from tilelink.tracing.markup import Markup, tag

_DOES = {
    "Tile": "the tile that this is", "Tiles": "over tiles", "Loop": "loop", "If": "test", "Load": "loads a tile",
    "Store": "stores a tile", "Move": "moves a tile", "Notify": "notifies", "Wait": "waits", "Let": "computes",
    "Check": "checks", "Raw": "raw pointers", "Bounds": "bounds of a segment", "Holder": "whose it is",
}  # fmt: skip


def source_view(source: KernelSource, wiring: Wiring | None = None) -> Markup:
    """Two columns; what belongs together lights up when the pointer rests on it, and a click scrolls to it.

    Args:
        source: the emitted file.
        wiring: of the operator, to show also programs of which there is nothing in it, as those that streams run.
    """
    origin: dict[int, Loc] = {}
    lines = source.text.rstrip("\n").split("\n")
    marks = dict(source.lines)
    now: Loc | None = None
    for n, line in enumerate(lines, 1):
        now = marks.get(n, now if line.startswith(" ") and line.strip() else None)
        if now is not None:
            origin[n] = now
    used = {_key(loc) for loc in origin.values()}
    emitted = (
        _line(n, line, _key(origin[n]) if n in origin else None, str(origin[n].line) if n in origin else "")
        for n, line in enumerate(lines, 1)
    )
    locs = list(origin.values())
    locs += [op.loc for step in (wiring.steps if wiring is not None else ()) for op in walk(step.program.body)]
    programs = [_program_lines(file, first, last, used) for file, first, last in _stretches(locs)]
    return tag("div", tag("div", *programs, class_="code"), tag("div", *emitted, class_="code"), class_="source")


def program_view(program: TileProgram) -> Markup:
    """Its lines, and beside each what it is to the compiler."""
    ops = list(walk(program.body))
    said: dict[int, list[str]] = {}
    for op in ops:
        words = _DOES.get(type(op).__name__, "")
        if isinstance(op, Wait):
            words = f"waits for {op.param}"
        said.setdefault(op.loc.line, []).append(words)
    last = max((op.loc.line for op in ops), default=program.loc.line)
    rows: list[Markup] = []
    for n, line in lines_of(program.loc.file, program.loc.line, last):
        does = ", ".join(dict.fromkeys(said.get(n, [])))
        cells = tag("td", str(n), class_="number"), tag("td", tag("pre", line or " ")), tag("td", does)
        rows.append(tag("tr", *cells))
    params = ", ".join(f"{p.name} ({p.role})" for p in program.params)
    place = f"{Path(program.loc.file).name}:{program.loc.line}"
    head = tag("tr", tag("th", ""), tag("th", place), tag("th", params))
    return tag("table", tag("caption", f"{program.name}: {program.signature}"), head, *rows, class_="program")


def _key(loc: Loc) -> str:
    return f"{Path(loc.file).stem}-{loc.line}"


def _stretches(locs: Iterable[Loc]) -> list[tuple[str, int, int]]:
    """File, first and last line of what lies together."""
    found: list[tuple[str, int, int]] = []
    for file, line in sorted({(loc.file, loc.line) for loc in locs}):
        if found and found[-1][0] == file and line - found[-1][2] <= 3:
            found[-1] = (file, found[-1][1], line)
        else:
            found.append((file, line, line))
    return [(file, max(1, first - 2), last) for file, first, last in found]


def _program_lines(file: str, first: int, last: int, used: set[str]) -> Markup:
    rows = [tag("div", Path(file).name, class_="file")]
    for n, line in lines_of(file, first, last):
        key = _key(Loc(file, n))
        rows.append(_line(n, line, key if key in used else None, ""))
    return tag("div", *rows)


def _line(n: int, said: str, key: str | None, origin: str) -> Markup:
    number = tag("b", str(n), title=f"from line {origin}" if origin else None)
    return tag("div", number, said or " ", data_from=key, class_="note" if said.lstrip().startswith("#") else None)
