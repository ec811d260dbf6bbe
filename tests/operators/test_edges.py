"""Where tensors and ranks end: positions past an edge or on another rank, and signals that some ranks alone give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tests.mapping.plans import verify
from tests.mapping.shelf import double
from tests.operators.problems import Problem, alone, assert_solves, each, random, split
from tilelink import Operator, TilelinkError
from tilelink.ir.topology import Topology
from tilelink.ops.programs import gather, move, reduce, scatter

M, N, CALLS = 37, 20, 3


def assert_gives(operator: Operator, inputs: list[tuple[Any, ...]], wanted: list[torch.Tensor], **given: Any) -> None:
    """Some calls: slots are used again."""
    assert_solves(operator, [Problem(inputs, each(wanted), given)] * CALLS)


# ------------------------------------------------------------------------------------------------- vectors of positions
@tilelink.program("V/R H, T i32 -> T H")
def lookup(table: Any, token: Any, out: Any) -> None:
    """Rows of this rank's part; those of others are 0."""
    t, h = tl.tile_id(out)
    tl.tile_store(out, (t, h), tl.tile_load(table, (tl.tile_load(token, t, other=-1), h)))
    tl.producer_tile_notify(out, (t, h))


@tilelink.operator("V/R H, T i32 -> T H")
def embedding(table: Any, token: Any) -> Any:
    return gather(reduce(scatter(lookup(table, token))))


@pytest.mark.parametrize("rows", [101, 2])
def test_a_vector_of_positions_finds_those_of_ones_own_part(rows: int) -> None:
    """All others are read as 0, and no memory outside of the part is looked at (TL502)."""
    table, token = random(rows, N), (random(M).abs() * 1000).int() % rows
    assert_gives(embedding, each(split(table, 3), [token] * 3), [table[token.long()]] * 3, V=rows)


@tilelink.program("V/R H, T i32 -> T H")
def lookup_made(table: Any, token: Any, out: Any) -> None:
    """The same of rows that are still being made: it waits for those of this rank's part."""
    t, h = tl.tile_id(out)
    who = tl.tile_load(token, t, other=-1)
    tl.consumer_tile_wait(table, (who, h))
    tl.tile_store(out, (t, h), tl.tile_load(table, (who, h)))
    tl.producer_tile_notify(out, (t, h))


@tilelink.operator("V/R H, T i32 -> T H", schedule={"double": tilelink.sms(2, M=1), "lookup_made": tilelink.sms(T=8)})
def embedding_made(table: Any, token: Any) -> Any:
    return gather(reduce(scatter(lookup_made(double(table), token))))


def test_a_vector_waits_for_positions_of_ones_own_part() -> None:
    """Others have no flags here."""
    table, token = random(10, N), (random(M).abs() * 1000).int() % 10
    plan = embedding_made.plan(table[:4], token, ranks=3, V=10)
    assert [a.kind for a in plan.channel("double_out").axes if a.axis == 0] == ["part"]
    assert_gives(embedding_made, each(split(table, 3), [token] * 3), [2 * table[token.long()]] * 3, V=10)


@tilelink.program("S C, W C -> S/R C")
def conv(rows: Any, weight: Any, out: Any) -> None:
    """Waits for the rows that it reads: those of its tile past the edge, and those before the first, are none."""
    s, c = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for j in tl.static_range(tl.size(weight, 0)):
        row = tl.tile_range(out, s) - j
        tl.consumer_tile_wait(rows, (row, c))
        acc += tl.tile_load(rows, (row, c)) * tl.tile_load(weight, (j, c))[None, :]
    tl.tile_store(out, (s, c), acc)


@tilelink.operator("S/R C, W C -> S/R C")
def convolution(x: Any, weight: Any) -> Any:
    return conv(gather(x), weight)


