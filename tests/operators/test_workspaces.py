# pyright: reportArgumentType=false
"""When operators take memory and when they give it back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tilelink
from tests.operators.placements import PLACEMENTS, Placed
from tests.operators.problems import AG, RS
from tests.selection import cases, table
from tilelink import copy_engine, fused, sms
from tilelink.ir.plan import Layout
from tilelink.ir.topology import Topology
from tilelink.ops import ag_gemm, gemm_rs
from tilelink.pipeline.arguments import Bound
from tilelink.runtime.memory import regions
from tilelink.runtime.session import require
from tilelink.runtime.simulated import SimulatedBackend

FAST = {"M": 16, "N": 16, "K": 16}
AG_OP = ag_gemm.schedule(gather=copy_engine(M=8, push=True), matmul=sms(2, **FAST))
RS_OP = gemm_rs.schedule(scatter=copy_engine(M=16), reduce=fused("matmul"), matmul=sms(2, order="ring+1", **FAST))
CALLS = [AG.call(m, 32, 24, 2, torch.float32) for m in (8, 64, 40)]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of every allocation that outlives a call, of all ranks."""
    sizes: list[int] = []
    zeros = SimulatedBackend.zeros

    def counted(self: SimulatedBackend, size: int, dtype: torch.dtype) -> torch.Tensor:
        sizes.append(size * dtype.itemsize)
        return zeros(self, size, dtype)

    monkeypatch.setattr(SimulatedBackend, "zeros", counted)
    return sizes


def test_a_cached_call_takes_no_memory_and_does_not_meet(taken: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[str] = []
    for name in ("barrier", "agree"):
        original = getattr(SimulatedBackend, name)
        monkeypatch.setattr(
            SimulatedBackend,
            name,
            lambda self, *a, name=name, original=original: (met.append(name), original(self, *a))[1],
        )

    def main() -> tuple[int, int]:
        CALLS[1].solve(AG_OP)
        before = len(taken), len(met)
        require().backend.barrier()
        for number in (1, 1, 1):
            CALLS[number].solve(AG_OP)
        return len(taken) - before[0], len(met) - before[1]

    # The barrier of either rank may fall between.
    assert all(n == 0 and m <= 2 for n, m in tilelink.launch(main, 2))


def test_growing_takes_memory_once_per_size_beyond(taken: list[int]) -> None:
    def main() -> None:
        for number in (0, 1, 2, 0, 1):
            CALLS[number].solve(AG_OP)

    tilelink.launch(main, 2)
    assert len(taken) == 2 * 2 * 2  # on two ranks, symmetric and plain, for the first call and for the larger one


def test_what_is_reserved_with_arguments_is_taken_at_once(taken: list[int]) -> None:
    def main() -> int:
        AG_OP.reserve(*CALLS[0].inputs[tilelink.rank()], M=64)
        require().backend.barrier()
        before = len(taken)
        for number in (0, 1, 2):
            CALLS[number].solve(AG_OP)
        return len(taken) - before

    assert tilelink.launch(main, 2) == [0, 0]
    assert len(taken) == 2 * 2


def test_what_is_reserved_by_size_alone_is_taken_at_the_first_call(taken: list[int]) -> None:
    def main() -> None:
        AG_OP.reserve(M=64)
        AG_OP.reserve(M=16)
        assert taken == []
        for number in (0, 1, 2):
            CALLS[number].solve(AG_OP)

    tilelink.launch(main, 2)
    assert len(taken) == 2 * 2


def test_a_group_has_a_capacity_of_its_own(taken: list[int]) -> None:
    def main() -> None:
        group = tilelink.group([0, 1])
        AG_OP.reserve(M=64, group=group)
        for number in (0, 1):
            CALLS[number].solve(AG_OP, group)

    tilelink.launch(lambda: main() if tilelink.rank() < 2 else None, 3)
    assert len(taken) == 2 * 2


@table("sizes", [{"rows": 8}, {"M": 0}])
def test_what_cannot_be_reserved(sizes: dict[str, int]) -> None:
    ((name, size),) = sizes.items()

    def main() -> str:
        with pytest.raises(tilelink.TilelinkError) as caught:
            AG_OP.reserve(**sizes)
        return str(caught.value)

    (text,) = tilelink.launch(main, 1)
    assert text.startswith(f"TL228: `ag_gemm` cannot be prepared for {name}={size}\n")
    assert "signature is `M/R K, K N -> M N`" in text


@cases(25)
@given(
    placed=st.sampled_from(PLACEMENTS),
    ranks=st.integers(1, 4),
    most=st.tuples(*[st.integers(1, 300)] * 3),
    part=st.tuples(*[st.floats(0, 1)] * 3),
)
def test_smaller_sizes_fit(
    placed: Placed, ranks: int, most: tuple[int, int, int], part: tuple[float, float, float]
) -> None:
    """Every region of a smaller problem is one of the larger problem's, and no larger."""
    less = tuple(max(1, int(size * f)) for size, f in zip(most, part, strict=True))

    def wanted(sizes: tuple[int, ...]) -> dict[str, int]:
        named = dict(zip(("M", "N", "K"), sizes, strict=True))
        bound = Bound(tuple(named.items()), ("f32", "f32"), (Layout(1, True), Layout(1, True)), (), Topology(ranks))
        return {r.name: r.nbytes for r in regions(placed.operator.compiled(bound).plan)}

    small, large = wanted(less), wanted(most)
    assert {name: size for name, size in small.items() if size > large.get(name, 0)} == {}


def test_after_closing_the_next_call_starts_anew(taken: list[int]) -> None:
    def main() -> int:
        with RS_OP as op:
            for salt in range(3):
                RS.call(32, 32, 32, 2, torch.float32, salt=salt).solve(op)
        left = len(require().workspaces)
        RS.call(32, 32, 32, 2, torch.float32).solve(RS_OP)
        RS_OP.close()
        RS_OP.close()
        return left

    assert tilelink.launch(main, 2, straggler=1) == [0, 0]
    assert len(taken) == 2 * 2 * 2


def test_without_memory_to_grow_the_next_call_starts_anew(taken: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The smaller workspace is gone by then, and no call may go on in it."""
    room = SimulatedBackend.arena

    def full(self: SimulatedBackend, nbytes: int) -> object:
        raise torch.OutOfMemoryError(f"{nbytes} bytes")

    def main() -> None:
        CALLS[0].solve(AG_OP)
        require().backend.barrier()
        monkeypatch.setattr(SimulatedBackend, "arena", full)
        with pytest.raises(torch.OutOfMemoryError):
            CALLS[1].solve(AG_OP)
        require().backend.barrier()
        monkeypatch.setattr(SimulatedBackend, "arena", room)
        before = len(taken)
        CALLS[0].solve(AG_OP)
        assert len(taken) > before

    tilelink.launch(main, 2)


def test_memory_that_a_graph_holds_outlives_growth() -> None:
    """A replay goes on in the old workspace, whatever calls take meanwhile."""

    def main() -> list[bool]:
        CALLS[0].solve(AG_OP)
        (held,) = require().workspaces.values()
        if tilelink.rank() == 0:
            held.replayed.add("a graph's call")
        CALLS[1].solve(AG_OP)
        kept = bool(held.arena.bases)
        CALLS[0].solve(AG_OP)
        AG_OP.close()
        return [kept, not held.arena.bases]

    assert tilelink.launch(main, 2) == [[True, True]] * 2
