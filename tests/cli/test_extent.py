"""What is said before a simulation takes its time."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.cli.commands import alone, command
from tilelink import ops
from tilelink.explore.cases import Case, parse_sizes
from tilelink.explore.extent import LARGE, extent
from tilelink.explore.naming import operator_named
from tilelink.explore.report_tables import tiles_of

__all__ = ["alone"]


def case(name: str, sizes: str, ranks: int = 2) -> Case:
    return Case(getattr(ops, name), parse_sizes(sizes), ranks)


def test_what_is_small_is_counted() -> None:
    """On each of two ranks two tiles that are gathered, and two of the product."""
    assert extent(case("ag_gemm", "128x64x64"), 1) == "8 tiles on 2 ranks"
    assert extent(case("ag_gemm", "128x64x64", 1), 2, ", 2 calls") == "3 tiles on 1 rank, 2 calls"


@pytest.mark.parametrize(
    ("name", "sizes", "smaller"),
    [
        ("ag_gemm", "8192x5504x4096", "M=1024,N=688,K=512"),
        ("all_reduce", "64000x8192x64", "M=1000,N=128"),
        ("ag_attention", "S=65536,h=8,g=2,D=128,causal=0", "S=8192,h=8,g=2,D=64,causal=0"),
    ],
)
def test_of_much_a_smaller_shape_is_named_that_the_operator_has(name: str, sizes: str, smaller: str) -> None:
    said, _, named = extent(case(name, sizes, 4), 1).partition("; quicker with --shape ")
    assert int(said.split()[0].replace(",", "")) > LARGE
    assert named == smaller
    other = case(name, named, 4)
    assert tiles_of(other.compiled(other.topology).plan) <= LARGE


def test_calls_count_too_and_what_cannot_be_made_smaller_is_left() -> None:
    assert (
        extent(case("ag_gemm", "256x256x256"), 60, ", often")
        == "36 tiles on 2 ranks, often; quicker with --shape M=128,N=128,K=128"
    )
    assert extent(case("ag_gemm", "64x64x64"), 10**6) == "6 tiles on 2 ranks"


def test_sizes_that_do_not_go_together_are_passed_over() -> None:
    Path("mine.py").write_text(
        dedent(
            """
            import tilelink
            from tilelink import ops

            @tilelink.operator("M/R K, K N -> M N")
            def fixed(x, w):
                if x.size("K") != 256 and x.size("M") > 2000:
                    raise tilelink.TilelinkError("TL999", "does not fit")
                return ops.ag_gemm(x, w)
            """
        )
    )
    found = extent(Case(operator_named("mine.py:fixed"), parse_sizes("8192x8192x256"), 2), 1)
    assert found.endswith("; quicker with --shape M=1024,N=1024,K=64")


def test_commands_say_it_before_they_simulate(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_long(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for simulation in ("running.run_case", "stress.stress", "running.tune_case"):
        monkeypatch.setattr(f"tilelink.explore.{simulation}", too_long)
    small = ("ag_gemm", "--shape", "128x64x64", "--ranks", "2")
    for arguments, said in (
        (("run", *small, "--calls", "3"), "8 tiles on 2 ranks, 3 calls"),
        (("run", *small), "8 tiles on 2 ranks"),
        (("stress", *small, "--runs", "4"), "8 tiles on 2 ranks, 2 calls under each of 4 schedules"),
        (("tune", *small), "8 tiles on 2 ranks, under each schedule that is tried"),
    ):
        printed = command(*arguments, code=130).output.splitlines()
        assert f"     simulated  {said}" in printed
