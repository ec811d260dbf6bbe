"""NVSHMEM itself: found, started over a process group, linked with kernels."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton
from triton._C import libtriton

from tilelink.device.nvshmem import CALLS
from tilelink.errors import TilelinkError
from tilelink.runtime import cache, environment

# ---------------------------------------------------------------------------------------------------------------------
# The part of NVSHMEM's device library that kernels call, taken out once.
#
# The library is 31 MB of LLVM bitcode, which Triton would read again for every kernel that it links: 4 to 8 seconds each.
# What kernels of this project call is a few tens of kilobytes of it.


def called(library: Path) -> Path:
    """A file of LLVM text with the functions of `library` that kernels call, and what these need; kept in the cache. Raises
    TL402, TL403 the cache is another user's or cannot be written; TL407 somebody else has changed the file.

    Args:
        library: the device library as bitcode.
    """
    found = library.stat()
    caller = _caller()
    # Triton's LLVM reads the text that it writes, and not always what another version has written.
    told = f"{library} {found.st_size} {found.st_mtime_ns} {triton.__version__} {caller}"
    key = hashlib.sha256(told.encode()).hexdigest()[:16]
    path = cache.directory("kernels") / f"{library.stem}_{key}.ll"
    cache.made(path, lambda: _linked(caller, library), seconds=120)
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


# ---------------------------------------------------------------------------------------------------------------------
# A process has one NVSHMEM, so the ranks of one process group are its PEs, for good. nvshmem4py is an optional package
# and is imported when first needed.

EXTERN_LIBRARY = "libnvshmem_device"
"""The name under which kernels ask for the device library."""

DEVICE_STATE = "nvshmemi_device_state_d"
"""The variable by which a module that uses NVSHMEM finds its heap."""


@functools.cache
def module(name: str) -> ModuleType:
    """nvshmem4py's `core`, or `bindings`: NVSHMEM's C functions without their prefix, on addresses. Raises TL440, not there."""
    try:
        return importlib.import_module(f"nvshmem.{name}")
    except ImportError as error:
        raise TilelinkError(
            "TL440",
            f"nvshmem4py cannot be imported: {error}",
            why="the nvshmem backend allocates and starts through it",
            hint="install tilelink-triton[nvshmem], or use TILELINK_BACKEND=peer on one host",
        ) from error


def device_bitcode(capability: int) -> Path:
    """The device library as LLVM bitcode, of the NVSHMEM package that nvshmem4py brings. Raises TL441, not there.

    Args:
        capability: of the GPU, as 90. Later releases have a library for each; older ones have one for all.
    """
    spec = importlib.util.find_spec("nvidia.nvshmem") if importlib.util.find_spec("nvidia") else None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        # By the least capability that they are for: 90 of `libnvshmem_device_sm_90.bc`, 0 of the one for all.
        paths = (Path(folder) / "lib").glob(f"{EXTERN_LIBRARY}*.bc")
        found = {int(path.stem.rpartition("_sm_")[2]) if "_sm_" in path.stem else 0: path for path in paths}
        usable = [at for at in found if at <= capability]
        if usable:
            return found[max(usable)]
    raise TilelinkError(
        "TL441",
        f"{EXTERN_LIBRARY}.bc is not installed for capability {capability}",
        why="kernels of the nvshmem backend are linked with it",
        hint="install nvidia-nvshmem-cu13 (cu12 for CUDA 12), in the version that this PyTorch asks for",
    )


def start(rank: int, ranks: int, device: torch.device, agree: Callable[[Any], list[Any]]) -> None:
    """Collective: start NVSHMEM with this rank as its PE, or find it started so. Raises TL440, TL442 the process is another
    PE already.

    Args:
        agree: gives every rank's value on every rank, by rank.
    """
    environment.disable_multicast()
    nvshmem = module("core")
    empty = nvshmem.get_unique_id(empty=True)  # loads the host library, which the status needs
    if _started(nvshmem):
        pe, pes = nvshmem.my_pe(), nvshmem.n_pes()
        if (pe, pes) != (rank, ranks):
            raise TilelinkError(
                "TL442",
                f"this process is PE {pe} of {pes} already, and cannot become rank {rank} of {ranks}",
                why="a process has one NVSHMEM, whose PEs are the ranks of one process group",
                hint="use one process group for all operators, or the peer backend for subgroups",
            )
        return
    unique_id = agree(nvshmem.get_unique_id() if rank == 0 else empty)[0]
    device_of_pe = importlib.import_module("cuda.core").Device(device.index)
    device_of_pe.set_current()
    nvshmem.init(device=device_of_pe, uid=unique_id, rank=rank, nranks=ranks, initializer_method="uid")


def stop() -> None:
    """Collective: end NVSHMEM; it cannot be started again safely."""
    if _started(module("core")):
        module("core").finalize()


def prepare(compiled: Any) -> None:
    """Give a loaded kernel the heap's address; nothing to do if it makes no call of the device library. Raises TL443,
    NVSHMEM refuses the kernel."""
    if DEVICE_STATE not in compiled.asm["ptx"]:
        return
    status = module("bindings").cumodule_init(compiled.module)
    if status:
        raise TilelinkError(
            "TL443",
            f"NVSHMEM refuses the kernel {compiled.name} (status {status})",
            why="its device library must be of the same version as the host library",
            hint="keep one version of nvidia-nvshmem-cu13 installed, the one that this PyTorch asks for",
        )


def _started(nvshmem: ModuleType) -> bool:
    status = nvshmem.InitStatus
    return nvshmem.init_status() in (status.STATUS_IS_INITIALIZED, status.STATUS_LIMITED_MPG, status.STATUS_FULL_MPG)
