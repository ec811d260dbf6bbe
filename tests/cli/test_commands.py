"""The command line, as a user without GPUs sees it."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest
import torch

from benchmarks.mutants.mappings import sizes
from tests.cli.commands import CIRCLE, alone, command, error_of, lines
from tests.selection import table
from tilelink import ops
from tilelink.explore.cases import Case, numbers_of
from tilelink.explore.comparison import PRODUCT
from tilelink.explore.running import Outcome

__all__ = ["alone"]  # in force here, too
ROOT = Path(__file__).parents[2]
SMALL = ("--shape", "128x64x64", "--ranks", "2")
SVG = "<svg "


def shape_of(name: str) -> str:
    """Ragged sizes that an operator has, whatever it is; numbers that have a default are left to it, as its tiles are."""
    operator = getattr(ops, name)
    return ",".join(f"{n}={v}" for n, v in sizes(operator) if n not in numbers_of(operator))


# ---------------------------------------------------------------------------------------------------------------- demo
def test_demo_shows_every_stage() -> None:
    done = command("demo")
    printed = lines(done)
    said = {words[0]: words[-1] for words in (line.split("  ") for line in printed) if len(words) > 1}
    titles = [printed.index(title) for title in ("Steps", "Tensors", "Channels", "Dependences", "A call", "Proof")]
    assert titles == sorted(titles)
    emitted = Path(said["emitted file"])
    assert emitted.name.startswith("ag_gemm_")
    assert "@triton.jit" in emitted.read_text()
    assert 0 < error_of(done) < 2e-2
    assert any(line.startswith("wall time") for line in printed)
    assert said["timeline"] == "out/ag_gemm-timeline.html"
    assert SVG in Path("out/ag_gemm-timeline.html").read_text(encoding="utf-8")


def test_demo_ends_with_one_when_the_result_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilelink.explore.running.run_case", lambda *_, **__: Outcome((0.1,), 1.0, (), PRODUCT))
    assert any(line.startswith("result  differs from the product") for line in lines(command("demo", code=1)))


# --------------------------------------------------------------------------------------------------------------- trace
def test_trace_says_where_the_time_went() -> None:
    printed = lines(command("trace", "ag_gemm", *SMALL))
    assert any(line.split()[1:3] == ["gather", "2"] for line in printed if line.startswith("0 "))
    assert any(line.startswith("time") and line.endswith("simulated") for line in printed)
    assert SVG in Path("trace.html").read_text(encoding="utf-8")
    assert json.loads(Path("trace.json").read_text())["traceEvents"]


# ---------------------------------------------------------------------------------------------------------------- tune
def test_tune_says_what_it_found_and_knows_it_the_next_time() -> None:
    small = ("tune", "gemm_rs_ring", "--shape", "8x16x16", "--ranks", "1", "--budget", "0", "--table", "new/table.json")
    printed = lines(command(*small))
    assert any(line.startswith("8x16x16: Triton won, 1 simulated") for line in printed)
    (entry,) = json.loads(Path("new/table.json").read_text())["entries"]
    assert entry["problem"]["sizes"] == {"K": 16, "M": 8, "N": 16}
    assert "8x16x16: Triton, known" in command(*small).output


# ---------------------------------------------------------------------------------------------------------------- emit
@pytest.mark.parametrize("name", ops.__all__)
@pytest.mark.parametrize("target", ["simulated", "h200"])
def test_emit_prints_the_same_python_each_time(name: str, target: str) -> None:
    arguments = ("emit", name, "--shape", shape_of(name), "--target", target)
    text = command(*arguments).stdout
    compile(text, name, "exec")
    assert text.startswith(f'"""{name}: ')
    assert command(*arguments).stdout == text


def test_the_schedule_decides_what_is_emitted() -> None:
    as_it_comes = command("emit", "ag_gemm", *SMALL).stdout
    copied = command("emit", "ag_gemm", *SMALL, "--schedule", "gather=copy_engine(M=64, push=True)").stdout
    assert "    gather  push, copy engine, tiles M=64, order 'ring'" in copied.splitlines()
    assert "def gather(" in as_it_comes
    assert "def gather(" not in copied


