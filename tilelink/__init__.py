"""tilelink: tile programs whose communication hides behind computation, on stock Triton (arXiv:2503.20313).

Users write compute and communication as separate tile programs linked by tile-centric primitives; an operator wires
them to tensors; a schedule says how it runs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tilelink.errors import TilelinkError
from tilelink.version import __version__

if TYPE_CHECKING:
    from tilelink import inductor as inductor
    from tilelink import language as language
    from tilelink import nn as nn
    from tilelink import ops as ops
    from tilelink.frontend import program, symmetric
    from tilelink.pipeline import Operator, operator
    from tilelink.pipeline.schedules import (
        adding,
        by_panels,
        copy_engine,
        exchanging,
        fused,
        library,
        moving,
        one_hop,
        sms,
        streaming,
    )
    from tilelink.runtime.launching import check, empty, group, launch, rank, ranks
    from tilelink.torch_ops import install, report, uninstall
else:
    # Each name brings its module when it is first asked for: `import tilelink.mapping` needs no torch, and a command that
    # only prints its options needs nothing at all.
    _PLACES = {
        "tilelink.frontend": "program symmetric",
        "tilelink.pipeline": "Operator operator",
        "tilelink.pipeline.schedules": "adding by_panels copy_engine exchanging fused library moving one_hop sms streaming",
        "tilelink.runtime.launching": "check empty group launch rank ranks",
        "tilelink.torch_ops": "install report uninstall",
    }
    _FOUND_IN = {name: module for module, names in _PLACES.items() for name in names.split()}
    _MODULES = ("inductor", "language", "nn", "ops")

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"tilelink.{name}")
        if name not in _FOUND_IN:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_FOUND_IN[name]), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_MODULES})


__all__ = [
    "Operator",
    "TilelinkError",
    "__version__",
    "adding",
    "by_panels",
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
