"""The first half of a mixture of experts, against NCCL's all-gather and torch's grouped matmul."""

from __future__ import annotations

import torch

from tilelink.bench.contest import COMM, UNFUSED, Contest, Place, Roles, Sizes, Variants
from tilelink.bench.subjects.moe import GROUPED, Routing, grouped, tables, ungrouped
from tilelink.bench.subjects.subject import BenchCase, Subject
from tilelink.bench.workloads import MOES
from tilelink.ops import ag_moe

ROUTED = "unfused with routing"


def shapes(_: int) -> list[BenchCase]:
    """Gate and up in one: `I` is twice the intermediate size."""
    return [
        BenchCase(m.name, {"T": m.tokens, "H": m.hidden, "I": 2 * m.intermediate, "k": m.top, "e": m.experts})
        for m in MOES
    ]


def contest(place: Place, sizes: Sizes, ours: Variants) -> Contest:
    """T tokens of H, which choose k of e experts with I columns, all global. `UNFUSED` has the tables for nothing, as if
    the router made them; `ROUTED` makes them, as ours does."""
    t, h, k, e = (sizes[d] for d in ("T", "H", "k", "e"))
    each, mine = place.part(t)
    first = each * place.backend.rank
    columns = place.part(sizes["I"])[1]
    padded, weight = place.random(each, h), place.random(e, h, columns)
    rows, routing = place.random(place.backend.ranks * each, h), Routing.of(place, sizes)
    choice = place.empty(each, k, dtype=torch.int32)
    everyone = place.empty(place.backend.ranks * each, k, dtype=torch.int32)
    made = [torch.empty_like(x) for x in (routing.order, routing.start, routing.slot)]

    def redraw() -> None:
        routing.draw()
        choice[:mine].copy_(routing.choice[first : first + mine])

    redraw()
    found = Contest(inputs=[padded, weight, rows], outputs=made, redraws=[redraw], roles=Roles(gemm=GROUPED), graphed=1)
    for name, op in ours.items():
        found.enter(name, op, (padded[:mine], choice[:mine], weight), T=t, I=sizes["I"])
    if ungrouped():
        found.missing |= dict.fromkeys((GROUPED, UNFUSED, ROUTED), ungrouped())
        return found
    lib, picked = place.libraries, place.random(t * k, h)
    found.inputs.append(picked)

    def unfused() -> tuple[torch.Tensor, ...]:
        lib.all_gather_into_tensor(rows, padded)
        hidden = grouped(rows.index_select(0, routing.order), weight, routing.start)
        return hidden, routing.start, routing.slot

    def routed() -> tuple[torch.Tensor, ...]:
        lib.all_gather_into_tensor(rows, padded)
        lib.all_gather_into_tensor(everyone, choice)
        order, start, slot = made
        tables(everyone[:t], order, start, slot, first)
        return grouped(rows.index_select(0, order), weight, start), start, slot

    found.add(GROUPED, lambda: grouped(picked, weight, routing.start), library=True)
    found.add(COMM, lambda: lib.all_gather_into_tensor(rows, padded), library=True)
    found.rival(UNFUSED, unfused, library=True)
    found.rival(ROUTED, routed, library=True)
    return found


SUBJECT = Subject(
    "ag_moe", ag_moe, shapes, contest, {"T": 48, "H": 64, "I": 64, "k": 2, "e": 4},
    "torch._grouped_mm after NCCL's all-gather", "T",
)  # fmt: skip
