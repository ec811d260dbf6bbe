"""Tile programs whose names are bound again and again, run as plain Python on plain torch, one tile after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from tests.frontend.harness import run_cell
from tilelink import Operator

RANKS, SHAPE, TILE = 2, (6, 20), (4, 8)
HEADER = """import tilelink
import tilelink.language as tl

LIMIT = 3


@tilelink.program("R/R M N -> R M N")
def share(x, inbox):
    s, m, n = tl.tile_id(x)
    tl.tile_push_data(inbox, (s, m, n), tl.tile_load(x, (s, m, n)))
    tl.producer_tile_notify(inbox, (s, m, n))


@tilelink.operator("M N -> M N")
def one(x):
    return first(share(x))


@tilelink.operator("M N -> M N")
def two(x):
    inbox = share(x)
    return last(first(inbox), inbox)


"""
PROGRAM = """@tilelink.program("{signature}")
def {name}({parameters}, *, count: int = 2, scale: float = 3.0):
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
{body}
    tl.tile_store(out, (m, n), acc)
    tl.producer_tile_notify(out, (m, n))


"""
FIRST = ["tl.consumer_tile_wait(inbox)", "acc += tl.tile_load(inbox, (0, m, n))"]
LAST = [*FIRST, "tl.consumer_tile_wait(given, (m, n))", "acc += tl.tile_load(given, (m, n))"]


@dataclass(frozen=True)
class Text:
    """Two programs: what is made of a box with a slice per rank, and what is made of that and the box."""

    first: str
    last: str

    @staticmethod
    def of(first: Sequence[str], last: Sequence[str] = ()) -> Text:
        def program(body: Sequence[str], **form: str) -> str:
            return PROGRAM.format(body="\n".join("    " + line for line in body), **form)

        one = program([*FIRST, *first], name="first", signature="R M N -> M N", parameters="inbox, out")
        form = {"name": "last", "signature": "M N, R M N -> M N", "parameters": "given, inbox, out"}
        return Text(one, program([*LAST, *last], **form))

    def operator(self, *, both: bool) -> Operator:
        found = run_cell(HEADER + self.first + self.last)["two" if both else "one"]
        assert isinstance(found, Operator)
        return found

    def expected(self, x: Sequence[torch.Tensor], *, both: bool, last: tuple[int, int] = TILE) -> torch.Tensor:
        """What Python makes of it; `last`: the tile of the second program."""
        box = Tensor(torch.stack([*x]), (None, *TILE))
        made = _run(self.first, "first", [box], TILE)
        return (_run(self.last, "last", [made, box], last) if both else made).data


def _run(text: str, name: str, given: list[Tensor], tile: tuple[int, int]) -> Tensor:
    out = Tensor(torch.zeros(SHAPE), tile)
    for span in ((a, b) for a in out.spans(0) for b in out.spans(1)):
        undecorated = SimpleNamespace(program=lambda _: lambda function: function)
        names: dict[str, Any] = {"LIMIT": 3, "tilelink": undecorated, "tl": Language(span)}
        exec(text, names)
        names[name](*given, out)
    return out


@dataclass(frozen=True)
class Span:
    begin: int
    end: int
    length: int

    @property
    def at(self) -> torch.Tensor:
        return torch.arange(self.begin, self.begin + self.length)


@dataclass(frozen=True)
class Tensor:
    """`tile`: elements along each axis; None: it is walked singly."""

    data: torch.Tensor
    tile: tuple[int | None, ...]

    def spans(self, axis: int, start: int = 0, stop: int | None = None) -> Iterator[Any]:
        size, step = self.data.shape[axis], self.tile[axis]
        end = size if stop is None else min(size, stop)
        begins = range(max(start, 0), end, step or 1)
        return (b if step is None else Span(b, min(b + step, end), step) for b in begins)


class Language:
    """What of the language these programs use."""

    float32 = torch.float32
    static_range = range

    def __init__(self, span: tuple[Span, Span]) -> None:
        self._span = span

    def tile_id(self, _: Tensor) -> tuple[Span, Span]:
        return self._span

    def tile_shape(self, _: Tensor) -> tuple[int, ...]:
        return tuple(s.length for s in self._span)

    @staticmethod
    def tiles(t: Tensor, axis: int, start: int = 0, stop: int | None = None) -> Iterator[Any]:
        return t.spans(axis, start, stop)

    @staticmethod
    def tile_load(t: Tensor, index: tuple[Any, ...]) -> torch.Tensor:
        kept: list[int] = []
        found = t.data
        for axis, entry in enumerate(index):
            at = entry.at if isinstance(entry, Span) else torch.tensor([entry])
            end = entry.end if isinstance(entry, Span) else t.data.shape[axis]
            kept += [entry.length] if isinstance(entry, Span) else []
            inside = ((at >= 0) & (at < end)).reshape([-1 if a == axis else 1 for a in range(found.dim())])
            found = found.index_select(axis, at.clamp(0, t.data.shape[axis] - 1)) * inside
        return found.reshape(kept)

    @staticmethod
    def tile_store(t: Tensor, index: tuple[Span, Span], value: torch.Tensor) -> None:
        rows, columns = index
        t.data[rows.begin : rows.end, columns.begin : columns.end] = value[
            : rows.end - rows.begin, : columns.end - columns.begin
        ]

    @staticmethod
    def tile_range(_: Tensor, span: Span) -> torch.Tensor:
        return span.at

    @staticmethod
    def tile_begin(_: Tensor, span: Span) -> int:
        return span.begin

    @staticmethod
    def tile_end(_: Tensor, span: Span) -> int:
        return span.end

    @staticmethod
    def tile_mask(_: Tensor, span: Span, start: Any = 0, stop: Any = 10**6) -> torch.Tensor:
        first, last = (v[:, None] if isinstance(v, torch.Tensor) else v for v in (start, stop))
        return (span.at < span.end) & (span.at >= first) & (span.at < last)

    @staticmethod
    def size(t: Tensor, axis: int) -> int:
        return t.data.shape[axis]

    @staticmethod
    def num_ranks() -> int:
        return RANKS

    @staticmethod
    def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)

    @staticmethod
    def where(test: torch.Tensor, yes: torch.Tensor, no: float) -> torch.Tensor:
        return torch.where(test, yes, torch.full((), no, dtype=yes.dtype))

    @staticmethod
    def sum(block: torch.Tensor, axis: int) -> torch.Tensor:
        return block.sum(axis)

    def consumer_tile_wait(self, *_: Any) -> None: ...

    def producer_tile_notify(self, *_: Any) -> None: ...
