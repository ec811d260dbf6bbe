"""torch's own fused operators, served by tilelink: for programs that call torch only.

Takes: calls of torch's dispatcher. Gives: `install`, `uninstall`, `report`.
Knows: torch's operators on symmetric memory, the library's operators, groups by name.
Never knows: how an operator runs.
"""

from tilelink.torch_ops.door import Report, Served, install, report, uninstall

__all__ = ["Report", "Served", "install", "report", "uninstall"]