@pytest.mark.parametrize("rows", [None, 1])
def test_nobody_waits_for_positions_that_are_not_there(rows: int | None) -> None:
    """With few flags, of which each has a bit, and with many, of which there is a first and a last."""
    x, weight = random(M, N), random(4, N)
    behind = torch.cat([torch.zeros(3, N), x])
    expected = torch.stack([behind[3 - j : 3 - j + M] * weight[j] for j in range(4)]).sum(0)
    placed = convolution if rows is None else convolution.schedule(gather=tilelink.sms(2, M=rows))
    assert_gives(placed, each(split(x, 3), [weight] * 3), split(expected, 3), S=M)


@tilelink.program("T H, T i32, S/R H once")
def spread(x: Any, to: Any, out: Any) -> None:
    """Rows to where data says."""
    t = tl.tile_id(to)
    tl.tile_push_data(out, tl.tile_load(to, t, other=-1), tl.tile_load(x, t))
    tl.producer_tile_notify(out)


@tilelink.program("T H, T i32, S/R H")
def pile(x: Any, to: Any, out: Any) -> None:
    """Everyone's first row to the first place."""
    t = tl.tile_id(to)
    rows = tl.tile_range(to, t)
    tl.tile_push_data(out, tl.where(rows < tl.tile_end(to, t), rows, -1), tl.tile_load(x, t))
    tl.producer_tile_notify(out)


@tilelink.program("S H -> S H")
def settle(inbox: Any, out: Any) -> None:
    s, h = tl.tile_id(out)
    tl.consumer_tile_wait(inbox)
    tl.tile_store(out, (s, h), tl.tile_load(inbox, (s, h)))


@tilelink.operator("T/R H, T/R i32 permutation -> T/R H")
def scatter_rows(x: Any, to: Any, *, by_data: bool = True) -> Any:
    inbox = tilelink.symmetric("T/R H", like=x)
    (spread if by_data else pile)(x, to, inbox)
    return settle(inbox)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_rows_go_to_the_ranks_that_have_their_positions(ranks: int) -> None:
    x, to = random(M, N), torch.randperm(M, generator=torch.Generator().manual_seed(2))
    expected = torch.empty_like(x)
    expected[to] = x
    inputs = each(split(x, ranks), split(to.int(), ranks))
    assert_gives(scatter_rows, inputs, split(expected, ranks), T=M)
    assert any("disjoint" in said for said in scatter_rows.verify(*inputs[0], ranks=ranks, T=M).assumed)


def test_rows_that_all_ranks_send_to_one_place_are_refused() -> None:
    x, to = random(M, N), torch.arange(M, dtype=torch.int32)
    verdict = scatter_rows.verify(x[:19], to[:19], ranks=2, T=M, by_data=False)
    assert verdict.error is not None
    assert verdict.error.code == "TL604"


# --------------------------------------------------------------------------------------------- signals of some ranks only
@tilelink.program("S/R C, R/R C f32, R/R C i32 -> S/R C")
def scan(x: Any, carry: Any, mine: Any, out: Any) -> None:
    """Sums from the first row on; what the ranks before have comes down a chain that ends with the last."""
    r, c = tl.tile_id(mine)
    before = tl.zeros([tl.tile_range(mine, c, axis=1).shape[0]], tl.float32)
    if r != 0:
        tl.peer_tile_wait(carry, (r, c), r - 1)
        before += tl.tile_load(carry, (r, c))
    total = before
    for s in tl.tiles(x, axis=0):
        total += tl.sum(tl.tile_load(x, (s, c)), 0)
    if r != tl.num_ranks() - 1:
        tl.tile_push_data(carry, (r + 1, c), total)
        tl.peer_tile_notify(carry, (r + 1, c), r + 1)
    for s in tl.tiles(x, axis=0):
        rows = tl.tile_load(x, (s, c))
        tl.tile_store(out, (s, c), before[None, :] + tl.cumsum(rows, 0))
        before += tl.sum(rows, 0)


