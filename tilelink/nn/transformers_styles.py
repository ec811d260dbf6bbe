"""transformers' own way of splitting a model, `from_pretrained(…, tp_plan="auto")`, by tilelink's linear layers."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from torch import nn

from tilelink.nn.fitting import require_even
from tilelink.nn.styles import ColumnLinear, RowLinear, become, split_over


def install_styles() -> ExitStack:
    """Let tilelink split linear layers wherever transformers does from now on, by whatever name it has for the style.

    Returns:
        a context manager, whose end, or `close()`, brings back what was there; nobody needs to call it.
    """
    from transformers.distributed.tensor_parallel import ColwiseParallel, RowwiseParallel
    from transformers.integrations.tensor_parallel import ALL_PARALLEL_STYLES

    class Columns(ColwiseParallel):
        def install_forward(self, module: Any, mesh: Any) -> Any:
            if type(module) is not nn.Linear:
                return super().install_forward(module, mesh)
            require_even("out_features", module.out_features, mesh.size())
            return become(module, ColumnLinear, split_over(self, mesh))

    class Rows(RowwiseParallel):
        def install_forward(self, module: Any, mesh: Any) -> Any:
            if type(module) is not nn.Linear:
                return super().install_forward(module, mesh)
            require_even("in_features", module.in_features, mesh.size())
            return become(module, RowLinear, split_over(self, mesh))

    styles: Any = ALL_PARALLEL_STYLES
    undo = ExitStack()
    for theirs, ours in ((ColwiseParallel, Columns), (RowwiseParallel, Rows)):
        for name, style in list(styles.items()):
            if type(style) is theirs:
                how: dict[str, Any] = {"input_layouts": style.input_layouts, "output_layouts": style.output_layouts}
                styles.register(name, ours(**how, use_local_output=style.use_local_output))
                undo.callback(styles.register, name, style)
    return undo
