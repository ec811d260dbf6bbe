"""A user's Python without the wait: a process that has imported libraries, and forks for every file or module that is run.

Most of what an example takes is the imports of torch and Triton. All of tilelink is imported by the file itself, in a process of
its own.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

LIBRARIES = ("torch", "triton.language", "networkx", "lark", "rich", "typer", "matplotlib")


class Users:
    """Runs files and modules one after the other."""

    def __init__(self, environment: dict[str, str], libraries: tuple[str, ...] = LIBRARIES) -> None:
        command = [sys.executable, __file__, *libraries]
        self._server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def run(self, arguments: list[str], folder: Path, environment: dict[str, str]) -> tuple[int, str]:
        """`python arguments…` (a file, `-c TEXT` or `-m MODULE`) in `folder` with more in its environment: the exit status, and
        what was printed."""
        out = folder / "printed"
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps([arguments, str(folder), environment, str(out)]), file=self._server.stdin, flush=True)
        status = int(self._server.stdout.readline())
        return status, out.read_text()

    def leave(self) -> None:
        self._server.communicate()


def _serve() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _become(*json.loads(line))
            return
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _become(arguments: list[str], folder: str, environment: dict[str, str], out: str) -> None:
    """From here on, this is the user's process."""
    descriptor = os.open(out, os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.chdir(folder)
    os.environ.update(environment)
    if arguments[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *arguments[2:]], ""
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    elif arguments[0] == "-m":
        sys.argv, sys.path[0] = arguments[1:], ""
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).parent)
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    for library in sys.argv[1:]:
        __import__(library)
    # What was imported stays: every fork would look through it for garbage, and take copies of the pages on the way.
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    _serve()