# ------------------------------------------------------------------------------------------------------- plan and verify
@pytest.mark.parametrize("name", ops.__all__)
def test_plan_prints_steps_and_tensors_for_any_number_of_ranks(name: str) -> None:
    for ranks in ("1", "3", "64"):
        printed = command("plan", name, "--shape", shape_of(name), "--ranks", ranks, "--dtype", "f32").output
        assert f"{ranks} rank" in printed
    wiring = Case(getattr(ops, name), sizes(getattr(ops, name)), 64).wiring()
    for word in (*(s.path for s in wiring.steps), *(t.name for t in wiring.tensors)):
        assert re.search(rf"(?<![\w.]){re.escape(word)}(?!\w)", printed), word


def test_plan_draws_a_picture() -> None:
    command("plan", "ag_gemm", *SMALL, "--picture", "pictures/tiles.svg")
    assert Path("pictures/tiles.svg").read_text(encoding="utf-8").startswith(SVG)


@pytest.mark.parametrize("name", ops.__all__)
def test_verify_says_proved(name: str) -> None:
    assert "verdict  proved" in lines(command("verify", name, "--shape", shape_of(name)))


def test_verify_compares_the_emitted_file() -> None:
    done = command("verify", "gemm_rs", "--shape", "50x32x50", "--ranks", "3", "--emitted")
    assert "gemm_rs: the emitted file does what its plan says, in 3 calls" in done.output


def test_verify_shows_what_can_happen(tmp_path: Path) -> None:
    picture = tmp_path / "circle.svg"
    done = command("verify", "gemm_rs", "--shape", "64x64x64", *CIRCLE, "--picture", str(picture), code=1)
    assert "A circle of waits: 4 ranks and K=64, M=64, N=64" in done.output
    assert "TL605: `reduce` waits in a circle for itself" in done.output
    assert "verdict  refused" in done.output
    assert picture.read_text(encoding="utf-8").count("would notify") == 2


def test_a_plan_that_is_refused_can_be_looked_at() -> None:
    asked = ("plan", "gemm_rs", "--shape", "64x64x64", *CIRCLE)
    assert "TL605" in command(*asked, code=1).output
    done = command(*asked, "--no-verify", "--picture", "tiles.svg")
    assert "its proof was left out: a call may be refused" in lines(done)
    assert Path("tiles.svg").read_text(encoding="utf-8").startswith(SVG)


def test_verify_refuses_with_a_diagnostic_on_the_users_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        dedent(
            """
            import tilelink
            import tilelink.language as tl

            @tilelink.program("M/R ... -> M ...")
            def gather(shard, rows):
                tile = tl.tile_id(rows)
                tl.consumer_tile_wait(shard, tile)
                tl.tile_pull_data(rows, tile, source=shard)

            @tilelink.program("M K -> M K")
            def double(rows, out):
                m, k = tl.tile_id(out)
                tl.consumer_tile_wait(rows, m)
                tl.tile_store(out, (m, k), tl.tile_load(rows, (m, k)) * 2)

            @tilelink.operator("M/R K -> M K")
            def twice(shard):
                return double(gather(shard))
            """
        )
    )
    done = command("verify", "mine.py:twice", "--shape", "M=128,K=64", code=1)
    assert done.output.startswith("TL164: a pull in a program that is not the copy program of one tile\n")
    assert "mine.py:9" in done.output
    assert "Traceback" not in done.output


LIMITED = """
import tilelink
from tilelink.ops.programs import gather, matmul


def most(x):
    if x.size("M") > 64:
        raise ValueError(f"at most 64 rows, not {x.size('M')}")


@tilelink.operator("M/R K, K N -> M N")
def limited(x, weight):
    most(x)
    return matmul(gather(x), weight)
"""


