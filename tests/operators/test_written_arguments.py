"""Programs that write to an argument: nothing waits for it, so whoever else reads it comes in an earlier or later kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tests.operators.problems import FEW, refusal, told
from tests.selection import table
from tilelink import Operator, TilelinkError, sms
from tilelink.runtime.session import require

RANKS = 2
OWN, BESIDE = sms(M=4, N=4), sms(1, M=4, N=4)


@tilelink.program("M N -> M N")
def double(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.tile_store(out, (m, n), 2 * tl.tile_load(x, (m, n)))
    tl.producer_tile_notify(out, (m, n))


@tilelink.program("M N -> M N")
def add_one(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)) + 1)


@tilelink.program("e N -> e N")
def add_the_one_behind(x: Any, out: Any) -> None:
    e, n = tl.tile_id(out)
    tl.tile_store(out, (e, n), tl.tile_load(x, (e, n)) + tl.tile_load(x, ((e + 1) % tl.size(x, 0), n)))


@tilelink.operator("M N -> M N")
def written_first(x: Any) -> Any:
    add_one(x, x)
    return double(x)


@tilelink.operator("M N -> M N")
def written_last(x: Any) -> Any:
    out = double(x)
    add_one(x, x)
    return out


@tilelink.operator("M N -> M N")
def of_neighbours(x: Any) -> Any:
    add_the_one_behind(x, x)
    return double(x, name="double")


@tilelink.program("M/R N -> M N")
def spread(x: Any, out: Any) -> None:
    m, n = tl.tile_id(x)
    tl.tile_push_data(out, (m, n), 2 * tl.tile_load(x, (m, n)))


@tilelink.operator("M/R N, M N -> M N")
def pushed_to_peers(mine: Any, x: Any) -> Any:
    spread(mine, x)
    return double(x)


SHELF: dict[str, tuple[Operator, int]] = {
    "first": (written_first.schedule(add_one=OWN, double=OWN), 1),
    "last": (written_last.schedule(add_one=OWN, double=OWN), 0),
}


@pytest.mark.parametrize("name", SHELF)
def test_kernels_of_one_stream_follow_one_another(name: str) -> None:
    """And each tile reads what it writes itself, call after call."""
    operator, earlier = SHELF[name]
    assert operator.verify(torch.empty(13, 8), ranks=RANKS).ok

    def main() -> list[torch.Tensor]:
        x = torch.arange(13 * 8.0).view(13, 8)
        return [*(operator(x) for _ in range(3)), x]

    start = torch.arange(13 * 8.0).view(13, 8)
    for *made, x in tilelink.launch(main, RANKS, races=True, device=FEW):
        assert torch.equal(x, start + 3)
        assert all(torch.equal(y, 2 * (start + k + earlier)) for k, y in enumerate(made))


BESIDE_EACH_OTHER = "`add_one` writes to the argument `x`, and `double` reads it"
REFUSED: dict[str, tuple[Operator, str]] = {
    "turns, first": (written_first.schedule(add_one=BESIDE, double=BESIDE), BESIDE_EACH_OTHER),
    "turns, last": (written_last.schedule(add_one=BESIDE, double=BESIDE), BESIDE_EACH_OTHER),
    "two streams": (written_last.schedule(add_one=sms(1, M=4, N=4, own_kernel=True), double=OWN), BESIDE_EACH_OTHER),
    "neighbours": (of_neighbours, "`add_the_one_behind` writes to the argument `x`, and reads it at other tiles"),
}


def test_a_kernel_of_this_rank_does_not_end_what_others_push() -> None:
    """Those of one stream follow one another on each rank, and on no two."""
    placed = pushed_to_peers.schedule(spread=OWN, double=OWN)
    error = placed.verify(torch.empty(2, 8), torch.empty(4, 8), ranks=RANKS).error
    assert told(error)[:2] == ("TL609", "`spread` writes to the argument `x`, and `double` reads it")


@table("name", REFUSED)
def test_what_nothing_orders_is_refused(name: str) -> None:
    operator, message = REFUSED[name]
    assert told(operator.verify(torch.empty(13, 8), ranks=RANKS).error) == (
        "TL609",
        message,
        "an argument counts as there when a call begins, so no wait of it is one for what programs write to it",
        f"let `{message.split('`')[1]}` make a tensor of its own, and read that",
    )


# --------------------------------------------------------------------------------------------------- one memory, two names
@tilelink.operator("M N, M N -> M N")
def of_two(x: Any, y: Any) -> Any:
    add_one(x, x)
    return double(y)


BASE = torch.arange(13 * 16.0).view(13, 16)
TOGETHER: dict[str, tuple[torch.Tensor, torch.Tensor]] = {
    "the same": (BASE[:, :8], BASE[:, :8]),
    "other columns": (BASE[:, :8], BASE[:, 4:12]),
    "behind": (BASE[:, :8], BASE[:, 7:15]),
}
APART = {"halves of rows": (BASE[:, :8], BASE[:, 8:]), "every other": (BASE[:, ::2], BASE[:, 1::2])}


def views(name: str) -> list[torch.Tensor]:
    """Of a copy of the base."""
    whole = BASE.clone()
    return [whole.as_strided(t.shape, t.stride(), t.storage_offset()) for t in (TOGETHER | APART)[name]]


@table("name", TOGETHER)
def test_an_argument_that_is_written_to_and_shares_memory_is_refused(name: str) -> None:
    """At the first call, of all ranks, and at later ones, which the same plan serves."""
    apart, together = [views(name)[0], views(name)[1]], views(name)
    for calls in ([together], [apart, apart, together]):
        assert refusal(lambda calls=calls: tilelink.launch(lambda: [of_two(*c) for c in calls], 1, device=FEW)) == (
            "TL240",
            "argument 1 of `of_two` shares memory with argument 2",
            "programs write to `x` during the call, and nothing says when it is read under another name",
            "pass a copy of one of them",
        )


def flat(begin: int, base: torch.Tensor) -> torch.Tensor:
    return base[begin : begin + 16].view(4, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_one_element_is_enough_and_none_is_nothing(dtype: torch.dtype) -> None:
    """However small: the last element of one is the first of the other, or lies right before it."""
    base = torch.zeros(40, dtype=dtype)
    for one, other in ((0, 15), (15, 0)):
        with pytest.raises(TilelinkError, match="TL240: argument 1 of `of_two` shares memory with argument 2"):
            of_two([flat(one, base)], [flat(other, base)])
        x, out = flat(one, base), flat(other, base)
        with pytest.raises(TilelinkError, match="TL244: `out` 1 of `read_only` shares memory with argument 1"):
            read_only([x], [x], out=[out])
    for one, other in ((0, 16), (16, 0)):
        base.zero_()
        x, y = flat(one, base), flat(other, base)
        (got,) = of_two([x], [y])
        assert (int(x.sum()), int(y.sum()), int(got.sum())) == (16, 0, 0)
        read_only([x], [x], out=[(None, y)])
        assert int(y.sum()) == 32


# -------------------------------------------------------------------------------------------------------- where results go
@tilelink.operator("M N, M N -> M N, M N")
def read_only(x: Any, y: Any) -> Any:
    return double(x), double(y, name="again")


OUTS: dict[str, tuple[Any, str]] = {
    "an argument": (lambda x, base: x, "`out` 1 of `read_only` shares memory with argument 1"),
    "the second, and an argument": (lambda x, base: (None, x), "`out` 2 of `read_only` shares memory with argument 1"),
    "twice the same": (
        lambda x, base: (flat(0, base), flat(0, base)),
        "`out` 1 of `read_only` shares memory with `out` 2",
    ),
    "parts of one": (
        lambda x, base: (flat(0, base), flat(4, base)),
        "`out` 1 of `read_only` shares memory with `out` 2",
    ),
}


@pytest.mark.parametrize("name", OUTS)
@pytest.mark.parametrize("operator", ["tiles", "plain"])
def test_results_go_to_memory_of_their_own(name: str, operator: str) -> None:
    """At the first call, and at later ones, which the same plan serves; in the unfused form too."""
    make, message = OUTS[name]
    op = read_only if operator == "tiles" else plainly.schedule(unfused=True)

    def main() -> None:
        backend: Any = require().backend
        backend.group = "the ranks"
        for first in (True, False):
            x, base = torch.ones(4, 4), torch.zeros(40)
            if not first:
                op(x, x, out=tuple(torch.empty(4, 4) for _ in range(2)))
                op(x, x, out=torch.empty(4, 4))
            assert refusal(lambda x=x, base=base: op(x, x, out=make(x, base))) == (
                "TL244",
                message.replace("read_only", op.name),
                "results are written during the call, and nothing says what of the other tensor is used before or after",
                "pass memory of its own, or none",
            )
            assert torch.equal(x, torch.ones(4, 4))

    tilelink.launch(main, 1, device=FEW)


@tilelink.operator("M N, M N -> M N, M N")
def plainly(x: Any, y: Any) -> Any:
    return double(x), double(y, name="again")


@plainly.reference
def twice_each(x: Any, y: Any, *, group: Any = None) -> Any:
    return 2 * x, 2 * y


def test_the_plain_form_writes_to_as_many_results_as_are_given() -> None:
    def main() -> None:
        backend: Any = require().backend
        backend.group = "the ranks"
        x, out = torch.ones(4, 4), torch.empty(4, 4)
        for given in ((None, out), out):
            got = plainly.schedule(unfused=True)(x, x, out=given)
            assert got[given is not out] is out
            assert all(torch.equal(y, 2 * x) for y in got)

    tilelink.launch(main, 1, device=FEW)


def test_gradients_are_not_written_over() -> None:
    """As by torch's own functions with `out=`: refused while autograd looks, and else noticed by it."""

    def main() -> None:
        x, leaf = torch.ones(4, 4), torch.zeros(4, 4, requires_grad=True)
        for call, what in (
            (lambda: read_only(x, x, out=leaf), "`out` 1 of `read_only`"),
            (lambda: read_only(x, x, out=(None, leaf * 1)), "`out` 2 of `read_only`"),
            (lambda: of_two(leaf, x), "argument 1 of `of_two`"),
        ):
            for first in (True, False):
                if not first:
                    with torch.no_grad():
                        call()
                assert refusal(call) == (
                    "TL245",
                    f"{what} is written to and requires a gradient",
                    "autograd does not see what an operator does, so gradients would be those of the values before",
                    "call it under torch.no_grad(), or take a layer of tilelink.nn, which has gradients",
                )
        for write in (lambda out: read_only(x, x, out=out), lambda out: of_two(out, x)):
            saved, factor = torch.ones(4, 4), torch.ones(4, 4, requires_grad=True)
            product = (saved * factor).sum()
            write(saved)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                product.backward()

    tilelink.launch(main, 1, device=FEW)


