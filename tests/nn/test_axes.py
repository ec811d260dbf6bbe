"""Operators of two axes of ranks as operators of torch: a group's name says along which axes its ranks lie."""

from __future__ import annotations

import torch

import tilelink
from examples.data_and_tensor_parallel import linear
from tilelink import sms
from tilelink.nn import group_name, register
from tilelink.nn.groups import session_of

ALONG_TWO = register(
    linear.schedule(gather_rows=sms(2, M=8), gather_weight=sms(2, M=8), matmul=sms(M=16, N=16, K=16)),
    name="linear_along_two_axes",
)


def test_a_compiled_function_calls_with_ranks_along_two_axes() -> None:
    """The shapes that torch asks for follow from the rank's place on each axis, uneven parts among them."""

    def main() -> float:
        group = group_name(tilelink.group(axes={"DP": 2, "TP": 2}))
        assert session_of(group) is session_of(group)
        data, tensor = divmod(tilelink.rank(), 2)
        make = torch.Generator().manual_seed(0)
        x, weight = torch.randn(2, 20, 24, generator=make), torch.randn(24, 18, generator=make)
        mine = x[data].split(10)[tensor]
        part = weight.split(12)[data].split(9, 1)[tensor].contiguous()

        @torch.compile(backend="aot_eager", fullgraph=True)
        def layer(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
            return torch.relu(ALONG_TWO(rows, columns, group=group))

        wanted = torch.relu(x[data] @ weight.split(9, 1)[tensor])
        return float((layer(mine, part) - wanted).abs().max())

    assert max(tilelink.launch(main, ranks=4)) < 1e-4
