"""Layers of torch whose communication hides behind their products, and the operators under them.

Takes: torch tensors and modules; groups of ranks as torch.distributed has them. Gives: modules, and operators with gradients.
Knows: torch, the library's operators, which rank this is.
Never knows: how an operator runs.
"""

from typing import TYPE_CHECKING

from tilelink.nn import functional
from tilelink.nn.attention import ParallelAttention, SequenceParallelAttention
from tilelink.nn.clipping import clip_grad_norm_
from tilelink.nn.groups import group_name
from tilelink.nn.layer import Layer
from tilelink.nn.linear import ColumnParallelLinear, RowParallelLinear
from tilelink.nn.mlp import ParallelMLP
from tilelink.nn.moe import ParallelMoE
from tilelink.nn.operators import Call, TorchOperator, register
from tilelink.nn.replicated import Replicated
from tilelink.nn.whole import load_whole_state_dict, whole_state_dict

if TYPE_CHECKING:
    from tilelink.nn.plans import parallelize
    from tilelink.nn.styles import ColwiseParallel, ReplicatedParallel, RowwiseParallel, SequenceParallel
    from tilelink.nn.transformers_styles import install_styles
else:
    # They import DTensor, which takes as long as all the rest.
    LATER = {
        "ColwiseParallel": "styles",
        "ReplicatedParallel": "styles",
        "RowwiseParallel": "styles",
        "SequenceParallel": "styles",
        "install_styles": "transformers_styles",
        "parallelize": "plans",
    }

    def __getattr__(name: str) -> object:
        if name in LATER:
            from importlib import import_module

            return getattr(import_module(f"tilelink.nn.{LATER[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Call",
    "ColumnParallelLinear",
    "ColwiseParallel",
    "Layer",
    "ParallelAttention",
    "ParallelMLP",
    "ParallelMoE",
    "Replicated",
    "ReplicatedParallel",
    "RowParallelLinear",
    "RowwiseParallel",
    "SequenceParallel",
    "SequenceParallelAttention",
    "TorchOperator",
    "clip_grad_norm_",
    "functional",
    "group_name",
    "install_styles",
    "load_whole_state_dict",
    "parallelize",
    "register",
    "whole_state_dict",
]
