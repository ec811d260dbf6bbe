"""Layers of torch whose communication hides behind their products, and the operators under them.

Takes: torch tensors and modules; groups of ranks as torch.distributed has them. Gives: modules, and operators with gradients.
Knows: torch, the library's operators, which rank this is.
Never knows: how an operator runs.
"""

from tilelink.nn import functional
from tilelink.nn.attention import ParallelAttention
from tilelink.nn.clipping import clip_grad_norm_
from tilelink.nn.groups import group_name
from tilelink.nn.layer import Layer
from tilelink.nn.linear import ColumnParallelLinear, RowParallelLinear
from tilelink.nn.mlp import ParallelMLP
from tilelink.nn.moe import ParallelMoE
from tilelink.nn.operators import Call, TorchOperator, register
from tilelink.nn.replicated import Replicated
from tilelink.nn.sequence import SequenceParallelAttention
from tilelink.nn.whole import load_whole_state_dict, whole_state_dict

__all__ = [
    "Call",
    "ColumnParallelLinear",
    "Layer",
    "ParallelAttention",
    "ParallelMLP",
    "ParallelMoE",
    "Replicated",
    "RowParallelLinear",
    "SequenceParallelAttention",
    "TorchOperator",
    "clip_grad_norm_",
    "functional",
    "group_name",
    "load_whole_state_dict",
    "register",
    "whole_state_dict",
]
