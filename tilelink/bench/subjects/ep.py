"""Expert parallelism, there and back, against NCCL's all-to-all with the numbers of rows asked of the device."""

from __future__ import annotations

from typing import Any

import torch

from tilelink.bench.contest import Contest, Place, Roles, Sizes, Variants, alike, how
from tilelink.bench.subjects.subject import BenchCase, Subject
from tilelink.ops import ep_combine, ep_dispatch

BASELINE = "nccl all-to-all, splits by the host"
THERE, BACK = "ep_dispatch alone", "ep_combine alone"
ASKS = "it asks the device for numbers of rows"


def shapes(ranks: int) -> list[BenchCase]:
    model = {"H": 7168, "k": 8, "experts": 256}
    cases = [("128 tokens", 128, 128), ("128 tokens, room for 32", 128, 32), ("4096 tokens, room for 256", 4096, 256)]
    return [BenchCase(name, {"T": t * ranks, **model, "capacity": room}) for name, t, room in cases]


def contest(place: Place, sizes: Sizes, ours: Variants) -> Contest:
    """T tokens of all ranks, of H, each of which goes to k of so many experts, which give it back as it is; `capacity` rows
    of an expert for each rank. The baseline packs what it sends, and drops nothing."""
    t, h, k, experts, capacity = (sizes[n] for n in ("T", "H", "k", "experts", "capacity"))
    mine, ranks, lib = place.part(t)[1], place.backend.ranks, place.libraries
    back_given: dict[str, Any] = {"experts": experts, "T": t}
    x, score = place.random(mine, h), place.empty(mine, k, dtype=torch.float32)
    choice = place.empty(mine, k, dtype=torch.int32)
    given: dict[str, Any] = {"experts": experts, "capacity": capacity, "T": t}

    def redraw() -> None:
        """No token takes one expert twice."""
        odds = torch.rand(mine, experts, device=place.device)
        choice.copy_(odds.topk(k, sorted=False).indices)
        score.uniform_()

    redraw()
    roles = Roles(gemm="", comm="", unfused="", baseline=(BASELINE,))
    found = Contest(inputs=[x], redraws=[redraw], roles=roles, graphed=1)

    def overlapped() -> tuple[torch.Tensor, ...]:
        rows, counts, at = ep_dispatch(x, choice, **given)
        return rows, counts, ep_combine(rows, counts, choice, at, score, **back_given)

    def checked() -> tuple[torch.Tensor, ...]:
        there = ep_dispatch(x, choice, **given)
        rows, counts, at = ep_dispatch(x, choice, out=alike(there), **given)
        back = ep_combine(rows, counts, choice, at, score, **back_given)
        return packed((rows, counts, ep_combine(rows, counts, choice, at, score, out=alike(back), **back_given)))

    def packed(result: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Rows in the order in which a packed exchange has them: by rank, then by expert."""
        rows, counts, back = result
        there = torch.arange(capacity, device=place.device) < counts.t()[..., None]
        return rows.transpose(0, 1)[there], counts.t(), back

    def exchanged() -> tuple[torch.Tensor, ...]:
        flat = choice.view(-1).long()
        slot = flat.argsort(stable=True)
        # Not bincount, which asks the device for the largest.
        sent = flat.new_zeros(experts).scatter_add_(0, flat, torch.ones_like(flat)).view(ranks, -1)
        got = torch.empty_like(sent)
        lib.all_to_all_single(got, sent)
        to, fro = torch.stack([sent.sum(1), got.sum(1)]).tolist()
        outgoing = x.index_select(0, slot // k)
        rows, back = x.new_empty(sum(fro), h), torch.empty_like(outgoing)
        lib.all_to_all_single(rows, outgoing, fro, to)
        lib.all_to_all_single(back, rows, to, fro)
        home = torch.empty_like(back).index_copy_(0, slot, back).view(mine, k, h)
        return rows, got, (home * score[..., None]).sum(1).to(x.dtype)

    for name in ours:
        found.add(name, overlapped, checked, reads=packed)
        found.ran[name] = lambda: f"there: {how(ep_dispatch, (x, choice), **given)}"
    arrived: list[torch.Tensor] = []

    def back_alone() -> torch.Tensor:
        arrived.extend(() if arrived else ep_dispatch(x, choice, **given))
        rows, counts, at = arrived
        return ep_combine(rows, counts, choice, at, score, **back_given)

    found.add(THERE, lambda: ep_dispatch(x, choice, **given))
    found.add(BACK, back_alone)
    found.used += [ep_dispatch, ep_combine]
    if experts % ranks:
        found.missing[BASELINE] = f"{experts} experts are not a multiple of {ranks}"
        return found
    found.rival(BASELINE, exchanged, ungraphed=ASKS, library=True)
    return found


SUBJECT = Subject(
    "ep", None, shapes, contest, {"T": 16, "H": 64, "k": 2, "experts": 4, "capacity": 8},
    "NCCL's all-to-all with numbers of rows that the host asks for",
)  # fmt: skip
