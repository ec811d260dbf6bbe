"""What streams do by the lowered plan, held against what the checker of certificates makes of it, event by event."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pytest

from benchmarks.mutants.mappings import mappings, operators
from tests.mapping.oracle import off_any_shelf
from tilelink.ir.certificate import certificate
from tilelink.ir.lowered import Lowered
from tilelink.ir.plan import Keep, Plan, Transfer
from tilelink.ir.streams import Compute, Copy, Piece, Set, Wait, actions
from tilelink.mapping.lower import lower
from tools import check_certificate

EACH = 40
Did = tuple[Any, ...]


def by_streams(lowered: Lowered, name: str, rank: int) -> Iterator[Did]:
    for action in (a for stream in actions(lowered, name, rank) for a in stream):
        if isinstance(action, Wait):
            yield "await", action.flags, rank, action.index
        elif isinstance(action, Set):
            yield "signal", action.flags, action.rank, action.index
        elif isinstance(action, Copy) and not action.source.empty:
            yield "read", *_where(action.source)
            yield "write", *_where(action.target)
        elif isinstance(action, Compute) and action.output is not None:
            yield "write", *_where(action.output)


def _where(piece: Piece) -> Did:
    return piece.buffer, piece.rank, tuple(piece.box)


def by_checker(text: Any, name: str, rank: int) -> Iterator[Did]:
    """Of a certificate in which there is only this executor. A tile that waits for a doorbell twice has heard of it;
    what functions of libraries read is theirs to say."""
    only = {**text, "ends": [], "executors": [{**e, "after": []} for e in text["executors"] if e["name"] == name]}
    heard, copied = set[Did](), {e["op"] for loop in only["executors"][0]["loops"] for e in _inside(loop["body"])}
    for e in check_certificate.Plan(only).events:
        if e.at.rank != rank or e.kind not in ("await", "signal", "read", "write"):
            continue
        if e.kind in ("await", "signal"):
            for told in e.ranks:
                did = e.kind, e.what, told, e.index
                if e.kind == "signal" or (id(e.at), *did) not in heard:
                    yield did
                heard.add((id(e.at), *did))
        elif e.kind == "write" or "copy" in copied:
            yield e.kind, e.what, e.ranks[0], tuple((s.start, s.stop) for s in e.box)


def _inside(body: Any) -> Iterator[Any]:
    for op in body:
        yield op
        yield from _inside(op.get("body", ()))


def differs(plan: Plan) -> list[str]:
    lowered = lower(plan)
    text = json.loads(certificate(lowered))
    found: list[str] = []
    for h in (h for h in plan.host if isinstance(h, Transfer | Keep)):
        for rank in range(plan.topology.ranks):
            mine, theirs = (
                list(f) for f in (by_streams(lowered, h.executor, rank), by_checker(text, h.executor, rank))
            )
            one = lowered.executor(h.executor).workers == 1
            if mine != theirs if one else Counter(mine) != Counter(theirs):
                found.append(f"{h.executor} on rank {rank}: {mine}, by the checker {theirs}")
    return found


@pytest.mark.parametrize("name", operators())
def test_operators_of_the_library(name: str) -> None:
    """Every fifth placement of each, on three ranks and ragged sizes."""
    for m in islice(mappings(operators()[name]), 0, None, 5):
        assert differs(m.plan) == []


@pytest.mark.parametrize("seeds", [range(k * EACH, k * EACH + EACH) for k in range(4)])
def test_random_plans(seeds: Sequence[int]) -> None:
    """Graphs of up to four programs, with one or two mesh dimensions."""
    moved = 0
    for seed in seeds:
        made = off_any_shelf(random.Random(seed))
        if made is not None:
            moved += any(isinstance(h, Transfer) for h in made[1].host)
            assert differs(made[1]) == []
    assert moved >= 4
