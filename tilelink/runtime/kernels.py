"""Emitted text -> module -> workers that can run at once.

The text is saved to a file because Triton reads the source of a kernel from its file, and so that people can read it.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import linecache
import sys
import threading
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch
from filelock import FileLock

from tilelink.errors import Loc, TilelinkError
from tilelink.ir.kernel import Advice
from tilelink.runtime import cache

_loading = threading.Lock()

LINES = "__lines__"
"""Attribute of an emitted module: (emitted line, the user's line), for reports."""

ADVICE = "__advice__"
"""Another: what to do about lines of the user's that Triton does not accept."""


class EmittedLoader(importlib.machinery.SourceFileLoader):
    """Runs `text`, which `path` holds too: neither a changed file nor stale bytecode can get in between."""

    def __init__(self, name: str, path: Path, text: str) -> None:
        super().__init__(name, str(path))
        self.text = text

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.text.encode(), self.path)


def load(
    source_text: str,
    digest: str,
    name: str,
    lines: tuple[tuple[int, Loc], ...] = (),
    advice: tuple[Advice, ...] = (),
) -> ModuleType:
    """The module of an emitted file, whose attributes are its kernels.

    Args:
        source_text: the whole file.
        digest: letters and digits that identify the text; part of the file's and of the module's name.
        name: an identifier, for people who look at the cache.
        lines: emitted line and the user's line it comes from, for reports.
        advice: what to do about lines that Triton does not accept.

    The same text gives the same module object again, so that what Triton has compiled is kept. Processes that load
    at the same time share one file.

    Raises:
        TilelinkError: TL401 not usable as a file name, TL402 others own or can write the cache, TL403 the cache cannot
            be written, TL404 two texts have one digest, TL407 a file in the cache is not what was written there.
    """
    if not name.isidentifier() or not (digest.isascii() and digest.isalnum()):
        raise TilelinkError(
            "TL401",
            f"an emitted file cannot be named after {name!r} and {digest!r}",
            why="the two become a file name and a module name",
            hint="pass an identifier and a digest of letters and digits",
        )
    module_name = f"tilelink_emitted_{name}_{digest}"
    with _loading:
        module = _loaded(module_name, source_text) or _import(module_name, _saved(f"{name}_{digest}.py", source_text))
        setattr(module, LINES, lines)
        setattr(module, ADVICE, advice)
        return module


def resident_workers(compiled: Any) -> int:
    """How many instances of a kernel can run at once on the current device, if nothing else runs there.

    Args:
        compiled: what `triton.compile` or a JITFunction's `warmup` gave; it is loaded to the device.
    """
    _ = compiled.run  # loads the binary, which is when its function and its registers become known
    multiprocessors = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    if torch.version.hip:
        return multiprocessors  # one each is certain, since it could be loaded
    from tilelink.runtime.peer import driver  # here: the simulated world loads kernels too, and has no driver

    metadata = compiled.metadata
    threads = metadata.num_warps * metadata.target.warp_size
    return multiprocessors * driver.blocks_per_multiprocessor(compiled.function, threads, metadata.shared)


def require_resident(compiled: Any, workers: int) -> None:
    """Refuse a launch of workers that wait for one another but cannot all run at once.

    Raises:
        TilelinkError: TL405.
    """
    resident = resident_workers(compiled)
    if workers > resident:
        raise TilelinkError(
            "TL405",
            f"kernel {compiled.name} needs {workers} workers at once, and this device runs {resident}",
            why="a worker that waits for one that has not started waits for ever",
            hint="ask for fewer SMs, or for smaller tiles, fewer stages or fewer warps",
        )


def _loaded(module_name: str, text: str) -> ModuleType | None:
    module = sys.modules.get(module_name)
    if module is None:
        return None
    if not isinstance(module.__loader__, EmittedLoader) or module.__loader__.text != text:
        raise TilelinkError(
            "TL404",
            f"module {module_name} is already loaded from another text",
            why="one digest stands for one text",
            hint="report this: the digest must cover everything that the text depends on",
        )
    return module


def _import(module_name: str, saved: tuple[Path, str]) -> ModuleType:
    path, text = saved
    spec = importlib.util.spec_from_loader(module_name, EmittedLoader(module_name, path, text))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    linecache.checkcache(str(path))
    sys.modules[module_name] = module
    with contextlib.ExitStack() as undo:
        # A module that does not run to its end is not kept, whatever ended it.
        undo.callback(sys.modules.pop, module_name)
        spec.loader.exec_module(module)
        undo.pop_all()
    return module


def _saved(file_name: str, text: str) -> tuple[Path, str]:
    path = cache.directory("kernels") / file_name
    with cache.writing(path):
        if not _holds(path, text):
            with FileLock(path.with_suffix(".lock"), timeout=60):
                if not _holds(path, text):
                    cache.replace(path, text)
    return path, text


def _holds(path: Path, text: str) -> bool:
    """Whether the file is there.

    Raises:
        TilelinkError: TL407, it is not what was written there.
    """
    found = cache.read(path)
    if found not in (None, text.encode()):
        raise cache.changed(path, "has another text than the one that its name stands for")
    return found is not None
