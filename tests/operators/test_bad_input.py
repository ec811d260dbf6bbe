# pyright: reportArgumentType=false
"""What is wrong with a schedule or with arguments is said, before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch

import tilelink
from tests.frontend.harness import message as said
from tests.selection import table
from tilelink import Operator, copy_engine, fused, library, sms
from tilelink.errors import TilelinkError
from tilelink.ir.topology import Topology
from tilelink.ops import ag_gemm, gemm_rs
from tilelink.ops.programs import matmul, reduce, scatter

X, W = torch.ones(4, 4), torch.ones(4, 4)


def on_each(*rows: int, **given: Any) -> Any:
    """A call whose ranks pass so many rows."""
    return tilelink.launch(lambda: ag_gemm(torch.ones(rows[tilelink.rank()], 4), W, **given), len(rows))


@table(
    "make, what",
    [
        (lambda: sms(M="16"), "the tile along `M` is '16'"),
        (lambda: sms(1.5), "`count` is 1.5"),
        (lambda: sms(num_warps=None), "`num_warps` is None"),
        (lambda: sms(num_stages=0), "`num_stages` is 0"),
        (lambda: sms(0), "`count` is 0"),
        (lambda: sms(order=f"ring+{'9' * 5000}"), f"`order` is 'ring+{'9' * 5000}'"),
        (lambda: sms(order=f"group {'9' * 30}"), f"`order` is 'group {'9' * 30}'"),
        (lambda: sms(M=2**40), "the tile along `M` is 1099511627776"),
        (lambda: sms(maxnreg=16), "`maxnreg` is 16"),
        (lambda: sms(order=3), "`order` is 3"),
        (lambda: sms(push="yes"), "`push` is 'yes'"),
        (lambda: copy_engine(streams="2"), "`streams` is '2'"),
        (lambda: copy_engine(streams=10**6), "`streams` is 1000000"),
        (lambda: fused(None), "`into` is None"),
        (lambda: library(3), "`function` is 3"),
        (lambda: ag_gemm.schedule(gather="sms"), "the placement of `gather` is 'sms'"),
        (lambda: ag_gemm.schedule(slots=0), "`slots` is 0"),
        (lambda: ag_gemm.schedule(slots=100_000), "`slots` is 100000"),
        (lambda: ag_gemm.schedule(channels={"rows": 0}), "the channel of `rows` is 0"),
        (lambda: ag_gemm.schedule(["gather"]), "`entries` is ['gather']"),
    ],
)
def test_schedules_of_the_wrong_kind(make: Callable[[], Any], what: str) -> None:
    assert said(make).startswith(f"TL329: {what}\n  why: it is ")


@table(
    "key", [lambda tile, rank, ranks: (None, 1)[tile[0] % 2], lambda tile, rank, ranks: [*tile]], ids=["None", "list"]
)
def test_keys_that_have_no_order(key: Any) -> None:
    placed = ag_gemm.schedule(matmul=sms(M=1, N=1, K=4, order=key))
    assert said(lambda: placed.plan(X, W)).startswith(
        "TL310: the keys of an order cannot be compared\n  why: tiles are sorted by what the function gives"
    )


def test_lists_of_differing_lengths() -> None:
    assert said(lambda: ag_gemm([X, X], [W])) == (
        "TL238: argument 2 is no list of 2 tensors, one per rank\n"
        "  why: the first argument is a list, and so the call is that of all ranks at once\n"
        "  do:  pass a list of the same length for every argument, or call on each rank (tilelink.launch)"
    )
    assert said(lambda: ag_gemm([], [])).startswith("TL238: argument 1 is no list of one or more tensors")


@table("look", [ag_gemm.wiring, ag_gemm.plan, ag_gemm.verify, ag_gemm.source])
@table(
    "lists, given, what",
    [
        (([X, X], [W]), {}, "argument 2 is no list of 2 tensors"),
        (([X], [W, W]), {}, "argument 2 is no list of 1 tensors"),
        (([X, X], W), {}, "argument 2 is no list of 2 tensors"),
        (([], []), {}, "argument 1 is no list of one or more tensors"),
        (([X, X], [W, W]), {"ranks": 4}, "argument 1 is no list of 4 tensors"),
        (([X, X], [W, W]), {"topology": Topology(3)}, "argument 1 is no list of 3 tensors"),
    ],
)
def test_lists_are_asked_the_same_of_what_only_looks(look: Any, lists: Any, given: Any, what: str) -> None:
    assert said(lambda: look(*lists, **given)).startswith(f"TL238: {what}, one per rank\n")


def test_every_ranks_tensors_are_looked_at() -> None:
    assert ag_gemm.plan([X, X], [W, W]).topology.ranks == 2
    assert said(lambda: ag_gemm.plan([X, 3], [W, W])).startswith("TL222: argument 1 of `ag_gemm` is an int")
    assert said(lambda: ag_gemm.plan([X, X[:3]], [W, W])).startswith(
        "TL452: ranks 0 and 1 disagree on a call: rank 0 calls ag_gemm(M=8, K=4, N=4, f32, f32), and rank 1 calls ag_gemm(M=6, "
    )
    assert dict(ag_gemm.plan([X, X[:3]], [W, W], M=7).sizes)["M"] == 7
    lists = lambda: ag_gemm.plan([X, X], [W, W])  # noqa: E731
    assert said(lambda: tilelink.launch(lists, 3)).startswith("TL238: argument 1 is no list of 3 tensors")


def test_lists_of_results() -> None:
    outs = [torch.zeros(8, 4), torch.zeros(8, 4)]
    assert ag_gemm([X, X], [W, W], out=outs)[1] is outs[1]
    assert [float(o.sum()) for o in outs] == [128.0, 128.0]
    assert said(lambda: ag_gemm([X, X], [W, W], out=outs[:1])).startswith("TL238: argument 3 is no list of 2 tensors")


@table("ranks", [0, -1, "2", 2.0, True])
def test_a_number_of_ranks_that_is_none(ranks: Any) -> None:
    for call in (lambda: ag_gemm.plan(X, W, ranks=ranks), lambda: tilelink.launch(lambda: None, ranks)):
        assert said(call).startswith(f"TL239: {ranks!r} is no number of ranks")


def test_a_sparse_argument() -> None:
    assert said(lambda: ag_gemm(X.to_sparse(), W)).startswith("TL222: argument 1 of `ag_gemm` is a sparse tensor")


def test_an_argument_that_torch_negates_where_it_reads_it() -> None:
    x = torch.ones(8, 4, dtype=torch.complex64).conj().imag
    text = said(lambda: ag_gemm(x, W))
    assert text.startswith("TL247: argument 1 of `ag_gemm` is a view that torch negates where it reads it\n")
    assert (
        "  why: programs read memory, which holds the values before: such as the imaginary part of a conjugate\n"
        in text
    )
    assert text.endswith("  do:  pass `.resolve_neg()` of it")


def test_arguments_that_only_look_like_those_of_a_call_before() -> None:
    """Of one shape, with the same strides, on one device: one that torch negates, and one without memory of its own."""
    values = torch.ones(8, 4, dtype=torch.complex64)

    def main() -> list[str]:
        x, weight = values.imag, torch.ones(4, 4)
        hollow = torch.Tensor._make_wrapper_subclass(Hollow, x.shape, x.stride())  # pyright: ignore[reportAttributeAccessIssue]
        gemm_rs(x, weight)
        return [said(lambda t=t: gemm_rs(t, weight)) for t in (values.conj().imag, hollow)]

    negated, hollow = tilelink.launch(main, 1)[0]
    assert negated.startswith("TL247: argument 1 of `gemm_rs` is a view that torch negates where it reads it\n")
    assert hollow.startswith("TL222: argument 1 of `gemm_rs` is a Hollow without memory of its own\n")


class Hollow(torch.Tensor):
    """As a DTensor, or what a functional collective gives: around a tensor, with no memory itself."""

    @classmethod
    def __torch_dispatch__(cls, *_: Any) -> Any:
        raise AssertionError("nobody asks it for anything")


def test_an_argument_without_data() -> None:
    assert said(lambda: ag_gemm(X.to("meta"), W)).startswith("TL225: argument 1 of `ag_gemm` is on meta")


@table("size", [-1, 2**31, 1.5, "4", float("nan"), None])
def test_a_size_that_is_none(size: Any) -> None:
    assert said(lambda: on_each(4, 4, M=size)).startswith(f"TL205: `M={size!r}` is no size")


def test_a_part_that_is_another_ranks() -> None:
    """Five rows are three and two: a rank may hold three, but not the second one."""
    assert on_each(3, 2, M=5)[0].shape == (5, 4)
    for rows in ((3, 3), (2, 3)):
        assert said(lambda rows=rows: on_each(*rows, M=5)).startswith("TL204: `M` is 5 and")


def test_ranks_that_each_believe_another_size() -> None:
    """The memory that the two need is the same."""
    text = said(lambda: tilelink.launch(lambda: ag_gemm(torch.ones(tilelink.rank(), 4), W), 2))
    assert text.startswith("TL452: ranks 0 and 1 disagree on a call: rank 0 calls ag_gemm(M=0, ")
    assert ", and rank 1 calls ag_gemm(M=2, " in text


def test_an_operator_that_gives_back_what_it_got() -> None:
    def same(x: Any) -> Any:
        return x

    made: Operator = tilelink.operator("M K -> M K")(same)
    assert said(lambda: made(X)).startswith("TL308: the result `x` of `same` is made by no program")


def test_an_operator_that_gives_back_memory_that_nobody_fills() -> None:
    made: Operator = tilelink.operator("M K -> M K", name="made")(lambda x: tilelink.symmetric("M K", like=x))
    assert said(lambda: made(X)).startswith("TL308: the result `symmetric_0` of `made` is made by no program")


@pytest.mark.parametrize(
    "placed", [{}, {"matmul": sms(M=4)}, {"reduce": sms(M=4)}], ids=["shipped", "matmul", "reduce"]
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_sizes_of_nothing(placed: Any, ranks: int) -> None:
    made: Operator = tilelink.operator("M K/R, K/R N -> M/R N", name="made", schedule=placed)(
        lambda x, weight: reduce(scatter(matmul(x, weight)))
    )
    for m, k, n in product([0, 4], repeat=3):
        x, weight = torch.ones(m, k), torch.ones(k, n)
        found = tilelink.launch(lambda x=x, weight=weight: made(x, weight), ranks)
        assert all(torch.equal(y, torch.full((m // ranks, n), float(k * ranks))) for y in found)


def test_what_a_movement_makes_need_not_be_used() -> None:
    """On one rank nothing that peers reach holds it either."""

    def aside(x: Any, weight: Any) -> Any:
        scatter(matmul(x, weight))
        return matmul(x, weight, name="used")

    made: Operator = tilelink.operator("M K, K N -> M N")(aside)
    assert torch.equal(tilelink.launch(lambda: made(X, W), 1)[0], X @ W)


@tilelink.operator("M/R K, K N -> M N")
def picky(x: Any, weight: Any, *, causal: bool) -> Any:
    return ag_gemm(x, weight)


@tilelink.operator("M/R K, K N -> M N")
def around(x: Any, weight: Any) -> Any:
    return ag_gemm(x, weight, Q=3)


@tilelink.operator("T*K N, N N -> T*K N")
def halved(x: Any, weight: Any) -> Any:
    return matmul(x, weight)


@table(
    "call, what, hint",
    [
        (lambda: ag_gemm([X], [W], Q=3), "`ag_gemm` has no `Q=`", "it takes `M=`, `K=`, `N=`"),
        (lambda: ag_gemm(X, W, Q=3), "`ag_gemm` has no `Q=`", "it takes `M=`, `K=`, `N=`"),
        (lambda: ag_gemm.plan(X, W, ranks=2, Q=3), "`ag_gemm` has no `Q=`", "it takes `M=`, `K=`, `N=`"),
        (lambda: ag_gemm.verify(X, W, ranks=2, Q=3), "`ag_gemm` has no `Q=`", "it takes `M=`, `K=`, `N=`"),
        (lambda: picky([X], [W], casual=True), "`picky` has no `casual=`", "did you mean `causal=`?"),
        (lambda: picky([X], [W]), "`picky` needs `causal=`", "pass `causal=`, or give it a default where `picky` is"),
    ],
)
def test_an_operators_keywords(call: Callable[[], Any], what: str, hint: str) -> None:
    """On the call, whoever makes it."""
    with pytest.raises(TilelinkError) as caught:
        call()
    error = caught.value
    assert (error.code, error.message) == ("TL209", what)
    assert (error.hint or "").startswith(hint)
    assert error.loc is not None
    assert (error.loc.file, error.loc.line) == (__file__, call.__code__.co_firstlineno)


def test_keywords_of_a_call_on_every_rank() -> None:
    assert "TL209: `ag_gemm` has no `Q=`" in said(lambda: on_each(2, 2, Q=3))


def test_keywords_of_an_operator_inside_another() -> None:
    with pytest.raises(TilelinkError) as caught:
        around([X], [W])
    assert caught.value.message == "`ag_gemm` has no `Q=`"
    assert caught.value.loc is not None
    assert caught.value.loc.line == around.fn.__code__.co_firstlineno + 2


def test_factors_of_a_size_are_passed_by_name() -> None:
    """`T*K` binds neither; one that is missing is named."""
    x, weight = torch.randn(6, 4), torch.randn(4, 4)
    torch.testing.assert_close(halved([x], [weight], T=2, K=3)[0], x @ weight)
    assert "TL205: the size `K` of `halved` is not known" in said(lambda: halved([x], [weight], T=2))
