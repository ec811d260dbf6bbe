"""The traced variant: finished lines with reads of the clock put in between.

The untraced text is made first and cannot depend on this. What is written down: the multiprocessor of each worker;
begin and end of each tile, of each wait and of each fused function. Tiles that come behind their host's are those of the
fused function, which is not written down once more inside them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

from tilelink.codegen.function import Function
from tilelink.codegen.text import Row
from tilelink.errors import Loc
from tilelink.ir.kernel import Arg, TraceLayout, TraceRole, TraceSite

TILE_LOOP = re.compile(r"for t in (tl\.)?range\(worker, ")
DRAWN_LOOP = re.compile(r"while \w+ < ")
TILE_END = "blocks.end_of_tile()"
CALL = re.compile(r"(\w+)\(")
WAIT = re.compile(
    r"shmem\.(signal|local)_wait_(until|within|each)\(|\w+ = shmem\.ll_load(_within)?\(|shmem\.ll_load_block(_within)?\("
)
QUIET = re.compile(r"#|\w+ = |for \w+ in range\(|if |shmem\.(signal|local)_wait_(until|within|each)\(")
"""What may stand in a loop that does nothing but wait."""


def traced_kernel(
    kernel: str, roots: Mapping[str, TraceRole], functions: Mapping[str, Function]
) -> tuple[dict[str, Function], TraceLayout]:
    """The kernel's functions with clocks, and where what they write lies. `roots`: by the function that it calls for a role, or
    that draws its work indices."""
    found = dict(functions)
    bodies = {name: _Body(functions, role) for name, role in roots.items()}
    for name, body in bodies.items():
        body.head, inner, body.tail = _split(functions[name].lines, DRAWN_LOOP if body.role.drawn else TILE_LOOP)
        body.rows = body.timed(inner, body.role.function)
        for part, made in body.parts.items():
            f = functions[part]
            found[part] = replace(f, leading=("trace_tile", *f.leading), lines=made.rows)
    slots = max(body.slots for body in bodies.values())
    turns = 1 + max(role.turn for role in roots.values())
    for name, body in bodies.items():
        own = (Arg("trace", "trace", kernel), Arg("trace_tiles", "trace_tiles", kernel))
        args = sorted((*functions[name].args, *own), key=lambda a: a.kind == "constant")
        found[name] = replace(functions[name], args=tuple(args), lines=tuple(_assembled(body, slots, turns)))
    roles = tuple(replace(body.role, sites=tuple(body.sites)) for body in bodies.values())
    return found, TraceLayout(kernel, slots, roles, turns)


@dataclass(frozen=True, slots=True)
class _Part:
    """A fused function with clocks; it and what is fused into it write to the slots from `first` up to `end`."""

    rows: tuple[Row, ...]
    first: int
    end: int
    sites: tuple[TraceSite, ...]


@dataclass(slots=True)
class _Body:
    """One root function and the functions fused into it, while clocks are put in: they share the slots of a tile."""

    functions: Mapping[str, Function]
    role: TraceRole
    slots: int = 2
    sites: list[TraceSite] = field(default_factory=list[TraceSite])
    head: Sequence[Row] = ()
    rows: Sequence[Row] = ()
    tail: Sequence[Row] = ()
    parts: dict[str, _Part] = field(default_factory=dict[str, _Part])

    def timed(self, rows: Sequence[Row], function: str) -> list[Row]:
        """Lines with clocks around each wait, or each loop of nothing but waits, and each call of a fused function."""
        totals, depth = list[int](), rows[0][0] if rows else 0
        inner = [*self._timed(rows, function, totals)]
        begin = [(depth, f"trace_waits_{slot} = tl.full((), 0, tl.int64)", None) for slot in totals]
        end = [(depth, f"tl.store(trace_tile + {slot + 1}, trace_waits_{slot})", None) for slot in totals]
        return [*begin, *inner, *end]

    def _timed(self, rows: Sequence[Row], function: str, totals: list[int], *, looped: bool = False) -> Iterator[Row]:
        """`totals`: takes up the slots of what is waited for in a loop, as `looped` says of these lines."""
        for stanza in _stanzas(rows):
            (depth, text, loc), *under = stanza
            call, waits = CALL.match(text), [row for row in stanza if WAIT.match(row[1])]
            idle = WAIT.match(text) or (text.startswith("for ") and all(QUIET.match(line) for _, line, _ in under))
            if call and self.role.drawn and call[1] == self.role.function:
                yield depth, self._called(call), loc
            elif call and call[1] in self.functions:
                slot = self._site("part", call[1], loc)
                yield from _between(depth, _store(slot), [(depth, self._called(call), loc)], _store(slot + 1))
            elif not waits or not idle:
                yield stanza[0]
                yield from self._timed(under, function, totals, looped=looped or text.startswith(("for ", "while ")))
            elif looped:
                slot = self._site("waits", function, waits[0][2])
                totals.append(slot)
                more = f"trace_waits_{slot} += shmem.clock() - trace_from_{slot}"
                yield from _between(depth, f"trace_from_{slot} = shmem.clock()", stanza, more)
            else:
                slot = self._site("wait", function, waits[0][2])
                yield from _between(depth, _store(slot), stanza, _store(slot + 1))

    def _called(self, call: re.Match[str]) -> str:
        """A call of a fused function with where it writes: a second call of the same writes behind the first."""
        function, rest = call[1], call.string[call.end() :]
        made = self.parts.get(function)
        if made is None:
            first, sites = self.slots, len(self.sites)
            rows = self.timed(self.functions[function].lines, function)
            self.parts[function] = _Part(tuple(rows), first, self.slots, tuple(self.sites[sites:]))
            return f"{call[0]}trace_tile, {rest}"
        shift = self.slots - made.first
        self.sites += [replace(s, slot=s.slot + shift) for s in made.sites]
        self.slots += made.end - made.first
        return f"{call[0]}trace_tile + {shift}, {rest}"

    def _site(self, what: Literal["wait", "waits", "part"], function: str, loc: Loc | None) -> int:
        slot, self.slots = self.slots, self.slots + 2
        self.sites.append(TraceSite(slot, what, function, loc))
        return slot


def _assembled(body: _Body, slots: int, turns: int) -> list[Row]:
    """A root function: where its worker's row and each tile's slots begin, and clocks around the whole tile."""
    turn, drawn = body.role.turn, body.role.drawn
    row = [f"trace_row = trace + tl.program_id(0) * (1 + trace_tiles * {slots * turns})"]
    row.append("tl.store(trace_row, shmem.multiprocessor())")
    if body.head:
        row += ["trace_taken = 0"] if drawn else []
        tile = f"tl.minimum({'trace_taken' if drawn else '(t - worker) // workers'}, trace_tiles - 1)"
        tile = f"({turn} * trace_tiles + {tile})" if turn else tile
        first = [f"trace_tile = trace_row + 1 + {tile} * {slots}", _store(0)]
        first += ["trace_taken += 1"] if drawn else []
        head, depth = [*body.head[:-1], *((0, line, None) for line in row), body.head[-1]], 1
    else:  # a kernel of one block
        first, head, depth = [*row, "trace_tile = trace_row + 1", _store(0)], [], 0
    rows, last = body.rows, (depth, _store(1), None)
    # What ends a tile whose loop is flattened stays last.
    rows = [*rows[:-1], last, rows[-1]] if rows and rows[-1][1] == TILE_END else [*rows, last]
    return [*head, *((depth, line, None) for line in first), *rows, *body.tail]


def _store(slot: int) -> str:
    return f"tl.store(trace_tile{f' + {slot}' if slot else ''}, shmem.clock())"


def _between(depth: int, before: str, rows: Sequence[Row], after: str) -> Iterator[Row]:
    yield depth, before, None
    yield from rows
    yield depth, after, None


def _stanzas(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Each line of the first one's depth with those that stand under it."""
    heads = [k for k, (depth, _, _) in enumerate(rows) if depth == rows[0][0]]
    return (rows[k:end] for k, end in pairwise([*heads, len(rows)]))


def _split(rows: Sequence[Row], loop: re.Pattern[str]) -> tuple[Sequence[Row], Sequence[Row], Sequence[Row]]:
    """The lines up to the loop over tiles, its own the last of them; its body; and what follows. Without a loop all is body."""
    end = 0
    for stanza in _stanzas(rows):
        first, end = end + 1, end + len(stanza)
        if loop.match(stanza[0][1]):
            return rows[:first], rows[first:end], rows[end:]
    return [], rows, []