@table("name", ["plan", "verify", "emit", "run", "trace", "stress", "tune"])
def test_what_an_operators_body_raises_is_a_diagnostic(name: str) -> None:
    Path("mine.py").write_text(LIMITED)
    printed = command(name, "mine.py:limited", "--shape", "128x16x16", "--ranks", "2", code=1).output
    said = printed[printed.index("TL711") :].splitlines()
    assert said[0] == "TL711: the body of `limited` raises ValueError: at most 64 rows, not 128"
    assert [Path(line).name for line in said if "-->" in line] == ["mine.py:13", "mine.py:8"]
    assert "Traceback" not in printed


def test_in_python_it_goes_through_as_it_is() -> None:
    Path("mine.py").write_text(LIMITED)
    variables = runpy.run_path("mine.py")
    Path("fine.py").write_text(LIMITED.replace("64", "128"))
    command("run", "fine.py:limited", "--shape", "128x16x16", "--ranks", "2")
    with pytest.raises(ValueError, match=r"^at most 64 rows, not 128$") as caught:
        variables["limited"].plan(torch.ones(64, 16), torch.ones(16, 16), ranks=2)
    assert not hasattr(caught.value, "__notes__")


AROUND = """
from __future__ import annotations

from dataclasses import dataclass
from functools import wraps

import tilelink
from neighbour import MOST
from tilelink.ops.programs import gather


@dataclass
class Limit:
    rows: int = MOST


def noted(body):
    @wraps(body)
    def around(*tensors):
        return body(*tensors)

    return around


@tilelink.operator("M/R K -> M K")
@noted
def limited(x):
    assert x.size("M") <= Limit().rows
    return gather(x, x)
"""


def test_a_file_is_run_as_python_runs_it_and_its_diagnostics_stay_as_they_are() -> None:
    """Beside its neighbours, as a module that `dataclass` finds; a decorated body is still the one that raises."""
    Path("files").mkdir()
    Path("files/neighbour.py").write_text("MOST = 64")
    Path("files/mine.py").write_text(AROUND)
    said = command("plan", "files/mine.py:limited", "--shape", "M=128,K=8", code=1).output.splitlines()
    assert said[0] == "TL711: the body of `limited` raises AssertionError"
    assert [Path(line).name for line in said if "-->" in line] == ["mine.py:28"]
    assert command("plan", "files/mine.py:limited", "--shape", "M=64,K=8", code=1).output.startswith("TL207: ")


@pytest.mark.parametrize(
    ("text", "what", "places"),
    [
        ("import nothing_of_this", "ModuleNotFoundError: No module named 'nothing_of_this'", ["1"]),
        ("\ndef f(:", "SyntaxError: invalid syntax (mine.py, line 2)", ["2"]),
        ("def f():\n    assert False\nf()", "AssertionError", ["2"]),
    ],
)
def test_what_a_file_of_operators_raises_is_a_diagnostic(text: str, what: str, places: list[str]) -> None:
    Path("mine.py").write_text(text)
    said = command("plan", "mine.py:limited", "--shape", "128x16x16", code=1).output.splitlines()
    assert said[0] == f"TL712: `mine.py` raises {what}"
    assert [line.rpartition(":")[2] for line in said if "-->" in line] == places


# ----------------------------------------------------------------------------------------------------------------- run
PRODUCTS = [name for name in ops.__all__ if Case(getattr(ops, name), sizes(getattr(ops, name)), 1).contraction]


TABLES = [name for name in ops.__all__ if any(s.contract for s in getattr(ops, name).signature.inputs)]


@pytest.mark.parametrize("name", TABLES)
def test_run_takes_what_it_cannot_compare(name: str) -> None:
    printed = lines(command("run", name, "--shape", shape_of(name), "--ranks", "2"))
    assert "error  not compared: no product of two tensors, and no unfused form for such inputs" in printed


