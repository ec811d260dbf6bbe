"""What results are compared with: the operator's unfused form where its author has declared one, else the product that its
signature states, else the unfused form that the library brings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from types import FunctionType
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from tilelink.errors import TilelinkError
from tilelink.explore.cases import Case
from tilelink.ir.shape import RANK_AXIS
from tilelink.pipeline.arguments import constants_of
from tilelink.pipeline.choosing import undivided
from tilelink.runtime.backend import Backend
from tilelink.tuning.comparison import relative_error, results

PRODUCT = "the product of the signature, by torch in fp32"
PLAIN = "the operator's unfused form, by torch in fp32"
LIBRARY = "tilelink.ops."


def against(case: Case) -> str | None:
    """In flags; None: there is nothing."""
    plain, declared = case.operator.reference_fn, _has_plain_form(case)
    if case.contraction is not None and (not declared or plain is None or plain.__module__.startswith(LIBRARY)):
        return PRODUCT
    return PLAIN if declared else None


def hint_of(case: Case) -> str:
    """What to do about a difference, where no race is reported."""
    if case.operator.reference_fn is not None:
        return "if no race is reported, the tile programs compute something else"
    return (
        "if no race is reported, the tile programs compute something else than this product; if they are to, say what in "
        f"torch, `@{case.operator.name}.reference`, or pass --no-check"
    )


def _has_plain_form(case: Case) -> bool:
    """Not of tables, whose made-up values keep their contract and need not mean anything; nor of uneven parts."""
    op = case.operator
    if op.reference_fn is None or op.signature.axes != (RANK_AXIS,) or any(s.contract for s in op.signature.inputs):
        return False
    return not undivided(op.signature, case.bound(case.topology), op.uneven)


def error_of(case: Case, backend: Backend, device: str, found: Any) -> float:
    """The largest of this rank's results; collective."""
    if against(case) == PRODUCT:
        return relative_error(found, case.expected(backend.rank, device))
    pairs = zip(results(found), results(_plain(case, backend, device)), strict=True)
    return float(torch.tensor([relative_error(y, wanted.float()) for y, wanted in pairs]).amax())  # NaN if any is


def _plain(case: Case, backend: Backend, device: str) -> Any:
    op = case.operator
    assert op.reference_fn is not None, "to be asked for first"
    arguments = [t.float() if t.is_floating_point() else t for t in case.arguments(backend.rank, device)]
    given = constants_of(op.signature, case.given, op.uneven)
    group = Simulated(backend) if backend.group is None else backend.group
    with torch.no_grad():
        return op.reference_fn(*arguments, **given, group=group)


@dataclass(frozen=True, slots=True)
class Simulated:
    """Simulated ranks as a group, and what torch.distributed's functions do with it, by their names and parameters."""

    backend: Backend

    def get_rank(self) -> int:
        return self.backend.rank

    def get_world_size(self) -> int:
        return self.backend.ranks

    def size(self) -> int:
        """As a process group's own: torch.distributed has no such function."""
        return self.backend.ranks

    def all_reduce(self, tensor: torch.Tensor) -> None:
        tensor.copy_(torch.stack(self.backend.agree(tensor)).sum(0))

    def all_gather(self, tensor_list: list[torch.Tensor], tensor: torch.Tensor) -> None:
        for out, found in zip(tensor_list, self.backend.agree(tensor), strict=True):
            out.copy_(found)

    def all_gather_into_tensor(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor) -> None:
        output_tensor.copy_(torch.cat(self.backend.agree(input_tensor)))

    def reduce_scatter_tensor(self, output: torch.Tensor, input: torch.Tensor) -> None:
        output.copy_(torch.stack(self.backend.agree(input)).sum(0).chunk(self.backend.ranks)[self.backend.rank])

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: list[int] | None = None,
        input_split_sizes: list[int] | None = None,
    ) -> None:
        del output_split_sizes  # what comes is what was sent
        parts = input.split(input_split_sizes) if input_split_sizes else input.chunk(self.backend.ranks)
        output.copy_(torch.cat([sent[self.backend.rank] for sent in self.backend.agree(parts)]))

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        tensor.copy_(self.backend.agree(tensor)[src])

    def barrier(self) -> None:
        self.backend.agree(None)


@contextmanager
def simulated_groups() -> Iterator[None]:
    """torch.distributed's functions take simulated ranks as a group."""
    with ExitStack() as stack:
        for name, function in list(vars(dist).items()):
            if type(function) is FunctionType and "group" in inspect.signature(function).parameters:
                stack.enter_context(patch.object(dist, name, _simulated(name, function)))
        yield


def _simulated(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    parameters = inspect.signature(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = parameters.bind(*args, **kwargs).arguments
        group = given.pop("group", None)
        if not isinstance(group, Simulated):
            return function(*args, **kwargs)
        mine = getattr(group, name, None)
        passed = {n: v for n, v in given.items() if not _is_default(v, parameters.parameters[n].default)}
        if mine is None or not passed.keys() <= inspect.signature(mine).parameters.keys():
            shown = ", ".join(f"{n}=…" for n in passed)
            raise TilelinkError(
                "TL717",
                f"an unfused form calls `torch.distributed.{name}({shown})`, which simulated ranks do not have",
                why=f"they have sums, gathers and exchanges, by {', '.join(_HAVE)}",
                hint="write the unfused form with these, compare under torchrun, or pass --no-check",
            )
        return mine(**passed)

    return call


def _is_default(value: Any, default: Any) -> bool:
    return value is default or (not isinstance(value, torch.Tensor) and value == default)


_HAVE = tuple(name for name in vars(Simulated) if type(vars(dist).get(name)) is FunctionType)
