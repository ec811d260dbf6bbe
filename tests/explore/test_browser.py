"""The live page and a report in a real browser: Chromium, of the system's packages."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from benchmarks.compiler.browser import READY, ROOT, TURN, chromium, connected
from tests.cli.commands import alone, command
from tilelink.explore import live
from tilelink.explore.live import Asked, Watched
from tilelink.explore.model import Machine
from tilelink.explore.serving import serving

__all__ = ["alone"]  # in force here, too

pytestmark = pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
SIZES = (("M", 1024), ("N", 1024), ("K", 1024))
SHOWN = "document.querySelector('#view .diagnostic')?.textContent || ''"
NOTED = "performance.getEntriesByType('resource').map(r => r.name)"
"""What a page has loaded besides itself."""


def test_a_page_follows_its_file_and_its_sliders(tmp_path: Path) -> None:
    file = tmp_path / "watched_in_browser.py"
    file.write_text(text := (ROOT / "examples" / "ag_gemm.py").read_text())
    watched = Watched(Asked(f"{file}:ag_gemm", SIZES, 4, "bf16", Machine.load("8xH200")))

    async def look(port: int, address: str) -> None:
        page = await connected(port)
        await page.call("Page.navigate", url=address)
        await page.until(READY)
        before = await page.evaluate("document.getElementById('view').innerHTML")
        assert before.count('class="timeline"') == 1
        await page.evaluate(TURN.format("matmul.num_stages", 1))
        await page.until("document.body.textContent.includes('num_stages=2')")
        file.write_text(text.replace("    tl.consumer_tile_wait(rows, m)\n", ""))
        await page.until(f"({SHOWN}).startsWith('TL602: `rows` is read and no wait covers it')")
        marked = await page.evaluate("document.querySelector('#view .code .at').textContent")
        assert "tl.dot(tl.tile_load(rows, (m, k))" in marked
        file.write_text(text)
        await page.until(READY)
        assert await page.evaluate(SHOWN) == ""

    with chromium(tmp_path / "profile") as port, serving(watched) as server:
        asyncio.run(look(port, server.address))


def test_many_tiles_are_drawn_when_the_slider_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "DRAWN", 0)
    watched = Watched(Asked("ag_gemm", SIZES, 4, "bf16", Machine.load("8xH200")))

    async def look(port: int, address: str) -> None:
        page = await connected(port)
        await page.call("Page.navigate", url=address)
        await page.until(READY)
        await page.evaluate(TURN.format("matmul.num_stages", 1))
        await page.until(
            "document.getElementById('view').textContent.includes('drawn as soon as the slider is let go')"
        )
        released = "document.querySelector('input[data-name=\"matmul.num_stages\"]').dispatchEvent(new Event('change'))"
        await page.evaluate(released)
        await page.until(READY)
        assert await page.evaluate("document.body.textContent.includes('num_stages=2')")

    with chromium(tmp_path / "profile") as port, serving(watched) as server:
        asyncio.run(look(port, server.address))


def test_a_report_opens_offline(tmp_path: Path) -> None:
    """It is drawn, nothing is loaded besides, and the wheel zooms."""
    command("report", "gemm_rs", "--shape", "1024x1024x1024", "--ranks", "4", "--out", str(tmp_path / "report.html"))

    async def look(port: int) -> None:
        page = await connected(port)
        await page.call("Page.navigate", url=(tmp_path / "report.html").as_uri())
        await page.until("document.readyState == 'complete' && document.querySelectorAll('svg').length > 1")
        assert await page.evaluate(NOTED) == []
        box = await page.evaluate("document.querySelector('svg.timeline').getBoundingClientRect().width")
        assert box > 500
        wheel = "new WheelEvent('wheel', {deltaY: -240, clientX: 500, clientY: 300, bubbles: true, cancelable: true})"
        was = await page.evaluate("document.querySelector('svg.timeline .plot').getAttribute('viewBox')")
        await page.evaluate(f"document.querySelector('svg.timeline .plot').dispatchEvent({wheel})")
        await page.until(f"document.querySelector('svg.timeline .plot').getAttribute('viewBox') != '{was}'")

    with chromium(tmp_path / "profile") as port:
        asyncio.run(look(port))
