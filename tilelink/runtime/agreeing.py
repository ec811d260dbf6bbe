"""What all ranks must ask alike, or they do not make the same call."""

from __future__ import annotations

from collections.abc import Sequence

from tilelink.errors import TilelinkError


def compare_calls(said: list[str]) -> None:
    """Every rank makes the same call with the same sizes.

    Args:
        said: each rank's call in words, by rank.

    Raises:
        TilelinkError: TL452, on every rank.
    """
    for rank, call in enumerate(said):
        if call != said[0]:
            raise _disagreement(rank, f"a call: rank 0 calls {said[0]}, and rank {rank} calls {call}")


def compare_memory(asked: list[tuple[tuple[str, int], ...]]) -> None:
    """Every rank needs the same symmetric memory.

    Args:
        asked: names and bytes of each rank's pieces, by rank.

    Raises:
        TilelinkError: TL452, on every rank.
    """
    for rank, wanted in enumerate(asked):
        differing = sorted(set(wanted) ^ set(asked[0]))
        if differing:
            name = differing[0][0]
            here, there = (dict(w).get(name) for w in (asked[0], wanted))
            raise _disagreement(rank, f"the sizes of a call: `{name}` has {here} and {there} bytes")


def one_size(nbytes: int, asked: Sequence[int]) -> None:
    """Every rank asks for as many bytes of symmetric memory, and for some.

    Args:
        nbytes: that this rank asks for.
        asked: that each rank asks for.

    Raises:
        TilelinkError: TL436, on every rank.
    """
    if nbytes <= 0 or set(asked) != {nbytes}:
        raise TilelinkError(
            "TL436",
            f"the ranks ask for symmetric memory of {', '.join(map(str, asked))} bytes",
            why="symmetric memory has one size, above 0, on every rank",
            hint="make the ranks run the same operators in the same order",
        )


def _disagreement(rank: int, what: str) -> TilelinkError:
    return TilelinkError(
        "TL452",
        f"ranks 0 and {rank} disagree on {what}",
        why="an operator's call is collective: every rank passes parts of the same global tensors",
        hint="pass equal shapes, or the global size by name where shards are uneven (`M=…`, of a layer `length=…`)",
    )
