# pyright: reportArgumentType=false
"""Copy programs of tensors of every rank: one, two and four axes, axes that are walked singly, slices of ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tests.mapping.shelf import columns
from tests.operators.language import keep
from tests.operators.loops import doubled
from tests.operators.problems import Problem, assert_as_torch, assert_solves, each, split
from tilelink import Operator, copy_engine, sms
from tilelink.ir.schedule import Placement
from tilelink.ops import programs
from tilelink.ops.programs import fetch, gather, scatter, share

gather_each = tilelink.program("e M/R ... -> e M ...", name="gather_each")(fetch)
"""For every `e` by itself."""
gather_blocks = tilelink.program("M/R K -> M K", name="gather_blocks")(fetch)
"""Two axes are tiled: the rows of a block do not follow one another."""
gather_heads = tilelink.program("M/R g K -> M g K", name="gather_heads")(fetch)
"""For every `g` by itself, which is not the leading axis."""
keep_blocks = tilelink.program("M K -> M K", name="keep_blocks")(fetch)
keep_each = tilelink.program("e M ... -> e M ...", name="keep_each")(keep.function)


def test_a_copy_engine_waits_for_all_who_push() -> None:
    """Rows of each rank have one flag, that of the rank, and all of them are moved at once."""
    op = tilelink.operator("M/R N -> M N", name="kept")(lambda x: programs.keep(gather(x)))
    placed = op.schedule(gather=sms(2, M=4, push=True), keep=copy_engine(push=False))
    x = torch.randn(3, 2, 4)
    assert_as_torch(placed, Problem(each(list(x)), [(x.flatten(0, 1),)] * 3))


@tilelink.operator("M/R K -> M K")
def made_and_gathered(x: Any) -> Any:
    return keep(gather(doubled(x)))


@tilelink.operator("M/R ... -> M ...")
def gathered(x: Any) -> Any:
    return keep(gather(x))


@tilelink.operator("e M/R ... -> e M ...")
def gathered_each(x: Any) -> Any:
    return keep_each(gather_each(x))


@tilelink.operator("R/R M ... -> R M ...")
def shared(x: Any) -> Any:
    return keep_each(share(x))


@tilelink.operator("M ... -> R M/R ...")
def scattered(x: Any) -> Any:
    """Every rank's whole tensor: its rows to whoever holds them."""
    return keep_each(scatter(x))


@tilelink.operator("M/R K -> M K")
def in_blocks(x: Any) -> Any:
    return keep(gather_blocks(doubled(x)))


@tilelink.operator("M/R g K -> M g K")
def by_head(x: Any) -> Any:
    return keep(gather_heads(x))


ENGINES: dict[str, Placement] = {
    "pull": sms(2, M=4),
    "push": sms(2, M=4, push=True),
    "copy engine pull": copy_engine(M=4, push=False),
    "copy engine push": copy_engine(M=4, push=True),
    "copy engine, whole parts": copy_engine(push=True),
    "pull, whole parts": sms(2),
}
KEEP = sms(M=8)


