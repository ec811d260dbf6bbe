"""`native.cpp`, compiled on first use by the machine's compiler of C++ and kept beside the emitted kernels."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tilelink.runtime import cache as files
from tilelink.runtime import environment
from tilelink.runtime.refusals import warn_once

SOURCE = Path(__file__).with_suffix(".cpp")
LONGEST = 300.0
"""Seconds to wait for another process that compiles it."""


@cache
def steps() -> Any | None:
    """The compiled steps of autograd, which cost the host less than those in Python. The first call in a process may compile for
    20 seconds; None: where there is no GPU, whose host would have to keep ahead of it, and where compiling fails, which is said.
    """
    if not torch.cuda.is_available():
        return None
    try:
        return load(built())
    except (ImportError, subprocess.CalledProcessError) as error:
        said = error.stderr[-800:] if isinstance(error, subprocess.CalledProcessError) else error
        warn_once(
            f"steps of autograd run in Python, which takes the host longer: {SOURCE.name} cannot be compiled: {said}"
        )
        return None


def load(path: Path) -> Any:
    """The module in a file that `built` gave."""
    spec = importlib.util.spec_from_file_location("native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def built() -> Path:
    """The compiled file, for this torch and this Python; made by one process of those that ask.

    Raises:
        ImportError: there is no compiler.
        subprocess.CalledProcessError: it fails.
        TilelinkError: the cache cannot be used.
    """
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    key = hashlib.sha256(SOURCE.read_bytes() + f"{torch.__version__} {suffix}".encode()).hexdigest()[:16]
    path = files.directory("native") / f"{key}{suffix}"
    files.made(path, _compiled, LONGEST)
    return path


def _compiled() -> bytes:
    if shutil.which(environment.compiler()) is None:
        raise ImportError(f"there is no {environment.compiler()}")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "native.so"
        subprocess.run(_command(made), check=True, capture_output=True, text=True)
        return made.read_bytes()


def _command(made: Path) -> list[str]:
    from torch.utils.cpp_extension import include_paths, library_paths

    headers = [f"-isystem{path}" for path in (*include_paths(), sysconfig.get_path("include"))]
    libraries = [f"-L{path}" for path in library_paths()] + [
        f"-l{name}" for name in ("torch_python", "torch", "torch_cpu", "c10")
    ]
    layout = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    how = ["-std=c++20", "-O1", "-fPIC", "-shared", layout]
    return [environment.compiler(), *how, *headers, str(SOURCE), *libraries, "-o", str(made)]
