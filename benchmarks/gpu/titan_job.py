"""What torchtitan imports (`--experimental.custom_import`) in front of its own, unmodified job: see `titan`."""

from __future__ import annotations

import atexit
import os
from dataclasses import replace

from torch._inductor import config
from torchtitan.models.llama3 import llama3_args  # pyright: ignore[reportMissingImports]

import tilelink

llama3_args["8B, some layers"] = replace(llama3_args["8B"], n_layers=int(os.environ["TITAN_LAYERS"]))
if os.environ["TITAN_CONTENDER"] in ("installed", "overlap"):
    tilelink.install()
    if os.environ["RANK"] == "0":
        atexit.register(lambda: print(f"REPORT\n{tilelink.report()}\nEND", flush=True))
if os.environ["TITAN_CONTENDER"] == "overlap":
    setattr(config, "post_grad_custom_pre_pass", tilelink.inductor.overlap())  # noqa: B010