@table("x", [torch.zeros(1, 8).expand(13, 8), torch.zeros(20).unfold(0, 8, 1)], ids=["expanded", "windows"])
def test_what_is_written_to_has_a_place_for_each_element(x: torch.Tensor) -> None:
    assert refusal(lambda: of_two([x], [torch.zeros(x.shape)])) == (
        "TL246",
        "argument 1 of `of_two` is written to, and some of its elements share memory",
        "an expanded or windowed tensor has fewer places than elements, and tiles write theirs in any order",
        "pass a copy of it (`.contiguous()`)",
    )


def test_nor_with_what_results_go_to() -> None:
    x, y = torch.zeros(13, 8), torch.zeros(13, 8)
    with pytest.raises(TilelinkError, match="TL240: argument 1 of `of_two` shares memory with `out` 1"):
        of_two([x], [y], out=[x])


@table("name", APART)
def test_views_of_one_tensor_that_share_nothing_are_taken(name: str) -> None:
    x, y = views(name)
    (got,) = of_two([x], [y])
    assert torch.equal(got, 2 * APART[name][1])
    assert torch.equal(x, APART[name][0] + 1)


def test_arguments_that_are_only_read_may_be_one_tensor() -> None:
    x = torch.ones(4, 4)
    ((got, again),) = read_only([x], [x])
    assert torch.equal(got, 2 * x)
    assert torch.equal(again, 2 * x)
