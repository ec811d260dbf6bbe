# pyright: reportArgumentType=false
"""The race detector: silent where all is ordered, and certain where it is not, whatever the schedule."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from tests.operators.problems import AG, RS, Kind, assert_solves
from tests.simulated.breaking import Break, Edit, breaking, changed, dropped, moved
from tilelink import Operator, copy_engine, sms
from tilelink.ops import ag_gemm, gemm_rs
from tilelink.runtime.simulated import RaceError, StandstillError

__all__ = ["breaking"]

TILES = {"M": 16, "N": 16, "K": 16}
SEEDS = pytest.mark.parametrize("seed", [0, 1, 2])


def pulled() -> Operator:
    return ag_gemm.schedule(gather=sms(2, M=16, order="ring"), matmul=sms(order="ring", **TILES))


def copied() -> Operator:
    return ag_gemm.schedule(gather=copy_engine(M=16, push=True), matmul=sms(order="ring", **TILES))


def pushed() -> Operator:
    return gemm_rs.schedule(scatter=sms(2, M=16), matmul=sms(**TILES), reduce=sms(M=16, N=16))


def rung() -> Operator:
    """A copy engine counts the tiles of a chunk."""
    return gemm_rs.schedule(scatter=copy_engine(M=16), matmul=sms(**TILES), reduce=sms(M=16, N=16))


def assert_right(operator: Operator, kind: Kind, seed: int, **options: bool) -> None:
    """Two calls of two ranks."""
    calls = [kind.call(40, 32, 32, 2, torch.bfloat16, salt=salt) for salt in range(2)]
    assert_solves(operator, calls, seed=seed, **options)


@dataclass(frozen=True)
class Mistake:
    """`missing`: the edges of which the report must name one: which, depends on how far the signals had come."""

    operator: Callable[[], Operator]
    kind: Kind
    edit: Edit
    missing: tuple[str, ...]


RELEASE = 'sem="release", scope="sys"'
MISTAKES = {
    "wait dropped": Mistake(pulled, AG, dropped("shmem.local_wait_until(rows_flags"), ("signal",)),
    "wait for one too few": Mistake(
        pushed, RS, changed("< RANKS, other=0)", "< RANKS, other=0) - 1"), ("count", "signal")
    ),
    "wait for the call before": Mistake(
        copied, AG, changed("tl.load(epoch_at))", "tl.load(epoch_at) - 1)"), ("count", "signal")
    ),
    "wait on another flag": Mistake(
        pushed, RS, changed("each(dst_flags + c_each,", "each(dst_flags + c_each % dst_per_part,"), ("signal",)
    ),
    "wait that does not acquire": Mistake(
        pulled, AG, changed('sem="acquire"', 'sem="relaxed"', device=True), ("acquire", "signal")
    ),
    "load before its wait": Mistake(
        pushed, RS, moved("shmem.signal_wait_each(dst_flags", behind="inbox_tile = tl.load("), ("signal",)
    ),
    "store after its notify": Mistake(
        pushed, RS, moved("shmem.putmem_nbi_block(", behind="shmem.signal_op(dst_flags"), ("signal",)
    ),
    "relaxed release": Mistake(pushed, RS, changed(RELEASE, 'sem="relaxed", scope="sys"', device=True), ("release",)),
    "signal for one GPU": Mistake(pushed, RS, changed(RELEASE, 'sem="release", scope="gpu"', device=True), ("scope",)),
    "no barrier before a signal": Mistake(
        pushed, RS, changed("block_barrier()\n    remote", "remote", device=True), ("barrier",)
    ),
    "no barrier before a counter": Mistake(
        pulled, AG, changed("block_barrier()\n    return", "return", device=True), ("barrier",)
    ),
    "no proxy fence after a wait": Mistake(pulled, AG, dropped("shmem.async_load_fence()"), ("proxy fence",)),
    "no proxy fence after a copy": Mistake(copied, AG, dropped("shmem.async_load_fence()"), ("proxy fence",)),
    "bulk stores not waited for": Mistake(pushed, RS, dropped("shmem.async_store_quiet()"), ("bulk store wait",)),
    "bulk stores not waited for at a doorbell": Mistake(
        rung, RS, dropped("shmem.async_store_quiet()"), ("bulk store wait",)
    ),
}


@SEEDS
@pytest.mark.parametrize("name", MISTAKES)
def test_a_broken_order_is_a_race_under_every_schedule(name: str, seed: int, breaking: Break) -> None:
    mistake = MISTAKES[name]
    breaking(mistake.edit)
    with pytest.raises(RaceError) as caught:
        assert_right(mistake.operator(), mistake.kind, seed)
    assert caught.value.race.missing in mistake.missing


@pytest.mark.parametrize(
    ("operator", "kind", "call"),
    [
        (pulled, AG, "shmem.local_add(rows_flags"),
        (pushed, RS, "shmem.signal_op(dst_flags"),
        (pushed, RS, "shmem.local_add(matmul_out_flags"),
    ],
)
def test_a_dropped_signal_stands_still(
    operator: Callable[[], Operator], kind: Kind, call: str, breaking: Break
) -> None:
    breaking(dropped(call))
    with pytest.raises(StandstillError):
        assert_right(operator(), kind, 0)


def test_a_missing_wait_is_seen_even_when_the_numbers_come_out_right(breaking: Break) -> None:
    """The detector needs no unlucky schedule: of these, most give right numbers."""
    breaking(dropped("shmem.async_load_fence()"))
    assert_right(pulled(), AG, 0, races=False)
    with pytest.raises(RaceError):
        assert_right(pulled(), AG, 0)


def test_the_report_is_pinned(breaking: Break) -> None:
    breaking(dropped("shmem.async_load_fence()"))
    with pytest.raises(RaceError) as caught:
        assert_right(pulled(), AG, 0)
    text = re.sub(r"/\S*/tilelink/ops/", "", str(caught.value))
    assert text.splitlines() == PINNED.splitlines()


PINNED = """\
TL507: a race: rank 1, worker 7 of ag_gemm_matmul reads rows[16:32, 0:16] by a bulk copy (matmul, emitted line 100)
  --> programs.py:47
     |
  47 |         acc = tl.dot(tl.tile_load(rows, (m, k)), tl.tile_load(weight, (k, n)), acc, out_dtype=acc.dtype)
     |                      ^^^^^^^^^^^^^^^^^^^^^^^^^^
  why: a bulk copy (TMA) may see memory as it was before the wait, unless a proxy fence lies in between
  do:  put shmem.async_load_fence() behind the wait
  note: unordered with: rank 1, worker 1 of ag_gemm_matmul writes rows[512:640] (gather, emitted line 60)
  --> programs.py:29
     |
  29 |     tl.tile_pull_data(rows, tile, source=shard)
     |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  note: the missing edge: proxy fence
  note: since then, rank 1, worker 1 of ag_gemm_matmul has signalled: rows_flags[1]
  note: until then, rank 1, worker 7 of ag_gemm_matmul has waited for: rows_flags[2], rows_flags[1]"""
