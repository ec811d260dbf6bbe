"""tilelink: tile programs whose communication hides behind computation, on stock Triton (arXiv:2503.20313).

Users write compute and communication as separate tile programs linked by tile-centric primitives; an operator wires
them to tensors; a schedule says how it runs.
"""

from tilelink.errors import TilelinkError
from tilelink.frontend import program, symmetric
from tilelink.pipeline import Operator, operator
from tilelink.pipeline.schedules import by_runs, copy_engine, fused, library, sms
from tilelink.pipeline.tiling import adding, exchanging, moving, one_hop, streaming
from tilelink.runtime.launching import check, empty, group, launch, rank, ranks
from tilelink.torch_ops import install, report, uninstall
from tilelink.version import __version__

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
