"""The unfused form of what a lowered plan does: its products by a library, its transfers by NCCL, one after the other."""

from __future__ import annotations

from collections import defaultdict

from tilelink.cost.machine import H200, Machine
from tilelink.cost.products import products
from tilelink.cost.rows import access
from tilelink.cost.work import Work
from tilelink.ir.lowered import Copy, Lowered, Opaque, Write, walk
from tilelink.ir.shape import rank_along
from tilelink.proof.table import Table

MULTIPLIED = ("bf16", "f16", "f32", "f64")
"""What `torch.mm` takes on GPUs."""


def unfused(lowered: Lowered, machine: Machine = H200) -> float:
    """Microseconds of it, where it is not `unestimated`. What is neither product nor transfer is left out: NCCL's time of a sum
    of parts is that of bringing them."""
    table = Table.of(lowered)
    us, moved = 0.0, defaultdict[str, float](float)
    for executor in lowered.executors:
        for loop in executor.loops:
            work = Work(table, executor, loop, machine)
            us += work.by_library()
            for row, between in work.crossing():
                moved[access(row).buffer] += float(between.sum()) / table.ranks
    return us + sum(machine.exchanged(size) - machine.behind for size in moved.values())


def unestimated(lowered: Lowered) -> str:
    """Why nobody can say what the unfused form takes, or whether overlapping gains anything; empty where one can."""
    own = {rank_along(name) for name, _ in lowered.ranks}
    for part in lowered.parts:
        said = [op for _, found in part.said for op in walk(found)]
        if any(isinstance(op, Write) and op.rank not in own for op in said):
            return f"`{part.path}` exchanges data itself, and only copy programs are estimated"
    loops = [loop for e in lowered.executors if e.engine.by != "host" for loop in e.loops]
    ops = [op for loop in loops for op in walk(loop.body)]
    if any(isinstance(op, Opaque) for op in ops):
        return "it uses raw pointers"
    if not any(isinstance(op, Copy) for op in ops) and not any(part.copies for part in lowered.parts):
        return "there is nothing to hide"
    made = [(loop, product) for loop in loops for product in products(loop.body)]
    for loop, product in made:
        for read in product.operands.values():
            dtype = lowered.buffer(read.buffer).dtype
            if dtype not in MULTIPLIED:
                return f"`{loop.path}` multiplies {dtype}, and a library on a GPU does not"
    return "" if made else "there is nothing to hide behind"
