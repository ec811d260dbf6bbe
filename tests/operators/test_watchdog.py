"""A wait without end becomes an error that names everything, the ranks go on afterwards, and nothing of it costs when off."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tilelink
from tests.mapping.plans import emitted
from tests.operators.hanging import without_notify
from tests.selection import table
from tilelink import Operator, TilelinkError, copy_engine, fused, sms
from tilelink.ir.kernel import Checks
from tilelink.ir.topology import Topology
from tilelink.ops import ag_gemm, gemm_rs, gemm_rs_ring, programs
from tilelink.runtime.session import require

RANKS = 3
X = torch.randn(RANKS, 8, 16, generator=torch.Generator().manual_seed(0))
W = torch.randn(16, 32, generator=torch.Generator().manual_seed(1))
TILES: dict[str, Any] = {"M": 8, "N": 16, "K": 16}
PULL = ag_gemm.schedule(gather=sms(2, M=4), matmul=sms(**TILES, order="ring"))
RS: dict[str, Operator] = {
    "copy engine": gemm_rs.schedule(matmul=sms(**TILES, order="ring+1"), reduce=fused("matmul")),
    "fused": gemm_rs.schedule(scatter=fused("matmul"), matmul=sms(**TILES, order="ring+1")),
    "ring": gemm_rs_ring.schedule(matmul=sms(**TILES, order="ring+1")),
}
AG: dict[str, Operator] = {
    "pull": PULL,
    "push": PULL.schedule(gather=sms(2, M=4, push=True)),
    "copy engine": PULL.schedule(gather=copy_engine(push=True)),
}


def broken(
    operator: Operator, step: str, param: str, on: int | None = None
) -> tuple[Operator, tuple[torch.Tensor, ...]]:
    """This rank's operator and arguments; on rank `on` (None: on all) one notify is left out."""
    session = require()
    me = session.backend.rank
    given = (X[me], W)
    if on not in (None, me):
        return operator, given
    return without_notify(operator, given, session.backend.topology, session.vigil.checks, step, param), given


def first_error(*calls: Callable[[], object]) -> TilelinkError:
    """The first error that one call after the other raises."""
    for call in calls:
        try:
            call()
        except TilelinkError as error:
            return error
    raise AssertionError("no call failed")


def failures(operator: Operator, step: str, param: str, on: int | None = None, **options: Any) -> list[TilelinkError]:
    """Every rank's error, and afterwards the right result of the operator as it should be."""

    def main() -> TilelinkError:
        wrong, given = broken(operator, step, param, on)
        caught = first_error(lambda: wrong(*given), tilelink.check)
        me = require().backend.rank
        good = PULL.schedule(channels={"rows": 8})
        torch.testing.assert_close(good(*given), X.flatten(0, 1) @ W, msg=f"rank {me}")
        return caught

    return tilelink.launch(main, RANKS, watchdog=3.0, **options)


@pytest.mark.parametrize("seed", range(3))
def test_every_rank_names_who_waits_where_for_what_and_whom(seed: int) -> None:
    """`gather` of rank 1 pushes its rows to everybody and tells nobody."""
    found = failures(AG["push"], "gather", "rows", on=1, seed=seed)
    lines = Path(programs.__file__).read_text().splitlines()
    waits = next(n for n, line in enumerate(lines, 1) if "consumer_tile_wait(rows, m)" in line)
    for rank, error in enumerate(found):
        assert error.code == "TL470"
        whose = "this rank" if rank == 1 else "rank 1"
        assert re.fullmatch(
            rf"rank {rank} gave up waiting in `matmul` after \d\.\d s: worker \d+, "
            rf"tile \[M 8:16, N (0:16|16:32)\], channel `rows` flag [23], of {whose}: seen 0, expected 1",
            error.message,
        ), error.message
        assert error.loc is not None
        assert (error.loc.file, error.loc.line) == (programs.__file__, waits)
        assert error.why == "rank 1 has not signalled"


@pytest.mark.parametrize(
    ("operator", "step", "param"),
    [
        (AG["pull"], "gather", "rows"),
        (RS["fused"], "scatter", "dst"),
        (RS["copy engine"], "matmul", "out"),
        (RS["ring"], "ring", "inbox"),
    ],
    ids=["pull", "fused", "copy engine", "ring"],
)
def test_other_forms(operator: Operator, step: str, param: str) -> None:
    """With copy engines a stream waits for a doorbell that nobody rings: it is released with everything else."""
    for error in failures(operator, step, param):
        assert error.code == "TL470"


