# pyright: reportArgumentType=false
"""The unfused forms of operators with tables, in two processes with gloo, give what the tile programs give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from tests.operators.against_torch import split
from tests.operators.routings import H, Mixture
from tilelink import ops

RANKS, TOKENS, EXPERTS = 2, 8, 4
ROOT = Path(__file__).parents[2]
BOTH = """
import os, sys
import torch, torch.distributed as dist
from tests.operators.test_routing_references import RANKS, cases
from tilelink import ops
folder, child = sys.argv[1], os.fork()
rank = 0 if child else 1
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
found = {n: getattr(ops, n)(*t[rank], **given) for n, (t, given) in cases().items()}
torch.save(found, f"{folder}/{rank}")
dist.destroy_process_group()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else 0)
"""
"""Both ranks: what they import takes longer than what they do."""


def cases() -> dict[str, tuple[list[tuple[Any, ...]], dict[str, Any]]]:
    """Operator -> every rank's tensors, and constants. One choice is nobody's, and some tokens find no room."""
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


def told(value: Any, name: str) -> list[torch.Tensor]:
    """What is promised of a result: nothing of rows that no choice has."""
    found = [t.float() for t in (value if isinstance(value, tuple) else (value,))]
    if name == "ag_moe":
        found[0] = found[0][: int(found[1][-1])]
    if name.startswith("ep_dispatch"):
        there = torch.arange(found[0].shape[2]) < found[-2][..., None]
        found = [t[there] if t.shape[:3] == there.shape else t for t in found]
    return found


def test_references(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", BOTH, str(tmp_path)], cwd=ROOT, timeout=100, check=True)
    plain = [torch.load(tmp_path / str(r)) for r in range(RANKS)]
    for name, (tensors, given) in cases().items():
        results = getattr(ops, name)(*(list(t) for t in zip(*tensors, strict=True)), **given)
        for r in range(RANKS):
            for a, b in zip(told(results[r], name), told(plain[r][name], name), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