def engines(without: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("engine", [e for e in ENGINES if e not in without])


def assert_moved(operator: Operator, inputs: list[torch.Tensor], *results: list[torch.Tensor], **sizes: int) -> None:
    """The second call, of other values, meets what the first left behind; `results`: of every rank, one after the other."""
    problems = [
        Problem(each([s * x for x in inputs]), each(*([s * y for y in r] for r in results)), sizes) for s in (1, -1)
    ]
    assert_solves(operator, problems, straggler=min(1, len(inputs) - 1))


@engines()
@pytest.mark.parametrize("rest", [(), (3,), (3, 2, 5)], ids=str)
def test_gather(engine: str, rest: tuple[int, ...]) -> None:
    whole = torch.arange(11.0)[(...,) + (None,) * len(rest)] + 100 * torch.rand(rest)
    operator = gathered.schedule(gather=ENGINES[engine], keep=KEEP)
    assert_moved(operator, split(whole, 3), [whole] * 3, M=11)


@engines(without=("copy engine, whole parts", "pull, whole parts"))
@pytest.mark.parametrize("rest", [(), (3,)], ids=str)
def test_an_axis_that_is_walked_singly(engine: str, rest: tuple[int, ...]) -> None:
    whole = torch.rand(2, 11, *rest)
    operator = gathered_each.schedule(gather_each=ENGINES[engine], keep_each=KEEP)
    assert_moved(operator, split(whole, 3, 1), [whole] * 3, M=11)


@pytest.mark.parametrize(
    "placement", [sms(2), sms(2, push=True), copy_engine(push=False), copy_engine(push=True)], ids=str
)
def test_share(placement: Placement) -> None:
    """It names no axis besides R: its slices are whole."""
    whole = torch.rand(3, 7, 5)
    assert_moved(shared.schedule(share=placement, keep_each=KEEP), list(whole), [whole] * 3)


@engines()
def test_scatter(engine: str) -> None:
    whole = torch.rand(3, 11, 5)
    operator = scattered.schedule(scatter=ENGINES[engine], keep_each=KEEP)
    assert_moved(operator, list(whole), split(whole, 3, 1))


WHERE = ("a kernel before", "the same kernel", "a kernel beside")


@pytest.mark.parametrize(
    ("engine", "made", "where"),
    [(engine, made, WHERE[(e + k) % 3]) for e, engine in enumerate(ENGINES) for k, made in enumerate((8, 4, 2))],
)
def test_what_a_program_made_of_its_own_part(engine: str, made: int, where: str) -> None:
    """Tiles are made, moved and kept in different sizes; positions of the first count from the part's begin. Every two of
    an engine, a size and a place meet.
    """
    x = torch.rand(11, 5)
    workers = {"a kernel before": None, "the same kernel": 1, "a kernel beside": 1}[where]
    doubling = sms(workers, M=made, K=8, own_kernel=where == "a kernel beside")
    operator = made_and_gathered.schedule(gather=ENGINES[engine], keep=KEEP, doubled=doubling)
    assert_moved(operator, split(x, 3), [2 * x] * 3, M=11)


@tilelink.operator("M/R K -> M K, M/R K")
def gathered_and_kept(x: Any) -> Any:
    made = doubled(x)
    return gather(made), programs.keep(made, name="own")


@pytest.mark.parametrize("own", [copy_engine(M=4, push=False), sms(1, M=4)], ids=["copy engine", "SMs"])
@pytest.mark.parametrize("others", [copy_engine(M=4, push=False), sms(1, M=4)], ids=["copy engine", "SMs"])
def test_a_movement_that_sees_its_own_part_of_what_others_pull(own: Placement, others: Placement) -> None:
    """It counts from its part's begin, and flags are of all parts."""
    operator = gathered_and_kept.schedule(doubled=sms(2, M=4, K=8), gather=others, own=own)
    x = torch.rand(22, 8)
    assert_moved(operator, split(x, 3), [2 * x] * 3, split(2 * x, 3), M=22)


@tilelink.operator("M/R ... -> M/R ...")
def kept_as_it_is(x: Any) -> Any:
    return programs.keep(x)


@tilelink.program("M K -> M K")
def doubled_then(x: Any, out: Any) -> None:
    m, k = tl.tile_id(out)
    tl.consumer_tile_wait(x, m)
    tl.tile_store(out, (m, k), 2 * tl.tile_load(x, (m, k)))


@tilelink.operator("M/R K -> M/R K")
def kept_and_doubled(x: Any) -> Any:
    return doubled_then(programs.keep(x))


PLAIN: dict[str, Placement] = {**ENGINES, "own kernel": sms(1, M=2, own_kernel=True), "default": sms()}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("engine", PLAIN)
def test_an_argument_that_stays_on_its_rank(engine: str, ranks: int) -> None:
    """It lies in memory of torch's, which no peer reaches, and nobody has to."""
    x = torch.rand(11, 3)
    parts = split(x, ranks)
    for operator, by in ((kept_as_it_is, 1), (kept_and_doubled, 2)):
        placed = operator.schedule(keep=PLAIN[engine])
        assert placed.verify(parts, M=11).ok
        assert_moved(placed, parts, [by * p for p in parts], M=11)


BLOCKS: dict[str, Placement] = {
    "pull": sms(2, M=4, K=3),
    "push": sms(2, M=4, K=3, push=True),
    "whole columns": sms(2, K=3),
    "copy engine pull": copy_engine(M=4, K=3, push=False),
    "copy engine push": copy_engine(M=4, K=3, push=True),
    "copy engine, whole columns": copy_engine(K=3, push=True),
}


@pytest.mark.each_triton
@pytest.mark.parametrize("engine", BLOCKS)
def test_blocks(engine: str) -> None:
    """What is moved is made in tiles of other sizes, and every block is waited for."""
    x = torch.rand(11, 7)
    operator = in_blocks.schedule(doubled=sms(M=8, K=4), gather_blocks=BLOCKS[engine], keep=sms(M=8))
    assert_moved(operator, split(x, 3), [2 * x] * 3, M=11)


@pytest.mark.parametrize("engine", BLOCKS)
def test_an_axis_behind_the_first_that_is_walked_singly(engine: str) -> None:
    x = torch.rand(11, 3, 7)
    operator = by_head.schedule(gather_heads=BLOCKS[engine], keep=KEEP)
    assert_moved(operator, split(x, 3), [x] * 3, M=11)


@tilelink.operator("M/R K -> M K")
def gathered_in_blocks(x: Any) -> Any:
    return doubled_then(keep_blocks(gather_blocks(x)))


WORDS: dict[str, Placement] = {
    "rows": copy_engine(M=2, push=True),
    "columns": copy_engine(K=2, push=False),
    "blocks": copy_engine(M=2, K=2),
}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("flags", WORDS)
def test_axes_left_whole_where_a_copy_engine_sets_flags(flags: str, ranks: int) -> None:
    """Who takes all of an axis on SMs waits for every flag along it: of all parts, the last of which may be short or empty."""
    for rows, whole in ((9, sms(1)), (2, sms(1, K=2)), (0, sms(1))):
        x = torch.rand(rows, 5)
        parts = split(x, ranks)
        operator = gathered_in_blocks.schedule(gather_blocks=WORDS[flags], keep_blocks=whole)
        assert operator.verify(parts, M=rows).ok
        assert_moved(operator, parts, [2 * x] * ranks, M=rows)


@tilelink.operator("M/R K -> M K, M/R K")
def whole_and_own(x: Any) -> Any:
    made = doubled(x)
    return keep(gather_blocks(made)), keep_blocks(made, name="own")


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("made", "own"), [(sms(1), sms(1)), (sms(1), sms(1, M=2)), (sms(1, M=2, K=4), sms(1)), (sms(1, M=2), sms(1, K=2))]
)
def test_whole_parts_of_what_others_pull(made: Placement, own: Placement, ranks: int) -> None:
    """One flag for all of a part is another one for each rank that makes one."""
    x = torch.rand(9, 5)
    parts = split(x, ranks)
    operator = whole_and_own.schedule(doubled=made, gather_blocks=sms(1, K=2), keep=KEEP, own=own)
    assert operator.verify(parts, M=9).ok
    assert_moved(operator, parts, [2 * x] * ranks, [2 * mine for mine in parts], M=9)


