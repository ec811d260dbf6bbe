"""Events as kernels write them down, read as spans: whose they are, and what is seen of those inside one another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import torch

from tests.selection import table
from tilelink.ir.kernel import KernelSource, TraceLayout, TraceRole, TraceSite
from tilelink.ir.plan import Launch
from tilelink.runtime.call import CallEvents, KernelEvents
from tilelink.tracing import Lane, lanes_of_events

WAIT = (TraceSite(2, "wait", "reduce", None),)
ROLES = (
    TraceRole("gather", 2, None, ()),
    TraceRole("scatter", 1, None, ()),
    TraceRole("matmul", None, None, ()),
    TraceRole("reduce", None, None, WAIT, turn=1, drawn=True),
)
TILES, SLOTS = 2, 4


def lanes(rows: list[list[int]], roles: tuple[TraceRole, ...] = ROLES) -> tuple[Lane, ...]:
    """Of what the workers of a kernel have written: each its multiprocessor, then its tiles' slots, turn by turn."""
    layout = TraceLayout("kernel", SLOTS, roles, turns=2)
    whole = [row + [0] * (1 + 2 * TILES * SLOTS - len(row)) for row in rows]
    events = CallEvents({"kernel": KernelEvents(layout, len(rows), TILES, torch.tensor(whole).flatten())})
    backend: Any = SimpleNamespace(rank=0, skew=lambda: 0)
    plan: Any = SimpleNamespace(host=(Launch("kernel", 0),))
    return lanes_of_events(backend, plan, cast("KernelSource", SimpleNamespace(functions=())), events)


def spans(lane: Lane) -> list[tuple[str, str, float, float]]:
    return [(s.name, s.kind, s.begin, s.end) for s in lane.spans]


def test_each_worker_did_what_its_role_says() -> None:
    """The first workers have roles of their own; all others take turns, the tiles of the second behind those of the first."""
    first = [1000, 2000, 0, 0]
    found = lanes([[k, *first, *[0] * 4, 3000, 5000, 0, 0] for k in range(5)])
    names = [[name for name, *_ in spans(lane)] for lane in found]
    assert names == [["gather"], ["gather"], ["scatter"], ["matmul", "reduce"], ["matmul", "reduce"]]
    assert [lane.sm for lane in found] == [0, 1, 2, 3, 4]


@table(
    "begin, end, seen",
    [
        (2000, 2000, [("reduce", "set up", 1.0, 9.0)]),
        (2000, 4000, [("reduce", "set up", 1.0, 2.0), ("reduce", "wait", 2.0, 4.0), ("reduce", "set up", 4.0, 9.0)]),
    ],
    ids=["no time", "some"],
)
def test_a_wait_cuts_a_tile_by_as_long_as_it_took(begin: int, end: int, seen: list[Any]) -> None:
    (lane,) = lanes([[0, *[0] * 8, 1000, 9000, begin, end]], ROLES[2:])
    assert spans(lane) == seen


def test_tiles_that_follow_one_another_stay_apart() -> None:
    (lane,) = lanes([[0, *[0] * 8, 1000, 2000, 0, 0, 2000, 3000]], ROLES[2:])
    assert [(begin, end) for _, _, begin, end in spans(lane)] == [(1.0, 2.0), (2.0, 3.0)]
