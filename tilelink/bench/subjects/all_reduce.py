"""All-reduce, against NCCL's and those of torch's symmetric memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from tilelink.bench.contest import COMM, NO_GPU, Contest, Place, Roles, Sizes, Turns, Variants
from tilelink.bench.subjects.moving import KIB, MIB, rotated, sized
from tilelink.bench.subjects.subject import BenchCase, Subject
from tilelink.ops import all_reduce
from tilelink.ops.all_reduce import FORMS
from tilelink.tuning.measuring import attempt

TORCH = {"torch one-shot": "one_shot_all_reduce", "torch two-shot": "two_shot_all_reduce_"}
"""Operators of torch's symmetric memory, without multicast, by contender."""
LATENCY = 512 * KIB
"""Bytes up to which time is latency, and NCCL the baseline; beyond it is the fastest of all."""
MOST = 4 * MIB
"""Bytes up to which one shot of ours runs besides what ours chooses: all to all, it writes the whole to every rank."""


def shapes(_: int) -> list[BenchCase]:
    return sized(8 * KIB, 32 * KIB, 128 * KIB, 512 * KIB, 2 * MIB, 8 * MIB, 32 * MIB, 64 * MIB)


def contest(place: Place, sizes: Sizes, ours: Variants) -> Contest:
    """M rows of N on every rank."""
    m, n = sizes["M"], sizes["N"]
    nbytes = 2 * m * n
    calls, xs = rotated(place, nbytes, m, n)
    _, theirs = rotated(place, nbytes, m, n)
    baseline = (COMM,) if nbytes <= LATENCY else (COMM, *TORCH)
    found = Contest(inputs=[*xs, *theirs], graphed=calls, roles=Roles("", COMM, "", baseline))
    turns, others = Turns([(x,) for x in xs]), Turns([(x,) for x in theirs])
    found.turns += [turns, others]
    for name, op in ours.items():
        found.enter(name, op, turns)
        for form in FORMS:
            if form != "one_shot" or nbytes <= MOST:
                found.enter(f"{name}, {form}", op.schedule(unfused=False), turns, form=form)
    lib = place.libraries

    def nccl() -> torch.Tensor:
        (x,) = others()
        lib.all_reduce(x)
        return x

    found.add(COMM, nccl, lambda: (theirs[0].copy_(xs[0]), nccl())[1], library=True)
    _torch(found, place, xs, sizes)
    return found


def _torch(found: Contest, place: Place, xs: Sequence[torch.Tensor], sizes: Sizes) -> None:
    """torch's own, on memory that is symmetric already, which spares it a copy."""
    missing = _unsupported(place, sizes)
    if missing:
        found.missing |= dict.fromkeys(TORCH, missing)
        return
    from torch._C._distributed_c10d import _SymmetricMemory

    buffers: list[torch.Tensor] = []

    def allocate() -> None:
        for x in xs:
            # Not symmetric_memory.empty: newer releases take that from a pool.
            buffers.append(_SymmetricMemory.empty_strided_p2p((x.numel(),), (1,), x.dtype, x.device))
            found.kept.append(_SymmetricMemory.rendezvous(buffers[-1], place.group))

    missing = attempt(place.backend, allocate)
    if missing:
        found.missing |= dict.fromkeys(TORCH, missing)
        return
    found.inputs += buffers
    for label, name in TORCH.items():
        if hasattr(torch.ops.symm_mem, name):
            turns = Turns([(b,) for b in buffers])
            found.turns.append(turns)
            run = partial(_summed, getattr(torch.ops.symm_mem, name), turns, place.group)
            found.add(label, run, partial(_filled, buffers[0], xs[0], run))
        else:
            found.missing[label] = f"torch {torch.__version__} has no torch.ops.symm_mem.{name}"


def _unsupported(place: Place, sizes: Sizes) -> str:
    if place.simulated:
        return NO_GPU
    if place.backend.ranks == 1:
        return "one rank"
    if place.backend.topology.reach != "peer":
        return "ranks that do not reach one another"
    if sizes["M"] * sizes["N"] % (8 * place.backend.ranks):
        return f"parts of {place.backend.ranks} ranks are no multiples of 16 bytes"
    return ""


def _summed(function: Callable[..., torch.Tensor], turns: Turns, group: str | None) -> torch.Tensor:
    return function(*turns(), "sum", group)


def _filled(buffer: torch.Tensor, x: torch.Tensor, run: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Its result on what ours has, in the shape of that."""
    buffer.copy_(x.view(-1))
    return run().view(x.shape)


SUBJECT = Subject(
    "all_reduce", all_reduce, shapes, contest, {"M": 4, "N": 64},
    "NCCL, and one-shot and two-shot of torch's symmetric memory",
)  # fmt: skip
