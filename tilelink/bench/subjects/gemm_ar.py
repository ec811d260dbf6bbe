"""Matmul and all-reduce, against cuBLAS and NCCL."""

from __future__ import annotations

import torch

from tilelink.bench.contest import COMM, GEMM, UNFUSED, Contest, Place, Sizes, Variants
from tilelink.bench.subjects.subject import BenchCase, Subject
from tilelink.bench.workloads import MLPS
from tilelink.ops import gemm_ar
from tilelink.ops.gemm_ar import FORMS
from tilelink.pipeline.schedules import AT_ONCE

ROWS = (1, 16, 64, 256, 512, 1024, 2048, 8192)


def shapes(_: int) -> list[BenchCase]:
    """The second half of the first MLP, with as many rows as when it decodes and when it reads."""
    mlp = MLPS[0]
    return [BenchCase(f"{mlp.name} M={m}", {"M": m, "N": mlp.hidden, "K": mlp.intermediate}) for m in ROWS]


def contest(place: Place, sizes: Sizes, ours: Variants) -> Contest:
    """`all_reduce(x @ weight)`; M, N and K, which is global."""
    m, n, k = sizes["M"], sizes["N"], place.part(sizes["K"])[1]
    x, weight = place.random(m, k), place.random(k, n)
    out, lib = place.random(m, n), place.libraries
    found = Contest(inputs=[x, weight], outputs=[out], graphed=4 if m * n * 2 <= 1 << 21 else 1)
    for name, op in ours.items():
        found.enter(name, op, (x, weight), K=sizes["K"])
        for form in FORMS:
            if form == "one_shot" and out.nbytes > AT_ONCE:
                continue  # it writes the whole to every rank
            found.enter(f"{name}, {form}", op.schedule(unfused=False), (x, weight), K=sizes["K"], form=form)

    def unfused() -> torch.Tensor:
        torch.mm(x, weight, out=out)
        lib.all_reduce(out)
        return out

    found.add(GEMM, lambda: torch.mm(x, weight, out=out), library=True)
    found.add(COMM, lambda: lib.all_reduce(out), library=True)
    found.rival(UNFUSED, unfused, library=True)
    return found


SUBJECT = Subject(
    "gemm_ar", gemm_ar, shapes, contest, {"M": 16, "N": 64, "K": 64}, "NCCL's all-reduce after cuBLAS", "M"
)
