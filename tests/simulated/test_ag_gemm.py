"""The emitted files, executed under many schedules, agree with torch."""

import pytest
import torch

from tests.simulated.programs import Problem, pull, push
from tilelink.runtime.simulated import simulate

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@pytest.mark.parametrize(
    ("ranks", "dtype"),
    [(1, DTYPES[1]), (2, DTYPES[2]), (3, DTYPES[0]), *((n, DTYPES[n % 3]) for n in (4, 8))],
    ids=str,
)
def test_pull(ranks: int, dtype: torch.dtype) -> None:
    problem = Problem.random(32 * ranks, 32, 64, dtype)
    for seed in range(3):
        problem.assert_right(simulate(pull(problem, workers=4), ranks, seed=seed, straggler=seed % ranks))


@pytest.mark.parametrize("rows", [97, 130, 5])
def test_rows_that_straddle_ranks_and_tiles(rows: int) -> None:
    problem = Problem.random(rows, 48, 80, torch.bfloat16, calls=2)
    for seed in range(3):
        problem.assert_right(simulate(pull(problem), 4, seed=seed, straggler=seed % 4))


@pytest.mark.parametrize(("rows", "dtype"), list(zip([97, 96, 97], DTYPES, strict=True)), ids=str)
def test_push_by_copy_engine(rows: int, dtype: torch.dtype) -> None:
    problem = Problem.random(rows, 64, 64, dtype, calls=3)
    for seed in (0, 4):
        problem.assert_right(simulate(push(problem), 4, seed=seed, straggler=seed % 5 if seed % 5 < 4 else None))


def test_a_slot_without_credits_is_overwritten_under_some_schedule() -> None:
    problem = Problem.random(97, 64, 64, torch.float32, calls=4)
    main = push(problem, slots=1, credits=False)

    def wrong(seed: int) -> bool:
        results = simulate(main, 4, seed=seed, straggler=seed % 4)
        expected = [x @ problem.weight for x in problem.inputs]
        return any(not torch.allclose(o, e, atol=1e-3) for outs in results for o, e in zip(outs, expected, strict=True))

    assert any(wrong(seed) for seed in range(10))


def test_a_rank_may_be_calls_ahead_of_another() -> None:
    problem = Problem.random(64, 32, 32, torch.float32, calls=4)
    problem.assert_right(simulate(pull(problem), 2, seed=1, straggler=1))
