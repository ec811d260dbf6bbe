# pyright: reportArgumentType=false
"""Ranks with axes of their own on a GPU that is not there: what the driver gets for the lines of a grid."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from triton import knobs

from examples.data_and_tensor_parallel import LINEAR
from tests.runtime.fake_gpu import COMPILER, FakeBackend, Notes, fake_gpu
from tilelink import copy_engine, sms
from tilelink.runtime.grid import Grid
from tilelink.runtime.session import Session

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU"),
    pytest.mark.skipif(COMPILER is None, reason="the driver that takes notes is compiled"),
]
TILES = sms(M=64, N=64, K=64)
SCHEDULES = {
    "SMs": LINEAR.schedule(gather_rows=sms(8, M=64), gather_weight=sms(8, M=64), matmul=TILES),
    "copy engines": LINEAR.schedule(gather_rows=copy_engine(push=True), gather_weight=copy_engine(M=64), matmul=TILES),
}
RANK = 2
"""The second line along TP; in each, the first of its two ranks."""


@pytest.fixture(scope="module")
def notes() -> Iterator[Notes]:
    with fake_gpu() as taken:
        yield taken


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_driver_gets_what_tritons_own_launcher_passes(name: str, shared: bool, notes: Notes) -> None:
    """`shared`: arguments that peers of a line read where they lie bring the context of that line along."""
    notes.fail(0)
    session = Session(FakeBackend(RANK, 4, notes).laid_out(Grid((("DP", 2), ("TP", 2)))))
    given = [torch.zeros(64, 128, dtype=torch.bfloat16), torch.zeros(64, 64, dtype=torch.bfloat16)]
    given = [session.empty(t.shape, t.dtype) for t in given] if shared else given
    out = SCHEDULES[name](*given, session=session)
    SCHEDULES[name](*given, out=out, session=session)
    (workspace,) = session.workspaces.values()
    heard: list[object] = []
    calls, before = workspace.calls, workspace.heard
    asked: list[list[str]] = []
    for hook in (False, True):
        workspace.calls, workspace.heard = calls, before
        if hook:
            knobs.runtime.launch_enter_hook.add(heard.append)
        notes.start()
        SCHEDULES[name](*given, out=out, session=session)
        asked.append(notes.lines())
    knobs.runtime.launch_enter_hook.remove(heard.append)
    assert asked[0] == asked[1]
    assert sum(line.startswith("launch") for line in asked[0]) == len(heard) > 0


def test_a_context_has_the_ranks_of_a_line(notes: Notes) -> None:
    notes.fail(0)
    backend = FakeBackend(RANK, 4, notes).laid_out(Grid((("DP", 2), ("TP", 2))))
    arena = backend.arena(512)
    bases = arena.context.tolist()[2:6]
    assert arena.along((2, 3)).tolist() == [0, 2, bases[2], bases[3], 2, 3]
    assert arena.along((0, 2)).tolist() == [1, 2, bases[0], bases[2], 0, 2]
    assert arena.along((0, 2)) is arena.along((0, 2))
