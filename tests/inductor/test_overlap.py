# pyright: reportPrivateImportUsage=false, reportAttributeAccessIssue=false
"""The pass of Inductor: what it fuses computes the same, with gradients, and what it does not fuse has a reason."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

import tilelink
from tests.selection import table
from tests.two_processes import ROOT, Problem

AG, RS, AR = "all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"
FUSED = {AG: "symm_mem::fused_all_gather_matmul", RS: "symm_mem::fused_matmul_reduce_scatter", AR: "tilelink::gemm_ar"}

# What Inductor's own async tensor parallelism leaves alone: the collectives of the forward graph, then of the backward one.
MISSES = {
    "gather_addmm": (AG, RS),
    "gather_bmm": (AG, RS),
    "gather_bmm_of_one_weight": (AG, RS),
    "gather_last_axis": (AG, RS),
    "gather_batch_of_one": (AG, RS),
    "gather_split_cat_view": (AG, RS),
    "gather_right_factor": (AG, RS),
    "scatter_views": (RS, AG),
    "scatter_bias": (RS, AG),
    "scatter_bias_last_axis": (RS, AG),
    "scatter_bmm": (RS, AG),
    "scatter_saved": (RS, AG),
    "sum_linear": (AR,),
    "sum_bias": (AR,),
    "inductor": (AG, RS),  # with what Inductor emits
}
# Where a reason is due, in the place of the operator.
OTHERS = {
    "gather_mixed": ((AG, FUSED[AG]), (RS, "it gets no product, but aten.")),
    "gather_slice_cat": ((AG, FUSED[AG]), (RS, "it gets no product, but aten.")),
    "gather_cut": (
        (AG, "no product takes what is gathered, but aten.slice.Tensor"),
        (RS, "it gets no product, but aten."),
    ),
    "gather_scaled": ((AG, "tilelink multiplies floats from 16 to 64 bits, and this is uint8"),),
    "scatter_scaled": ((RS, "tilelink has no scaled product"),),
    "gather_several_products": ((AG, FUSED[AG]), (RS, "it gets a sum of products")),
    "scatter_twice_used": (
        (RS, "its product is used elsewhere, too, by aten.sin"),
        (AG, "no product takes what is gathered, but aten.add.Tensor"),
    ),
    "unfused": (
        (RS, "it gets no product, but aten.sin"),
        (AG, "no product takes what is gathered, but aten.sin, the graph's results"),
        (RS, "it gets no product, but aten.mul.Tensor"),
        (AG, "no product takes what is gathered, but aten.mul.Tensor"),
    ),
}


@pytest.fixture(scope="module")
def said(problem_of: Problem, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All programs, in one pair of processes."""
    folder = tmp_path_factory.mktemp("ranks")
    assert problem_of("tests.inductor.pass_ranks", folder) == ""
    return json.loads((folder / "said.json").read_text())


@table("name", MISSES)
def test_fused_as_unfused(said: dict[str, Any], name: str) -> None:
    assert [tuple(row[:2]) for row in said[name]] == [(kind, FUSED[kind]) for kind in MISSES[name]]


def test_gathered_gradients_are_passed_as_they_lie(said: dict[str, Any]) -> None:
    """The weight's gradient sums over what is gathered: passed for it, gradients would be copied by columns first."""
    along = said["summed_over_ranks"]
    backward = [name for name, kinds in MISSES.items() if kinds == (RS, AG) and name != "scatter_bias_last_axis"]
    assert {name: along[name] for name in backward} == {key: [False] for key in backward}
    assert along["gather_last_axis"] == [True]


@table("name", OTHERS)
def test_reasons(said: dict[str, Any], name: str) -> None:
    assert len(said[name]) == len(OTHERS[name])
    for (kind, what, line), (wanted, start) in zip(said[name], OTHERS[name], strict=True):
        assert kind == wanted
        assert what.startswith(start)
        assert line.startswith("return funcol."), line


@pytest.mark.parametrize("name", ["model_rows", "model_rows_bias", "model_sum"])
def test_models_that_torch_splits(said: dict[str, Any], name: str) -> None:
    """Forward, every collective is fused; the gradient of what all ranks have alike is summed behind no product of one rank."""
    rows = [tuple(row[:2]) for row in said[name]]
    assert all(what == FUSED[kind] for kind, what in rows if kind != AR or what == FUSED[AR])
    forward = [FUSED[AG], FUSED[RS]] if name != "model_sum" else [FUSED[AR]]
    assert [what for _, what in rows[: len(forward)]] == forward


def test_strict(said: dict[str, Any]) -> None:
    lines = [line.strip() for line in said["strict"].splitlines()]
    assert "TilelinkError: TL477: 2 of 2 collectives of a compiled graph hide behind no product" in lines
    assert "why: reduce_scatter_tensor: it gets no product, but aten.sin" in lines
    assert "do:  change what stands between the collective and its product, or call overlap(strict=False)" in lines
    assert any("return funcol.reduce_scatter_tensor_autograd" in line for line in lines)


def test_not_installed(said: dict[str, Any]) -> None:
    why = "tilelink is not installed: call tilelink.install() before the graph is compiled"
    assert f"why: all_gather_into_tensor: {why}" in said["not_installed"]


def test_the_report_has_a_line_for_each_collective(said: dict[str, Any]) -> None:
    lines = said["report"].splitlines()
    assert any(line.startswith(AR) and line.endswith("  fused: tilelink::gemm_ar") for line in lines)
    assert any(line.startswith(RS) and line.endswith("  not fused: it gets no product, but aten.sin") for line in lines)


def test_graphs_out_of_the_cache(said: dict[str, Any]) -> None:
    """No pass sees them; the report says that there are such."""
    assert (said["again"], said["cached"]) == ([], 2)
    assert "2 compiled graphs came out of Inductor's cache" in said["report"]


def test_chained(said: dict[str, Any]) -> None:
    """The pass that was there runs, and two of ours run once."""
    from tilelink.inductor import overlap  # here, since it takes seconds to import

    assert said["chained"] > len(MISSES)
    with torch._inductor.config.patch(post_grad_custom_pre_pass=overlap()):
        again = overlap(strict=True)
    assert again.before == ()
    assert again.uuid() != overlap().uuid()
    assert again.uuid() == overlap(strict=True).uuid()
    with tilelink.install():
        installed = overlap(strict=True).uuid()
    assert installed != again.uuid()


def test_importing_tilelink_imports_no_inductor() -> None:
    script = "import sys, tilelink\nassert 'torch._inductor' not in sys.modules\nassert tilelink.inductor.overlap"
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    with pytest.raises(AttributeError, match="module 'tilelink' has no attribute 'indoctor'"):
        tilelink.indoctor  # noqa: B018