@pytest.mark.parametrize("name", sorted({*ops.__all__} - {*PRODUCTS, *TABLES}))
def test_run_compares_with_the_plain_form(name: str) -> None:
    """Copy programs to the last bit."""
    sums = re.search("reduce|attention", name) is not None
    done = command("run", name, "--shape", shape_of(name), "--ranks", "2", "--calls", "2")
    assert "reference  the operator's unfused form, by torch in fp32" in lines(done)
    assert (0 < error_of(done) < 2e-2) if sums else error_of(done) == 0


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_run_compares_with_torch(name: str, dtype: str) -> None:
    done = command("run", name, "--shape", "67x40x48", "--ranks", "3", "--dtype", dtype, "--calls", "2")
    assert 0 < error_of(done) < 2e-2


def test_run_takes_an_operator_from_a_file() -> None:
    file = f"{ROOT}/examples/gemm_rs.py:gemm_rs"
    assert 0 < error_of(command("run", file, *SMALL, "--schedule", "scatter=fused('matmul')")) < 2e-2


def test_run_writes_a_timeline_and_a_trace() -> None:
    drawn = ("--timeline", "a.svg", "--trace", "b/a.json")
    command("run", "gemm_rs", *SMALL, *drawn, "--schedule", "scatter=copy_engine(M=64)")
    assert Path("a.svg").read_text(encoding="utf-8").startswith(SVG)
    events = json.loads(Path("b/a.json").read_text())["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"rank 0", "rank 1"}
    assert {e["cat"] for e in events if e["ph"] == "X"} >= {"compute", "communicate", "wait"}


def test_run_can_leave_the_comparison_out() -> None:
    assert not any(line.startswith("error") for line in lines(command("run", "ag_gemm", *SMALL, "--no-check")))


# ------------------------------------------------------------------------------------------------------------ bad input
REFUSED = {
    "operator": (
        ("plan", "nope", *SMALL),
        f"""
        TL701: there is no operator `nope`
          why: tilelink.ops has {", ".join(ops.__all__)}
          do:  name one of them, or one of your own as FILE.py:NAME
        """,
    ),
    "file": (
        ("emit", "nope.py:mine", *SMALL),
        """
        TL701: there is no Python file `nope.py`
          do:  name an operator of your own as FILE.py:NAME
        """,
    ),
    "shape": (
        ("verify", "ag_gemm", "--shape", "512x512"),
        """
        TL702: a shape that does not read
          --> --shape:1
            |
          1 | 512x512
            | ^^^^^^^
          why: sizes are global: those of all ranks together
          do:  write sizes by name, as M=64,K=64,N=64, or MxNxK, as 64x64x64
        """,
    ),
    "a shape of other sizes": (
        ("run", "ag_moe", "--shape", "512x512"),
        """
        TL702: a shape that does not read
          --> --shape:1
            |
          1 | 512x512
            | ^^^^^^^
          why: sizes are global: those of all ranks together
          do:  write sizes by name, as T=64,H=64,k=4,e=4,I=64
        """,
    ),
    "schedule": (
        ("run", "ag_gemm", *SMALL, "--schedule", "gather=copy(M=1)"),
        """
        TL703: a schedule that does not read
          --> --schedule:1
            |
          1 | gather=copy(M=1)
            |        ^^^^
          why: a placement is one of sms, copy_engine, fused, library
          do:  write for example gather=copy_engine(M=128, push=True) or matmul=sms(M=64, N=64, order=("ring", "group 4"))
        """,
    ),
    "a file without a name": (
        ("plan", f"{ROOT}/examples/ag_gemm.py", *SMALL),
        f"""
        TL701: `{ROOT}/examples/ag_gemm.py` is a file, and no operator of it is named
          why: it has ag_gemm
          do:  name a variable that holds what tilelink.operator made: {ROOT}/examples/ag_gemm.py:NAME
        """,
    ),
    "dtype": (
        ("run", "ag_gemm", *SMALL, "--dtype", "i8"),
        """
        TL705: `i8` is no dtype to run an operator in
          why: inputs are made up from random real numbers
          do:  use one of bf16, f16, f32
        """,
    ),
}


def test_gpus_keep_no_trace_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    session = SimpleNamespace(backend=SimpleNamespace(rank=0, ranks=4))
    monkeypatch.setattr("tilelink.runtime.session.current", lambda: session)
    assert command("run", "ag_gemm", *SMALL, "--trace", "run.json", code=1).output.splitlines()[-3:] == [
        "TL707: --trace without a trace",
        "  why: only the simulated backend keeps one of each run",
        "  do:  `tilelink trace` draws what GPUs did",
    ]


@table("what", REFUSED)
def test_bad_input_gets_a_diagnostic(what: str) -> None:
    arguments, expected = REFUSED[what]
    assert command(*arguments, code=1).output == dedent(expected).lstrip("\n")


@table(
    "arguments, code",
    [
        (("plan", "ag_gemm", "--shape", "M=5,N=6"), "TL704"),
        (("plan", "ag_gemm", "--shape", f"M={'9' * 25},N=6,K=6"), "TL702"),
        (("plan", "ag_gemm", *SMALL, "--ranks", "99999999"), "TL713"),
        (("plan", "ag_gemm", "--shape", "M=5,M=6"), "TL702"),
        (("plan", "ag_gemm", *SMALL, "--schedule", "nope=sms()"), "TL311"),
        (("plan", "ag_gemm", *SMALL, "--schedule", "matmul=copy_engine(M=64)"), "TL312"),
        (("plan", "ag_gemm", *SMALL, "--schedule", "matmul=sms(M=48)"), "TL314"),
        (("plan", "ag_gemm", *SMALL, "--schedule", "gather=sms(M=0)"), "TL318"),
        (("plan", f"{ROOT}/examples/ag_gemm.py:nope", *SMALL), "TL701"),
    ],
)
def test_bad_input_has_a_code_and_no_traceback(arguments: tuple[str, ...], code: str) -> None:
    assert command(*arguments, code=1).output.startswith(f"{code}: ")


@table("option", [("plan", "--picture"), ("run", "--timeline"), ("trace", "--picture")])
def test_what_is_no_picture_is_refused_before_any_work(option: tuple[str, str]) -> None:
    printed = command(option[0], "ag_gemm", *SMALL, option[1], "a.txt", code=2).output
    assert "a.txt names no picture" in printed
    assert not Path("a.txt").exists()


def test_python_runs_the_package_as_the_script_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["-m", "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("tilelink", run_name="__main__", alter_sys=True)
    assert "Usage: tilelink [OPTIONS] COMMAND" in capsys.readouterr().out


def test_help_lists_the_commands() -> None:
    printed = command("--help").output
    assert [name for name in ("demo", "emit", "plan", "verify", "run") if name not in printed] == []


def test_an_estimate_says_what_binds_on_a_machine() -> None:
    """Slower links bind where faster ones do not."""
    shape = ("ag_gemm", "--shape", "8192x1024x1024", "--ranks", "4")
    printed = command("estimate", *shape).output
    assert "8xH200" in printed
    assert "the compute of rank 0 binds" in printed
    assert "the link" in command("plan", *shape, "--machine", "8xMI300X").output
    assert "TL731" in command("estimate", *shape, "--machine", "8xH300", code=1).output


def test_nothing_is_calibrated_without_a_gpu(tmp_path: Path) -> None:
    assert "TL733: there is no GPU" in command("calibrate", "--out", str(tmp_path / "x.toml"), code=1).output
    assert not (tmp_path / "x.toml").exists()


def test_schedules_may_be_tried_without_comparing(monkeypatch: pytest.MonkeyPatch) -> None:
    """For an operator that computes something else than its signature states."""
    monkeypatch.setattr("tilelink.explore.cases.TOLERANCE", {"bf16": -1.0})
    assert "TL710: wrong numbers" in command("stress", "ag_gemm", *SMALL, "--runs", "1", code=1).output
    printed = command("stress", "ag_gemm", *SMALL, "--runs", "1", "--no-check").output
    assert "1, without race or deadlock, results not compared" in printed