@tilelink.program("S/R C, R/R C f32, R/R C i32 -> S/R C")
def scan_whole(x: Any, carry: Any, mine: Any, out: Any, *, chained: bool = True) -> None:
    """The same with one flag for all columns, and the tests one in the other."""
    r, _ = tl.tile_id(mine)
    before = tl.zeros([tl.tile_range(mine, axis=1).shape[0]], tl.float32)
    if r > 0:
        tl.peer_tile_wait(carry, r, r - 1)
        before += tl.tile_load(carry, r)
    total = before
    for s in tl.tiles(x, axis=0):
        total += tl.sum(tl.tile_load(x, s), 0)
    if chained:  # noqa: SIM102  # that is what is looked at
        if r < tl.num_ranks() - 1:
            tl.tile_push_data(carry, r + 1, total)
            tl.peer_tile_notify(carry, r + 1, r + 1)
    for s in tl.tiles(x, axis=0):
        rows = tl.tile_load(x, s)
        tl.tile_store(out, s, before[None, :] + tl.cumsum(rows, 0))
        before += tl.sum(rows, 0)


@tilelink.operator("S/R C -> S/R C")
def prefix_sum(x: Any, *, whole: bool) -> Any:
    carry = tilelink.symmetric("R/R C f32", C=x.size("C"))
    return (scan_whole if whole else scan)(x, carry, tilelink.symmetric("R/R C i32", C=x.size("C")))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("slow", [None, 1])
def test_a_chain_that_begins_and_ends(whole: bool, slow: int | None) -> None:
    """The first rank waits for nobody, and so hears from nobody: slots need a credit. Its neighbour counts one notify."""
    x = random(M, N)
    for ranks in (2, 3):
        problem = Problem(each(split(x, ranks)), each(split(x.cumsum(0), ranks)), {"S": M, "whole": whole})
        assert_solves(prefix_sum, [problem] * CALLS, straggler=slow)
        assert prefix_sum.plan(*problem.inputs[0], ranks=ranks, **problem.given).takes_credits


def test_whoever_waits_for_nobody_hears_of_nobody() -> None:
    """Without that credit the proof refuses: a rank may be two calls ahead."""
    plan = prefix_sum.plan(random(19, N), ranks=2, S=M, whole=True)
    freed = replace(plan, credits_implied_by="all")
    with pytest.raises(TilelinkError) as refused:
        verify(freed)
    assert refused.value.code == "TL610"


@tilelink.program("S C, R/R C f32, R/R C i32 -> S C")
def from_the_next(x: Any, inbox: Any, mine: Any, out: Any, *, waits: bool) -> None:
    """This rank's first row to the rank before it; the sum of what came and of its own rows."""
    r, c = tl.tile_id(mine)
    tl.tile_push_data(inbox, (r - 1, c), tl.tile_load(x, (0, c)))
    tl.peer_tile_notify(inbox, (r - 1, c), r - 1)
    if waits:
        tl.peer_tile_wait(inbox, (r, c), r + 1)
    for s in tl.tiles(x, axis=0):
        tl.tile_store(out, (s, c), tl.tile_load(x, (s, c)) + tl.tile_load(inbox, (r, c))[None, :])


@tilelink.operator("S C -> S C")
def added(x: Any, *, waits: bool = True) -> Any:
    inbox = tilelink.symmetric("R/R C f32", C=x.size("C"))
    return from_the_next(x, inbox, tilelink.symmetric("R/R C i32", C=x.size("C")), waits=waits)


def test_a_hint_writes_coordinates_as_users_do() -> None:
    assert added.verify(random(M, N), ranks=3).ok
    error = added.verify(random(M, N), ranks=3, waits=False).error
    assert error is not None
    assert error.code == "TL602"
    assert error.hint == "write `tl.consumer_tile_wait(inbox, (r, c))` before it"


@tilelink.program("T i32, V H -> T H")
def rows_of(token: Any, table: Any, out: Any) -> None:
    t, h = tl.tile_id(out)
    tl.tile_store(out, (t, h), tl.tile_load(table, (tl.tile_load(token, t, other=-1), h)))


def test_a_result_has_the_dtype_of_the_first_input_that_names_none() -> None:
    """Not that of the tokens, into which the rows of the table would be rounded."""
    table, token = random(5, N, dtype=torch.bfloat16), torch.arange(M, dtype=torch.int32) % 5
    [got] = alone(rows_of)([token], [table])
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, table[token.long()])


