# pyright: reportArgumentType=false
"""One of two processes on the CPU, with gloo: what an operator is there, besides the library's own.

python gloo_ranks.py FOLDER
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import tilelink
from tests import two_processes
from tests.operators.problems import part
from tilelink import nn, ops
from tilelink.ops.programs import gather, matmul

SAID = "no GPU: in these processes operators run their references, in plain torch on the CPU, without overlap"


@tilelink.operator("M/R K, K N -> M N")
def mine(x: Any, weight: Any) -> Any:
    return matmul(gather(x), weight)


@tilelink.operator("M/R K, K N -> M N")
def unwritten(x: Any, weight: Any) -> Any:
    return matmul(gather(x), weight)


@mine.reference
def reference(x: Any, weight: Any, *, group: Any = None) -> Any:
    rows = x.new_empty(x.shape[0] * dist.get_world_size(group), x.shape[1])
    dist.all_gather_into_tensor(rows, x, group=group)
    return rows @ weight


def check_calls(rank: int, said: list[str]) -> None:
    generator = torch.Generator().manual_seed(0)
    whole, weight = (torch.randn(*shape, generator=generator) for shape in ((8, 6), (6, 5)))
    own = whole[part(8, rank, 2)]
    assert [tilelink.rank(), tilelink.ranks()] == [rank, 2]
    assert said == [SAID]
    pinned = mine.schedule(matmul=tilelink.sms(M=16, N=16, K=16))
    out, mesh = torch.empty(8, 5), init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
    for got in (
        mine(own, weight),
        pinned(own, weight),
        ops.ag_gemm(own, weight, out=out),
        out,
        mine(own, weight, group=mesh["tensor"]),
        mine(own, weight, group=tilelink.group([0, 1])),
        tilelink.launch(lambda: mine(own, weight))[0],
    ):
        torch.testing.assert_close(got, whole @ weight)
    alone = mine(own, weight, group=mesh["data"])  # of one rank
    torch.testing.assert_close(alone, own @ weight)
    place = tilelink.empty(4, 6, dtype=torch.float32).copy_(own)
    torch.testing.assert_close(mine(place, weight), whole @ weight)
    assert mine.verify(own, weight).ok
    assert said == [SAID]


def check_layers(rank: int) -> None:
    """Layers and their gradients, through `torch.compile` too."""
    torch.manual_seed(0)
    up, down = torch.nn.Linear(6, 8), torch.nn.Linear(8, 6)
    x = torch.randn(8, 6)
    plain = down(torch.nn.functional.gelu(up(x), approximate="tanh"))
    plain.square().sum().backward()
    split = nn.ParallelMLP.of(up, down, activation=lambda t: torch.nn.functional.gelu(t, approximate="tanh"))
    for layer in (split, torch.compile(split, fullgraph=True, backend="aot_eager")):
        split.zero_grad()
        got = layer(x[part(8, rank, 2)][None])[0]
        got.square().sum().backward()
        torch.testing.assert_close(got, plain[part(8, rank, 2)])
        state = nn.whole_state_dict(split)
        assert state is not None
        gradient = next(p.grad for n, p in split.named_parameters() if "up" in n and p.ndim == 2)
        torch.testing.assert_close(gradient, up.weight.grad[part(8, rank, 2)])  # pyright: ignore[reportOptionalSubscript]


def check_refusals(rank: int) -> None:
    x, weight = torch.ones(4, 6), torch.ones(6, 5)
    with pytest.raises(tilelink.TilelinkError) as caught:
        unwritten(x, weight)
    first, *_, why, hint = str(caught.value).splitlines()
    assert first == "TL474: `unwritten` cannot run in processes on the CPU"
    assert why == "  why: operators run their references there, and it has no reference"
    assert hint == (
        "  do:  write its unfused form in torch, `@unwritten.reference`, or simulate the ranks: tilelink.launch without torchrun"
    )
    with pytest.raises(tilelink.TilelinkError) as caught:
        mine(x[: 4 - rank], weight, M=7)
    *_, why, hint = str(caught.value).splitlines()
    assert (
        why
        == "  why: operators run their references there, and its reference takes parts of one size, and 2 ranks do not divide M=7"
    )
    assert (
        hint == "  do:  give its reference the parameter `M`, or simulate the ranks: tilelink.launch without torchrun"
    )
    assert mine.tune(x, weight) is mine
    with pytest.raises(tilelink.TilelinkError) as caught:
        mine.trace(x, weight)
    assert str(caught.value) == (
        "TL475: there are no kernels to trace or to time in processes on the CPU\n"
        "  why: operators run their references there, in plain torch\n"
        "  do:  do it on GPUs, or on simulated ranks: TILELINK_BACKEND=simulated, and no torchrun"
    )
    with pytest.raises(tilelink.TilelinkError, match=r"TL452: "):
        ops.ag_gemm(x, torch.ones(6, 7 + rank))


def main(rank: int, folder: Path) -> None:
    del folder
    lines: list[str] = []
    logging.getLogger("tilelink").addFilter(lambda record: lines.append(record.getMessage()) or True)
    check_calls(rank, lines)
    check_layers(rank)
    check_refusals(rank)


if __name__ == "__main__":
    two_processes.run(main)
