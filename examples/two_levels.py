"""Two nodes of two GPUs: an all-gather and a reduce-scatter in two levels, over the network with puts only.

Each is one operator on ranks with two axes, NODE and GPU, and each of its steps speaks of one of them. A tile goes on along
the second as soon as it has come in along the first.

Four simulated ranks, without a GPU:  python examples/two_levels.py
Two nodes:  torchrun --nnodes=2 --nproc-per-node=2 ... examples/two_levels.py   (TILELINK_BACKEND=nvshmem)
"""

import torch

import tilelink
import tilelink.language as tl


def move(src, dst):  # one tile, to every rank that holds it
    n, g, m = tl.tile_id(src)
    tl.consumer_tile_wait(src, (n, g, m))
    tl.tile_push_data(dst, (n, g, m), tl.tile_load(src, (n, g, m)))
    tl.producer_tile_notify(dst, (n, g, m))


# `R` is the axis of ranks that a step speaks of: NODE or GPU, whichever the tensors are split over, or `over=` says.
across = tilelink.program("n/R g M ... -> n g M ...", name="across")(move)
inside = tilelink.program("n g/R M ... -> n g M ...", name="inside")(move)


def hand_over(partial, inbox):  # a slice of partial sums, to who sums it up
    s, n, g, m = tl.tile_id(partial)
    tl.consumer_tile_wait(partial, (s, n, g, m))
    tl.tile_push_data(inbox, (s, n, g, m), tl.tile_load(partial, (s, n, g, m)))
    tl.producer_tile_notify(inbox, (s, n, g, m))


to_gpus = tilelink.program("R/R n g M ... -> R n g/R M ...", name="to_gpus")(hand_over)
to_nodes = tilelink.program("R/R n g M ... -> R n/R g M ...", name="to_nodes")(hand_over)


@tilelink.program("s n g M K -> n g M K")
def add(inbox, out):
    n, g, m, k = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for s in tl.tiles(inbox, axis=0):
        tl.consumer_tile_wait(inbox, (s, n, g, m))
        acc += tl.tile_load(inbox, (s, n, g, m, k))
    tl.tile_store(out, (n, g, m, k), acc)
    tl.producer_tile_notify(out, (n, g, m, k))


@tilelink.program("n g M K -> n g M K")
def keep(x, out):  # out of the memory that others push to
    n, g, m, k = tl.tile_id(out)
    tl.consumer_tile_wait(x, (n, g, m))
    tl.tile_store(out, (n, g, m, k), tl.tile_load(x, (n, g, m, k)))


@tilelink.operator("n/NODE g/GPU M K -> n g M K", axes="NODE GPU")
def all_gather(x):
    """Every row crosses the network once to each node, and is handed on inside it."""
    return keep(inside(across(x)))


@tilelink.operator("n g M K -> n/NODE g/GPU M K", axes="NODE GPU")
def reduce_scatter(x):
    """Sums inside a node cross the network, not what they are made of."""
    sums = add(to_gpus(x, over="GPU"), name="add_inside")
    return add(to_nodes(sums, over="NODE"), name="add_across")


PUTS = tilelink.sms(2, M=16, push=True)  # what a network takes: pulls and stores out of registers would be refused
SUMS = tilelink.sms(M=16, K=32)
GATHER = all_gather.schedule(across=PUTS, inside=PUTS, keep=SUMS)
SCATTER = reduce_scatter.schedule(to_gpus=PUTS, to_nodes=PUTS, add_inside=tilelink.sms(4, M=16, K=32), add_across=SUMS)
NODES, PER_NODE, ROWS, K = 2, 2, 24, 32


def main():
    rank, ranks = tilelink.rank(), NODES * PER_NODE
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    shards = torch.stack([(r + 1) * torch.randn(ROWS, K) for r in range(ranks)])
    parts = torch.randn(ranks, NODES, PER_NODE, ROWS, K)
    rows = GATHER(shards[rank].view(1, 1, ROWS, K).to(device)).view(-1, K)
    sums = SCATTER(parts[rank].to(device)).view(ROWS, K)
    wanted = parts.sum(0).view(ranks, ROWS, K)[rank]
    return {
        "all-gather": float((rows.cpu() - shards.view(-1, K)).norm()),
        "reduce-scatter": float((sums.cpu() - wanted).norm() / wanted.norm()),
    }


if __name__ == "__main__":
    axes = {"NODE": NODES, "GPU": PER_NODE}
    for errors in tilelink.launch(main, ranks=NODES * PER_NODE, nodes=NODES, axes=axes):
        for name, error in errors.items():
            print(f"{name} in two levels: error {error:.1e}")
            assert error < 1e-5
