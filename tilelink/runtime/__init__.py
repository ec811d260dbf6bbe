"""Runs emitted kernels: backends, workspaces, launching.

Takes: `ir.KernelSource` and torch tensors. Gives: results in torch tensors.
Knows: torch, triton, heaps, streams, processes.
Never knows: tile -> rank arithmetic; byte offsets and counts arrive ready-made in the plan.
"""
