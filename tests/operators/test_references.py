# pyright: reportArgumentType=false
"""The unfused forms of the operators, in two processes with gloo, give what the tile programs give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tilelink
from tests.operators.problems import random, split
from tests.operators.routings import H, Mixture
from tests.two_processes import Problem
from tilelink import Operator, ops

RANKS, TOKENS, EXPERTS = 2, 8, 4
Cases = dict[str, tuple[list[tuple[Any, ...]], dict[str, Any]]]
"""Operator, and perhaps more words -> every rank's tensors, constants and sizes."""


def uneven(m: int) -> Cases:
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


def dense() -> Cases:
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


def routed() -> Cases:
    """Of operators with tables. One choice is nobody's, and some tokens find no room."""
    m = Mixture.of(TOKENS)
    choice = torch.where(m.choice >= EXPERTS, -1, m.choice)
    tokens, choices, scores = (split(t, RANKS) for t in (m.tokens, choice, m.score))
    gate, up = (split(w[:EXPERTS], RANKS, 2) for w in (m.gate, m.up))
    down = split(m.down[:EXPERTS], RANKS, 1)
    generator = torch.Generator().manual_seed(0)
    hidden = split(torch.randn(choice.numel(), down[0].shape[1] * RANKS, generator=generator), RANKS, 1)
    start = torch.tensor([0, 5, 5, 20, choice.numel()], dtype=torch.int32)
    slot = torch.randperm(choice.numel(), generator=generator).view(choice.shape).int()
    there = {"experts": EXPERTS, "capacity": 3}
    made = torch.randn(RANKS, EXPERTS // RANKS, RANKS, 3, H, generator=generator)
    counts, at = (
        torch.randint(4, s, generator=generator).int() for s in ((RANKS, EXPERTS // RANKS, RANKS), choice.shape)
    )
    return {
        "ag_moe": (list(zip(tokens, choices, up, strict=True)), {}),
        "moe_rs": ([(x, start, slot, w, m.score) for x, w in zip(hidden, down, strict=True)], {}),
        "moe_layer": (list(zip(tokens, choices, scores, gate, up, down, strict=True)), {}),
        "ep_dispatch": (list(zip(tokens, choices, strict=True)), there),
        "ep_dispatch_fp8": (list(zip(tokens, choices, strict=True)), there),
        "ep_combine": (list(zip(made, counts, choices, split(at - 1, RANKS), scores, strict=True)), {}),
    }


CASES = {"dense": dense, "routed": routed}
SMALL = {"ag_attention_zigzag": {"deal": tilelink.copy_engine(S=2), "flash_there": tilelink.sms(S=2, T=16)}}


def promised(value: Any, name: str) -> list[torch.Tensor]:
    """What is promised of a result: nothing of rows that no choice has."""
    found = [t.float() for t in (value if isinstance(value, tuple) else (value,))]
    if name == "ag_moe":
        found[0] = found[0][: int(found[1][-1])]
    if name.startswith("ep_dispatch"):
        there = torch.arange(found[0].shape[2]) < found[-2][..., None]
        found = [t[there] if t.shape[:3] == there.shape else t for t in found]
    return found


@pytest.mark.parametrize("of", CASES)
def test_references(of: str, problem_of: Problem, tmp_path: Path) -> None:
    (tmp_path / "of").write_text(of)
    assert problem_of("tests.operators.reference_ranks", tmp_path) == ""
    plain = [torch.load(tmp_path / str(r)) for r in range(RANKS)]
    for name, (tensors, given) in CASES[of]().items():
        operator: Operator = getattr(ops, name.split()[0]).schedule(SMALL.get(name, {}))
        results = operator(*(list(t) for t in zip(*tensors, strict=True)), **given)
        for r in range(RANKS):
            for a, b in zip(promised(results[r], name), promised(plain[r][name], name), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


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
