"""Two nodes of two GPUs: an all-gather and a reduce-scatter in two levels, over the network with puts only.

Four simulated ranks, without a GPU:  python examples/two_levels.py
Two nodes:  torchrun --nnodes=2 --nproc-per-node=2 ... examples/two_levels.py   (TILELINK_WORLD=nvshmem)
"""

import torch

import tilelink
import tilelink.language as tl
from tilelink.ops.programs import gather, reduce, scatter


@tilelink.program("M K -> M K")
def keep(x, out):  # out of the memory that others push to
    m, k = tl.tile_id(out)
    tl.consumer_tile_wait(x, m)
    tl.tile_store(out, (m, k), tl.tile_load(x, (m, k)))


@tilelink.operator("M/R K -> M K")
def all_gather(x):
    return keep(gather(x))


@tilelink.operator("M K -> M/R K")
def reduce_scatter(x):
    return reduce(scatter(x))


PUTS = tilelink.sms(2, M=16, push=True)  # what a network takes: pulls and stores out of registers would be refused
ACROSS = {"gather": all_gather.schedule(gather=PUTS), "scatter": reduce_scatter.schedule(scatter=PUTS)}
INSIDE = {"gather": all_gather.schedule(gather=tilelink.sms(2, M=16)), "scatter": reduce_scatter}
NODES, PER_NODE, ROWS, K = 2, 2, 24, 32


def levels():
    """This rank's peers on the other nodes, one on each, and those on its own node."""
    rank = tilelink.rank()
    across = tilelink.group([node * PER_NODE + rank % PER_NODE for node in range(NODES)])
    inside = tilelink.group([rank // PER_NODE * PER_NODE + gpu for gpu in range(PER_NODE)])
    return across, inside


def turned(x, outer, inner):
    """Rows that lie by `inner` within `outer`, by `outer` within `inner` instead."""
    return x.view(outer, inner, -1, K).transpose(0, 1).reshape(-1, K)


def gathered(x, across, inside):
    """Every row crosses the network once to each node, and is handed on inside it."""
    rows = INSIDE["gather"](ACROSS["gather"](x, group=across), group=inside)
    return turned(rows, PER_NODE, NODES)  # by node, then by GPU: in the order of ranks


def scattered(x, across, inside):
    """Sums inside a node cross the network, not what they are made of."""
    return ACROSS["scatter"](INSIDE["scatter"](turned(x, NODES, PER_NODE), group=inside), group=across)


def main():
    rank, ranks = tilelink.rank(), NODES * PER_NODE
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    shards = [(r + 1) * torch.randn(ROWS, K) for r in range(ranks)]
    parts = [torch.randn(ranks * ROWS, K) for _ in range(ranks)]
    groups = levels()
    rows = gathered(shards[rank].to(device), *groups)
    sums = scattered(parts[rank].to(device), *groups)
    wanted = torch.stack(parts).sum(0)[rank * ROWS : (rank + 1) * ROWS]
    return {
        "all-gather": float((rows.cpu() - torch.cat(shards)).norm()),
        "reduce-scatter": float((sums.cpu() - wanted).norm() / wanted.norm()),
    }


if __name__ == "__main__":
    for errors in tilelink.launch(main, ranks=NODES * PER_NODE, nodes=NODES):
        for name, error in errors.items():
            print(f"{name} in two levels: error {error:.1e}")
            assert error < 1e-5
