"""Sub-groups of the backends on GPUs, as far as they can be tested without one."""

from __future__ import annotations

import operator
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tilelink.errors import TilelinkError
from tilelink.runtime import environment
from tilelink.runtime.nvshmem.backend import NvshmemBackend, Pool, Span, first_fit
from tilelink.runtime.peer import Arena

HERE = Path(__file__).parent


def test_four_processes_in_two_groups(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(HERE.parents[1]), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "group_ranks.py"), str(tmp_path / "store")]
    # A session of its own, so that no rank outlives the others.
    ranks = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    try:
        output, errors = ranks.communicate(timeout=100)
        assert (ranks.returncode, output) == (0, "ok\n"), errors
    finally:
        with suppress(ProcessLookupError):
            os.killpg(ranks.pid, signal.SIGKILL)


def pool(size: int = 1 << 20, pes: int = 4) -> Pool:
    block = torch.zeros(size, dtype=torch.uint8)
    return Pool(Arena(group(range(pes)), block, (block,) * pes, (1000, 0, 3000, 4000), lambda: None))


def group(members: Sequence[int], used: list[set[Span]] | None = None) -> Any:
    """As much of a backend as a pool needs. `used`: by each member; None: alike."""
    return SimpleNamespace(rank=0, numbers=members, lasting=operator.call, agree=lambda mine: used or [mine])


def test_pieces_are_free_again() -> None:
    mine = pool(1 << 12)

    def take(nbytes: int) -> Arena:
        return mine.take(nbytes, group([0, 2]))

    blocks = [take(512) for _ in range(3)]
    assert mine.used == {(0, 512), (512, 1024), (1024, 1536)}
    blocks[1].release()
    assert mine.used == {(0, 512), (1024, 1536)}
    assert take(1).bases == (1512, 3512)
    assert take(1024).bases == (2536, 4536)


def test_a_piece_is_free_on_every_member() -> None:
    assert first_fit([(100, 200), (0, 50)], 50, 200) == 50
    assert first_fit([(100, 200), (0, 50)], 51, 200) is None
    assert first_fit([(10, 40), (60, 100), (0, 5), (70, 100)], 20, 100) == 40
    assert first_fit([], 100, 100) == 0
    assert first_fit([], 101, 100) is None


def test_overlapping_groups_never_share_a_byte() -> None:
    """Pieces come and go in four ranks' accounts; a group's pieces lie at one place on all its members."""
    chance, pools = random.Random(5), [pool() for _ in range(4)]
    held: list[tuple[list[int], list[Arena], int]] = []
    in_use: dict[int, list[Span]] = {pe: [] for pe in range(4)}
    for _ in range(300):
        if held and chance.random() < 0.45:
            members, blocks, at = held.pop(chance.randrange(len(held)))
            for pe, block in zip(members, blocks, strict=True):
                block.release()
                in_use[pe].remove((at, at + block.local.numel()))
            continue
        members = sorted(chance.sample(range(4), chance.randint(1, 3)))
        used = [set(pools[pe].used) for pe in members]
        nbytes = chance.randint(1, 60_000)
        if first_fit(set[Span]().union(*used), -(-nbytes // 512) * 512, 1 << 20) is None:
            continue
        blocks = [pools[pe].take(nbytes, group(members, used)) for pe in members]
        starts = {b.local.data_ptr() - pools[pe].block.local.data_ptr() for pe, b in zip(members, blocks, strict=True)}
        (at,) = starts
        for pe, block in zip(members, blocks, strict=True):
            assert all(at + nbytes <= low or high <= at for low, high in in_use[pe])
            in_use[pe].append((at, at + nbytes))
            assert block.bases == tuple(b and b + at for b in (pools[pe].block.bases[m] for m in members))
            assert all(p.numel() == nbytes for p in block.peers)
        held.append((members, blocks, at))
    assert held


def test_pointers_reach_some_groups_and_not_others() -> None:
    backend = NvshmemBackend.__new__(NvshmemBackend)
    backend.numbers = (0, 2, 1)  # of a group of ranks 0, 2 and 1
    backend._reached = [(True, False, True), (False, True, False), (True, False, True)]
    assert [backend._reach_among(ranks) for ranks in ((0, 1), (0, 2), (2,))] == ["peer", "network", "peer"]


def test_no_memory_is_left_for_a_group() -> None:
    mine = pool(1 << 12)
    with pytest.raises(TilelinkError) as caught:
        mine.take(5000, group([0, 2]))
    assert str(caught.value) == (
        "TL446: the memory of sub-groups has no 5000 bytes that are free on PEs 0, 2\n"
        "  why: NVSHMEM allocates on all PEs at once, so sub-groups share what was set aside at the first of them\n"
        "  do:  set TILELINK_GROUP_HEAP to more bytes, or close operators that are not used"
    )


def test_how_much_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILELINK_GROUP_HEAP", raising=False)
    assert environment.group_heap() == 2**30
    monkeypatch.setenv("TILELINK_GROUP_HEAP", "4096")
    assert environment.group_heap() == 4096
    for wrong in ("0", "1G", "-1", ""):
        monkeypatch.setenv("TILELINK_GROUP_HEAP", wrong)
        with pytest.raises(TilelinkError, match="TL400"):
            environment.group_heap()
