"""Looks at the live page in a real browser, as a person would: pictures of it, and how long it takes to answer.

    python -m benchmarks.compiler.browser --out out/browser

Chromium comes from the system's packages (`apt-get install chromium`); tornado, which speaks to it, with Jupyter's client.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import socket
from typing import Any
from urllib.request import urlopen

from tornado.websocket import WebSocketClientConnection, websocket_connect

from tilelink.explore.live import Asked, Watched
from tilelink.explore.model import Machine
from tilelink.explore.serving import serving

ROOT = Path(__file__).parents[2]


class Browser:
    """One page of a headless Chromium, by its DevTools protocol."""

    def __init__(self, socket: WebSocketClientConnection) -> None:
        self.socket, self.sent = socket, 0

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.sent += 1
        await self.socket.write_message(json.dumps({"id": self.sent, "method": method, "params": parameters}))
        while True:
            said = json.loads(str(await self.socket.read_message()))
            if said.get("id") == self.sent:
                return said["result"]

    async def evaluate(self, script: str) -> Any:
        found = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        return found["result"].get("value")

    async def until(self, script: str, seconds: float = 20.0) -> float:
        """Seconds until a script says true."""
        begin = time.perf_counter()
        while not await self.evaluate(script):
            if time.perf_counter() - begin > seconds:
                raise TimeoutError(script)
            await asyncio.sleep(0.01)
        return time.perf_counter() - begin

    async def picture(self, path: Path, wide: int = 1400, high: int = 1000) -> None:
        size = {"width": wide, "height": high, "deviceScaleFactor": 1, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        await asyncio.sleep(0.3)
        found = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))
        print(path)


async def connected(port: int) -> Browser:
    for _ in range(300):
        try:
            pages = json.load(urlopen(f"http://127.0.0.1:{port}/json"))
            return Browser(await websocket_connect(pages[0]["webSocketDebuggerUrl"], max_message_size=1 << 28))
        except OSError:
            await asyncio.sleep(0.1)
    raise TimeoutError("Chromium does not start")


READY = "document.querySelector('#view svg.timeline') && !document.querySelector('#view.stale')"
TURN = """(() => {{ const s = document.querySelector('input[data-name="{0}"]'); s.value = {1};
    s.dispatchEvent(new Event('input')); }})()"""


@contextmanager
def chromium(profile: Path) -> Iterator[int]:
    """A headless Chromium, and the port at which it is spoken to."""
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    words += [f"--remote-debugging-port={port}", f"--user-data-dir={profile}", "about:blank"]
    browser = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield port
    finally:
        browser.terminate()
        browser.wait()


async def look(port: int, address: str, file: Path, out: Path) -> None:
    page = await connected(port)
    await page.call("Page.navigate", url=address)
    print(f"first view: {await page.until(READY):.2f} s")
    await page.picture(out / "live.png")
    await page.picture(out / "live-whole.png", high=2900)
    times: list[float] = []
    for k in (1, 0, 1, 2, 3):
        await page.evaluate(TURN.format("matmul.num_stages", k))
        times.append(await page.until(READY))
    print(f"a slider: {1000 * sorted(times)[len(times) // 2]:.0f} ms; {await page.evaluate('state.textContent')}")
    await page.evaluate("document.getElementById('pin').click()")
    await page.until("document.querySelectorAll('#view svg.timeline').length == 2")
    await page.evaluate(TURN.format("gather.on", 0))
    await page.until(READY)
    await page.picture(out / "compared.png", high=1500)
    await page.evaluate("document.getElementById('unpin').click()")
    await page.until("document.querySelectorAll('#view svg.timeline').length == 1")
    text = file.read_text()
    for name, wrong in {
        "syntax": text.replace("def matmul(rows", "def matmul(rows,,"),
        "no-wait": text.replace("    tl.consumer_tile_wait(rows, m)\n", ""),
    }.items():
        file.write_text(wrong)
        seconds = await page.until("!!document.querySelector('#view .diagnostic')")
        print(f"{name}: {seconds:.2f} s from saved to shown")
        await page.picture(out / f"{name}.png")
        file.write_text(text)
        print(f"right again: {await page.until(READY):.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/browser"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mine.py"
        file.write_text((ROOT / "examples" / "ag_gemm.py").read_text())
        asked = Asked(f"{file}:ag_gemm", (("M", 8192), ("N", 4096), ("K", 4096)), 4, "bf16", Machine.load("8xH200"))
        with chromium(Path(folder) / "profile") as port, serving(Watched(asked)) as server:
            asyncio.run(look(port, server.address, file, out))


if __name__ == "__main__":
    main()
