"""Rank programs that several tests run: the two emitted files, with everything they need around them."""

import ast
from collections.abc import Callable
from dataclasses import dataclass

import torch

import tilelink
from tests.simulated import emitted_ag_gemm, emitted_push_gemm
from tilelink import Operator
from tilelink.ir.schedule import KernelOptions
from tilelink.runtime.backend import Descriptor
from tilelink.runtime.session import require
from tilelink.runtime.simulated import SimulatedBackend

Main = Callable[[SimulatedBackend], list[torch.Tensor]]


@dataclass(frozen=True)
class Problem:
    """`inputs[c]`: the whole left operand of call c; every rank has the whole of `weight`."""

    inputs: tuple[torch.Tensor, ...]
    weight: torch.Tensor
    tile: int

    @staticmethod
    def random(m: int, n: int, k: int, dtype: torch.dtype, *, calls: int = 1, tile: int = 32) -> "Problem":
        generator = torch.Generator().manual_seed(m * n * k)
        made = [torch.randn(m, k, generator=generator).to(dtype) for _ in range(calls)]
        return Problem(tuple(made), torch.randn(k, n, generator=generator).to(dtype), tile)

    @property
    def sizes(self) -> tuple[int, int, int]:
        m, k = self.inputs[0].shape
        return m, self.weight.shape[1], k

    def part(self, call: int, rank: int, ranks: int) -> torch.Tensor:
        rows = -(-self.sizes[0] // ranks)
        return self.inputs[call][rank * rows : (rank + 1) * rows]

    def assert_right(self, results: list[list[torch.Tensor]]) -> None:
        """Every rank has every product, NaN nowhere."""
        tolerance = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}[self.weight.dtype]
        for rank, outs in enumerate(results):
            for call, out in enumerate(outs):
                expected = self.inputs[call].float() @ self.weight.float()
                error = (out.float() - expected).abs().max() / expected.abs().max()
                assert error <= tolerance, f"rank {rank}, call {call}: relative error {error}"


def pull(problem: Problem, *, comm: int = 2, workers: int = 6) -> Main:
    """One kernel per call: communication workers pull, the others multiply."""
    m, n, k = problem.sizes
    tile, dtype = problem.tile, problem.weight.dtype

    def main(backend: SimulatedBackend) -> list[torch.Tensor]:
        rows = -(-m // backend.ranks)
        size = -(-rows * k * dtype.itemsize // 16) * 16
        arena = backend.arena(len(problem.inputs) * size + 8 * backend.ranks)
        ready = arena.local[len(problem.inputs) * size :].view(torch.int64)
        pulled = backend.zeros(-(-m // tile), torch.int64)
        outs = []
        for call in range(len(problem.inputs)):
            shard = arena.local[call * size : call * size + rows * k * dtype.itemsize].view(dtype).view(rows, k)
            mine = problem.part(call, backend.rank, backend.ranks)
            shard[: len(mine)] = mine
            gathered, out = backend.maker((m, k), dtype)(), backend.maker((m, n), dtype)()
            args = {
                "shard": shard,
                "gathered": gathered,
                "rows": Descriptor(gathered, (tile, tile)),
                "weight": Descriptor(problem.weight, (tile, tile)),
                "out": Descriptor(out, (tile, tile)),
                "ready": ready,
                "pulled": pulled,
                "epoch": call + 1,
                "context": arena.context,
                "M": m,
                "N": n,
                "K": k,
                "COMM": comm,
                "BM": tile,
                "BN": tile,
                "BK": tile,
            }
            backend.main_stream().launch(emitted_ag_gemm.ag_gemm, workers, args, KernelOptions(4, 3))
            outs.append(out)
        return outs

    return main


def push(problem: Problem, *, workers: int = 4, slots: int = 2, credits: bool = True) -> Main:
    """Per call: a gate takes the credits, a side stream pushes this rank's rows to all and sends its total."""
    m, n, k = problem.sizes
    tile, dtype = problem.tile, problem.weight.dtype

    def main(backend: SimulatedBackend) -> list[torch.Tensor]:
        R, me = backend.ranks, backend.rank
        size = -(-m * k * dtype.itemsize // 16) * 16
        arena = backend.arena(slots * size + 16 * R)
        flags = arena.local[slots * size :].view(torch.int64)
        arrived, left = flags[:R], flags[R:]
        doorbell = backend.zeros(1, torch.int64)
        compute, copies = backend.main_stream(), backend.side_stream(0)
        outs = []
        for call in range(len(problem.inputs)):
            first = call % slots * size
            mine = problem.part(call, me, R)
            total = torch.tensor([call + 1])
            started = compute.record()
            copies.wait(started)
            gate = {"left": left, "doorbell": doorbell, "epoch": call + 1, "context": arena.context, "SLOTS": slots}
            if credits:
                compute.launch(emitted_push_gemm.credit_gate, 1, gate, KernelOptions(1, 1))
                copies.wait_doorbell(doorbell)
            for step in range(R):
                peer = arena.peers[(me + step) % R]
                rows = peer[first : first + m * k * dtype.itemsize].view(dtype).view(m, k)
                begin = me * -(-m // R)
                copies.copy(rows[begin : begin + len(mine)], mine)
                copies.copy(peer[slots * size :].view(torch.int64)[me : me + 1], total)
            out = backend.maker((m, n), dtype)()
            args = {
                "rows": arena.local[first : first + m * k * dtype.itemsize].view(dtype),
                "weight": problem.weight,
                "out": out,
                "arrived": arrived,
                "total": call + 1,
                "M": m,
                "N": n,
                "K": k,
                "context": arena.context,
                "BM": tile,
                "BN": tile,
                "BK": tile,
            }
            compute.launch(emitted_push_gemm.matmul, workers, args, KernelOptions(4, 3))
            outs.append(out)
        return outs

    return main


def numbers(shape: tuple[int, ...], dtype: torch.dtype, call: int, rank: int) -> torch.Tensor:
    """Small whole ones, of which sums are exact."""
    generator = torch.Generator().manual_seed(100 * call + rank)
    return torch.randint(-8, 9, shape, generator=generator).to(dtype)


def called(text: str) -> list[str]:
    """The SHMEM functions that the steps' functions of an emitted file call, in order."""
    functions = [f for f in ast.parse(text).body if isinstance(f, ast.FunctionDef) and f.name != "call_entry"]
    found = [n.func for f in functions for n in ast.walk(f) if isinstance(n, ast.Call)]
    return [n.attr for n in found if isinstance(n, ast.Attribute) and ast.unparse(n.value) == "shmem"]


HEARD_AT = "tl.load(heard_at + worker)"
HEARD = f"if used >= {HEARD_AT}:"
"""How a epoch-signalled call asks whether its slot was used in the call before."""
RACE, STANDSTILL = "TL507", "TL501"


def one_slot_again(operator: Operator) -> list[float]:
    """An element of each result; and the slots of all workspaces stay what they are."""
    sums = list[float]()
    for call in range(4):
        sums.append(operator(torch.full((1, 64), float(call + tilelink.rank()))).max().item())
        for workspace in require().workspaces.values():
            workspace.replayed.add("a graph's call")
            workspace.calls += 1
    return sums
