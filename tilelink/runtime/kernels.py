"""Emitted text -> module -> workers that can run at once; and what Triton says of lines that it does not accept.

The text is saved to a file because Triton reads the source of a kernel from its file, and so that people can read it.
"""

from __future__ import annotations

import ast
import linecache
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType, TracebackType
from typing import Any

import torch
from triton import knobs
from triton.compiler.errors import CompilationError
from triton.language.semantic import IncompatibleTypeErrorImpl
from triton.runtime.jit import JITFunction

from tilelink.errors import Note, TilelinkError, whole_line
from tilelink.ir.kernel import KernelSource, advised
from tilelink.runtime import cache

_loading = threading.Lock()

SOURCE = "__emitted__"
"""Attribute of an emitted module: the `KernelSource` that it was loaded from."""
INTERPRETED = "__interpreted__"
"""Among the global names of Triton functions that are interpreted, and of nothing else that runs."""


def load(source: KernelSource) -> ModuleType:
    """The module of an emitted file, whose attributes are its kernels; its name and its digest are those of the file, too. Raises
    TL401 not usable as a file name, TL402 others own or can write the cache, TL403 the cache cannot be written, TL407 a file in
    the cache is not what was written there.

    The same text gives the same module object again, so that what Triton has compiled is kept. Processes that load at the
    same time share one file.
    """
    name, digest = source.name, source.digest
    if not name.isidentifier():
        raise TilelinkError(
            "TL401",
            f"an emitted file cannot be named after {name!r}",
            why="it becomes a file name and a module name",
            hint="pass an identifier",
        )
    with _loading:
        module_name = f"tilelink_emitted_{name}_{digest}"
        module = sys.modules.get(module_name)
        if module is None:
            path = cache.directory("kernels") / f"{name}_{digest}.py"
            if cache.made(path, lambda: source.text, seconds=60) != source.text.encode():
                raise cache.changed(path, "has another text than the one that its name stands for")
            module = ModuleType(module_name)
            module.__file__ = str(path)
            linecache.checkcache(str(path))
            # The text, which the file holds too: neither a changed file nor stale bytecode can get in between.
            exec(compile(source.text, str(path), "exec", dont_inherit=True), vars(module))
            sys.modules[module_name] = module  # not before it has run to its end
        setattr(module, SOURCE, source)
        return module


def resident_workers(compiled: Any) -> int:
    """How many instances of a kernel can run at once on the current device, if nothing else runs there. `compiled`: what
    `triton.compile` or a JITFunction's `warmup` gave; it is loaded to the device."""
    _ = compiled.run  # loads the binary, which is when its function and its registers become known
    multiprocessors = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    if torch.version.hip:
        return multiprocessors  # one each is certain, since it could be loaded
    from tilelink.runtime.peer import driver  # here: the simulated backend loads kernels too, and has no driver

    metadata = compiled.metadata
    threads = metadata.num_warps * metadata.target.warp_size
    return multiprocessors * driver.blocks_per_multiprocessor(compiled.function, threads, metadata.shared)


def require_resident(compiled: Any, workers: int) -> None:
    """Refuse a launch of workers that wait for one another but cannot all run at once. Raises TL405."""
    resident = resident_workers(compiled)
    if workers > resident:
        raise TilelinkError(
            "TL405",
            f"kernel {compiled.name} needs {workers} workers at once, and this device runs {resident}",
            why="a worker that waits for one that has not started waits for ever",
            hint="ask for fewer SMs, or for smaller tiles, fewer stages or fewer warps",
        )


# ---------------------------------------------------------------------------------------------------------------------
# Lines of tile programs that Triton does not accept: what it says, at the user's line, in either kind of backend.
#
# A tile program's values are Triton's, and so is what may be done with them: shapes, dtypes, operators. Where kernels are
# compiled, Triton says so by a `CompilationError`; where they are interpreted, by whatever its own functions raise.

RAISED = (
    ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError,
    IncompatibleTypeErrorImpl,
)  # fmt: skip
"""Classes of what Triton's functions raise."""


