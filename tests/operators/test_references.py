# pyright: reportArgumentType=false
"""The unfused forms of the dense operators, in two processes with gloo, give what the tile programs give."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import tilelink
from tests.operators.against_torch import random, split
from tests.two_processes import Problem
from tilelink import Operator, ops

RANKS = 2


def uneven(m: int) -> dict[str, tuple[list[tuple[Any, ...]], dict[str, Any]]]:
    """Rows, and a depth, that ranks do not divide: the last rank has fewer, or none."""
    x, y, w = random(m, 9), random(m, 5), random(9, 10)
    columns = list(zip(split(x, RANKS, 1), split(w, RANKS), strict=True))
    return {
        f"ag_gemm {m}": ([(t, w) for t in split(x, RANKS)], {"M": m}),
        f"gemm_rs {m}": (columns, {"K": 9}),
        f"gemm_ar_two_shot {m}": (columns, {"K": 9}),
        f"ag_outer {m}": ([(t, y) for t in split(x, RANKS)], {"M": m}),
        f"outer_ag {m}": ([(x, t) for t in split(y, RANKS)], {"M": m}),
    }


def cases() -> dict[str, tuple[list[tuple[Any, ...]], dict[str, Any]]]:
    """Operator, and perhaps more words -> every rank's tensors, constants and sizes."""
    x, w = random(8, 12), random(12, 10)
    columns = list(zip(split(x, RANKS, 1), split(w, RANKS), strict=True))
    whole = [(random(8, 12, seed=r),) for r in range(RANKS)]
    heads = [random(8, h, 16, seed=h) for h in (4, 2, 2)]
    attention = list(zip(*(split(t, RANKS) for t in heads), strict=True))
    starts, lengths = torch.tensor([0, 3, 8], dtype=torch.int32), torch.tensor([7, 2], dtype=torch.int32)
    q, cache = random(2, 2, 3, 16), [split(random(2, 8, 2, 16, seed=s), RANKS, 1) for s in (0, 1)]
    return {
        "all_gather": ([(t,) for t in split(x, RANKS)], {}),
        "all_reduce": (whole, {"form": "two_shot"}),
        "reduce_scatter": (whole, {}),
        "all_to_all": (whole, {}),
        "ulysses": ([(t,) for t in split(heads[0], RANKS)], {}),
        "ulysses_back": ([(t,) for t in split(heads[0], RANKS, 1)], {}),
        "gemm_ar": (columns, {"form": "one_shot"}),
        "ag_attention": (attention, {"causal": True, "scale": 0.3}),
        "ag_attention_varlen": ([(*t, starts) for t in attention], {"causal": False}),
        "ag_attention_zigzag": (attention, {"chunk": 2}),
        "ring_attention": (attention, {"causal": False}),
        "flash_decode": ([(q, *kv, lengths) for kv in zip(*cache, strict=True)], {"splits": 2}),
        **uneven(7),
        **uneven(1),
    }


SMALL = {"ag_attention_zigzag": {"deal": tilelink.copy_engine(S=2), "flash_there": tilelink.sms(S=2, T=16)}}


def test_references(problem_of: Problem, tmp_path: Path) -> None:
    assert problem_of("tests.operators.reference_ranks", tmp_path) == ""
    plain = [pickle.loads((tmp_path / str(r)).read_bytes()) for r in range(RANKS)]
    for name, (tensors, given) in cases().items():
        operator: Operator = getattr(ops, name.split()[0]).schedule(SMALL.get(name, {}))
        results = operator(*(list(t) for t in zip(*tensors, strict=True)), **given)
        for r in range(RANKS):
            torch.testing.assert_close(
                results[r], plain[r][name], rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
            )


def test_to_call_the_plain_form_is_not_to_set_it() -> None:
    before = ops.all_reduce.reference_fn
    with pytest.raises(tilelink.TilelinkError) as caught:
        ops.all_reduce.reference(random(2, 3))
    first, *_, why, hint = str(caught.value).splitlines()
    assert first == "TL237: a Tensor is no unfused form of `all_reduce`"
    assert why == "  why: `reference` decorates the function that is the unfused form"
    assert hint == "  do:  to call the unfused form that there is: all_reduce.reference_fn(…, group=…)"
    assert ops.all_reduce.reference_fn is before


def test_every_dense_operator_has_a_reference() -> None:
    found = {n: getattr(ops, n).reference_fn for n in ops.__all__}
    assert [n for n, fn in found.items() if fn is None] == []
