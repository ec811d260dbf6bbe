"""Small tensors of epoch-signalled calls come by words that hold data and the number of the call: who reads one waits for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tests.frontend.harness import run_cell
from tests.selection import table
from tests.simulated.programs import called, numbers
from tilelink import Operator, TilelinkError
from tilelink.cost import H200
from tilelink.ir.plan import LL_MOST
from tilelink.ir.topology import Device, Topology
from tilelink.ops import all_gather, all_reduce_one_shot, all_reduce_two_shot, gemm_ar_one_shot
from tilelink.ops.all_reduce_one_shot import exchange
from tilelink.runtime.session import require
from tilelink.runtime.simulated import Recorder, StandstillError

RANKS = 3
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def words_of(operator: Operator, *arguments: torch.Tensor, ranks: int = RANKS, **given: Any) -> set[str]:
    plan = operator.plan(*arguments, ranks=ranks, **given)
    return {c.tensor for c in plan.channels} if plan.ll else set()


# ------------------------------------------------------------------------------------------------------- which tensors
@table(
    "shape, dtype, words",
    [
        ((3, 64), BF16, True),
        ((3, 65), BF16, False),  # a row is half a word too long
        ((3, 65), F32, True),
        ((1, 2), F16, True),
        ((3, 64), torch.int8, False),
        ((3, 64), torch.float64, False),
        ((48, 2048), BF16, True),  # from two peers: as much as there may be
        ((49, 2048), BF16, False),
    ],
)
def test_small_tensors_of_whole_flags(shape: tuple[int, int], dtype: torch.dtype, words: bool) -> None:
    assert LL_MOST == 2 * 48 * 2048 * 2
    assert words_of(all_reduce_one_shot, torch.empty(shape, dtype=dtype)) == ({"inbox"} if words else set())


def test_of_brief_calls_alone() -> None:
    x = torch.empty(3, 64, dtype=BF16)
    assert words_of(all_reduce_one_shot.schedule(slots=1), x) == set()
    assert words_of(all_reduce_one_shot.schedule(ll=False), x) == set()
    assert words_of(gemm_ar_one_shot, torch.empty(3, 64, dtype=BF16), torch.empty(64, 96, dtype=BF16)) == {"inbox"}
    assert all_reduce_two_shot.plan(x, ranks=RANKS).epoch_signalled
    assert words_of(all_reduce_two_shot, x) == set()  # peers fetch the sums


@table("capability, words", [(90, True), (100, True), (94, False), (95, False)])
def test_not_through_caches_that_keep_what_is_stored(capability: int, words: bool) -> None:
    topology = Topology(2, device=Device(capability=capability))
    assert all_reduce_one_shot.plan(torch.empty(2, 64), topology=topology).ll == words


@tilelink.program("R/R M N, R M N, R M N -> M N")
def two_inboxes(x: Any, inbox: Any, wide: Any, out: Any) -> None:
    s, m, n = tl.tile_id(x)
    tile = tl.tile_load(x, (s, m, n))
    tl.tile_push_data(inbox, (s, m, n), tile)
    tl.producer_tile_notify(inbox, (s, m, n))
    tl.tile_push_data(wide, (s, m, n), tile)
    tl.producer_tile_notify(wide, (s, m, n))
    acc = tl.zeros(tl.tile_shape(x), tl.float32)
    for q in tl.tiles(inbox, axis=0):
        tl.consumer_tile_wait(inbox, (q, m, n))
        acc += tl.tile_load(inbox, (q, m, n))
        tl.consumer_tile_wait(wide, (q, m, n))
        acc += tl.tile_load(wide, (q, m, n))
    tl.tile_store(out, (m, n), acc)


@pytest.mark.parametrize(("dtype", "words"), [("f32", {"inbox", "wide"}), ("f64", set())])
def test_all_or_none(dtype: str, words: set[str]) -> None:
    """A release that one of them needs covers the others."""

    def both(x: Any) -> Any:
        return two_inboxes(x, tilelink.symmetric("R M N", like=x), tilelink.symmetric("R M N", like=x, dtype=dtype))

    operator = tilelink.operator("M N -> M N", name=f"both_{dtype}")(both)
    assert operator.plan(torch.empty(2, 64), ranks=2).epoch_signalled
    assert words_of(operator, torch.empty(2, 64), ranks=2) == words


EXCHANGE = """import tilelink
import tilelink.language as tl


