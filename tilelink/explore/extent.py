"""How much there is to simulate, said before it takes its time, and a shape that has less."""

from __future__ import annotations

from dataclasses import replace

from tilelink.errors import TilelinkError
from tilelink.explore.cases import SHAPE_OPTION, Case, names_of
from tilelink.explore.report_tables import tiles_of
from tilelink.frontend import sizes_of

LARGE = 2000
"""Tiles of all ranks and calls; about a hundred are simulated in a second."""

SMALL = 64
"""What a size is not halved below."""


def extent(case: Case, calls: int, said: str = "") -> str:
    """How many tiles there are; if `calls` have many, a shape that fits the operator and has fewer.

    Args:
        case: what is simulated.
        calls: about how many calls there will be.
        said: which those are.

    Raises:
        TilelinkError: the case cannot be planned, or its plan is refused.
    """
    tiles, ranks = tiles_of(case.compiled(case.topology).plan), case.topology.ranks
    much = f"{tiles:,} tiles on {ranks} rank{'' if ranks == 1 else 's'}{said}"
    other = _smaller(case, tiles, calls) if tiles * calls > LARGE else None
    return much if other is None else f"{much}; quicker with {SHAPE_OPTION} {_text(other)}"


def _smaller(case: Case, tiles: int, calls: int) -> Case | None:
    """With sizes halved until there are few tiles, or as few as can be had; None: there are never fewer."""
    found, fewest, dims = None, tiles, sizes_of(case.operator.signature)
    while (other := _halved(case, dims)).sizes != case.sizes:
        case = other
        try:
            count = tiles_of(case.compiled(case.topology).plan)
        except TilelinkError:  # sizes that do not go together any more
            continue
        if count < fewest:
            found, fewest = case, count
        if count * calls <= LARGE:
            break
    return found


def _halved(case: Case, dims: tuple[str, ...]) -> Case:
    """What is walked one element at a time stays: heads have to fit groups, and experts choices."""
    sizes = ((n, max(min(v, SMALL), -(-v // 2)) if n in dims and n[0].isupper() else v) for n, v in case.sizes)
    return replace(case, sizes=tuple(sizes))


def _text(case: Case) -> str:
    """What `--shape` reads; of MxNxK only what the operator has."""
    wanted = names_of(case.operator)
    return ",".join(f"{n}={v}" for n, v in case.sizes if n in wanted or n not in "MNK")
