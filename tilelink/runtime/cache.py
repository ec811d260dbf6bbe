"""What is kept: files between processes, believed when they are read back, and in memory what was used last.

The files are kernels and tuned schedules. They lie in directories of this user that nobody else can write. A file is written as
a whole, and read only where it is a plain file of this user that nobody else can write.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

import platformdirs
from filelock import FileLock

from tilelink.errors import TilelinkError
from tilelink.runtime import environment

OTHERS = stat.S_IWGRP | stat.S_IWOTH


def directory(name: str) -> Path:
    """A directory of the cache, made if need be: owned by this user, closed to all others. Raises TL402, TL403."""
    root = environment.cache_root() or platformdirs.user_cache_path("tilelink")
    made = root / name
    with writing(made):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        around = root.stat()
        if around.st_uid not in (0, os.getuid()):
            raise _foreign(root, "is another user's, who could put another directory in its place")
        if around.st_mode & stat.S_IWOTH and not around.st_mode & stat.S_ISVTX:
            raise _foreign(root, "can be written by every user, who could put another directory in its place")
        made.mkdir(mode=0o700, exist_ok=True)
        found = made.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise _foreign(made, "is not a directory of this user")
        if found.st_mode & OTHERS:
            raise _foreign(made, "can be written by other users, who may have put files there")
        if stat.S_IMODE(found.st_mode) != 0o700:
            made.chmod(0o700)
    return made


def read(path: Path, most: int | None = None) -> bytes | None:
    """What a file of such a directory holds; None where there is none. Nothing is read through a link, or from a file that
    somebody else has put there or can write. Raises TL407, TL403.

    Args:
        most: bytes that such a file has at the most.
    """
    with writing(path):
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise changed(path, "is a link") from error
        with os.fdopen(handle, "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
                raise changed(path, "is not a file of this user")
            if found.st_mode & OTHERS:
                raise changed(path, "can be written by other users")
            if most is not None and found.st_size > most:
                raise changed(path, f"has {found.st_size} bytes, and such a file has at most {most}")
            return file.read()


def replace(path: Path, content: str | bytes) -> None:
    """Write a file at once: who reads it sees what it held or what it is to hold."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.stem}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def made(path: Path, make: Callable[[], str | bytes], seconds: float) -> bytes:
    """What a file holds; where there is none, it is written first, by one process of those that ask at a time. Raises TL407,
    TL403.

    Args:
        seconds: to wait for the others.
    """
    with writing(path):
        found = read(path)
        if found is None:
            with FileLock(path.with_suffix(".lock"), timeout=seconds):
                found = read(path)
                if found is None:
                    replace(path, make())
                    found = read(path) or b""
        return found


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Errors of the file system inside it become TL403."""
    try:
        yield
    except OSError as error:  # filelock's Timeout is one
        raise TilelinkError(
            "TL403",
            f"the cache cannot be used: {path}: {error.strerror or error}",
            why="Triton reads the source of a kernel from its file, and tuned schedules are kept beside",
            hint="set TILELINK_CACHE to a directory that you can write",
        ) from error


def changed(path: Path, what: str) -> TilelinkError:
    """TL407: a file of the cache is not as it was written."""
    return TilelinkError(
        "TL407",
        f"{path}, a file of the cache, {what}",
        why="files there are written as a whole, for this user alone, and then left as they are: somebody else was here",
        hint="look at it, then remove it: it is made again",
    )


def untrue(path: Path, of: str, why: str) -> TilelinkError:
    """TL509: a file of the cache is as it was written, and what it says must not be done."""
    return TilelinkError(
        "TL509",
        f"the tuned schedule of `{of}` in {path} is not taken",
        why=why,
        hint="nothing has to be done: it is measured again, and then replaced",
    )


def _foreign(directory: Path, what: str) -> TilelinkError:
    return TilelinkError(
        "TL402",
        f"the cache, {directory}, {what}",
        why="what lies there is run, or says what is",
        hint="remove it, or set TILELINK_CACHE to a directory of your own",
    )


T = TypeVar("T")


class Recent(Generic[T]):
    """Values by key: of those that were asked for or set last, half of `most` at least, and never more than `most`. Memory stays
    bounded although every call may have other sizes. `most`: two or more.

    One that was asked for lately is found as fast as in a dict: in a call this is all that there is time for.
    """

    def __init__(self, most: int) -> None:
        self._half = most // 2
        self._new: dict[object, T] = {}
        self._old: dict[object, T] = {}

    def get(self, key: object) -> T | None:
        found = self._new.get(key)
        if found is None:
            found = self._old.get(key)
            if found is not None:
                self[key] = found
        return found

    def __setitem__(self, key: object, value: T) -> None:
        self._old.pop(key, None)
        self._new[key] = value
        if len(self._new) > self._half:
            self._new, self._old = {key: value}, self._new
            del self._old[key]

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def clear(self) -> None:
        self._new, self._old = {}, {}
