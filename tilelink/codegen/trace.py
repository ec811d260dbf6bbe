"""The traced variant: finished lines with reads of the clock put in between.

The untraced text is made first and cannot depend on this. What is written down: the multiprocessor of each worker;
begin and end of each tile, of each wait and of each fused function. Tiles that come behind their host's are those of the
fused function, which is not written down once more inside them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
        body.head, inner, body.tail = _split([*functions[name].lines], DRAWN_LOOP if body.role.drawn else TILE_LOOP)
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
    head: list[Row] = field(default_factory=list[Row])
    rows: list[Row] = field(default_factory=list[Row])
    tail: list[Row] = field(default_factory=list[Row])
    parts: dict[str, _Part] = field(default_factory=dict[str, _Part])

    def timed(self, rows: list[Row], function: str) -> list[Row]:
        """Lines with clocks around each wait, or each loop of nothing but waits, and each call of a fused function."""
        least = min((depth for depth, _, _ in rows), default=0)
        before: dict[int, list[str]] = {}
        after: dict[int, tuple[int, list[str]]] = {}
        called: dict[int, str] = {}
        totals: list[int] = []
        done = -1
        for k, (depth, text, loc) in enumerate(rows):
            call = CALL.match(text)
            if call and self.role.drawn and call[1] == self.role.function:
                called[k] = f"({self._called(call[1])}, "
            elif call and call[1] in self.functions:
                slot = self._site("part", call[1], loc)
                called[k] = f"({self._called(call[1])}, "
                before[k], after[k] = [_store(slot)], (depth, [_store(slot + 1)])
            elif WAIT.match(text) and k > done:
                first, done = _region(rows, k)
                if any(rows[h][1].startswith(("for ", "while ")) for h in _heads(rows, first)):
                    slot = self._site("waits", function, loc)
                    totals.append(slot)
                    before[first] = [f"trace_from_{slot} = shmem.clock()"]
                    after[done] = rows[first][0], [f"trace_waits_{slot} += shmem.clock() - trace_from_{slot}"]
                else:
                    slot = self._site("wait", function, loc)
                    before[first], after[done] = [_store(slot)], (rows[first][0], [_store(slot + 1)])
        out: list[Row] = [(least, f"trace_waits_{s} = tl.full((), 0, tl.int64)", None) for s in totals]
        for k, (depth, text, loc) in enumerate(rows):
            out += [(depth, line, None) for line in before.get(k, [])]
            out.append((depth, text.replace("(", called[k], 1) if k in called else text, loc))
            at, lines = after.get(k, (0, []))
            out += [(at, line, None) for line in lines]
        return [*out, *((least, f"tl.store(trace_tile + {s + 1}, trace_waits_{s})", None) for s in totals)]

    def _called(self, function: str) -> str:
        """Where a call of a fused function writes: a second call of the same writes behind the first."""
        made = self.parts.get(function)
        if made is None:
            first, sites = self.slots, len(self.sites)
            rows = self.timed([*self.functions[function].lines], function)
            self.parts[function] = _Part(tuple(rows), first, self.slots, tuple(self.sites[sites:]))
            return "trace_tile"
        shift = self.slots - made.first
        self.sites += [replace(s, slot=s.slot + shift) for s in made.sites]
        self.slots += made.end - made.first
        return f"trace_tile + {shift}"

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


def _split(rows: list[Row], loop: re.Pattern[str]) -> tuple[list[Row], list[Row], list[Row]]:
    """The lines up to the loop over tiles, its own the last of them; its body; and what follows. Without a loop all is body."""
    for k, (depth, text, _) in enumerate(rows):
        if depth == 0 and loop.match(text):
            end = next((j for j in range(k + 1, len(rows)) if rows[j][1] and rows[j][0] == 0), len(rows))
            return rows[: k + 1], rows[k + 1 : end], rows[end:]
    return [], rows, []


def _heads(rows: list[Row], k: int) -> list[int]:
    """The lines whose blocks line `k` is in, the innermost first."""
    found: list[int] = []
    depth = rows[k][0]
    for h in range(k - 1, -1, -1):
        if rows[h][1] and rows[h][0] < depth:
            found.append(h)
            depth = rows[h][0]
    return found


def _region(rows: list[Row], k: int) -> tuple[int, int]:
    """First and last line of the wait at `k` with the loops around it that do nothing but wait."""
    first = last = k
    for head in _heads(rows, k):
        end = head + 1
        while end < len(rows) and (not rows[end][1] or rows[end][0] > rows[head][0]):
            end += 1
        if not all(QUIET.match(text) for _, text, _ in rows[head + 1 : end] if text):
            break
        if rows[head][1].startswith("for "):
            first, last = head, end - 1
    return first, last
