"""A page on this machine that follows a file: the standard library's server, and events that say when something has changed.

Others must not read it or make it work: it listens on 127.0.0.1, answers requests only that name it so (a name that is made to
point here by its owner's DNS is another one), and none that come from pages of another origin. What a browser sends are numbers
of values of knobs, of which `tilelink.explore.knobs` makes a schedule; no text from outside is evaluated, imported or opened.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tilelink.explore.live import Watched
from tilelink.explore.views.page import asset

ADDRESS = "127.0.0.1"
NAMES = (ADDRESS, "localhost")
LONGEST, FIELDS = 8192, 256
"""Characters of a request's path, and fields in it, at the most."""
LISTENERS, HEARTBEAT = 16, 10.0
"""Pages that may wait for events at a time, and seconds between two signs of life."""
POLICY = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"  # noqa: E501
ASSETS = {
    "/": ("live.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/live.css": ("live.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/live.js": ("live.js", "text/javascript"),
}


class Server(ThreadingHTTPServer):
    """Serves what is watched."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, watched: Watched, port: int = 0) -> None:
        self.watched = watched
        self.stopping = threading.Event()
        self.listening = threading.Semaphore(LISTENERS)
        self.computing = threading.Lock()
        super().__init__((ADDRESS, port), Handler)

    @property
    def address(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"

    @property
    def hosts(self) -> frozenset[str]:
        """What a request may call it."""
        return frozenset(f"{name}:{self.server_port}" for name in NAMES)


@contextmanager
def serving(watched: Watched, port: int = 0) -> Iterator[Server]:
    """A server that runs, and follows the file, until the block ends.

    Raises:
        OSError: somebody else has the port.
    """
    watched.load()
    server = Server(watched, port)
    threads = [
        threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True),
        threading.Thread(target=watched.follow, args=(server.stopping,), daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        yield server
    finally:
        server.stopping.set()
        with watched.changed:
            watched.changed.notify_all()
        server.shutdown()
        server.server_close()
        for thread in threads:
            thread.join()


class Handler(BaseHTTPRequestHandler):
    """Answers GET, and nothing else."""

    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version, sys_version = "tilelink", ""
    timeout = 30

    def do_GET(self) -> None:
        why = self._foreign()
        if why is not None:
            self._send(403, "text/plain", f"{why}\n")
            return
        if len(self.path) > LONGEST:
            self._send(414, "text/plain", "a request that is too long\n")
            return
        split = urlsplit(self.path)
        if split.path in ASSETS:
            name, kind = ASSETS[split.path]
            self._send(200, kind, asset(name))
        elif split.path == "/view":
            self._view(split.query)
        elif split.path == "/events":
            self._events()
        else:
            self._send(404, "text/plain", "there is no such page\n")

    def _foreign(self) -> str | None:
        """Why a request is none of this page's own."""
        hosts = self.server.hosts
        if self.headers.get_all("Host") is None or not set(self.headers.get_all("Host", [])) <= hosts:
            return "this is served to this machine, by its own name, only"
        origins = self.headers.get_all("Origin", [])
        if not set(origins) <= {f"http://{host}" for host in hosts}:
            return "this is served to its own page only"
        if not set(self.headers.get_all("Sec-Fetch-Site", [])) <= {"same-origin", "none"}:
            return "this is served to its own page only"
        return None

    def _view(self, query: str) -> None:
        try:
            fields = parse_qsl(query, max_num_fields=FIELDS)
            if not all(re.fullmatch(r"[0-9]{1,4}", value) for _, value in fields):
                raise ValueError("a knob is turned to a number")
            turned = {name: int(value) for name, value in fields}
            rank, moving = turned.pop("rank", 0), bool(turned.pop("moving", 0))
            with self.server.computing:
                answer = self.server.watched.answer(turned, rank, moving)
        except ValueError as error:
            self._send(400, "text/plain", f"{error}\n")
            return
        self._send(200, "application/json", json.dumps(answer))

    def _events(self) -> None:
        """A line for each load of the file, for as long as the page is there."""
        if not self.server.listening.acquire(blocking=False):
            self._send(503, "text/plain", "too many pages follow this already\n")
            return
        try:
            self._head(200, "text/event-stream", None)
            seen, watched = -1, self.server.watched
            while not self.server.stopping.is_set():
                with watched.changed:
                    if watched.version == seen:
                        watched.changed.wait(HEARTBEAT)
                    said = f"data: {watched.version}\n\n" if watched.version != seen else ": still here\n\n"
                    seen = watched.version
                self.wfile.write(said.encode())
                self.wfile.flush()
        except (BrokenPipeError, ConnectionResetError):
            pass  # the page was closed
        finally:
            self.server.listening.release()

    def _send(self, status: int, kind: str, body: str) -> None:
        data = body.encode()
        self._head(status, kind, len(data))
        self.wfile.write(data)

    def _head(self, status: int, kind: str, length: int | None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the page says what it shows."""
