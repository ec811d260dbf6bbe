"""transformers' own way of splitting a model, `from_pretrained(…, tp_plan="auto")`, by tilelink's linear layers."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from torch import nn

from tilelink.nn.styles import ColumnLinear, RowLinear, become_linear


def install_styles() -> ExitStack:
    """Let tilelink split linear layers wherever transformers does from now on, by whatever name it has for the style.

    Returns:
        a context manager, whose end, or `close()`, brings back what was there; nobody needs to call it.
    """
    from transformers.distributed.tensor_parallel import ColwiseParallel, RowwiseParallel
    from transformers.integrations.tensor_parallel import ALL_PARALLEL_STYLES

    def split_by(theirs: type[Any], kind: type[ColumnLinear | RowLinear]) -> type[Any]:
        class Style(theirs):
            def install_forward(self, module: Any, mesh: Any) -> Any:
                if type(module) is nn.Linear:
                    return become_linear(module, kind, self, mesh)
                return super().install_forward(module, mesh)

        return Style

    styles: Any = ALL_PARALLEL_STYLES
    undo = ExitStack()
    for theirs, kind in ((ColwiseParallel, ColumnLinear), (RowwiseParallel, RowLinear)):
        ours = split_by(theirs, kind)
        for name, style in list(styles.items()):
            if type(style) is theirs:
                how: dict[str, Any] = {"input_layouts": style.input_layouts, "output_layouts": style.output_layouts}
                styles.register(name, ours(**how, use_local_output=style.use_local_output))
                undo.callback(styles.register, name, style)
    return undo