def test_a_watchdog_that_cannot_be_made_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever then asks for the old one gets it, instead of one that has been stopped."""

    def refused(*_: object) -> None:
        raise OSError("no memory that the host sees")

    def main() -> list[Checks]:
        session = require()
        found = [session.vigil.checks]
        with monkeypatch.context() as patch:
            patch.setattr(type(session.backend), "watch_over", refused)
            with pytest.raises(OSError, match="no memory"):
                session.watch_over(7.0, True)
        found.append(session.vigil.checks)
        assert (session.vigil.watchdog, session.vigil.debug) == (None, False)
        before = session.vigil
        session.watch_over(5.0, False)
        assert session.vigil is not before
        return [*found, session.vigil.checks]

    watched = Checks(watchdog=True, debug=False)
    assert tilelink.launch(main, 1, watchdog=5.0) == [[watched, Checks(), watched]]


def test_a_rank_that_makes_no_call() -> None:
    def main() -> str:
        me = tilelink.rank()
        PULL(X[me], W)
        if me == 2:
            return ""
        with pytest.raises(TilelinkError) as caught:
            PULL(X[me], W)
        return str(caught.value)

    said = tilelink.launch(main, RANKS, watchdog=3.0)
    for rank in (0, 1):
        assert re.search(
            r"TL470: rank \d gave up waiting in `gather`.*rank 2 has not staged `x`: seen 1, expected 2", said[rank]
        )
        assert "rank 2 has not signalled" in said[rank]


def test_a_report_of_a_call_of_other_sizes_names_its_tiles() -> None:
    """One emitted file serves both sizes."""

    def main() -> str:
        me = tilelink.rank()
        in_turn = PULL.schedule(gather=sms(2, M=4, order="ring"))
        in_turn(torch.zeros(40, 16), W)
        in_turn(X[me], W)
        if me == 2:
            return ""
        with pytest.raises(TilelinkError) as caught:
            in_turn(X[me], W)
        return caught.value.message

    said = tilelink.launch(main, RANKS, watchdog=3.0)
    assert re.search(r"in `gather`.*tile \[M (16:20|20:24), _0 0:16\], rank 2 has not staged `x`", said[1]), said[1]


def test_a_rank_that_has_found_nothing_learns_of_it_in_a_later_call() -> None:
    """Only rank 1 waits for its own gather. The others come to a call in which it is missing, then start afresh with it."""

    def main() -> str:
        wrong, given = broken(PULL, "gather", "rows", on=1)
        caught = first_error(*[lambda: wrong(*given)] * 3)
        good = PULL.schedule(channels={"rows": 8})
        torch.testing.assert_close(good(*given), X.flatten(0, 1) @ W)
        return str(caught)

    said = tilelink.launch(main, RANKS, watchdog=3.0)
    assert "flag" in said[1]
    assert "of this rank" in said[1]
    for rank in (0, 2):
        assert "rank 1 has not staged `x`: seen 1, expected 2" in said[rank]


def test_a_rank_that_is_about_to_allocate_learns_of_it_there() -> None:
    """The others call another operator, whose memory is allocated by all, where rank 1 starts afresh."""

    def main() -> str:
        wrong, given = broken(PULL, "gather", "rows", on=1)
        other = RS["fused"]
        caught = first_error(lambda: wrong(*given), lambda: other(*given))
        other(*given)
        return caught.message

    said = tilelink.launch(main, RANKS, watchdog=3.0)
    assert said[0] == said[2] == f"rank 1 reports: {said[1]}"


def text(operator: Operator, checks: Checks = Checks()) -> str:
    plan = operator.plan(X[0], W, topology=Topology(RANKS))
    return emitted(plan, checks).text


@table("operator", [*AG.values(), *RS.values()], ids=[*AG, *RS])
def test_off_it_leaves_no_trace(operator: Operator) -> None:
    """The variant with limits differs in its waits, their parameter, and the list of what the numbers mean; and it waits for
    ranks one after the other where the other looks at the flags of all side by side."""
    off, on = text(operator), text(operator, Checks(watchdog=True))
    assert "watch" not in off
    assert "wait_until" not in on
    waits = re.findall(r"(\w+_wait)_(until|each)\((.*?), shmem\.CMP_GE, (.*)\)", off)
    limited = re.findall(r"(\w+_wait)_within\((.*), shmem\.CMP_GE, (.*), watch_at, (?:\d+|site), (?:t|-1), .*\)", on)
    for (kind, how, flag, value), found in zip(waits, limited, strict=True):
        one = (kind, flag, value) if how == "until" else (kind, flag.split(" + ")[0])
        assert one == (found if how == "until" else (found[0], found[1].split(" + ")[0]))
    assert len(waits) == off.count("wait_until") + off.count("wait_each") > 0
    numbers = re.findall(r"watch_at, (\d+),", on)
    listed = re.findall(r"(?m)^    (\d+)  \w+ waits ", on)
    assert set(numbers) <= set(listed)


@table("value", ["soon", "-1", "nan"])
def test_seconds_are_a_number(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILELINK_WATCHDOG", value)
    with pytest.raises(TilelinkError, match=r"TL400.*no number of seconds"):
        tilelink.launch(tilelink.rank, 2)


def test_the_environment_turns_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILELINK_WATCHDOG", "2.5")
    assert (
        tilelink.launch(lambda: (require().vigil.watchdog, require().vigil.checks), 2)
        == [(2.5, Checks(watchdog=True))] * 2
    )
    assert "wait_within" in PULL.source(X[0], W, ranks=RANKS)
    assert tilelink.launch(lambda: require().vigil.watchdog, 2, watchdog=7.0) == [7.0] * 2


@pytest.mark.parametrize("seed", range(2))
def test_a_slot_is_free_when_its_users_have_left_with_a_time_limit_too(seed: int) -> None:
    """One slot: every call waits for the one before, and the slowest rank still reads it."""
    operator = AG["push"].schedule(slots=1)

    def main() -> list[torch.Tensor]:
        return [operator(X[require().backend.rank] + k, W) for k in range(3)]

    for found in tilelink.launch(main, RANKS, watchdog=60.0, races=True, seed=seed, straggler=seed):
        for k, got in enumerate(found):
            torch.testing.assert_close(got, (X + k).flatten(0, 1) @ W)
