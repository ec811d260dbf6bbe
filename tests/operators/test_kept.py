# pyright: reportArgumentType=false
"""What operators keep from call to call stays bounded, however many sizes calls have."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tilelink
from tests.operators.problems import AG
from tilelink import copy_engine, sms
from tilelink.ops import ag_gemm
from tilelink.pipeline.calls import CHOICES_KEPT
from tilelink.runtime.cache import Recent
from tilelink.runtime.session import CALLS_KEPT, require
from tilelink.runtime.simulated import SimulatedBackend

OP = ag_gemm.schedule(gather=copy_engine(push=True), matmul=sms(2, M=16, N=16, K=16))


def test_what_was_asked_for_last_is_kept() -> None:
    kept = Recent[str](4)
    kept["a"], kept["b"] = "A", "B"
    assert kept.get("a") == "A"
    kept["c"] = "C"
    assert [kept.get(key) for key in "ac"] == ["A", "C"]
    kept["a"] = "new"
    kept["d"] = "D"
    assert [kept.get(key) for key in "abd"] == ["new", None, "D"]
    assert len(kept) <= 4
    kept.clear()
    assert len(kept) == 0


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans())), st.integers(2, 8))
def test_as_many_are_kept_as_promised(uses: list[tuple[int, bool]], most: int) -> None:
    """Against a list of what was used, the last first."""
    kept, values, used = Recent[int](most), dict[int, int](), list[int]()
    for time, (key, sets) in enumerate(uses):
        found = kept.get(key)
        assert found == values.get(key) or (found is None and key not in used[: most // 2])
        if sets:
            kept[key] = values[key] = time
        if sets or found is not None:
            used = [key, *(other for other in used if other != key)]
        assert len(kept) <= most


class Made:
    """Stands for a prepared call."""

    changed = None
    in_place = ()
    settled = True

    def run(self, tensors: Any, outs: Any) -> Any:
        return tensors[:1]


def test_more_sizes_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the road of a real call, of an operator without a schedule; only what is prepared, and run, is made up."""
    made: weakref.WeakSet[Made] = weakref.WeakSet()
    sizes: list[int] = []

    def prepare(operator: Any, session: Any, tensors: Any, outs: Any, given: Any) -> Made:
        sizes.append(len(tensors[0]))
        new = Made()
        made.add(new)
        return new

    monkeypatch.setattr("tilelink.pipeline.calls.Prepared", prepare)
    op = ag_gemm.with_schedule(ag_gemm.schedules)
    op.scheduled = False
    many = CHOICES_KEPT + 500
    rows, weight = torch.zeros(many, 4), torch.zeros(4, 4)

    def main() -> int:
        for m in range(1, many + 1):
            op(rows[:m], weight)
            op(rows[:7], weight)  # as a call that comes again and again
        return len(require().prepared[op.identity])

    assert tilelink.launch(main, 1)[0] <= CALLS_KEPT
    assert sorted(sizes) == [*range(1, many + 1)]  # each once, the one that comes again too
    assert len(made) <= CALLS_KEPT
    assert len(op.calls._choices) <= CHOICES_KEPT


def test_plans_are_dropped_and_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for four, through two times five sizes; every result is right."""
    monkeypatch.setattr(sys.modules["tilelink.pipeline.operator"], "KEPT", 4)
    monkeypatch.setattr("tilelink.runtime.session.CALLS_KEPT", 4)
    op = OP.with_schedule(OP.schedules)
    calls = [AG.call(m, 16, 16, 2, torch.float32) for m in (80, 4, 33, 62, 17)]

    def main() -> tuple[int, int]:
        for call in calls + calls:
            call.solve(op)
        return len(require().prepared[op.identity]), len(op.kept)

    assert all(calls <= 4 and plans <= 4 for calls, plans in tilelink.launch(main, 2))


def test_what_a_graph_replays_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay reads the memory of the call that was captured, long after other calls have taken its place."""
    monkeypatch.setattr("tilelink.runtime.session.CALLS_KEPT", 2)

    def key(tile: tuple[int, ...], rank: int, ranks: int) -> int:
        return -tile[0]

    op = ag_gemm.schedule(gather=copy_engine(push=True), matmul=sms(2, M=16, N=16, K=16, order=("ring", key)))
    calls = [AG.call(m, 16, 16, 1, torch.float32) for m in (64, 32, 16, 48)]

    def main() -> tuple[list[bool], bool]:
        tables: list[weakref.ref[torch.Tensor]] = []
        zeros = SimulatedBackend.zeros

        def noted(self: SimulatedBackend, size: int, dtype: torch.dtype) -> torch.Tensor:
            made = zeros(self, size, dtype)
            if dtype == torch.int32:
                tables.append(weakref.ref(made))
            return made

        monkeypatch.setattr(SimulatedBackend, "zeros", noted)
        for call, captured in zip(calls, (True, False, False, False), strict=True):
            monkeypatch.setattr(SimulatedBackend, "capturing", lambda self, captured=captured: captured)
            call.solve(op)
        alive = [table() is not None for table in tables]
        op.close()
        gc.collect()
        return alive, tables[0]() is not None

    # A table for each of two slots; the last two calls have not been replaced.
    assert tilelink.launch(main, 1) == [([True, True, False, False, *[True] * 4], False)]
