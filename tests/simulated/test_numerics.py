"""The interpreter computes what a GPU would: bfloat16 and 8-bit types, reductions, dots."""

import math
import operator
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter as stock

from tests.selection import table
from tests.simulated import emitted_numbers
from tilelink.errors import TilelinkError
from tilelink.ir.schedule import KernelOptions
from tilelink.runtime.simulated import SimulatedBackend, interpreter, simulate

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def run(kernel: Any, **args: Any) -> None:
    def main(backend: SimulatedBackend) -> None:
        backend.main_stream().launch(kernel, 1, args, KernelOptions(1, 1))

    simulate(main, 1)


def values(*shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 3.0) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(5)) * scale).to(dtype)


EXPECTED = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "scalar": lambda a, b: a * 2.5 + 1.0,
    "neg": lambda a, b: -a,
    "abs": lambda a, b: a.abs(),
    "max": lambda a, b: torch.maximum(a, b),
    "where both": lambda a, b: torch.minimum(a, b),
    "where": lambda a, b: torch.maximum(a, b),
    "div": lambda a, b: (a.float() / b.float()).to(a.dtype),
    "silu": lambda a, b: torch.nn.functional.silu(a.float()).to(a.dtype),
    "erf": lambda a, b: torch.erf(a.float()).to(a.dtype),
}


