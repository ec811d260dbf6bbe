"""What streams do by the lowered plan, held against what the exact graph works out by itself: op for op, in the same order."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest

from benchmarks.mutants.mappings import mappings, operators
from tests.mapping.oracle import off_any_shelf
from tilelink.ir import formula as F
from tilelink.ir import streams as S
from tilelink.ir.host import Keep, Transfer
from tilelink.ir.lowered import ENTERED, READY, STAGE, Lowered
from tilelink.ir.plan import Plan
from tilelink.mapping.exact import stream_ops as X
from tilelink.mapping.exact.transfers import issued, kept
from tilelink.mapping.lower import lower

EACH = 40
SEEDS = (1189, 1290, 1592)
"""Of plans where the two have differed: own parts of several streams, runs that wait for one word, words by source rank."""
Plain = tuple[Any, ...]


def by_lowered(lowered: Lowered, h: Transfer | Keep, rank: int) -> list[list[Plain]]:
    return [[_plain(lowered, action) for action in stream] for stream in S.actions(lowered, h.executor, rank)]


def _plain(lowered: Lowered, action: S.Action) -> Plain:
    if isinstance(action, S.Wait):
        return "wait", action.flags, action.index, action.style, action.times
    if isinstance(action, S.Set):
        return "set", action.flags, action.index, action.rank
    if isinstance(action, S.Copy):
        return "copy", *(_elements(lowered, piece) for piece in (action.target, action.source))
    output = None if action.output is None else (action.output.buffer, action.output.box)
    return "compute", tuple((piece.buffer, piece.box) for piece in action.inputs), output, action.at


def _elements(lowered: Lowered, piece: S.Piece) -> Plain:
    extents = [int(F.evaluate(e, lowered.env(piece.rank))) for e in lowered.buffer(piece.buffer).extents]
    assert all(0 <= begin <= end <= n for (begin, end), n in zip(piece.box, extents, strict=True))
    there = tuple(slice(begin, end) for begin, end in piece.box)
    return (
        piece.buffer,
        piece.rank,
        tuple(np.arange(np.prod(extents, dtype=int)).reshape(extents)[there].flatten().tolist()),
    )


def by_graph(plan: Plan, h: Transfer | Keep, rank: int) -> list[list[Plain]]:
    found = issued(plan, h.path, rank) if isinstance(h, Transfer) else (kept(plan, h.path, rank),)
    return [[_told(plan, rank, op) for op in ops] for ops in found]


def _told(plan: Plan, rank: int, op: X.StreamOp) -> Plain:
    if isinstance(op, X.BellWait):
        return "wait", op.channel, op.word, "doorbell", op.times
    if isinstance(op, X.WordWait):
        if op.kind != "channel":
            return "wait", {"ready": READY, "entered": ENTERED}[op.kind], op.word, "epoch", 1
        return "wait", op.of, op.word, "epoch" if plan.channel(op.of).writers == "stream" else "count", 1
    if isinstance(op, X.SetWord):
        return "set", op.channel, op.word, op.pe
    if isinstance(op, X.Copy):
        there, here = (_flat(op, k) for k in (0, 1))
        staged = STAGE if op.at == "source" and plan.buffer(op.source).staged else ""
        target = op.target, op.pe if op.at == "target" else rank, there
        return "copy", target, (op.source + staged, op.pe if op.at == "source" else rank, here)
    inputs = () if isinstance(op, X.MergeRuns) else tuple((p.tensor, p.bounds) for p in op.inputs)
    output = None if isinstance(op, X.ComputeRun) else (op.output.tensor, op.output.bounds)
    return "compute", inputs, output, op.at if isinstance(op, X.ComputeRun) else ()


def _flat(op: X.Copy, side: int) -> tuple[int, ...]:
    return tuple(i for run in op.runs() for i in range(run[side], run[side] + op.count))


def differs(plan: Plan, ranks: Iterable[int]) -> list[str]:
    lowered = lower(plan)
    moving = [h for h in plan.host if isinstance(h, Transfer | Keep)]
    return [
        f"{h.executor} on rank {rank}: {mine}, by the graph {theirs}"
        for h in moving
        for rank in ranks
        if (mine := by_lowered(lowered, h, rank)) != (theirs := by_graph(plan, h, rank))
    ]


@pytest.mark.parametrize("name", operators())
def test_operators_of_the_library(name: str) -> None:
    """Every fifth placement of each, on three ranks and ragged sizes."""
    for m in islice(mappings(operators()[name]), 0, None, 5):
        assert differs(m.plan, range(m.plan.topology.ranks)) == []


@pytest.mark.parametrize("seeds", [*(range(k * EACH, k * EACH + EACH) for k in range(4)), SEEDS])
def test_random_plans(seeds: Sequence[int]) -> None:
    """Graphs of up to four programs, with one or two mesh dimensions."""
    moved = 0
    for seed in seeds:
        made = off_any_shelf(random.Random(seed))
        if made is not None:
            moved += any(isinstance(h, Transfer) for h in made[1].host)
            assert differs(made[1], range(made[1].topology.ranks)) == []
    assert moved >= min(len(seeds), 4)