# ------------------------------------------------------------------------------------------------------------- results
@tilelink.program("A/R B C, B/R A C")
def send_turned(x: Any, inbox: Any) -> None:
    a, b, c = tl.tile_id(x)
    tl.tile_push_data(inbox, (b, a, c), tl.permute(tl.tile_load(x, (a, b, c)), (1, 0, 2)))
    tl.producer_tile_notify(inbox, (b, a, c))


take_out = tilelink.program("A B C -> A B C", name="take_out")(move)
exchange = tilelink.program("A/R B C -> A B/R C", name="exchange")(move)


@tilelink.operator("A/R B C -> B/R A C")
def turned(x: Any) -> Any:
    inbox = tilelink.symmetric("B/R A C", like=x)
    send_turned(x, inbox)
    return take_out(inbox)


@pytest.mark.parametrize("operator", [turned, alone(exchange)], ids=lambda op: op.name)
def test_movements_that_make_results_run_as_they_come(operator: Any) -> None:
    """As the simulated backend places them and as GPUs would: results are fetched, since peers do not reach them."""
    x = random(10, 7, 5)
    assert_gives(
        operator, each(split(x, 3)), split(x.transpose(0, 1), 3) if operator is turned else split(x, 3, 1), A=10
    )
    assert operator.verify(x[:4], topology=Topology(3, "peer"), A=10).ok


# ---------------------------------------------------------------------------------------------------- a rank's own slice
@tilelink.program("R/R M N -> R/R M N")
def doubled_slice(x: Any, out: Any) -> None:
    s, m, n = tl.tile_id(out)
    tl.tile_store(out, (s, m, n), 2 * tl.tile_load(x, (s, m, n)))


@pytest.mark.parametrize("turned", [False, True])
def test_a_slice_with_its_axis_or_without(turned: bool) -> None:
    """Its axis of one element has no place in memory: strides are those of the others."""
    x = random(N, M).t() if turned else random(M, N)
    small = alone(doubled_slice).schedule(doubled_slice=tilelink.sms(M=8, N=8))
    for given in (x, x[None]):
        for got in small([given] * 2):
            assert torch.equal(got, 2 * x)


@tilelink.program("M N -> M N")
def softmaxed(x: Any, out: Any) -> None:
    m, _ = tl.tile_id(out)
    tl.consumer_tile_wait(x, m)
    rows = tl.where(tl.tile_range(x, axis=1)[None, :] < tl.size(x, 1), tl.tile_load(x, m), -1e30)
    weight = tl.exp(rows - tl.max(rows, 1)[:, None])
    tl.tile_store(out, m, weight / tl.sum(weight, 1)[:, None])


def test_an_axis_without_a_name_is_one_tile_however_long() -> None:
    x = torch.randn(20, 700)
    torch.testing.assert_close(alone(softmaxed)([x])[0], torch.softmax(x, 1))


@tilelink.program("M/R N -> M N")
def sent(x: Any, rows: Any) -> None:
    m, n = tl.tile_id(x)
    tl.tile_push_data(rows, (m, n), 2 * tl.tile_load(x, (m, n)))
    tl.producer_tile_notify(rows, (m, n))


@tilelink.program("M N -> M N")
def waiting(rows: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows, (m, n))
    tl.tile_store(out, (m, n), tl.zeros(tl.tile_shape(out), tl.float32) + tl.tile_begin(out, m))


@tilelink.operator("M/R N -> M N", schedule={"sent": tilelink.sms(M=8, N=32), "waiting": tilelink.sms(M=8, N=32)})
def waits_and_reads_nothing(x: Any) -> Any:
    return waiting(sent(x))


def test_a_tensor_that_is_waited_for_and_not_read() -> None:
    rows = torch.arange(M).float()[:, None].expand(M, N)
    assert_gives(waits_and_reads_nothing, each(split(random(M, N), 2)), [rows // 8 * 8] * 2, M=M)
