"""What all ranks have to pass alike is compared at the first call of a kind: never are there wrong numbers, nor nothing said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tests.operators.problems import FEW, random, told
from tilelink import TilelinkError, copy_engine, sms
from tilelink.ops import ag_attention, ag_gemm
from tilelink.runtime import watchdog
from tilelink.runtime.session import require

RANKS = 3
X, W = random(12, 8), random(8, 4)
PULLED = ag_gemm.schedule(gather=sms(2, M=4), matmul=sms(2, M=4, N=4, K=8))
COPIED = ag_gemm.schedule(gather=copy_engine(push=False), matmul=sms(2, M=4, N=4, K=8))


def mine() -> torch.Tensor:
    rank = tilelink.rank()
    return X[4 * rank : 4 * rank + 4]


def shared(*shape: int) -> torch.Tensor:
    return tilelink.empty(*shape, dtype=torch.float32)


def assert_product(x: torch.Tensor, operator: Any = PULLED) -> None:
    x.copy_(mine())
    torch.testing.assert_close(operator(x, W), X @ W)


def refused(main: Callable[[], Any], ranks: int = RANKS, **options: Any) -> TilelinkError:
    """What every rank raises."""

    def caught() -> TilelinkError:
        with pytest.raises(TilelinkError) as found:
            main()
        return found.value

    found = tilelink.launch(caught, ranks, device=FEW, **options)
    assert {str(error) for error in found} == {str(found[0])}
    return found[0]


# ------------------------------------------------------------------------------------------ arguments in symmetric memory
def other_rows() -> torch.Tensor:
    return shared(12, 8)[4 * tilelink.rank() :][:4]


def other_allocation() -> torch.Tensor:
    return [shared(4, 8), shared(4, 8)][tilelink.rank() == 1]


def ordinary_on_one() -> torch.Tensor:
    x = shared(4, 8)
    return torch.empty(4, 8) if tilelink.rank() == 1 else x


def strided_on_one() -> torch.Tensor:
    x = shared(4, 16)
    return x[:, :8] if tilelink.rank() == 1 else x.view(8, 8)[:4]


def after_another_part() -> torch.Tensor:
    """The second of two arguments is wrong."""
    return shared(12, 8)[4 + 4 * (tilelink.rank() == 1) :][:4]


AT = "at byte {} of allocation {} of `empty`"
ELSEWHERE = {
    other_rows: (AT.format(0, 1), AT.format(128, 1)),
    other_allocation: (AT.format(0, 1), AT.format(0, 2)),
    ordinary_on_one: (AT.format(0, 1), "in no memory that peers read"),
    strided_on_one: (AT.format(0, 1), "in no memory that peers read"),
    after_another_part: (AT.format(128, 1), AT.format(256, 1)),
}


@pytest.mark.parametrize("operator", [PULLED, COPIED], ids=["SMs", "copy engine"])
@pytest.mark.parametrize("made", ELSEWHERE, ids=lambda made: made.__name__)
def test_peers_read_an_argument_at_one_place(made: Callable[[], torch.Tensor], operator: Any) -> None:
    here, there = ELSEWHERE[made]
    error = refused(lambda: operator(made(), W))
    assert told(error) == (
        "TL459",
        f"argument `x` of `ag_gemm` lies {here} on rank 0 and {there} on rank 1",
        "peers read it where it lies, at the place that it has on their own rank",
        "pass the same contiguous part of the same allocation on every rank, or ordinary tensors, which are copied",
    )
    assert error.loc == ag_gemm.loc


def test_other_places_on_all_ranks_are_agreed_on_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers that take turns: right numbers, and no meeting once each has been seen. Two are for the memory."""
    backend = pytest.importorskip("tilelink.runtime.simulated.backend").SimulatedBackend
    agree, met = backend.agree, list[object]()
    monkeypatch.setattr(backend, "agree", lambda self, value: (met.append(value), agree(self, value))[1])

    def main() -> None:
        whole, other = shared(12, 8), shared(4, 8)
        places = [whole[:4], whole[4:8], other, whole[8:]]
        for x in (*places, *places):
            assert_product(x)
            met_so_far = len(met)
        for x in places:
            assert_product(x)
        assert len(met) == met_so_far

    tilelink.launch(main, RANKS, device=FEW)
    assert 0 < len(met) <= RANKS * (2 + 6)


@pytest.mark.parametrize("debug", [True, False])
def test_another_place_on_one_rank_later(debug: bool) -> None:
    """Debug mode says it of every call. Else the rank with a place that is new to it waits for the others."""

    def main() -> None:
        whole = shared(12, 8)
        assert_product(whole[:4])
        PULLED(whole[4 * tilelink.rank() :][:4], W)

    if debug:
        assert refused(main, debug=True).code == "TL459"
        return
    with pytest.raises(TilelinkError, match=r"(?s)TL501: .*agree: ranks \[0\] have not come"):
        tilelink.launch(main, RANKS, device=FEW)


def test_an_argument_that_no_peer_reads_may_lie_anywhere() -> None:
    def main() -> None:
        weight = shared(RANKS, 8, 4)[tilelink.rank()]
        weight.copy_(W)
        torch.testing.assert_close(PULLED(mine(), weight), X @ W)

    tilelink.launch(main, RANKS, device=FEW)


def test_memory_of_peers_and_memory_of_ones_own_are_two_kinds_of_calls() -> None:
    """In either order, at addresses that are alike else."""

    def main() -> None:
        for made in (shared, torch.empty, shared):
            x = made(4, 8)
            assert require().shares(x) == (made is shared)
            assert_product(x)

    tilelink.launch(main, RANKS, device=FEW)


