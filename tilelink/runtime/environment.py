"""The process environment: the only module that reads or sets `os.environ`.

Every variable of the project is a function here, so that `help(environment)` lists them all.
"""

from __future__ import annotations

import os
from pathlib import Path

from tilelink.errors import TilelinkError

LONGEST_WAIT = 1e6
"""Seconds that a wait may take at the most, where it is limited."""
BACKENDS = ("simulated", "peer", "nvshmem", "gloo")


def local_rank() -> int | None:
    """LOCAL_RANK (0 if unset): the number on this machine of a process that `torchrun` or the like has started; None when no
    launcher has set RANK and WORLD_SIZE. Raises TL400, one of the three is no number."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return None
    _, _, local = _integer("RANK"), _integer("WORLD_SIZE"), _integer("LOCAL_RANK", "0")
    return local


def cache_root() -> Path | None:
    """TILELINK_CACHE: where emitted files and tuned schedules are kept instead of the user's cache directory; a directory
    that belongs to this user or to root. Raises TL400, it names the home of a user that there is not."""
    value = os.environ.get("TILELINK_CACHE")
    try:
        return Path(value).expanduser() if value else None
    except RuntimeError as error:
        hint = "set it to a directory, or unset it"
        raise TilelinkError("TL400", f"TILELINK_CACHE is {value!r}: {error}", hint=hint) from error


def compiler() -> str:
    """CXX: the compiler of C++; `c++` if unset."""
    return os.environ.get("CXX") or "c++"


def backend() -> str | None:
    """TILELINK_BACKEND: the backend to run in instead of the one that would be chosen. Raises TL400, it names no backend."""
    value = os.environ.get("TILELINK_BACKEND")
    if value and value not in BACKENDS:
        hint = f"set it to one of {', '.join(BACKENDS)}, or unset it"
        raise _refused("TILELINK_BACKEND", value, "backend", "operators run in one of four backends", hint)
    return value or None


def group_heap() -> int:
    """TILELINK_GROUP_HEAP: bytes of symmetric memory that the nvshmem backend sets aside for all sub-groups; 1 GiB if unset.
    Raises TL400, it is no number above 0."""
    value = os.environ.get("TILELINK_GROUP_HEAP", str(2**30))
    if not value.isdecimal() or int(value) == 0:
        why = "sub-groups of the nvshmem backend take their memory from one block"
        hint = "set it to a number of bytes, such as 1073741824, or unset it"
        raise _refused("TILELINK_GROUP_HEAP", value, "number of bytes", why, hint)
    return int(value)


def debug() -> bool:
    """TILELINK_DEBUG: anything but an empty string or 0 turns debug mode on: every call compares its sizes between the ranks,
    checks tables and positions on the device, and waits until it is done."""
    return os.environ.get("TILELINK_DEBUG", "0") not in ("", "0")


def watchdog() -> float | None:
    """TILELINK_WATCHDOG: seconds that a wait of a kernel may take before it is reported and ended; None (or 0): for ever.
    Raises TL400, it is no number of seconds."""
    value = os.environ.get("TILELINK_WATCHDOG", "")
    if value in ("", "0"):
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < LONGEST_WAIT:
        why = "it is how long a wait may take before it is taken for a hang"
        hint = "set it to a number such as 30, longer than any rank is ever late"
        raise _refused("TILELINK_WATCHDOG", value, "number of seconds", why, hint)
    return seconds


def share_gpus() -> bool:
    """TILELINK_SHARE_GPUS: anything but an empty string or 0 lets ranks of the peer backend share GPUs.

    Their kernels take turns, which last milliseconds: for trying things out with fewer GPUs than ranks, never for timing.
    """
    return os.environ.get("TILELINK_SHARE_GPUS", "0") not in ("", "0")


def allow_shared_gpus() -> None:
    """Let PyTorch map symmetric memory between ranks of one GPU; to be called before it is used."""
    os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"


def disable_multicast() -> None:
    """Turn NVLink multicast off in PyTorch, NVSHMEM and NCCL; to be called before each of them initialises.

    A process that dies with a multicast object bound can leave the GPUs of its host unusable, also for others. So
    a value set by the user is overwritten.
    """
    os.environ.update(
        TORCH_SYMM_MEM_DISABLE_MULTICAST="1",
        NVSHMEM_DISABLE_NVLS="1",
        NCCL_NVLS_ENABLE="0",
    )


def _integer(name: str, default: str | None = None) -> int:
    value = os.environ.get(name, default)
    if value is None or not value.isdecimal():
        why = "the launcher tells each process its place by RANK, WORLD_SIZE and LOCAL_RANK"
        raise _refused(name, value, "rank or count", why, "start with torchrun, or set them to non-negative integers")
    return int(value)


def _refused(name: str, value: str | None, what: str, why: str, hint: str) -> TilelinkError:
    return TilelinkError("TL400", f"{name} is {value!r}, which is no {what}", why=why, hint=hint)
