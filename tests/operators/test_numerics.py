# pyright: reportArgumentType=false
"""Every placement of every operator agrees with torch: ranks, dtypes, sizes, schedules of the machine, slots."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle

import pytest
import torch

import tilelink
from tests.operators.placements import PLACEMENTS, Placed, named
from tests.operators.problems import AG, RS, Problem, assert_solves, part
from tilelink import copy_engine, fused, sms
from tilelink.ops import ag_gemm, gemm_rs, gemm_rs_ring

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
SEEDS = 20
"""Seeds that the placements of an operator have, at the least, each with a straggler."""


def each(placements: Iterable[Placed] = PLACEMENTS) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("placed", placements, ids=str)


def calls(placed: Placed, sizes: Iterable[tuple[int, int, int]], ranks: int, dtype: torch.dtype) -> list[Problem]:
    """Calls with different inputs."""
    return [placed.kind.call(*s, ranks, dtype, salt=salt) for salt, s in enumerate(sizes)]


def turns(placed: Placed) -> list[tuple[int, int, torch.dtype, int]]:
    """Seed, ranks, type and who is late: two to four ranks and all types for each placement; its seeds are its own among
    those of its operator, whose placements take turns in which ranks have which type, and in who is late.
    """
    alike = [p.name for p in PLACEMENTS if p.operator.name == placed.operator.name]
    many, at = max(3, -(-SEEDS // len(alike))), alike.index(placed.name)
    return [
        (at * many + n, ranks, DTYPES[(at + n) % 3], (at + n // 3) % ranks)
        for n, ranks in zip(range(many), cycle((2, 3, 4)), strict=False)
    ]


@each()
def test_seeds_with_a_straggler(placed: Placed) -> None:
    """Three calls back to back; the last rank has fewer rows than the others, and tiles are cut by every border."""
    for seed, ranks, dtype, late in turns(placed):
        assert_solves(placed.operator, calls(placed, [(13, 20, 12)] * 3, ranks, dtype), seed=seed, straggler=late)


def test_the_placements_of_an_operator_have_every_seed_type_and_straggler() -> None:
    for name in {p.operator.name for p in PLACEMENTS}:
        each_of = [turns(p) for p in PLACEMENTS if p.operator.name == name]
        assert len({seed for turn in each_of for seed, *_ in turn}) >= SEEDS
        assert {(ranks, dtype) for turn in each_of for _, ranks, dtype, _ in turn} == {
            (r, t) for r in (2, 3, 4) for t in DTYPES
        }
        assert {(ranks, late) for turn in each_of for _, ranks, _, late in turn} == {
            (r, n) for r in (2, 3, 4) for n in range(r)
        }
        assert all({2, 3, 4} == {ranks for _, ranks, *_ in turn} for turn in each_of)
        assert all(set(DTYPES) == {dtype for _, _, dtype, _ in turn} for turn in each_of)


@pytest.mark.parametrize("ranks", [1, 5, 8])
@each()
def test_rank_counts(placed: Placed, ranks: int) -> None:
    """Alone and many; every other test has two to four ranks."""
    assert_solves(placed.operator, calls(placed, [(3 * ranks, 20, 12)], ranks, torch.bfloat16), seed=ranks)


@pytest.mark.each_triton
@pytest.mark.parametrize(
    ("placed", "dtype"),
    [
        *((p, torch.bfloat16) for p in PLACEMENTS),
        *((p, t) for p in PLACEMENTS if p.name.endswith("default") for t in DTYPES[1:]),
    ],
    ids=str,
)
def test_sizes_that_descriptors_take(placed: Placed, dtype: torch.dtype) -> None:
    """Whole tiles and aligned rows, twice: here tiles go through TMA, everywhere else by pointers."""
    assert_solves(placed.operator, calls(placed, [(64, 32, 32)] * 2, 2, dtype), seed=1, straggler=0)


@each()
def test_sizes_change_from_call_to_call(placed: Placed) -> None:
    """Flags and slots are shared by calls of all sizes; the third and the fifth grow the workspace."""
    sizes = [(20, 20, 12), (4, 20, 12), (33, 20, 12), (20, 20, 12), (21, 40, 24), (1, 20, 12)]
    assert_solves(placed.operator, calls(placed, sizes, 3, torch.float32), seed=2, straggler=1)


@pytest.mark.parametrize("rows", [1, 5])
@each()
def test_ranks_without_rows(placed: Placed, rows: int) -> None:
    """Two calls: a rank that has nothing to wait for must not overtake its peers by a slot."""
    assert_solves(placed.operator, calls(placed, [(rows, 20, 9)] * 2, 4, torch.float32), seed=rows, straggler=3)


@pytest.mark.parametrize(("placed", "slots"), [(p, 3 if n % 3 == 0 else 1) for n, p in enumerate(PLACEMENTS)], ids=str)
def test_slots(placed: Placed, slots: int) -> None:
    """One more call than there are slots, and one that reuses a slot twice."""
    operator = placed.operator.schedule(slots=slots)
    assert_solves(
        operator, calls(placed, [(7, 12, 12)] * (slots + 2), 3, torch.float32), seed=slots, straggler=slots - 1
    )


@each()
def test_a_weight_may_be_a_transposed_view(placed: Placed) -> None:
    for sizes in ((32, 32, 32), (13, 20, 12)):
        assert_solves(placed.operator, [placed.kind.call(*sizes, 2, torch.bfloat16, turned=True)], seed=3)


@pytest.mark.parametrize("weight", ["from the second element", "of longer rows"])
def test_arguments_that_descriptors_do_not_take(weight: str) -> None:
    """They are loaded by pointers, before and after one of the same shape that is not."""
    operator = ag_gemm.schedule(gather=sms(2, M=16), matmul=sms(M=32, N=32, K=32))
    x, whole = torch.randn(64, 32).bfloat16(), torch.randn(32, 33).bfloat16()
    fit = whole[:, :32].contiguous()
    moved = whole.flatten()[1:1025].view(32, 32) if weight == "from the second element" else whole[:, :32]

    def main() -> list[torch.Tensor]:
        mine = x[32 * tilelink.rank() :][:32]
        return [operator(mine, w) for w in (fit, moved, fit)]

    for found in tilelink.launch(main, 2):
        for got, w in zip(found, (fit, moved, fit), strict=True):
            torch.testing.assert_close(got.float(), x.float() @ w.float(), rtol=2e-2, atol=1e-1)


@pytest.mark.parametrize("sizes", [(12, 24, 12), (24, 12, 24)])
def test_doorbells_of_one_size_stand_for_other_rows_in_the_next(sizes: tuple[int, ...]) -> None:
    """So none is rung that nobody hears: what stays on its rank has none."""
    tile = sms(M=2, N=4, K=4, order="ring+1")
    operator = gemm_rs.schedule(scatter=copy_engine(M=2, order="ring+1"), reduce=fused("matmul"), matmul=tile, slots=1)
    given = [RS.call(rows, 4, 4, 2, torch.bfloat16, salt=salt) for salt, rows in enumerate(sizes)]
    assert_solves(operator, given, seed=0, straggler=1, races=True)


LARGE = (
    Placed("ag_gemm", AG, ag_gemm.schedule(gather=sms(2, M=128, order="ring"), matmul=sms(M=128, N=32, K=32))),
    Placed("ag_gemm, pushed", AG, ag_gemm.schedule(gather=copy_engine(M=256, push=True), matmul=sms(M=64, N=32, K=32))),
    Placed("gemm_rs", RS, gemm_rs.schedule(scatter=fused("matmul"), matmul=sms(M=128, N=32, K=32, order="ring+1"))),
    Placed(
        "gemm_rs_ring", RS, gemm_rs_ring.schedule(matmul=sms(M=64, N=32, K=32, order="ring+1"), ring=fused("matmul"))
    ),
)


@each(LARGE)
def test_997_rows_per_rank(placed: Placed) -> None:
    assert_solves(placed.operator, calls(placed, [(3 * 997, 24, 40)], 3, torch.bfloat16), seed=4, straggler=1)


@each([named(n) for n in ("gemm_rs fused, reduction fused", "gemm_rs copy engine", "gemm_rs_ring fused")])
@pytest.mark.parametrize("inner", [1, 3, 10])
def test_an_inner_dimension_that_does_not_divide(placed: Placed, inner: int) -> None:
    """`K/R`: the last ranks have fewer columns, or none, and add nothing."""
    assert_solves(placed.operator, calls(placed, [(13, 20, inner)], 4, torch.float32))


# ----------------------------------------------------------------------------------------------------------- calling forms
@each([named(n) for n in ("ag_gemm SMs pull", "gemm_rs fused", "gemm_rs_ring by default")])
def test_out(placed: Placed) -> None:
    """Results are written where the caller says, wherever that is and whatever is there."""
    three = calls(placed, [(13, 20, 12)] * 3, 2, torch.float32)

    def main() -> None:
        me = tilelink.rank()
        # In the middle of something larger, full of NaN.
        pools = [torch.full((c.wanted[me][0].numel() + 8,), float("nan")) for c in three]
        outs = [p[4:-4].view(c.wanted[me][0].shape) for p, c in zip(pools, three, strict=True)]
        got = [placed.operator(*c.inputs[me], **c.given, out=o) for c, o in zip(three, outs, strict=True)]
        assert all(g is o for g, o in zip(got, outs, strict=True))
        assert all(torch.isnan(p[:4]).all() and torch.isnan(p[-4:]).all() for p in pools)
        for call, out in zip(three, outs, strict=True):
            call.assert_on(me, out)

    tilelink.launch(main, 2, seed=5)


@each([named(n) for n in ("ag_gemm SMs push", "gemm_rs copy engine", "gemm_rs_ring SMs")])
@pytest.mark.parametrize("ranks", [1, 3])
def test_lists_with_one_tensor_per_rank(placed: Placed, ranks: int) -> None:
    one = placed.kind.call(4 * ranks, 20, 3 * ranks, ranks, torch.float32)
    for rank, out in enumerate(placed.operator(*one.listed)):
        one.assert_on(rank, out)


@each([p for p in PLACEMENTS if p.kind is AG])
def test_arguments_may_be_overwritten_after_the_call(placed: Placed) -> None:
    """What peers read of a plain argument is a copy. In shared memory they read it in place, and no call ends before that."""
    three = calls(placed, [(12, 20, 12)] * 3, 3, torch.float32)

    def main(shared: bool) -> None:
        me = tilelink.rank()
        shape, results = three[0].inputs[me][0].shape, list[torch.Tensor]()
        shard = tilelink.empty(*shape, dtype=torch.float32) if shared else torch.empty(shape)
        for call in three:
            x, weight = call.inputs[me]
            results.append(placed.operator(shard.copy_(x), weight))
            shard.fill_(float("nan"))
        for call, got in zip(three, results, strict=True):
            call.assert_on(me, got)

    for straggler in range(3):
        tilelink.launch(lambda: main(shared=True), 3, seed=straggler, straggler=straggler)
    tilelink.launch(lambda: main(shared=False), 3, seed=6, straggler=0)


def test_operators_take_turns() -> None:
    """Two layers, each with a workspace of its own, one after the other again and again."""
    ranks, m, width, inner = 3, 10, 24, 12
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(m, width, generator=generator)
    up = [torch.randn(width, inner, generator=generator) for _ in range(ranks)]
    down = [torch.randn(inner, width, generator=generator) for _ in range(ranks)]
    first, second = named("ag_gemm SMs pull").operator, named("gemm_rs copy engine, reduction fused").operator

    def main() -> list[torch.Tensor]:
        me = tilelink.rank()
        y = x[part(m, me, ranks)]
        for _ in range(3):
            hidden = torch.relu(first(y, up[me], M=m))
            y = second(hidden, down[me]) / 50
        return [y]

    want = x
    for _ in range(3):
        want = sum((torch.relu(want @ u) @ d for u, d in zip(up, down, strict=True)), torch.zeros(())) / 50
    for rank, (got,) in enumerate(tilelink.launch(main, ranks, seed=8, straggler=2)):
        assert torch.allclose(got, want[part(m, rank, ranks)], rtol=1e-4, atol=1e-4)