def fp32_products() -> str:
    """Triton's `input_precision` of those `tl.dot` of fp32 that name none: as torch's products round, whichever form of an
    operator runs. Three products of tf32 keep fp32's precision on matrix units; where torch may round to tf32, one does.

    Source: `torch.backends.cuda.matmul`, and TRITON_F32_DEFAULT, which goes first.
    """
    torchs = torch.backends.cuda.matmul
    # Since torch 2.9 the older question raises where the newer setting was made.
    rounds = torchs.fp32_precision == "tf32" if hasattr(torchs, "fp32_precision") else torchs.allow_tf32
    exact = "ieee" if torch.version.hip else "tf32x3"
    return knobs.language.fp32_default or ("tf32" if rounds else exact)


@contextmanager
def compiling(kernel: Any) -> Iterator[None]:
    """Around Triton's compiler: what it does not accept becomes TL412, and `fp32_products` holds."""
    precision = fp32_products()
    try:
        with knobs.language.scope():
            knobs.language.fp32_default = precision
            yield
    except CompilationError as error:
        raise _refusal(kernel, *_compiled(error, kernel.fn.__globals__)) from error


@contextmanager
def interpreting(kernel: Any) -> Iterator[None]:
    """What Triton's functions do not accept becomes TL412; what anybody else raises goes through. `kernel`: the `triton.jit`
    function that is interpreted inside."""
    try:
        yield
    except RAISED as error:
        line = _interpreted(error.__traceback__, kernel.fn.__code__.co_filename)
        if line is None:
            raise
        raise _refusal(kernel, repr(error), line) from error


CALLS = "look up in Triton's documentation what the line calls, or convert the arguments"
CONSTANTS = (
    "make shapes of `tl.tile_shape(out)`, of a block's own `.shape`, or of `tl.tile_range(t, axis=0).shape` for a whole axis: "
    "they are constants, which `tl.size` is not"
)


def _refusal(kernel: Any, said: str, line: int) -> TilelinkError:
    source: KernelSource | None = kernel.fn.__globals__.get(SOURCE)
    emitted = whole_line(kernel.fn.__code__.co_filename, line)
    loc = None if source is None else source.location(line)
    return TilelinkError(
        "TL412",
        f"Triton does not accept a line of kernel {kernel.fn.__name__}: {said}",
        loc=loc or emitted,
        why="what a tile program computes is Triton's: it decides which shapes and dtypes go together",
        hint=CONSTANTS if "constexpr" in said else advised(() if source is None else source.advice, loc) or CALLS,
        notes=(Note("the line that is compiled", emitted),) if loc is not None else (),
    )


def _compiled(error: CompilationError, names: Mapping[str, Any]) -> tuple[str, int]:
    """What is said, and the innermost line of the emitted file that it is said of; each call on the way is an error."""
    functions = {f.src: f for f in names.values() if isinstance(f, JITFunction)}
    said, line, at = str(error), 0, error
    while isinstance(at, CompilationError):
        function = functions.get(at.src or "")
        if function is not None and isinstance(at.node, ast.expr | ast.stmt):
            # The compiler begins to count at `def`.
            ahead = next(n for n, text in enumerate(function.raw_src) if text.lstrip().startswith("def "))
            line = function.starting_line_number + ahead + at.node.lineno - 1
        said = at.error_message or said
        at = at.__cause__
    return said if at is None else repr(at), line


def _interpreted(trace: TracebackType | None, file: str) -> int | None:
    """The innermost line of the emitted file, if Triton's functions or the line itself raised."""
    line, ours = None, False
    for frame, at in traceback.walk_tb(trace):
        names = frame.f_globals
        kernels, module = INTERPRETED in names, str(names.get("__name__", ""))
        if kernels and frame.f_code.co_filename == file:
            line = at
        if kernels or module.partition(".")[0] in ("triton", "tilelink"):
            ours = not kernels and module.startswith("tilelink.")
    return None if ours else line
