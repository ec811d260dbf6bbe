"""On GPUs: what `tilelink.install()` puts into the place of torch's operators, against plain torch.

    torchrun --nproc-per-node=2 -m benchmarks.gpu.install_check --out benchmarks/results

Every axis in three dtypes, gradients, what torch serves, subsets of the ranks as groups, two calls in flight on two streams,
calls on every stream that torch has, and compiled models in CUDA graphs, captured by hand and by
`torch.compile(mode="reduce-overhead")`, which makes the first call of an operator, too.
"""
# pyright: reportPrivateUsage=false, reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._inductor import config
from torch.distributed import _symmetric_memory as torchs
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module

import tilelink
from benchmarks.gpu.install import MODELS, NO_MULTICAST, PROBLEMS, Case, captured, drawn, plan
from benchmarks.harness import Row, Sheet, gpus_of, judged, parser, sharing
from tests.torch_ops import door_ranks
from tilelink import copy_engine, fused, ops, sms
from tilelink.nn import functional as F
from tilelink.tuning.comparison import relative_error

Check = Callable[[], Any]


def near(got: torch.Tensor, want: torch.Tensor, limit: float = 2e-2) -> float:
    error = relative_error(got.detach().float(), want.detach().float())
    assert error <= limit, f"relative error {error:.1e}"
    return error


