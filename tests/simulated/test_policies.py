# pyright: reportArgumentType=false
"""Whose turn it is: every policy is a schedule that comes again, and finds what the others may miss."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.selection import table
from tests.simulated import emitted_small
from tests.simulated.programs import Problem, pull, push
from tilelink.errors import TilelinkError
from tilelink.ir.schedule import KernelOptions
from tilelink.runtime.simulated import RaceDetector, Recorder, SimulatedBackend, search, simulate
from tilelink.runtime.simulated.scheduler import Turns, turns_of

POLICIES = [
    "random-3",
    "straggler-1-3",
    "priorities-3",
    "preemptions-",
    "preemptions-2.5",
]
numbers = st.integers(0, 10**9)


@given(
    st.one_of(
        st.builds("{}-{}".format, st.sampled_from(["random", "priorities"]), numbers),
        st.builds("straggler-{}-{}".format, numbers, numbers),
        st.sets(numbers, max_size=4).map(lambda at: f"preemptions-{'.'.join(map(str, sorted(at)))}"),
    )
)
def test_a_policy_reads_back_from_its_text(policy: str) -> None:
    assert str(turns_of(policy)) == policy


@table("text", ["", "7", "random", "random-", "random--1", "straggler-1", "preemptions-1.", "x-1"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(TilelinkError, match="TL508"):
        turns_of(text)


@table("policy", POLICIES, ids=str)
def test_a_policy_is_a_schedule(policy: str) -> None:
    problem = Problem.random(64, 32, 32, torch.float32)

    def steps(policy: str) -> list[tuple[object, ...]]:
        recorder = Recorder()
        problem.assert_right(simulate(pull(problem), 2, policy=policy, recorder=recorder))
        return [(r.rank, r.worker, r.what, r.line) for r in recorder.records]

    assert steps(policy) == steps(policy)
    assert steps(policy) != steps("random-4")


@table("policy", POLICIES, ids=str)
def test_copies_doorbells_and_epochs_under_every_policy(policy: str) -> None:
    problem = Problem.random(48, 32, 32, torch.float32, calls=3)
    detector = RaceDetector()
    problem.assert_right(simulate(push(problem), 3, policy=policy, observer=detector))


def test_a_straggler_runs_only_when_nobody_else_can() -> None:
    def main(backend: SimulatedBackend) -> None:
        for _ in range(3):
            backend.main_stream().copy(backend.zeros(4, torch.float32), torch.ones(4))
            backend.finish()
            order.append(backend.rank)

    order: list[int] = []
    simulate(main, 3, straggler=0)
    assert order[6:] == [0, 0, 0]


def test_a_slot_without_credits_is_overwritten_under_some_schedule() -> None:
    """Which needs no detector: results are wrong."""
    problem = Problem.random(97, 64, 64, torch.float32, calls=4)
    main = push(problem, slots=1, credits=False)

    def wrong(seed: int) -> bool:
        results = simulate(main, 4, seed=seed, straggler=seed % 4)
        expected = [x @ problem.weight for x in problem.inputs]
        return any(not torch.allclose(o, e, atol=1e-3) for outs in results for o, e in zip(outs, expected, strict=True))

    assert any(wrong(seed) for seed in range(10))


def add_without_atomics(backend: SimulatedBackend) -> None:
    """Right unless one of two programs is stopped between its read and its write."""
    flags, out = backend.zeros(2, torch.int64), backend.zeros(1, torch.int64)
    backend.main_stream().launch(emitted_small.check_then_act, 2, {"flags": flags, "out": out}, KernelOptions(1, 1))
    backend.finish()
    assert int(out) == 2


def test_the_search_finds_what_needs_one_preemption() -> None:
    def run(turns: Turns) -> None:
        simulate(add_without_atomics, 1, policy=turns)

    assert search(run, preemptions=0, limit=100).complete
    with pytest.raises(AssertionError) as caught:
        search(run, preemptions=1, limit=100)
    policy = caught.value.__notes__[-1].removeprefix("under the policy ")
    assert re.fullmatch(r"preemptions-\d+", policy)
    with pytest.raises(AssertionError):
        simulate(add_without_atomics, 1, policy=policy)


def test_a_search_ends_when_there_are_no_more() -> None:
    problem = Problem.random(32, 32, 32, torch.float32)
    seen: list[str] = []

    def run(turns: Turns) -> None:
        problem.assert_right(simulate(pull(problem, comm=1, workers=2), 2, policy=turns))
        seen.append(str(turns))

    done = search(run, preemptions=1, limit=1000)
    assert done.complete
    assert done.runs == len(seen) == len(set(seen)) > 5
    assert not search(run, preemptions=2, limit=done.runs + 3).complete


def test_an_error_names_the_policy() -> None:
    def main(backend: SimulatedBackend) -> None:
        raise KeyError(backend.rank)

    with pytest.raises(KeyError) as caught:
        simulate(main, 2, policy="priorities-5")
    assert caught.value.__notes__[-1] == "under the policy priorities-5"