@tilelink.operator("M ... -> R M/R ...")
def scattered_and_kept(x: Any) -> Any:
    return programs.keep_parts(scatter(x))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("rest", [(), (3,)], ids=str)
@pytest.mark.parametrize("kept", [sms(2), sms(2, M=2), copy_engine()], ids=["whole parts", "tiles", "copy engine"])
def test_whole_parts_that_are_shorter_than_their_memory(kept: Placement, rest: tuple[int, ...], ranks: int) -> None:
    """Symmetric memory has room for the longest part on every rank; a result has room for this rank's."""
    whole = torch.rand(ranks, 9, *rest)
    operator = scattered_and_kept.schedule(scatter=sms(2, M=4, push=True), keep_parts=kept)
    assert operator.verify(list(whole)).ok
    assert_moved(operator, list(whole), split(whole, ranks, 1))


@tilelink.operator("M N/R -> M N, M N")
def columns_twice(x: Any) -> Any:
    pulled, pushed = columns(x, name="pulled"), columns(x, name="pushed")
    return programs.keep(pulled, name="keep_pulled"), programs.keep(pushed, name="keep_pushed")


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("pushed", [sms(2, push=True), copy_engine(push=True)], ids=["SMs", "copy engine"])
@pytest.mark.parametrize("pulled", [sms(2, push=False), copy_engine(push=False)], ids=["SMs", "copy engine"])
def test_what_is_staged_for_others_is_pushed_from_where_it_lies(
    pulled: Placement, pushed: Placement, ranks: int
) -> None:
    """The argument's rows are as long as the rank's part, those of the stage as long as the longest."""
    x = torch.rand(3, 5)
    shares = split(x, ranks, 1)
    operator = columns_twice.schedule(pulled=pulled, pushed=pushed)
    plan = operator.plan(shares, N=5)
    assert plan.buffer("x").staged
    assert operator.verify(shares, N=5).ok
    assert_moved(operator, shares, [x] * ranks, [x] * ranks, N=5)
