"""Floating point types that numpy has not: bfloat16 and the 8-bit ones, kept as bits between operations.

Triton's own interpreter multiplies the bits, truncates, and loses carries; here every conversion is torch's.
"""

from __future__ import annotations

import numpy as np
import torch

_NARROW = {
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e4b8": torch.float8_e4m3fnuz,
    "fp8e5": torch.float8_e5m2,
    "fp8e5b16": torch.float8_e5m2fnuz,
}
"""Triton's name of a type -> torch's type."""


def is_narrow(name: str) -> bool:
    """Whether values of this Triton type are kept as bits."""
    return name in _NARROW


def widen(bits: np.ndarray, name: str) -> np.ndarray:
    """Values of Triton type `name` in a type that numpy computes with: bits become float32, the rest stays."""
    if name == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if name not in _NARROW:
        return bits
    return torch.from_numpy(_own(bits)).view(_NARROW[name]).float().numpy()


def narrow(values: np.ndarray, name: str) -> np.ndarray:
    """Round to nearest even, and return the bits. 8-bit types saturate, as NVIDIA's conversions do."""
    ty = _NARROW[name]
    wide = torch.from_numpy(_own(values.astype(np.float32, copy=False)))
    if name == "bf16":
        return wide.to(ty).view(torch.int16).numpy().view(np.uint16)
    top = torch.finfo(ty).max
    return wide.clamp(-top, top).to(ty).view(torch.uint8).numpy()


def truncate(values: np.ndarray) -> np.ndarray:
    """float32 to bfloat16 bits, towards zero."""
    return (_own(values).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def dot(a: np.ndarray, b: np.ndarray, out: np.dtype) -> np.ndarray:
    """The matrix product in `out`; products of integers are exact (they go through float64's BLAS)."""
    if np.issubdtype(out, np.integer) or out == np.float64:
        return np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(out)
    return np.matmul(a.astype(np.float32, copy=False), b.astype(np.float32, copy=False)).astype(out, copy=False)


def erf(values: np.ndarray) -> np.ndarray:
    return torch.erf(torch.from_numpy(_own(values))).numpy()


def _own(values: np.ndarray) -> np.ndarray:
    """Contiguous and writable: torch warns about views it may not write to."""
    own = np.ascontiguousarray(values)
    return own if own.flags.writeable else own.copy()
