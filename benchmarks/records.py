"""Results as files in `benchmarks/results`: on what they were measured, and their rows."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import torch
import triton

from tilelink.bench.running import commit
from tilelink.runtime.peer import GpuWorld
from tilelink.runtime.world import World

ROOT = Path(__file__).parents[1]


def gpus_of(world: World) -> int:
    """How many GPUs the ranks run on: fewer than ranks where they share them."""
    return len(set(world.places)) if isinstance(world, GpuWorld) else world.ranks


def write(path: Path | None, rows: list[dict[str, Any]], *, gpus: int, world: str, ranks: int | None = None) -> None:
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
        "world": world,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "commit": commit(),
    }
    path.write_text(json.dumps({"about": about, "rows": rows}, indent=1).replace(f"{ROOT}/", "") + "\n")
