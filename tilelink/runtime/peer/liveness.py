"""Which processes of this host are alive."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """A process as other processes of its host know it: `space` is what process numbers count in, `started` tells it
    from a later one with the same number."""

    space: str
    pid: int
    started: str


def this_process() -> Process:
    """This one."""
    pid = os.getpid()
    return Process(_space(), pid, _state(pid)[1])


def ended(process: Process) -> bool | None:
    """Whether a process has ended, waited for by its parent or not; None if it cannot be seen from here."""
    if process.space != _space() or not process.started:
        return None
    state, started = _state(process.pid)
    return state in ("", "Z", "X") or started != process.started


def _space() -> str:
    """The namespace of process numbers; two hosts hardly ever share one's number and a process's start."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _state(pid: int) -> tuple[str, str]:
    """State and start of a process, by /proc; empty if there is none, or no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "", ""
    # The name before it is in parentheses, and may hold any.
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], fields[19]
