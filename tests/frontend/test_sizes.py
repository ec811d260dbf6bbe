"""Global sizes from the shapes that one rank sees."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.frontend.harness import message
from tests.selection import table
from tilelink.errors import Loc
from tilelink.frontend import bind_sizes, parse_signature


def sizes(signature: str, *shapes: tuple[int, ...], ranks: int = 4, **given: int) -> dict[str, int]:
    return bind_sizes(parse_signature(signature), shapes, {"R": ranks}, given)


@table(
    "signature, shapes, found",
    [
        ("M K, K N", [(3, 5), (5, 7)], {"M": 3, "K": 5, "N": 7}),
        ("M/R K", [(3, 5)], {"M": 12, "K": 5}),
        ("M/R K, M", [(3, 5), (12,)], {"M": 12, "K": 5}),
        ("R M", [(4, 5)], {"M": 5}),
        ("R/R M", [(1, 5)], {"M": 5}),
        ("R/R M", [(5,)], {"M": 5}),
        ("R/R ...", [(1, 5)], {"_0": 5}),
        ("R/R ...", [(5, 6)], {"_0": 5, "_1": 6}),
        ("... M R/R", [(5, 3, 1)], {"_0": 5, "M": 3}),
        ("... M R/R", [(5, 3)], {"_0": 5, "M": 3}),
        ("M/R ...", [(5, 6, 7)], {"M": 20, "_0": 6, "_1": 7}),
        ("... M", [(5, 6, 7)], {"_0": 5, "_1": 6, "M": 7}),
        ("e+1, e K", [(5,), (4, 2)], {"e": 4, "K": 2}),
        ("e+1", [(5,)], {"e": 4}),
        ("K 2*I, 3*F+1/R", [(8, 14), (4,)], {"K": 8, "I": 7, "F": 5}),
        ("T K, T*K", [(3, 2), (6,)], {"T": 3, "K": 2}),
        ("T*K, T K", [(6,), (3, 2)], {"T": 3, "K": 2}),
        ("T/R K, T*K/R", [(3, 2), (6,)], {"T": 12, "K": 2}),
        ("2*M, M", [(6,), (3,)], {"M": 3}),
        ("3 M", [(3, 5)], {"M": 5}),
        ("P/start K, e+1", [(9, 2), (4,)], {"P": 9, "K": 2, "e": 3}),
        ("M/R K", [(0, 5)], {"M": 0, "K": 5}),
        ("e/R R C H, e/R R", [(2, 4, 8, 3), (2, 4)], {"e": 8, "C": 8, "H": 3}),
    ],
)
def test_found(signature: str, shapes: list[tuple[int, ...]], found: dict[str, int]) -> None:
    assert sizes(signature, *shapes) == found


@table("local", [3, 1])
def test_uneven_shards_are_said(local: int) -> None:
    assert sizes("M/R K", (local, 5), M=10) == {"M": 10, "K": 5}


def test_a_size_that_only_a_result_has() -> None:
    assert sizes("M -> M C", (3,), C=4) == {"C": 4, "M": 3}


@given(st.integers(1, 9), st.integers(0, 40))
def test_every_part_of_an_even_split_is_accepted(ranks: int, total: int) -> None:
    part = -(-total // ranks)
    for rank in range(ranks):
        local = max(0, min(total, (rank + 1) * part) - rank * part)
        assert sizes("M/R", (local,), ranks=ranks, M=total) == {"M": total}


# --------------------------------------------------------------------------------------------------------- diagnostics
def said(signature: str, shapes: list[tuple[int, ...]], given: dict[str, int]) -> list[str]:
    parsed = parse_signature(signature)
    return message(lambda: bind_sizes(parsed, shapes, {"R": 4}, given)).splitlines()


@table(
    "signature, shapes, given, what, why",
    [
        ("M K, K N", [(3, 5), (6, 7)], {}, "`K` is 5 and 6", "it is 5 by tensor 1, `M K`, and 6 by tensor 2, `K N`"),
        (
            "M/R K, M/R", [(3, 5), (4,)], {}, "`M` is 12 and 16",
            "it is 12 by tensor 1, `M/R K`, 3 on each of 4 ranks, and 16 by tensor 2, `M/R`, 4 on each of 4 ranks",
        ),
        (
            "M/R K", [(4, 5)], {"M": 10}, "`M` is 10 and 16",
            "it is 10 by `M=10`, and 16 by tensor 1, `M/R K`, 4 on each of 4 ranks",
        ),
        ("M K", [(4, 5)], {"K": 6}, "`K` is 6 and 5", "it is 6 by `K=6`, and 5 by tensor 1, `M K`"),
        ("e+1, e", [(4,), (4,)], {}, "`e+1` is 5 and 4", "it is 5 by the other sizes, and 4 by tensor 1, `e+1`"),
        ("T K, T*K", [(4, 2), (9,)], {}, "`T*K` is 8 and 9", "it is 8 by the other sizes, and 9 by tensor 2, `T*K`"),
        ("3 M", [(4, 2)], {}, "`3` is 3 and 4", "it is 3 by the other sizes, and 4 by tensor 1, `3 M`"),
        ("R M", [(3, 2)], {}, "`R` is 4 and 3", "it is 4 by the number of ranks, and 3 by tensor 1, `R M`"),
        ("R/R M", [(3, 2)], {}, "`R/R` is 1 and 3", "it is 1 by the signature, and 3 by tensor 1, `R/R M`"),
        ("M ..., N ...", [(3, 2), (4, 5)], {}, "`_0` is 2 and 5", "it is 2 by tensor 1, `M ...`, and 5 by tensor 2, `N ...`"),
    ],
)  # fmt: skip
def test_sizes_that_contradict(
    signature: str, shapes: list[tuple[int, ...]], given: dict[str, int], what: str, why: str
) -> None:
    assert said(signature, shapes, given) == [f"TL204: {what}", f"  why: {why}", "  do:  pass tensors that agree"]


@table(
    "signature, shapes, given, text, why, hint",
    [
        (
            "M K", [(3,)], {},
            "TL203: tensor 1, `M K` has 1 axis", "its shape here is (3,); the signature says `M K`", "pass a tensor of 2 axes",
        ),
        (
            "M ...", [()], {},
            "TL203: tensor 1, `M ...` has 0 axes", "its shape here is (); the signature says `M ...`",
            "pass a tensor of at least 1 axis",
        ),
        ("M, K", [(3,)], {}, "TL202: 1 tensor for 2 inputs", "the signature is `M, K`", "pass one for each input"),
        ("rows K", [(3, 4)], {"row": 3}, "TL205: there is no size `row`", "the signature is `rows K`", "did you mean `rows=`?"),
        ("rows K", [(3, 4)], {"M": 3}, "TL205: there is no size `M`", "the signature is `rows K`", "its sizes are rows, K"),
    ],
)  # fmt: skip
def test_diagnosed(
    signature: str, shapes: list[tuple[int, ...]], given: dict[str, int], text: str, why: str, hint: str
) -> None:
    assert said(signature, shapes, given) == [text, f"  why: {why}", f"  do:  {hint}"]


def test_the_line_of_the_call() -> None:
    parsed = parse_signature("M, M")
    text = message(lambda: bind_sizes(parsed, [(3,), (4,)], {"R": 4}, loc=Loc("a.py", 7, 0, 3, "ag(x)")))
    assert text.splitlines()[1:4] == ["  --> a.py:7", "    |", "  7 | ag(x)"]
