"""The live page: what it shows of a file, when it shows it anew, and whom it answers."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import CIRCLE, alone, command
from tests.selection import table
from tests.speed import least_cpu_s
from tilelink.explore.live import Asked, Watched
from tilelink.explore.model import Machine
from tilelink.explore.serving import LONGEST, Server, serving

__all__ = ["alone"]  # in force here, too

EXAMPLE = re.sub("  # .*", "", (Path(__file__).parents[2] / "examples/ag_gemm.py").read_text())
_, GATHER, MATMUL, BODY, *_ = EXAMPLE.split("\n\n\n")
HEAD = "import tilelink\nimport tilelink.language as tl\n"
PROGRAMS = f"{HEAD}from {{helper}} import gather\n\n\n{MATMUL}\n\n\n{BODY.replace('ag_gemm', 'mine')}\n"
HELPER = f"{HEAD}\n\n{GATHER}\n"


class Page:
    """A server of an operator's file, and what a browser may ask of it."""

    def __init__(self, folder: Path, helper: str) -> None:
        self.file, self.helper = folder / "mine.py", folder / f"{helper}.py"
        self.text = PROGRAMS.format(helper=helper)
        self.file.write_text(self.text)
        self.helper.write_text(HELPER)
        sizes = (("M", 512), ("N", 512), ("K", 256))
        self.watched = Watched(Asked(f"{self.file}:mine", sizes, 4, "bf16", Machine.load("8xH200")))
        self.server: Server

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=30)
        connection.putrequest("GET", path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        reply = connection.getresponse()
        said = reply.status, reply.read().decode()
        connection.close()
        return said

    def view(self, query: str = "") -> dict[str, Any]:
        status, body = self.get(f"/view?{query}")
        assert status == 200, body
        return json.loads(body)

    def saved(self, file: Path, text: str) -> dict[str, Any]:
        """What is shown a second after a file was saved."""
        before = self.watched.version
        file.write_text(text)
        end = time.monotonic() + 20  # what it takes on an idle machine is measured by benchmarks/compiler/browser.py
        while self.watched.version == before and time.monotonic() < end:
            time.sleep(0.02)
        return self.view()


@pytest.fixture
def page(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Page]:
    made = Page(tmp_path, f"helper_{abs(hash(request.node.name))}")
    with serving(made.watched) as made.server:
        yield made


# ----------------------------------------------------------------------------------------------------------- what it shows
def test_an_operator_with_all_that_is_known_of_it(page: Page) -> None:
    shown = page.view()
    assert shown["title"] == "mine  M=512 N=512 K=256, bf16, 4 ranks  on 8xH200"
    for what in ("µs predicted", "from the bound", 'class="timeline"', 'class="tiles"', "proved", 'class="flags"'):
        assert what in shown["html"]
    assert shown["imports"] == [page.helper.stem, "tilelink", "tilelink.language"]


def test_each_emitted_line_names_the_programs_line_it_comes_from(page: Page) -> None:
    wait = 1 + page.text.split("\n").index("    tl.consumer_tile_wait(rows, m)")
    mine, emitted = page.view()["html"].split('<div class="source">')[1].split('<div class="code">')[1:3]
    assert f'data-from="mine-{wait}"><b>{wait}</b>' in mine
    lines = re.findall(rf'data-from="mine-{wait}"[^>]*><b[^>]*>\d+</b>(.*?)</div>', emitted)
    assert any("wait" in line for line in lines)


def test_knobs_make_schedules(page: Page) -> None:
    knobs = {k["name"]: k for k in page.view()["knobs"]}
    warps = knobs["matmul.num_warps"]["values"].index("2")
    on = knobs["gather.on"]["values"].index("sms")
    shown = page.view(f"matmul.num_warps={warps}&gather.on={on}")
    assert "num_warps=2" in shown["schedule"]
    assert "gather=tilelink.sms(2, M=128, order='ring')" in shown["schedule"]
    assert {k["name"] for k in shown["knobs"]} >= {"gather.count", "gather.M"}


def test_what_a_browser_sends_is_numbers_of_knobs(page: Page) -> None:
    """Nothing else reaches the schedule, and names that no knob has are passed over."""
    plain = page.view()["schedule"]
    assert page.view("gather.M.__class__=1&fn=2")["schedule"] == plain
    for query in ("matmul.num_warps=9999", "matmul.num_warps=-1", "matmul.num_warps=__import__('os')", "slots=1e3"):
        assert page.get(f"/view?{query}")[0] == 400


def test_two_schedules_part_at_a_tile(page: Page) -> None:
    stages = next(k for k in page.view()["knobs"] if k["name"] == "gather.on")
    other = next(k for k in range(len(stages["values"])) if k != stages["at"])
    shown = page.view(f"gather.on={other}&pinned.gather.on={stages['at']}")["html"]
    assert shown.count('class="timeline"') == 2
    assert "The first tile where they part is " in shown
    assert "No tile is in both" not in shown
    assert "They part nowhere." in page.view("pinned.slots=1")["html"]


def test_a_report_is_one_file_that_needs_nothing_besides() -> None:
    command("report", "gemm_rs", "--shape", "512x512x256", "--out", "new/report.html")
    shown = Path("new/report.html").read_text(encoding="utf-8")
    assert "µs predicted" in shown
    assert shown.count("<svg") > 2
    assert not re.findall(r'(?:src|href)="(?!data:)|@import|url\((?!#)', shown)


def test_a_report_of_what_is_refused_says_why() -> None:
    command("report", "gemm_rs", "--shape", "64x64x64", *CIRCLE, code=1)
    assert "TL605" in Path("report.html").read_text(encoding="utf-8")


# ------------------------------------------------------------------------------------------------------------ when it changes
def test_it_survives_a_file_that_is_no_python(page: Page) -> None:
    shown = page.saved(page.file, page.text.replace("def matmul(rows", "def matmul(rows,,"))
    line = 1 + page.text.split("\n").index("def matmul(rows, weight, out):")
    assert "TL712" in shown["html"]
    assert shown["html"].count("def matmul(rows,,, weight, out):") == 2
    assert f'<div class="at"><b>{line}</b>' in shown["html"]
    assert "µs predicted" in page.saved(page.file, page.text)["html"]


def test_it_survives_a_file_that_ends_python(page: Page) -> None:
    assert "raises SystemExit: 3" in page.saved(page.file, "raise SystemExit(3)\n")["html"]
    assert "µs predicted" in page.saved(page.file, page.text)["html"]


def test_what_the_proof_refuses_is_marked_and_drawn(page: Page) -> None:
    shown = page.saved(page.file, page.text.replace("    tl.consumer_tile_wait(rows, m)\n", ""))["html"]
    assert "TL602: `rows` is read and no wait covers it" in shown
    assert 'class="interleaving"' in shown


def test_a_module_beside_the_file_is_followed_too(page: Page) -> None:
    assert (
        "TL164: a pull in a program that is not the copy program"
        in page.saved(page.helper, HELPER.replace("    tl.consumer_tile_wait(shard, tile)\n", ""))["html"]
    )


def test_a_listener_hears_of_each_load(page: Page) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", page.server.server_port, timeout=30)
    connection.request("GET", "/events")
    reply = connection.getresponse()
    assert reply.getheader("Content-Type") == "text/event-stream; charset=utf-8"
    assert reply.readline() == b"data: 1\n"
    page.saved(page.file, page.text + "\n")
    assert reply.readline() == b"\n"
    assert reply.readline() == b"data: 2\n"
    connection.close()


# ---------------------------------------------------------------------------------------------------------- whom it answers
def test_it_is_there_for_its_own_page_only(page: Page) -> None:
    host = f"127.0.0.1:{page.server.server_port}"
    assert page.server.server_address[0] == "127.0.0.1"
    for path in ("/", "/page.js", "/view", "/events"):
        assert page.get(path, Host=f"evil.example:{page.server.server_port}")[0] == 403
        assert page.get(path, Host="127.0.0.1")[0] == 403
        assert page.get(path, Origin="http://evil.example")[0] == 403
        assert page.get(path, Origin="null")[0] == 403
        assert page.get(path, Sec_Fetch_Site="cross-site")[0] == 403
    for headers in ({}, {"Origin": f"http://{host}"}, {"Sec_Fetch_Site": "same-origin"}, {"Sec_Fetch_Site": "none"}):
        assert page.get("/", **headers)[0] == 200
    assert page.get("/", Host=f"localhost:{page.server.server_port}")[0] == 200


def test_a_request_without_a_host_is_refused(page: Page) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", page.server.server_port, timeout=30)
    connection.putrequest("GET", "/", skip_host=True)
    connection.endheaders()
    assert connection.getresponse().status == 403
    connection.close()


@table("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_it_takes_nothing(page: Page, method: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", page.server.server_port, timeout=30)
    connection.request(method, "/view")
    assert connection.getresponse().status == 501
    connection.close()


def test_it_has_no_files_but_its_own(page: Page) -> None:
    for path in ("/mine.py", "/../../etc/passwd", "/page.css/../live.py", "//evil.example/"):
        assert page.get(path)[0] == 404
    assert page.get("/view?" + "x" * LONGEST)[0] == 414


# ------------------------------------------------------------------------------------------------------------------ speed
def test_a_step_of_a_slider_is_answered_at_once() -> None:
    """AG+GEMM of 4096 cubed: each knob one value on; 150 ms of a processor."""
    sizes = (("M", 4096), ("N", 4096), ("K", 4096))
    watched = Watched(Asked("ag_gemm", sizes, 4, "bf16", Machine.load("8xH200")))
    watched.load()
    late: list[tuple[str, float]] = []
    for knob in [{}, *watched.answer({})["knobs"]]:
        turned = {knob["name"]: (knob["at"] + 1) % len(knob["values"])} if knob else {}
        took = least_cpu_s(lambda turned=turned: watched.answer(turned), 0.15)
        if took > 0.15:
            late.append((str(turned), took))
    assert late == []


def test_while_a_slider_moves_many_tiles_are_counted_and_drawn_when_it_is_let_go() -> None:
    sizes = (("M", 8192), ("N", 28672), ("K", 8192))
    watched = Watched(Asked("ag_gemm", sizes, 4, "bf16", Machine.load("8xH200")))
    watched.load()
    (knob,) = [k for k in watched.answer({}, moving=True)["knobs"] if k["name"] == "matmul.N"]
    small = {"matmul.N": knob["values"].index("16")}
    found = watched.answer(small, moving=True)
    assert found["unfinished"]
    assert "458,756 tiles on 4 ranks: drawn as soon as the slider is let go" in found["html"]
    assert least_cpu_s(lambda: watched.answer(small, moving=True), 0.15) < 0.15
    assert "unfinished" not in watched.answer({"matmul.N": knob["values"].index("4096")}, moving=True)
