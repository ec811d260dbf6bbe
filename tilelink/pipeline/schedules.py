"""How a step runs: the values of `Operator.schedule` (DESIGN space of the paper, section 3.1)."""

from __future__ import annotations

from tilelink.errors import TilelinkError
from tilelink.ir.schedule import CopyEngine, Fused, Library, Sms, SortKey

Order = str | SortKey | tuple[str | SortKey, ...]


def _order(order: Order) -> tuple[str | SortKey, ...]:
    return order if isinstance(order, tuple) else (order,)


def _tile(tile: dict[str, int]) -> tuple[tuple[str, int], ...]:
    for dim, size in tile.items():
        if size < 1:
            raise TilelinkError("TL318", f"a tile of {size} along `{dim}`", hint="tiles have at least one element")
    return tuple(tile.items())


def sms(
    count: int | None = None,
    /,
    *,
    order: Order = "row",
    push: bool | None = None,
    num_warps: int = 4,
    num_stages: int = 3,
    own_kernel: bool = False,
    **tile: int,
) -> Sms:
    """Run on streaming multiprocessors.

    Args:
        count: SMs of its own (default: all that other steps leave).
        order: `row`, `column`, `group N`, `ring`, `ring+N`, or several, the first outermost; and a function
            `key(tile, rank, ranks)` of the tile's index per axis, by which tiles are sorted, stably, after that.
        push: of a movement, run it at the rank that has the data (True) or that wants it (False); default: as written.
        num_warps: Triton's.
        num_stages: Triton's.
        own_kernel: a kernel of its own on a side stream, rather than a role in its neighbour's kernel.
        tile: elements per dimension of the program, `M=128`; a dimension that is not named is whole.

    Raises:
        TilelinkError: TL318, a tile below one element.
    """
    return Sms(
        count=count,
        tile=_tile(tile),
        order=_order(order),
        push=push,
        warps=num_warps,
        stages=num_stages,
        own_kernel=own_kernel,
    )


def copy_engine(*, order: Order = (), push: bool | None = None, streams: int = 1, **tile: int) -> CopyEngine:
    """Run a movement on copy engines: one stream step per tile.

    Args:
        order: as for `sms`; default: `ring` for an argument, `ring+1` for what a step of the operator makes.
        push: as for `sms`.
        tile: as for `sms`.
        streams: side streams that take the tiles in turn.

    Raises:
        TilelinkError: TL318, a tile below one element.
    """
    return CopyEngine(tile=_tile(tile), order=_order(order), push=push, streams=streams)


def fused(into: str) -> Fused:
    """Run right after the tile that it depends on, in the same worker, the tile handed over in registers."""
    return Fused(into)


def library(function: str, **tile: int) -> Library:
    """Let a library function (`"torch.mm"`) compute each tile."""
    return Library(function, _tile(tile))
