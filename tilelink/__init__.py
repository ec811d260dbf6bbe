"""tilelink: tile programs whose communication hides behind computation, on stock Triton (arXiv:2503.20313).

Users write compute and communication as separate tile programs linked by tile-centric primitives; an operator wires
them to tensors; a schedule says how it runs.
"""

from typing import TYPE_CHECKING

from tilelink.errors import TilelinkError
from tilelink.frontend import program, symmetric
from tilelink.pipeline import Operator, operator
from tilelink.pipeline.schedules import by_runs, copy_engine, fused, library, sms
from tilelink.pipeline.tiling import adding, exchanging, moving, one_hop, streaming
from tilelink.runtime.launching import check, empty, group, launch, rank, ranks
from tilelink.torch_ops import install, report, uninstall
from tilelink.version import __version__

if TYPE_CHECKING:
    from tilelink import inductor as inductor
else:

    def __getattr__(name: str) -> object:
        # It imports Inductor, which takes longer than all the rest.
        if name == "inductor":
            from importlib import import_module

            return import_module("tilelink.inductor")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Operator",
    "TilelinkError",
    "__version__",
    "adding",
    "by_runs",
    "check",
    "copy_engine",
    "empty",
    "exchanging",
    "fused",
    "group",
    "install",
    "launch",
    "library",
    "moving",
    "one_hop",
    "operator",
    "program",
    "rank",
    "ranks",
    "report",
    "sms",
    "streaming",
    "symmetric",
    "uninstall",
]