def mine(rank: int, rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return door_ranks.drawn(rows, columns, seed=seed + rank, dtype=torch.bfloat16)


def large(rank: int, group: str) -> float:
    """Sizes of models, along every axis."""
    gather, scatter = torch.ops.symm_mem.fused_all_gather_matmul, torch.ops.symm_mem.fused_matmul_reduce_scatter
    ranks, worst = dist.get_world_size(), 0.0
    for dim in range(3):
        x = mine(rank, 2 * 512, 1024).view(2, 512, 1024)
        weights = [mine(rank, 1024 * (ranks if dim == 2 else 1), n) for n in (2048, 512)]
        got = gather(x, weights, dim, group)
        want = torchs._fused_all_gather_matmul_fallback(x, weights, dim, group)
        worst = max(worst, *(near(a, b) for a, b in zip((got[0], *got[1]), (want[0], *want[1]), strict=True)))
        y, w = mine(rank, 2 * 512, 1024).view(2, 512, 1024), mine(rank, 1024, 2048)
        want = torchs._fused_matmul_reduce_scatter_fallback(y, w, "sum", dim, group)
        worst = max(worst, near(scatter(y, w, "sum", dim, group), want))
    return worst


def subsets(rank: int, groups: list[list[int]]) -> float:
    """All groups that this rank is in, in turn, twice, before any result is looked at."""
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    for k, members in enumerate(groups):
        if rank not in members:
            continue
        group = dist.new_group(members, use_local_synchronization=True).group_name
        for again in range(2):
            x, w = mine(rank, 256, 512, 10 * k + again), door_ranks.drawn(512, 384, seed=k, dtype=torch.bfloat16)
            got = torch.ops.symm_mem.fused_all_gather_matmul(x, [w], 0, group)[1][0]
            found.append((got, torch.cat([mine(r, 256, 512, 10 * k + again) for r in members]) @ w))
    return max(near(got, want) for got, want in found)


def in_flight(rank: int, group: str) -> float:
    """Two calls on two streams, and two in turn: all results are there, and none is another one's memory."""
    streams, gather = [torch.cuda.Stream() for _ in range(2)], torch.ops.symm_mem.fused_all_gather_matmul
    w, worst = door_ranks.drawn(1024, 1024, dtype=torch.bfloat16), 0.0
    inputs = [mine(rank, 512, 1024, 10 * k) for k in range(4)]
    wanted = [torchs._fused_all_gather_matmul_fallback(x, [w], 0, group) for x in inputs]
    for _ in range(10):
        torch.cuda.synchronize()
        results: list[Any] = []
        for k, x in enumerate(inputs):
            with torch.cuda.stream(streams[k % 2]):
                results.append(gather(x, [w], 0, group))
        torch.cuda.synchronize()
        for got, want in zip(results, wanted, strict=True):
            worst = max(worst, near(got[0], want[0], 0.0), near(got[1][0], want[1][0]))
        assert len({t.data_ptr() for got in results for t in (got[0], got[1][0])}) == 8
    return worst


def on_any_stream(rank: int, group: str) -> float:
    """Copy engines and kernels that wait for one another, called on each of torch's 32 streams of high priority and once more."""
    split = ops.gemm_rs.schedule(scatter=copy_engine(M=64), reduce=fused("matmul"), matmul=sms(M=64, N=64, K=64))
    x, w, worst = mine(rank, 512, 256), mine(rank, 256, 512, 10), 0.0
    want = torchs._fused_matmul_reduce_scatter_fallback(x, w, "sum", 0, group)
    for stream in [torch.cuda.Stream(priority=-1) for _ in range(33)]:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            got = split(x, w)
        torch.cuda.synchronize()
        worst = max(worst, near(got, want))
    split.close()
    return worst


def first_in_graph(rank: int, group: str) -> float:
    """An operator's first call is the one that Inductor makes before it captures, in the memory of its graphs."""
    x, w = mine(rank, 320, 256), mine(0, 256, 192)
    want = torch.ops._c10d_functional.all_gather_into_tensor(x @ w, dist.get_world_size(), group)
    want = torch.ops._c10d_functional.wait_tensor(want) + 1
    run: Any = torch.compile(lambda a, b: F.all_gather(a @ b, group=group) + 1, mode="reduce-overhead")
    worst = 0.0
    with torch.no_grad():
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            worst = max(worst, near(run(x, w), want))
    return worst


def graphs(rank: int, mesh: Any, by: str, how: str) -> float:
    """Compiled attention, replayed with other inputs than it was captured with. `by`: whose pass fuses; `how`: who captures."""
    ranks, sizes, case = mesh.size(), MODELS["8b"], Case("8b", "attention", 1024, False)
    torch._dynamo.reset()
    torch.manual_seed(0)
    whole = drawn(case.whole(sizes), case.length).to("cuda", torch.bfloat16)
    inputs = [door_ranks.drawn(case.length, sizes.features, seed=n, dtype=torch.bfloat16) for n in range(3)]
    with torch.no_grad():
        wanted = [whole(x).chunk(ranks)[rank].clone() for x in inputs]
    split = parallelize_module(whole, mesh, plan(whole))
    passes: dict[str, Any] = {"post_grad_custom_pre_pass": tilelink.inductor.overlap(strict=True)}
    before = sum(row.calls or 0 for row in tilelink.report().rows if row.by == "tilelink")
    mode = "reduce-overhead" if how == "torch.compile" else None
    with torch.no_grad(), config.patch(passes if by == "overlap" else {"_micro_pipeline_tp": True}):
        run: Any = torch.compile(split, fullgraph=True, dynamic=False, mode=mode)
        static = inputs[0].chunk(ranks)[rank].clone()
        found: list[torch.Tensor] = []
        if mode is None:
            result: list[torch.Tensor] = []
            replay = captured(lambda: result.append(run(static)))
            for x in (*inputs, inputs[1]):
                static.copy_(x.chunk(ranks)[rank])
                replay()
                found.append(result[-1].clone())
        else:
            for x in (*inputs, *inputs, inputs[0], inputs[1]):
                torch.compiler.cudagraph_mark_step_begin()
                found.append(run(x.chunk(ranks)[rank].clone()).clone())
    served = sum(row.calls or 0 for row in tilelink.report().rows if row.by == "tilelink") - before
    assert 0 < served < 2 * len(found), f"{served} calls for {len(found)} results: replays are no calls"
    wanted = [*wanted, wanted[1]] if mode is None else [*wanted, *wanted, *wanted[:2]]
    return max(near(got, want) for got, want in zip(found, wanted, strict=True))


def checks(rank: int, ranks: int, dtypes: Sequence[torch.dtype]) -> Iterator[tuple[str, Check]]:
    mesh = init_device_mesh("cuda", (ranks,))
    group = mesh.get_group().group_name
    torchs.enable_symm_mem_for_group(group)
    yield "what torch serves", partial(door_ranks.check_refused, rank, group)
    yield "sizes of models", partial(large, rank, group)
    alone, pairs = [[r] for r in range(ranks)], [[a, b] for a in range(ranks) for b in range(a + 1, ranks)]
    yield "subsets of the ranks", partial(subsets, rank, [*alone, *pairs, list(range(ranks))])
    yield "two in flight", partial(in_flight, rank, group)
    yield "on any stream", partial(on_any_stream, rank, group)
    yield "first call in a graph", partial(first_in_graph, rank, group)
    for by in ("overlap", "torch's pass"):
        for how in ("by hand", "torch.compile"):
            yield f"attention in graphs, {by}, captured by {how}", partial(graphs, rank, mesh, by, how)
    if ranks == 2:
        for dtype in dtypes:
            yield f"every axis, {dtype}", partial(door_ranks.check_forms, rank, group, dtype)
            yield f"gradients, {dtype}", partial(door_ranks.check_gradients, rank, group, dtype)


def check(sheet: Sheet, dtypes: Sequence[torch.dtype]) -> None:
    machine = sheet.machine
    tilelink.install()
    door_ranks.device = machine.device
    for name, run in checks(machine.rank, machine.ranks, dtypes):
        row: Row = {"case": name}
        try:
            with sharing(gpus_of(sheet.backend) < machine.ranks):
                row["error"] = run()
                torch.cuda.synchronize()
        except PROBLEMS as problem:
            row["problem"] = f"{type(problem).__name__}: {str(problem)[:2000]}"
        row["ok"] = machine.worst(float("problem" in row)) == 0.0
        sheet.add(row, f"{name:60s} {row['ok']} {row.get('error', '')} {row.get('problem', '')}")
        sheet.save()
    sheet.say(str(tilelink.report()))
    tilelink.uninstall()
    # Graphs that hold a library's kernels outlive their program in torch's caches, and the group's end waits for them.
    torch.compiler.reset()
    gc.collect()


def main() -> int:
    given = parser(__doc__)
    said = "of every axis and its gradients; each takes minutes where ranks share a GPU, since every form is compiled there"
    given.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16", "float16"], help=said)
    options = given.parse_args()
    os.environ.update(NO_MULTICAST)
    return judged("install-check", partial(check, dtypes=[getattr(torch, d) for d in options.dtypes]), options.out)


if __name__ == "__main__":
    sys.exit(main())
