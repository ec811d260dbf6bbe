"""What results are compared with: the product that a signature states, else the operator's unfused form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tilelink.explore.cases import Case
from tilelink.ir.shape import RANK_AXIS
from tilelink.pipeline.arguments import constants_of
from tilelink.runtime.backend import Backend
from tilelink.tuning.comparison import relative_error, results

PRODUCT = "the product of the signature, by torch in fp32"
PLAIN = "the operator's unfused form, by torch in fp32"
LIBRARY = "tilelink.ops."


def against(case: Case, simulated: bool) -> str | None:
    """In flags; None: there is nothing."""
    if case.contraction is not None:
        return PRODUCT
    return PLAIN if _has_plain_form(case, simulated) else None


def _has_plain_form(case: Case, simulated: bool) -> bool:
    """Not of tables, whose made-up values keep their contract and need not mean anything; nor of uneven parts."""
    op = case.operator
    if op.reference_fn is None or op.signature.axes != (RANK_AXIS,) or any(s.contract for s in op.signature.inputs):
        return False
    if simulated and not op.reference_fn.__module__.startswith(LIBRARY):
        return False  # others call torch.distributed
    split = [a for s in op.signature.shapes for a in s.axes if a.split in op.signature.axes and not a.own_slice]
    return all(a.name in op.uneven or case.size(a.size) % case.topology.ranks == 0 for a in split)


def error_of(case: Case, backend: Backend, device: str, found: Any) -> float:
    """The largest of this rank's results; collective."""
    if case.contraction is not None:
        return relative_error(found, case.expected(backend.rank, device))
    pairs = zip(results(found), results(_plain(case, backend, device)), strict=True)
    return float(torch.tensor([relative_error(y, wanted.float()) for y, wanted in pairs]).amax())  # NaN if any is


def _plain(case: Case, backend: Backend, device: str) -> Any:
    op, given = case.operator, case.given
    assert op.reference_fn is not None, "to be asked for first"
    arguments = [t.float() if t.is_floating_point() else t for t in case.arguments(backend.rank, device)]
    sizes = {name: given[name] for name in op.uneven if name in given}
    group = Simulated(backend) if backend.group is None else backend.group
    with torch.no_grad():
        return op.reference_fn(*arguments, **constants_of(op.signature, given), **sizes, group=group)


@dataclass(frozen=True, slots=True)
class Simulated:
    """Simulated ranks as a group that brings the collectives of unfused forms, under torch.distributed's names."""

    backend: Backend

    @property
    def collectives(self) -> Simulated:
        return self

    def get_rank(self, group: Simulated) -> int:
        return group.backend.rank

    def get_world_size(self, group: Simulated) -> int:
        return group.backend.ranks

    def all_reduce(self, tensor: torch.Tensor, *, group: Simulated) -> None:
        tensor.copy_(torch.stack(group.backend.agree(tensor)).sum(0))

    def all_gather_into_tensor(self, output: torch.Tensor, tensor: torch.Tensor, *, group: Simulated) -> None:
        output.copy_(torch.cat(group.backend.agree(tensor)))

    def reduce_scatter_tensor(self, output: torch.Tensor, tensor: torch.Tensor, *, group: Simulated) -> None:
        output.copy_(torch.stack(group.backend.agree(tensor)).sum(0).chunk(group.backend.ranks)[group.backend.rank])

    def all_to_all_single(self, output: torch.Tensor, tensor: torch.Tensor, *, group: Simulated) -> None:
        output.copy_(
            torch.cat([sent.chunk(group.backend.ranks)[group.backend.rank] for sent in group.backend.agree(tensor)])
        )
