# pyright: reportArgumentType=false
"""The library's collectives against torch."""

from __future__ import annotations

import pytest
import torch

import tilelink
from tests.operators.against_torch import Problem, check, random
from tilelink import ops

FORMS = ("one_shot", "two_shot", "ring")


def all_reduced(ranks: int, m: int, dtype: torch.dtype = torch.float32, form: str = "") -> Problem:
    x = random(ranks, m, 20, dtype=dtype)
    return Problem([(one,) for one in x], [(x.float().sum(0),)] * ranks, {"form": form} if form else {})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("ranks", "m"), [(1, 5), (2, 13), (3, 1), (4, 13), (8, 9)])
def test_all_reduce(form: str, ranks: int, m: int) -> None:
    """Also with fewer rows than ranks, and with parts of which the last are shorter or empty."""
    check(ops.all_reduce, all_reduced(ranks, m, form=form), ranks)


@pytest.mark.parametrize("form", FORMS)
def test_all_reduce_in_bf16(form: str) -> None:
    check(ops.all_reduce, all_reduced(4, 6, torch.bfloat16, form), 4)


@pytest.mark.parametrize("form", FORMS)
def test_all_ranks_get_the_same_bits(form: str) -> None:
    x = random(3, 7, 40)
    first, *others = ops.all_reduce(list(x), form=form)
    assert all(torch.equal(first, o) for o in others)


@pytest.mark.parametrize(
    ("rows", "dtype", "form"),
    [
        (64, torch.bfloat16, "one_shot"),
        (65, torch.bfloat16, "two_shot"),
        (32, torch.float32, "one_shot"),
        (33, torch.float32, "two_shot"),
    ],
)
def test_the_form_follows_from_the_size(rows: int, dtype: torch.dtype, form: str) -> None:
    plan = ops.all_reduce.plan(torch.empty(rows, 2048, dtype=dtype), ranks=4)
    assert {s.path.partition(".")[0] for s in plan.steps} == {f"all_reduce_{form}"}


def test_a_form_that_is_none() -> None:
    with pytest.raises(ValueError, match="has no form 'tree': it has one_shot, two_shot, ring"):
        ops.all_reduce.plan(torch.empty(4, 4), ranks=2, form="tree")


def test_an_inlined_operator_brings_its_schedule() -> None:
    """The form's own placements, unless the schedule of the operator around it says otherwise."""
    x, path = torch.empty(512, 2048), "all_reduce_two_shot.scatter"
    assert ops.all_reduce.plan(x, ranks=4).step(path).engine == "stream"
    assert ops.all_reduce.schedule({path: tilelink.sms(2)}).plan(x, ranks=4).step(path).engine == "workers"