@tilelink.program("R/R M N, R M N once -> M N")
def {name}(x, inbox, out):
    s, m, n = tl.tile_id(x)
    tile = tl.tile_load(x, (s, m, n))
    tl.tile_push_data(inbox, (s, m, n), {pushed})
    tl.producer_tile_notify(inbox, (s, m, n))
    acc = tl.zeros(tl.tile_shape(x), tl.float32)
    for q in tl.tiles(inbox, axis=0):
        tl.consumer_tile_wait(inbox, (q, m, n))
{between}        acc += tl.tile_load(inbox, (q, m, n){filled})
    tl.tile_store(out, (m, n), acc)
"""


def exchanging(name: str, pushed: str = "tile", between: str = "", filled: str = "") -> Any:
    """`exchange` in other words."""
    return run_cell(EXCHANGE.format(name=name, pushed=pushed, between=between, filled=filled))[name]


OTHERS = [
    exchanging("masked", "tile, mask=tile > 0"),
    exchanging("one_for_all", "1.0"),  # no block
    exchanging(
        "waits_first", between="    for q in tl.tiles(inbox, axis=0):\n"
    ),  # whether a wait has a load is not to be seen
    exchanging("filled", filled=", other=1.0"),  # lanes past the edge are not 0
    exchanging("doubled", "tl.sum(tile.to(tl.float32), 0)[None, :]"),  # made on the way, one row of it for all
]


def operator_of(program: Any) -> Operator:
    def body(x: Any) -> Any:
        return program(x, tilelink.symmetric("R M N", like=x))

    return tilelink.operator("M N -> M N", schedule={program.name: tilelink.sms(M=4, N=32)})(body)


PROGRAMS = {p.name: operator_of(p) for p in (exchange, *OTHERS)}


@table("name", PROGRAMS)
def test_of_programs_that_push_once_and_read_what_they_wait_for(name: str) -> None:
    x = torch.empty(4, 64, dtype=BF16)
    assert PROGRAMS[name].plan(x, ranks=2).epoch_signalled
    assert words_of(PROGRAMS[name], x, ranks=2) == ({"inbox"} if name in ("exchange", "doubled") else set())


@pytest.mark.parametrize("columns", [1, 32])
def test_of_tiles_of_whole_flags(columns: int) -> None:
    operator = PROGRAMS["exchange"].schedule(exchange=tilelink.sms(M=2, N=columns))
    assert words_of(operator, torch.empty(4, 64, dtype=BF16), ranks=2) == ({"inbox"} if columns > 1 else set())


# ---------------------------------------------------------------------------------------------------------------- runs
SHAPES = [((1, 2), BF16), ((5, 96), BF16), ((3, 130), F16), ((7, 33), F32), ((4, 33), BF16), ((2, 64), F32)]
"""Words of one and of two elements, tiles with and without lanes to spare; and one that has flags of its own."""


def calls(ranks: int) -> bool:
    """Call after call of all sizes; sums of small whole numbers are exact."""
    right = True
    for call in range(2):
        for shape, dtype in SHAPES:
            y = all_reduce_one_shot(numbers(shape, dtype, call, tilelink.rank()))
            right &= torch.equal(y, sum(numbers(shape, dtype, call, r) for r in range(ranks)))  # pyright: ignore[reportArgumentType]
    return right


@pytest.mark.each_triton
@pytest.mark.parametrize(
    ("ranks", "policy", "delayed"),
    [
        (1, "random-1", False),
        (2, "random-1", True),
        (3, "straggler-0-2", True),
        (2, "priorities-3", False),
        (3, "random-1", False),
        (3, "priorities-3", True),
    ],
)
def test_sums(ranks: int, policy: str, delayed: bool) -> None:
    """However late, and in whatever order, words arrive; nothing is unordered."""
    found = tilelink.launch(lambda: calls(ranks), ranks, policy=policy, delayed_stores=delayed)
    assert found == [True] * ranks


def test_what_is_pushed_is_made_a_block() -> None:
    x = [numbers((4, 64), BF16, 0, r) for r in range(2)]
    both = [t.float().sum(0, keepdim=True).expand(4, 64) for t in x]
    for y in PROGRAMS["doubled"](x):
        assert torch.equal(y.float(), both[0] + both[1])


@tilelink.program("R/R M 1, R M 8")
def widened(x: Any, inbox: Any) -> None:
    """A column for all columns: the index of the one tile is that of the other."""
    s, m, _ = tl.tile_id(x)
    column = tl.tile_load(x, (s, m))
    tl.tile_push_data(inbox, (s, m), column)
    tl.producer_tile_notify(inbox, (s, m))


@tilelink.program("R/R M N, R M N")
def twice(x: Any, inbox: Any) -> None:
    s, m, n = tl.tile_id(x)
    tl.tile_push_data(inbox, (s, m, n), tl.tile_load(x, (s, m, n)) * 2)
    tl.producer_tile_notify(inbox, (s, m, n))


@tilelink.program("R M N -> M N")
def added(inbox: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for q in tl.tiles(inbox, axis=0):
        tl.consumer_tile_wait(inbox, (q, m, n))
        acc += tl.tile_load(inbox, (q, m, n))
    tl.tile_store(out, (m, n), acc)


def test_a_column_is_made_as_wide_as_its_tile() -> None:
    def body(x: Any) -> Any:
        inbox = tilelink.symmetric("R M 8", like=x)
        widened(x, inbox)
        return added(inbox)

    operator = tilelink.operator("M 1 -> M 8", name="wide", schedule={"added": tilelink.sms(joins="widened")})(body)
    x = [numbers((4, 1), BF16, 0, r) for r in range(2)]
    assert words_of(operator, x[0], ranks=2) == {"inbox"}
    for y in operator(x):
        assert torch.equal(y, (x[0] + x[1]).expand(4, 8))


def test_rows_whose_length_is_made_from_others() -> None:
    """Half of it has a name in the text."""

    def body(x: Any) -> Any:
        return exchange(x, tilelink.symmetric("R M N+1", like=x))

    operator = tilelink.operator("M N+1 -> M N+1", name="one_more")(body)
    x = [numbers((3, 6), BF16, 0, r) for r in range(2)]
    assert words_of(operator, x[0], ranks=2) == {"inbox"}
    assert all(torch.equal(y, x[0] + x[1]) for y in operator(x))


def test_a_product_whose_tiles_are_exchanged_from_registers() -> None:
    x, w = ([numbers(shape, BF16, k, r) for r in range(3)] for k, shape in enumerate(((20, 24), (24, 96))))
    parts = [(a.float() @ b.float()).to(BF16).float() for a, b in zip(x, w, strict=True)]
    for y in gemm_ar_one_shot.schedule(unfused=False)(x, w):
        assert torch.equal(y, sum(parts).to(BF16))  # pyright: ignore[reportAttributeAccessIssue]


def test_nothing_is_signalled() -> None:
    text = all_reduce_one_shot.source(torch.empty(4, 64, dtype=BF16), ranks=2)
    assert sorted(called(text)) == ["ll_load", "ll_pack", "ptr"]
    assert "inbox_flags" not in text


def test_words_lie_in_memory_of_their_own() -> None:
    """What a call with signals leaves behind is data, which could be like the number of a later call."""

    def main() -> tuple[list[str], bool]:
        for columns in (64, 65, 64, 64):
            all_reduce_one_shot(torch.ones(2, columns, dtype=BF16))
        (workspace,) = require().workspaces.values()
        names = sorted(n for n in workspace.capacity if n.startswith("inbox"))
        numbers = {int(workspace.view(n, torch.int64, 1)) >> 32 for n in names if ".ll/" in n}
        return names, numbers == {2, 3}

    for names, numbered in tilelink.launch(main, 2):
        assert names == ["inbox.epoch_flags/0", "inbox.epoch_flags/1", "inbox.ll/0", "inbox.ll/1", "inbox/0", "inbox/1"]
        assert numbered


# -------------------------------------------------------------------------------------------------- axes of all lengths
@tilelink.program("R/R M N, R M N")
def send(x: Any, inbox: Any) -> None:
    """Sums of rows, under the name that the rows had."""
    s, m, n = tl.tile_id(x)
    tile = tl.tile_load(x, (s, m, n))
    tile = tl.sum(tile.to(tl.float32), 1)[:, None]
    tl.tile_push_data(inbox, (s, m, n), tile)
    tl.producer_tile_notify(inbox, (s, m, n))


@tilelink.program("R M N -> M")
def weighed(inbox: Any, out: Any) -> None:
    """Tiles that need a mask have a loop of their own."""
    m = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for q in tl.tiles(inbox, axis=0):
        for k in tl.tiles(inbox, axis=2):
            tl.consumer_tile_wait(inbox, (q, m, k))
            kept = tl.where(tl.tile_mask(inbox, k, stop=37), tl.tile_load(inbox, (q, m, k)).to(tl.float32), 0.0)
            acc += tl.sum(kept * tl.tile_range(inbox, k)[None, :], 1)
    tl.tile_store(out, m, acc)


@tilelink.program("R M N -> M")
def limited(inbox: Any, out: Any) -> None:
    """All tiles, and then those between two odd positions."""
    m = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for q in tl.tiles(inbox, axis=0):
        for k in tl.tiles(inbox, axis=2):
            tl.consumer_tile_wait(inbox, (q, m, k))
            acc += tl.sum(tl.tile_load(inbox, (q, m, k)).to(tl.float32) * tl.tile_range(inbox, k)[None, :], 1)
        for j in tl.tiles(inbox, axis=2, start=3, stop=37):
            tl.consumer_tile_wait(inbox, (q, m, j))
            acc += tl.sum(tl.tile_load(inbox, (q, m, j)).to(tl.float32) * tl.tile_range(inbox, j)[None, :], 1)
    tl.tile_store(out, m, acc)


def taken(consumer: Any) -> Operator:
    def body(x: Any) -> Any:
        inbox = tilelink.symmetric("R M N", like=x)
        send(x, inbox)
        return consumer(inbox)

    placed = {"send": tilelink.sms(M=2, N=64), consumer.name: tilelink.sms(M=2, N=16, joins="send")}
    return tilelink.operator("M N -> M", name=f"taken_{consumer.name}", schedule=placed)(body)


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("consumer", [weighed, limited])
def test_parts_of_rows(consumer: Any, dtype: torch.dtype) -> None:
    """Words of two elements are taken by tiles that begin with a word, and end with one, whatever a loop says."""
    x, operator = [numbers((4, 64), dtype, 0, r) for r in range(2)], taken(consumer)
    assert words_of(operator, x[0], ranks=2) == (set() if consumer is limited and dtype == BF16 else {"inbox"})
    rows = sum(t.float().sum(1).to(dtype).float() for t in x)
    weight = sum(range(37)) if consumer is weighed else sum(range(64)) + sum(range(3, 37))
    for y in operator(x):
        assert torch.equal(y, (rows * weight).to(dtype))  # pyright: ignore[reportAttributeAccessIssue]


@tilelink.program("R/R M N, R M N -> R/R M")
def whole_rows(x: Any, inbox: Any, out: Any) -> None:
    s, m = tl.tile_id(out)
    tl.tile_push_data(inbox, (s, m), tl.tile_load(x, (s, m)))
    tl.producer_tile_notify(inbox, (s, m))
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for q in tl.tiles(inbox, axis=0):
        tl.consumer_tile_wait(inbox, (q, m))
        acc += tl.sum(tl.tile_load(inbox, (q, m)).to(tl.float32), 1)
    tl.tile_store(out, (s, m), acc)


def test_rows_without_elements_are_signalled() -> None:
    """Their words say nothing, and who hears nobody does not know that a slot is free."""

    def body(x: Any) -> Any:
        return whole_rows(x, tilelink.symmetric("R M N", like=x))

    operator = tilelink.operator("M N -> R/R M", name="rows_of_all", schedule={"whole_rows": tilelink.sms(M=2)})(body)
    assert words_of(operator, torch.empty(4, 0)) == set()
    assert words_of(operator, torch.empty(4, 64)) == {"inbox"}

    def main() -> list[float]:
        return [operator(torch.full((4, n), float(call))).max().item() for call, n in enumerate((64, 0, 64, 64))]

    assert tilelink.launch(main, RANKS, straggler=0, races=True) == [[0.0, 0.0, 2.0 * 192, 3.0 * 192]] * RANKS


@tilelink.program("R/R -> R/R")
def tell(x: Any, box: Any) -> None:
    r = tl.tile_id(x)
    tl.tile_push_data(box, r + 1, tl.tile_load(x, r))
    tl.peer_tile_notify(box, r + 1, r + 1)


@tilelink.program("R/R, R/R -> R/R")
def add(x: Any, box: Any, total: Any) -> None:
    r = tl.tile_id(x)
    tl.peer_tile_wait(box, r, r - 1)
    tl.tile_store(total, r, tl.tile_load(x, r) + tl.tile_load(box, r))


def test_a_single_number_is_signalled() -> None:
    """It has no rows."""

    def body(x: Any) -> Any:
        box = tilelink.symmetric("R/R", like=x)
        tell(x, box)
        return add(x, box)

    operator = tilelink.operator("R/R -> R/R", name="number", schedule={"add": tilelink.sms(joins="tell")})(body)
    x = [torch.tensor(3.0), torch.tensor(4.0)]
    assert operator.plan(x[0], ranks=2).epoch_signalled
    assert words_of(operator, x[0], ranks=2) == set()
    assert [y.item() for y in operator(x)] == [7.0, 7.0]


# -------------------------------------------------------------------------------------------------------------- reports
def stays_away(operator: Operator) -> None:
    """Rank 1, from the second call."""
    for _ in range(2 - tilelink.rank()):
        operator(torch.ones(2, 64, dtype=BF16))


@pytest.mark.parametrize(
    ("operator", "awaited", "line"),
    [
        (all_reduce_one_shot, "inbox", "acc += tl.tile_load(inbox, (q, m, n))"),
        (all_gather, "all_gather_pushed_gather_rows", "tl.tile_pull_data(rows, tile, source=shard)"),
    ],
    ids=["loaded", "moved"],
)
def test_who_waits_for_words_names_the_first_that_is_missing(operator: Operator, awaited: str, line: str) -> None:
    with pytest.raises(StandstillError) as caught:
        tilelink.launch(lambda: stays_away(operator), 2)
    waiting = next(w for w in caught.value.waiting if (w.agent.rank, w.agent.worker) == (0, 0))
    assert waiting.awaits == f"{awaited}[64] is of call 0, waits until it is of call 2"
    assert waiting.loc is not None
    assert waiting.loc.source_line().strip() == line


@pytest.mark.parametrize(
    ("operator", "step", "tile", "where", "line"),
    [
        (
            all_reduce_one_shot,
            "exchange",
            "R 0:1, M 0:2, N 0:64",
            "`inbox` from [1, 0, 0]",
            "acc += tl.tile_load(inbox, (q, m, n))",
        ),
        (
            all_gather,
            "all_gather_pushed.keep",
            "M 0:4, _0 0:64",
            "`all_gather_pushed_gather_rows` from [2, 0]",
            "tl.tile_pull_data(rows, tile, source=shard)",
        ),
    ],
    ids=["loaded", "moved"],
)
def test_a_wait_for_words_ends_by_its_limit(operator: Operator, step: str, tile: str, where: str, line: str) -> None:
    """With a watchdog: the report says whose words, of which call, where in the tensor and at which tile."""

    def main() -> str:
        try:
            stays_away(operator)
        except TilelinkError as error:
            return str(error)
        return ""

    said = tilelink.launch(main, 2, watchdog=1.0)[0].splitlines()
    assert said[0] == (
        f"TL470: rank 0 gave up waiting in `{step}` after 1.0 s: worker 0, tile [{tile}], "
        f"{where} on, of rank 1: seen 0, expected 2"
    )
    assert said[3].split(" | ")[1].strip() == line


def test_words_take_time_to_come() -> None:
    """In simulated time nobody goes on before what he reads was sent."""
    recorder = Recorder()
    tilelink.launch(lambda: all_reduce_one_shot(torch.ones(1, 64, dtype=BF16)), 2, recorder=recorder)
    waits = {(r.what, r.rank, r.detail): r.time for r in recorder.records if "of call 1" in r.detail}
    assert {key[0] for key in waits} == {"wait", "resume"}
    assert {key[2] for key in waits} == {"inbox[0] of call 1", "inbox[32] of call 1"}
    for rank, other in ((0, "inbox[32] of call 1"), (1, "inbox[0] of call 1")):
        assert waits["resume", rank, other] > waits["wait", rank, other]


def test_words_that_are_stored_one_by_one() -> None:
    """The last of them ends the wait, in simulated time too, and not the first."""

    def body(x: Any) -> Any:
        inbox = tilelink.symmetric("R M N", like=x)
        twice(x, inbox)
        return added(inbox)

    placed = {"twice": tilelink.sms(M=1, N=1), "added": tilelink.sms(M=1, N=16, joins="twice")}
    operator = tilelink.operator("M N -> M N", name="single_flags", schedule=placed)(body)
    assert words_of(operator, torch.empty(1, 16), ranks=2) == {"inbox"}
    recorder = Recorder()
    tilelink.launch(lambda: operator(torch.ones(1, 16)), 2, recorder=recorder, device=Device(sms=1))
    waits = {(r.what, r.rank, r.detail): r.time for r in recorder.records if "of call 1" in r.detail}
    # Who waits for the first time has sent all of its own.
    sent = waits["wait", 1, "inbox[0] of call 1"]
    assert waits["resume", 0, "inbox[16] of call 1"] >= sent + H200.flight(True)
