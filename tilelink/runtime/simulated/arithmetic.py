"""The interpreter's arithmetic where Triton's own is wrong: types that numpy has not, and fused dots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime import interpreter as stock

from tilelink.runtime.simulated.machine import Machine
from tilelink.runtime.simulated.numerics import dot, erf, is_narrow, narrow, truncate, widen

Handle = stock.TensorHandle
Stock = stock.InterpreterBuilder


class Arithmetic:
    """Builder methods. What needs no care goes to the stock method."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def get_bf16(self, value: float) -> Handle:
        return Handle(narrow(np.array([value]), "bf16"), tl.bfloat16)

    # ------------------------------------------------------------------------------------------------------------ casts
    def cast_impl(self, src: Handle, dst_type: Any) -> Handle:
        old: Any = src.dtype.scalar
        new = dst_type.scalar
        if old == new:
            return Handle(src.data, new)
        wide = widen(src.data, old.name)
        if is_narrow(new.name):
            return Handle(narrow(wide, new.name), new)
        return Handle(wide.astype(stock._get_np_dtype(new)), new)

    def create_fp_to_fp(self, src: Handle, dst_type: Any, rounding: Any) -> Handle:
        if rounding == ir.ROUNDING_MODE.RTZ:
            if (src.dtype.scalar, dst_type.scalar) != (tl.float32, tl.bfloat16):
                kinds = f"{src.dtype.scalar} to {dst_type.scalar}"
                raise self.machine.refusal(f"rounding {kinds} towards zero", "round to nearest even")
            return Handle(truncate(src.data), tl.bfloat16)
        return self.cast_impl(src, dst_type)

    # ------------------------------------------------------------------------------------------------------- elementwise
    def binary_op(self, lhs: Handle, rhs: Handle, op: Callable[..., np.ndarray]) -> Handle:
        ty: Any = lhs.dtype.scalar
        if not is_narrow(ty.name):
            return Stock.binary_op(stock.interpreter_builder, lhs, rhs, op)
        return _rounded(op(widen(lhs.data, ty.name), widen(rhs.data, ty.name)), ty)

    def unary_op(self, arg: Handle, op: Callable[..., np.ndarray]) -> Handle:
        ty: Any = arg.dtype.scalar
        if not is_narrow(ty.name):
            return Stock.unary_op(stock.interpreter_builder, arg, op)
        return _rounded(op(widen(arg.data, ty.name)), ty)

    def ternary_op(self, lhs: Handle, rhs: Handle, other: Handle, op: Callable[..., np.ndarray]) -> Handle:
        ty: Any = other.dtype.scalar
        if op is np.where or not is_narrow(ty.name):
            return Stock.ternary_op(stock.interpreter_builder, lhs, rhs, other, op)
        return _rounded(op(*(widen(x.data, ty.name) for x in (lhs, rhs, other))), ty)

    def create_fma(self, x: Handle, y: Handle, z: Handle) -> Handle:
        ty: Any = z.dtype.scalar
        if not is_narrow(ty.name):
            return Stock.create_fma(stock.interpreter_builder, x, y, z)
        a, b, c = (widen(v.data, ty.name) for v in (x, y, z))
        return _rounded(a * b + c, ty)

    def create_erf(self, arg: Handle) -> Handle:
        return Handle(erf(arg.data), arg.dtype.scalar)

    # -------------------------------------------------------------------------------------------------------------- dots
    def create_dot(self, a: Handle, b: Handle, d: Handle, *precision: Any) -> Handle:
        agent = self.machine.scheduler.running()
        agent.clock += self.machine.costs.per_depth(1, d.data.size) * a.data.shape[-1]
        left, right = _wide(a), _wide(b)
        ty: Any = d.dtype.scalar
        wide = widen(d.data, ty.name)
        exact = np.dtype(np.float32) if wide.dtype == np.float16 else wide.dtype
        result = dot(left, right, exact) + wide
        if is_narrow(ty.name):
            return Handle(narrow(result, ty.name), ty)
        return Handle(result.astype(d.data.dtype, copy=False), ty)


def _wide(value: Handle) -> np.ndarray:
    ty: Any = value.dtype.scalar
    return widen(value.data, ty.name)


def _rounded(values: np.ndarray, ty: Any) -> Handle:
    """Comparisons stay bool; the rest goes back into its type."""
    return Handle(values if values.dtype == np.bool_ else narrow(values, ty.name), ty)