def test_what_one_rank_alone_has_makes_no_meeting() -> None:
    """Alignment and strides of an argument that only its rank reads, call by call."""

    def main() -> None:
        for at in (0, 1, 0):
            turned = tilelink.rank() == 1 and at == 1
            weight = torch.zeros(33)[at * turned :][:32].view(8, 4).copy_(W)
            torch.testing.assert_close(PULLED(mine(), weight.T.contiguous().T if turned else weight), X @ W)

    tilelink.launch(main, RANKS, device=FEW)


def test_what_is_reserved_is_taken_by_all_ranks_together() -> None:
    """In the next call, although it is of a new kind on one of them only."""

    def main() -> None:
        for turned in (False, tilelink.rank() == 1):
            torch.testing.assert_close(PULLED(mine(), W.T.contiguous().T if turned else W), X @ W)
            PULLED.reserve(M=64)
        PULLED.close()

    tilelink.launch(main, RANKS, device=FEW)


def test_ranks_forget_together_what_they_have_agreed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although one of them has kept less, or more, of what is its own."""
    monkeypatch.setattr(watchdog, "AGREED_KEPT", 2)

    def main() -> None:
        turned = W.T.contiguous().T
        for rows in (4, 3, 2, 4, 4, 1, 4):
            for weight in (W, turned) if tilelink.rank() == 1 and rows != 4 else (W, W):
                x = X[:rows].clone()
                torch.testing.assert_close(PULLED(x, weight), X[:rows].repeat(RANKS, 1) @ W)
        torch.testing.assert_close(
            PULLED(X[:4].clone(), turned if tilelink.rank() == 1 else W), X[:4].repeat(RANKS, 1) @ W
        )

    tilelink.launch(main, RANKS, device=FEW)


# -------------------------------------------------------------------------------------------------------------- constants
Q, KV = random(6, 2, 4), random(6, 1, 4)


def attention(**given: Any) -> torch.Tensor:
    rows = slice(2 * tilelink.rank(), 2 * tilelink.rank() + 2)
    return ag_attention(Q[rows].clone(), KV[rows].clone(), KV[rows].clone(), **given)


@pytest.mark.parametrize(
    ("given", "here", "there"),
    [
        (lambda rank: {"causal": bool(rank)}, "causal=False, scale=None", "causal=True, scale=None"),
        (lambda rank: {"scale": 1.0 + rank}, "causal=True, scale=1.0", "causal=True, scale=2.0"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_constants_are_those_of_all_ranks(given: Any, here: str, there: str, first: bool) -> None:
    """At the first call; at a later one in debug mode."""

    def main() -> None:
        for rank in () if first else (0, 1, 2):
            attention(**given(rank))
        attention(**given(tilelink.rank()))

    error = refused(main, debug=not first)
    call = "ag_attention(S=6, h=2, D=4, g=1, f32, f32, f32, {})"
    assert (error.code, error.message) == (
        "TL452",
        f"ranks 0 and 1 disagree on a call: rank 0 calls {call.format(here)}, and rank 1 calls {call.format(there)}",
    )
    assert error.hint is not None
    assert error.hint.startswith("pass equal shapes and constants, or ")


def test_a_constant_may_be_left_out_where_it_is_the_default() -> None:
    given: list[dict[str, Any]] = [{}, {"causal": True}, {"scale": None}]
    found = tilelink.launch(lambda: attention(**given[tilelink.rank()]), RANKS, device=FEW)
    torch.testing.assert_close(found, tilelink.launch(attention, RANKS, device=FEW))


# -------------------------------------------------------------------------------------------------- schedules and programs
VERSIONS = "let all ranks run the same code, with the same schedules and settings"


def test_schedules_are_those_of_all_ranks() -> None:
    """Tiles of other sizes need the same memory."""
    error = refused(lambda: PULLED.schedule(matmul=sms(2, M=4, N=2 + 2 * tilelink.rank(), K=8))(mine(), W), 2)
    assert (error.code, error.hint) == ("TL452", VERSIONS)
    assert error.message.startswith("ranks 0 and 1 disagree on how `ag_gemm` runs: rank 0 runs it gather=sms(2, M=4)")
    assert "N=2" in error.message.partition(", and rank 1")[0]
    assert "N=4" in error.message.partition(", and rank 1")[2]


@tilelink.program("M N -> M N")
def doubled(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.tile_store(out, (m, n), 2 * tl.tile_load(x, (m, n)))


@tilelink.program("M N -> M N")
def squared(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tile = tl.tile_load(x, (m, n))
    tl.tile_store(out, (m, n), tile * tile)


def version(program: Any) -> Any:
    @tilelink.operator("M N -> M N", name="changed")
    def changed(x: Any) -> Any:
        return program(x, name="step")

    return changed


def test_programs_are_those_of_all_ranks() -> None:
    """As where machines have other versions of a file."""
    error = refused(lambda: version((doubled, squared)[tilelink.rank()])(torch.ones(4, 4)), 2)
    assert (error.code, error.hint) == ("TL452", VERSIONS)
    assert error.message == (
        "ranks 0 and 1 disagree on what `changed` is: their programs, constants or the versions of tilelink differ"
    )


def test_ranks_that_meet_for_different_reasons() -> None:
    """One takes memory for what the others go on to call."""

    def main() -> None:
        PULLED(mine(), W)
        if tilelink.rank() == 1:
            PULLED.reserve(mine(), W, M=64)
        else:
            PULLED(mine().double(), W.double())

    error = refused(main)
    assert (error.code, error.message) == (
        "TL452",
        "ranks 0 and 1 disagree on what comes next: rank 0 calls an operator, and rank 1 takes memory",
    )
    assert error.hint == "make the same calls in the same order on all ranks"
