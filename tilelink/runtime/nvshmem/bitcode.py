"""The part of NVSHMEM's device library that kernels call, taken out once.

The library is 31 MB of LLVM bitcode, which Triton would read again for every kernel that it links: 4 to 8 seconds each.
What kernels of this project call is a few tens of kilobytes of it.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from pathlib import Path
from typing import Any

import triton
from filelock import FileLock
from triton._C import libtriton

from tilelink.device.nvshmem import CALLS
from tilelink.runtime import cache


def called(library: Path) -> Path:
    """A file of LLVM text with the functions of `library` that kernels call, and what these need; kept in the cache.

    Args:
        library: the device library as bitcode.

    Raises:
        TilelinkError: TL402, TL403 the cache is another user's or cannot be written; TL407 somebody else has changed the file.
    """
    found = library.stat()
    caller = _caller()
    # Triton's LLVM reads the text that it writes, and not always what another version has written.
    told = f"{library} {found.st_size} {found.st_mtime_ns} {triton.__version__} {caller}"
    key = hashlib.sha256(told.encode()).hexdigest()[:16]
    path = cache.directory("kernels") / f"{library.stem}_{key}.ll"
    with cache.writing(path), FileLock(path.with_suffix(".lock"), timeout=120):
        if cache.read(path) is None:
            cache.replace(path, _linked(caller, library))
    return path


def _caller() -> str:
    """A module that calls each of them, for whose sake the linker takes them."""
    lines = ["module {"]
    for symbol, (arguments, result) in CALLS.items():
        types, given = [_integer(a) for a in arguments], [f"%a{i}" for i in range(len(arguments))]
        parameters = ", ".join(f"{name}: {of}" for name, of in zip(given, types, strict=True))
        lines += [
            f"  llvm.func @{symbol}({', '.join(types)}) -> {_integer(result)}",
            f"  llvm.func @call_{symbol}({parameters}) {{",
            f"    %r = llvm.call @{symbol}({', '.join(given)}) : ({', '.join(types)}) -> {_integer(result)}",
            "    llvm.return",
            "  }",
        ]
    return "\n".join([*lines, "}"])


def _integer(dtype: Any) -> str:
    return f"i{dtype.primitive_bitwidth}"


def _linked(caller: str, library: Path) -> str:
    """Triton's own linker, by the same steps as for a kernel. It hides what it has linked; what kernels call must not be."""
    ir, llvm, nvidia = libtriton.ir, libtriton.llvm, libtriton.nvidia
    context = ir.context()
    ir.load_dialects(context)
    nvidia.load_dialects(context)
    with tempfile.NamedTemporaryFile("w", suffix=".mlir") as file:
        file.write(caller)
        file.flush()
        parsed = ir.parse_mlir_module(file.name, context)
    llvm.init_targets()
    module = llvm.to_module(parsed, llvm.context())
    llvm.attach_datalayout(module, "nvptx64-nvidia-cuda", "", "")
    llvm.link_extern_libs(module, [str(library)])
    hidden = rf"^define internal (?=[^\n]*@(?:{'|'.join(CALLS)})\()"
    return re.sub(hidden, "define ", str(module), flags=re.MULTILINE)
