"""A linear recurrence along a sequence that is split over the ranks, `h[s] = a[s] * h[s - 1] + b[s]`, as state-space models have.

A rank needs the state in which the rank before it ends: one row, handed on from neighbour to neighbour. It does not wait for
it with its own rows: it walks them from a state of 0, and on the way finds out how they make of any state another. So the
chain is short, a product and a sum for each rank, and one block of channels is on its way while the next is walked.

Four simulated ranks, without a GPU:  python examples/recurrence.py
Four GPUs:  torchrun --nproc-per-node=4 examples/recurrence.py
"""

import torch

import tilelink
import tilelink.language as tl


@tilelink.program("S/R C, S/R C, R/R C f32 -> R/R C i32")
def hand_on(a, b, state, mine):  # communication: the state behind my rows to the next rank; nothing is stored in `mine`
    r, c = tl.tile_id(mine)
    rows = tl.cdiv(tl.size(a, 0), tl.num_ranks())
    h, p = tl.zeros(tl.tile_shape(mine), tl.float32), tl.full(tl.tile_shape(mine), 1, tl.float32)
    for s in range(r * rows, r * rows + rows):
        rate = tl.tile_load(a, (s, c), other=1).to(tl.float32)  # past the last row nothing changes
        h, p = rate * h + tl.tile_load(b, (s, c)), p * rate
    if r != 0:  # the first rank waits for nobody, and so nobody waits in a circle
        tl.peer_tile_wait(state, (r, c), r - 1)
        h += p * tl.tile_load(state, (r, c))
    if r != tl.num_ranks() - 1:
        tl.tile_push_data(state, (r + 1, c), h)
        tl.peer_tile_notify(state, (r + 1, c), r + 1)


@tilelink.program("S/R C, S/R C, R/R C f32, R/R C i32 -> S/R C")
def recur(a, b, state, mine, out):  # computation: this rank's rows of some channels, from the state that has come
    r, c = tl.tile_id(mine)
    rows = tl.cdiv(tl.size(a, 0), tl.num_ranks())
    h = tl.zeros(tl.tile_shape(mine), tl.float32)
    if r != 0:
        tl.peer_tile_wait(state, (r, c), r - 1)
        h += tl.tile_load(state, (r, c))
    for s in range(r * rows, r * rows + rows):
        h = tl.tile_load(a, (s, c)).to(tl.float32) * h + tl.tile_load(b, (s, c))
        tl.tile_store(out, (s, c), h)


@tilelink.operator("S/R C, S/R C -> S/R C")
def recurrence(a, b):
    state, mine = tilelink.symmetric("R/R C f32", like=a), tilelink.symmetric("R/R C i32", like=a)
    hand_on(a, b, state)
    return recur(a, b, state, mine)


S, C = 250, 96  # 63 rows each, and 61 for the last of four ranks; channels
FORMS = {
    "default": recurrence,
    "in blocks of channels": recurrence.schedule(hand_on=tilelink.sms(2, C=32), recur=tilelink.sms(C=32)),
}


def main():
    rank, ranks = tilelink.rank(), tilelink.ranks()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    # Every rank draws the same numbers and keeps its own.
    a, b = torch.rand(S, C).to(device, torch.bfloat16), torch.randn(S, C).to(device, torch.bfloat16)
    h, rows = torch.zeros(C, device=device), []
    for rate, add in zip(a.float(), b.float(), strict=True):
        h = rate * h + add
        rows.append(h)
    expected = torch.stack(rows).split(-(-S // ranks))[rank]
    mine = [x.split(-(-S // ranks))[rank].contiguous() for x in (a, b)]
    results = {name: op(*mine, S=S) for name, op in FORMS.items()}
    return {name: float((y.float() - expected).norm() / expected.norm()) for name, y in results.items()}


if __name__ == "__main__":
    for errors in tilelink.launch(main, ranks=4):
        for name, error in errors.items():
            print(f"recurrence, {name}: relative error {error:.1e}")
            assert error < 2e-2
