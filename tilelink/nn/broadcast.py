"""One rank's values for all: what every rank holds alike is what that rank has."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh


def from_source(tensors: Iterable[torch.Tensor], mesh: DeviceMesh, source: int | None) -> None:
    """Write a rank's values, `source` of a mesh of one dimension, into every rank's tensors; None: they are alike already.

    Tensors on other devices than the mesh's, which its ranks cannot send, and those without memory stay as they are.
    """
    if source is None or mesh.size() == 1:
        return
    for each in tensors:
        tensor = each.detach()
        if tensor.device.type != mesh.device_type:
            continue
        sent = tensor.contiguous()
        # as bytes: not every backend knows every dtype
        dist.broadcast(sent.view(-1).view(torch.uint8), group=mesh.get_group(), group_src=source)
        if sent.data_ptr() != tensor.data_ptr():
            tensor.copy_(sent)
