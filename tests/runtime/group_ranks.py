"""One of four processes: backends of two groups at once, and of ranks that share GPUs, with CPU memory in place of a GPU's.

python group_ranks.py RANK STORE
"""

from __future__ import annotations

import logging
import os
import sys
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tilelink.errors import TilelinkError
from tilelink.ir.topology import Device
from tilelink.runtime.grid import Grid
from tilelink.runtime.nvshmem import NvshmemBackend
from tilelink.runtime.peer import Arena, PeerBackend, reach
from tilelink.runtime.peer import backend as peer
from tilelink.runtime.session import Session

CPU = torch.device("cpu")
ALLOWED = "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"
SHARED = (
    "TILELINK_SHARE_GPUS is set, 4 ranks run on 2 GPUs: kernels take turns, torch's collectives go through the host, and "
    "times mean nothing"
)


class OnCpu(PeerBackend):
    """In plain memory; that of peers is not reached, only its addresses are told."""

    def _take(self, nbytes: int) -> Arena:
        local = torch.ones(nbytes, dtype=torch.uint8)
        return Arena(self, local, (local,) * self.ranks, tuple(self.agree(local.data_ptr())), lambda: None)


def check(rank: int) -> None:
    whole = Session(OnCpu())
    assert not whole.backend.topology.shared
    assert (whole.backend.rank, whole.backend.ranks) == (rank, 4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    pair = [rank // 2 * 2, rank // 2 * 2 + 1]
    named = {"process group": mesh.get_group("tensor"), "mesh": mesh["tensor"], "ranks": whole.backend.among(pair)}
    for group in named.values():
        part = whole.of(group)
        assert part is whole.of(group)
        backend = part.backend
        assert (backend.rank, backend.ranks, backend.topology.ranks) == (rank % 2, 2, 2)
        assert backend.agree(rank) == pair
        arena = backend.arena(256 * (1 + rank // 2))  # another size in either group
        context = arena.context.tolist()
        assert context[:2] == [rank % 2, 2]
        assert context[2 + rank % 2] == arena.local.data_ptr()
        assert context[4:] == pair
        assert not arena.local.any()
        arena.free()
        assert whole.named(backend.name) is part
    assert whole.named(whole.backend.name) is whole
    with pytest.raises(TilelinkError, match="TL456"):
        whole.named("nobody's")
    assert whole.of(named["mesh"]) is whole.of(named["process group"]) is not whole.of(named["ranks"])
    column = whole.named(mesh.get_group("data").group_name)  # known to torch.distributed alone so far
    assert whole.of(mesh["data"]) is column
    across = column.backend
    assert across.agree(rank) == [rank % 2, rank % 2 + 2]
    assert whole.of(dist.group.WORLD) is whole
    laid = whole.of(mesh)  # one with axes of its own
    assert [(a.name, a.size, a.reach) for a in laid.backend.topology.axes] == [
        ("DATA", 2, "peer"),
        ("TENSOR", 2, "peer"),
    ]
    assert (laid.backend.rank, laid.backend.ranks) == (rank, 4)
    assert laid is whole.of(Grid((("DATA", 2), ("TENSOR", 2)))) is whole.named(laid.backend.name) is not whole
    arena = laid.backend.arena(256)
    bases = arena.context.tolist()[2:6]
    line = laid.backend.topology.line(rank, "DATA")
    assert arena.along(line).tolist() == [rank // 2, 2, bases[rank % 2], bases[rank % 2 + 2], rank % 2, rank % 2 + 2]
    assert laid.backend.arenas.holding(arena.local).along(line) is arena.along(line)
    arena.free()
    with pytest.raises(TilelinkError, match="TL457"):
        whole.of(Grid((("DATA", 3),)))
    row = init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("data", "tensor", "one"))["data", "one"]
    for wrong, code in ((row, "TL454"), ("tensor", "TL454"), (dist.GroupMember.NON_GROUP_MEMBER, "TL455")):
        with pytest.raises(TilelinkError, match=code):
            whole.of(wrong)
    whole.backend.barrier()


def check_shared(rank: int) -> None:
    """Two ranks on each of two GPUs; none of them on its own."""
    with mock.patch.object(reach, "place_of", return_value=reach.Place("here", str(rank % 2))):
        with pytest.raises(TilelinkError, match="TL433: ranks 0 and 2 run on one GPU"):
            OnCpu()
        with mock.patch.dict(os.environ, {"TILELINK_SHARE_GPUS": "1"}):
            with pytest.raises(TilelinkError, match="TL433: ranks 0 and 2 run on one GPU"):
                NvshmemBackend()
            assert ALLOWED not in os.environ
            with mock.patch.object(logging.getLogger("tilelink"), "warning") as said:
                backends = [OnCpu() for _ in range(2)]
                part = backends[0].within(backends[0].among([rank % 2, rank % 2 + 2]))  # both of one GPU
            assert [c.args[0] for c in said.call_args_list] == [SHARED] * (rank == 0)
            assert os.environ.pop(ALLOWED) == "1"
            assert all(backend.topology.shared for backend in (*backends, part))
            assert part.agree(rank) == [rank % 2, rank % 2 + 2]
            backends[0].barrier()


if __name__ == "__main__":
    # What the ranks import takes longer than what they do: this is one of them, and the others are forked.
    others = dict[int, int]()
    for rank in (1, 2, 3, 0):
        others[rank] = os.fork() if rank else -1
        if others[rank] == 0:
            break
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=4)
    with (
        mock.patch.object(reach, "current_device", return_value=CPU),
        mock.patch.object(reach, "place_of", return_value=reach.Place("here", str(rank))),
        mock.patch.object(reach, "describe", return_value=Device()),
        mock.patch.object(peer, "require_mapped_memory"),
        mock.patch.object(torch.cuda, "synchronize"),
        mock.patch.object(torch.cuda, "is_current_stream_capturing", return_value=False),
    ):
        check(rank)
        check_shared(rank)
    dist.destroy_process_group()
    if rank == 0:
        assert [os.waitpid(others[r], 0)[1] for r in (1, 2, 3)] == [0, 0, 0]
        print("ok")