@table("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@table("what", EXPECTED)
def test_elementwise(what: str, dtype: torch.dtype) -> None:
    a, b = values(64, dtype=dtype), values(128, dtype=dtype)[64:]
    out = torch.full_like(a, float("nan"))
    run(emitted_numbers.elementwise, x=a, y=b, out=out, N=64, WHAT=what)
    torch.testing.assert_close(out, EXPECTED[what](a, b), rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_reductions(dtype: torch.dtype) -> None:
    x, out = values(8, 32, dtype=dtype), torch.full((4, 8), float("nan"), dtype=dtype)
    run(emitted_numbers.reductions, x=x, out=out, M=8, N=32)
    wide = x.float()
    expected = torch.stack([wide.sum(1), wide.amax(1), wide.sum(1), wide.argmax(1).float()])
    torch.testing.assert_close(out.float(), expected.to(dtype).float(), rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_scan_of_bfloat16() -> None:
    x = values(32)
    out = torch.empty_like(x)
    run(emitted_numbers.scan, x=x, out=out, N=32)
    torch.testing.assert_close(out, x.float().cumsum(0).bfloat16())


@table("target", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int32], ids=str)
@table("source", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int32], ids=str)
def test_conversions(source: torch.dtype, target: torch.dtype) -> None:
    x = values(256, dtype=torch.float64, scale=100.0).to(source)
    out = torch.empty(256, dtype=target)
    run(emitted_numbers.convert, x=x, out=out, N=256)
    assert torch.equal(out, x.to(target))


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_float8_rounds_as_torch_does_and_saturates(dtype: torch.dtype) -> None:
    x = torch.cat([values(250, dtype=torch.float32), torch.tensor([7.87, 1e9, -1e9, 0.0, 1e-9, 447.0])])
    out = torch.empty(256, dtype=dtype)
    run(emitted_numbers.convert, x=x, out=out, N=256)
    top = torch.finfo(dtype).max
    assert torch.equal(out.float(), x.clamp(-top, top).to(dtype).float())
    back = torch.empty(256)
    run(emitted_numbers.convert, x=out, out=back, N=256)
    assert torch.equal(back, out.float())


def test_infinities_and_nan_survive_bfloat16() -> None:
    x = torch.tensor([float("inf"), -float("inf"), float("nan"), 3.4e38])
    out = torch.empty(4, dtype=torch.bfloat16)
    run(emitted_numbers.convert, x=x, out=out, N=4)
    torch.testing.assert_close(out, x.bfloat16(), equal_nan=True)


def test_towards_zero() -> None:
    x, out = torch.tensor([1.00390625, 1.0078124, -1.0078124, 2.0]), torch.empty(4, dtype=torch.bfloat16)
    run(emitted_numbers.truncate, x=x, out=out, N=4)
    assert out.tolist() == [1.0, 1.0, -1.0, 2.0]


@table("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, *FLOAT8], ids=str)
def test_dot(dtype: torch.dtype) -> None:
    a, b = values(16, 32, dtype=torch.float32).to(dtype), values(64, 32, dtype=torch.float32).to(dtype)
    double = dtype == torch.float64
    out = torch.empty(16, 64, dtype=torch.float64 if double else torch.float32)
    run(emitted_numbers.dot, a=a, b=b, out=out, M=16, N=64, K=32, OUT=tl.float64 if double else tl.float32)
    torch.testing.assert_close(out.double(), a.double() @ b.double().T, rtol=1e-5, atol=1e-4)


def test_dot_of_integers_is_exact() -> None:
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randint(-128, 128, (n, 32), dtype=torch.int8, generator=generator) for n in (16, 64))
    out = torch.empty(16, 64, dtype=torch.int32)
    run(emitted_numbers.dot, a=a, b=b, out=out, M=16, N=64, K=32, OUT=tl.int32)
    assert torch.equal(out, a.int() @ b.int().T)


def test_atomics_of_blocks() -> None:
    x, out = values(32, dtype=torch.float32), torch.ones(32)
    run(emitted_numbers.add_atomically, x=x, out=out, N=32)
    assert torch.equal(out, x + 1)
    with pytest.raises(TilelinkError, match=r"TL503: .*an atomic on bfloat16 cannot be simulated"):
        run(emitted_numbers.add_atomically, x=x.bfloat16(), out=out.bfloat16(), N=32)


@table("bits", [32, 64])
@table("a, b", [(17, 5), (-17, 5), (17, -5), (-17, -5), (3, 3), (2**30, 2**30), (-(2**31), 1)])
def test_single_integers(a: int, b: int, bits: int) -> None:
    """Division is towards zero, sums wrap at the width of their type."""
    dtype = torch.int32 if bits == 32 else torch.int64

    def wrapped(value: int) -> int:
        return (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)

    def quotient(n: int, d: int) -> int:
        return int(math.copysign(abs(n) // abs(d), n * d))

    def remainder(n: int, d: int) -> int:
        return n - d * quotient(n, d)

    x, y = torch.tensor([a, 42], dtype=dtype), torch.tensor([b], dtype=dtype)
    out = torch.zeros(18, dtype=torch.int64)
    run(emitted_numbers.integers, x=x, y=y, out=out)
    expected = [
        a + b,
        a - b,
        a * b,
        quotient(a, b),
        remainder(a, b),
        a + 7,
        7 - a,
        a * 1000003,
        quotient(a, 3),
        quotient(100, b),
        remainder(100, b),
        min(a, b),
        max(a, 5),
        (a < b) + 2 * (a == b) + 4 * (a >= 3),
        42,
        a,
    ]
    assert out[:16].tolist() == [wrapped(value) for value in expected]
    assert out[16] == int(torch.tensor(float(a)) + torch.tensor(b * 2.0))
    assert out[17] == a + b


def operands() -> list[Any]:
    """Single values and blocks of integers, truth values, floats and pointers, blocks whose shapes do not meet, and constants."""

    def made(values: list[int], ty: Any, *shape: int) -> Any:
        data = np.array(values).astype(stock._get_np_dtype(ty)).reshape(shape or (1,))
        return tl.tensor(stock.TensorHandle(data, ty), tl.block_type(ty, list(shape)) if shape else ty)

    some, pointer = [7, -3, 2**31 - 1, 5], tl.pointer_type(tl.bfloat16)
    found = [made(some, ty, *shape) for ty in (tl.int32, tl.int64) for shape in ((4,), (4, 1), (1, 4), (2, 2))]
    found += [made([9], ty) for ty in (tl.int32, tl.int64, tl.int8, tl.uint32, tl.float32)]
    found += [
        made([9], tl.int32, 1),
        made([0, 1, 1, 0], tl.int1, 4),
        made([0, 1, 1, 0], tl.int1, 4, 1),
        made([1], tl.int1),
    ]
    found += [made(some, tl.float32, 4), made([1 << 40] * 4, pointer, 4), made([1 << 40], pointer)]
    return [*found, 3, -2, 2**31, 1.5, True]


def test_the_short_way_is_the_long_way_in_all_but_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Same values, of the same type, and the same refusals, for every pair of operands."""
    signs = [operator.add, operator.sub, operator.mul, operator.mod, operator.floordiv, operator.and_, operator.or_]
    signs += [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]

    def kind(value: Any) -> str:
        ty: Any = value.type if isinstance(value, tl.tensor) else None
        return repr(value) if ty is None else ty.name

    def outcome(function: Any, a: Any, b: Any) -> object:
        try:
            with np.errstate(all="ignore"):
                made = function(a, b)
        except Exception as error:  # noqa: BLE001 - what Triton refuses is compared, too
            return type(error).__name__
        return made.type.name, str(made.handle.data.dtype), str(made.handle.data.tolist())

    def outcomes() -> list[object]:
        def main(backend: SimulatedBackend) -> list[object]:
            functions = [*signs, tl.minimum, tl.maximum]
            pairs = [
                (a, b) for a in operands() for b in operands() if isinstance(a, tl.tensor) or isinstance(b, tl.tensor)
            ]
            for f in functions:
                for a, b in pairs:
                    outcome(f, a, b)  # by which the types are known
            return [(n, kind(a), kind(b), outcome(f, a, b)) for n, f in enumerate(functions) for a, b in pairs]

        return simulate(main, 1)[0]

    short = outcomes()
    monkeypatch.setattr(interpreter, "short_forms", dict)
    long = outcomes()
    assert [pair for pair in zip(short, long, strict=True) if pair[0] != pair[1]] == []
