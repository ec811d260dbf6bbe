# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false
"""torch's fused operators, served by tilelink: tile programs on simulated ranks, references in two real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.distributed import _symmetric_memory  # which declares the operators

import tilelink
from tests.two_processes import Problem
from tilelink import nn

NAMES = ("symm_mem::fused_all_gather_matmul", "symm_mem::fused_matmul_reduce_scatter")
assert _symmetric_memory


@pytest.fixture(autouse=True)
def _uninstalled() -> Iterator[None]:
    yield
    tilelink.uninstall()


def kernels() -> list[str]:
    return [torch._C._dispatch_dump_table(name) for name in NAMES]


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_in_and_out_twice_leaves_torch_as_it_was() -> None:
    before = kernels()
    for _ in range(2):
        tilelink.install()
        installed = kernels()
        assert all(a != b for a, b in zip(before, installed, strict=True))
        with tilelink.install():  # installed already: this one takes nothing away
            assert kernels() == installed
        assert kernels() == installed
        tilelink.uninstall()
        tilelink.uninstall()
        assert kernels() == before
    with tilelink.install():
        assert tilelink.report().installed
    assert not tilelink.report().installed
    assert kernels() == before


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_gathering_on_simulated_ranks(dim: int) -> None:
    """Several weights behind one gathering, with what is gathered and without; of the last axis the weights' rows are split."""
    whole, weights = drawn(4, 2, 6), [drawn(6, n) for n in (5, 3)]
    weights[1] = weights[1].t().contiguous().t()
    call = torch.ops.symm_mem.fused_all_gather_matmul

    def main() -> None:
        group, mine = nn.group_name(), whole.chunk(2, dim)[tilelink.rank()]
        gathered, products = call(mine, weights, dim, group)
        nothing, (alone,) = call(mine, weights[:1], dim, group, return_A=False)
        assert nothing is None
        close(gathered, whole)
        for got, weight in zip((*products, alone), (*weights, weights[0]), strict=True):
            close(got, whole @ weight)

    with tilelink.install():
        tilelink.launch(main, 2)
    served = tilelink.report().rows[0]
    assert (served.operator, served.by, served.calls) == ("fused_all_gather_matmul", "tilelink", 4)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_scattering_on_simulated_ranks(dim: int) -> None:
    whole, weight = drawn(4, 2, 6), drawn(6, 8)
    call = torch.ops.symm_mem.fused_matmul_reduce_scatter

    def main() -> None:
        rank, group = tilelink.rank(), nn.group_name()
        mine = (rank + 1) * whole  # 3 times in the sum
        got = {how: call(mine, weight, how, dim, group) for how in ("sum", "avg")}
        for how, times in (("sum", 3), ("avg", 1.5)):
            close(got[how], times * (whole @ weight).chunk(2, dim)[rank])
            assert got[how].is_contiguous()

    with tilelink.install():
        tilelink.launch(main, 2)


def test_what_others_serve_is_reported() -> None:
    with tilelink.install():
        with pytest.raises((RuntimeError, ValueError, KeyError)):  # torch has no group of that name either
            torch.ops.symm_mem.fused_all_gather_matmul(drawn(2, 2), [drawn(2, 2)], 0, "nobody's")
        assert str(tilelink.report()) == (
            "tilelink is installed\n"
            "symm_mem::fused_all_gather_matmul: 1 call by torch: TL451: there is no rank here\n"
            "symm_mem::fused_all_gather_scaled_matmul: every call by torch: tilelink has no scaled product\n"
            "symm_mem::fused_scaled_matmul_reduce_scatter: every call by torch: tilelink has no scaled product"
        )


def test_torch_without_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    with pytest.raises(tilelink.TilelinkError) as caught:
        tilelink.install()
    assert str(caught.value) == (
        "TL476: this build of torch has no operators on symmetric memory\n"
        "  why: `install` replaces the fused products of torch.distributed, and torch was built without it\n"
        "  do:  install a build of torch with distributed, or call tilelink.ops"
    )


def test_two_processes(problem_of: Problem, tmp_path: Path) -> None:
    assert problem_of("tests.torch_ops.door_ranks", tmp_path) == ""
