"""What every kind of world refuses, in the same words."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from tilelink.errors import TilelinkError
from tilelink.runtime.world import Descriptor


def not_in_group(rank: int, members: Sequence[int] = ()) -> TilelinkError:
    """TL455: rank `rank` calls with a group that it does not belong to."""
    return TilelinkError(
        "TL455",
        f"rank {rank} is not in the group{' of ranks ' if members else ''}{', '.join(map(str, members))}",
        why="an operator is called by the ranks of its group, and by no others",
        hint="pass the group that this rank is in",
    )


def no_such_group(name: str) -> TilelinkError:
    """TL456: a graph or a call names a group that is not there."""
    return TilelinkError(
        "TL456",
        f"there is no group of ranks named {name!r} here",
        why="a name stands for a group of this process, and of this simulated rank",
        hint="take it where it is used: tilelink.nn.group_name(group)",
    )


def not_shared(tensor: torch.Tensor) -> TilelinkError:
    """TL439: a tensor that peers are to reach lies in no symmetric memory."""
    return TilelinkError(
        "TL439",
        f"a tensor of shape {tuple(tensor.shape)} on {tensor.device} is not in symmetric memory",
        why="peers reach a tensor in place only where every rank has one of the same size",
        hint="allocate it with tilelink.empty, or let the operator stage it",
    )


def reported(rank: int, message: str) -> TilelinkError:
    """TL471: for the ranks that have not found anything themselves."""
    return TilelinkError(
        "TL471",
        f"rank {rank} reports: {message}",
        why="a call is collective: what goes wrong on one rank leaves no result on any",
        hint="see what that rank prints",
    )


def tensor_descriptor(name: str, descriptor: Descriptor) -> TensorDescriptor:
    """The TMA descriptor of argument `name`.

    Raises:
        TilelinkError: TL426, there can be none.
    """
    tensor, block = descriptor.tensor, list(descriptor.block)
    try:
        return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block)
    except (AssertionError, ValueError, TypeError) as error:
        raise TilelinkError(
            "TL426",
            f"argument {name} has no TMA descriptor: {error}",
            why="TMA needs the first byte and all rows at multiples of 16 bytes, and a contiguous last axis",
            hint="make the last axis a multiple of 16 bytes, or load this tensor by pointers",
        ) from error


def no_kernels() -> TilelinkError:
    """TL475: something asks for kernels, or for their times."""
    return TilelinkError(
        "TL475",
        "there are no kernels to trace or to time in processes on the CPU",
        why="operators run their references there, in plain torch",
        hint="do it on GPUs, or on simulated ranks: TILELINK_WORLD=simulated, and no torchrun",
    )
