"""Results as files in `benchmarks/results`: on what they were measured, and their rows."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import torch
import triton

from tilelink.bench.running import commit
from tilelink.runtime.backend import Backend
from tilelink.runtime.peer import GpuBackend

ROOT = Path(__file__).parents[1]


def gpus_of(backend: Backend) -> int:
    """How many GPUs the ranks run on: fewer than ranks where they share them."""
    return len(set(backend.places)) if isinstance(backend, GpuBackend) else backend.ranks


def write(path: Path | None, rows: list[dict[str, Any]], *, gpus: int, backend: str, ranks: int | None = None) -> None:
    """Nothing where there is no path. What rows quote of this repository's files is named from its root.

    Args:
        ranks: None for as many as GPUs.
    """
    if path is None:
        return
    about = {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "gpus": gpus,
        "ranks": ranks or gpus,
        "backend": backend,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "commit": commit(),
    }
    path.write_text(json.dumps({"about": about, "rows": rows}, indent=1).replace(f"{ROOT}/", "") + "\n")
