"""From a user's tensors, or their shapes alone, to sizes, layouts and the checks that every rank makes.

torch is imported where there is a tensor to look at: whoever plans from shapes does without it.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilelink.errors import TilelinkError, with_article
from tilelink.frontend import bind_sizes, check_keywords, shown, sizes_of, slices_in
from tilelink.ir.plan import Layout
from tilelink.ir.shape import ITEM_BYTES, RANK_AXIS, Axis, Dim, Signature, evaluated
from tilelink.ir.topology import Topology

if TYPE_CHECKING:
    import torch

    from tilelink.pipeline.operator import Operator

SCALAR = (bool, int, float, str)
"""Constants that are told apart by what they are."""
TRUTH = "u8"
"""What programs know truth values as: a byte each, 0 or 1."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What a call's arguments say: global sizes, dtypes, memory layouts, compiled-in constants; and the ranks that make it.

    `exactly`: the constants as they are told apart.
    """

    sizes: tuple[tuple[str, int], ...]
    dtypes: tuple[str, ...]
    layouts: tuple[Layout, ...]
    constants: tuple[tuple[str, Any], ...] = field(compare=False)
    topology: Topology
    exactly: tuple[tuple[str, object], ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "exactly", tuple([(name, exact(value)) for name, value in self.constants]))


def exact(value: Any) -> object:
    """A constant as part of a key: Python takes `True` for `1` and for `1.0`, `-0.0` for `0.0`, and NaN for nothing. Of an object
    it is what is inside, which may change."""
    kind = type(value)
    if kind is int or kind is str:
        return value
    if not isinstance(value, SCALAR):
        inside = shown(value)
        # Of what cannot be told apart nothing is kept.
        return (kind, inside if inside is not None else object() if kind.__hash__ is None else value)
    # Zeros and NaN by what they are called, which takes longer.
    return (kind, value if kind is bool or (kind is float and value and value == value) else repr(value))


def bind(
    of: Operator,
    tensors: Sequence[Any],
    given: Mapping[str, Any],
    topology: Topology,
    shared: Callable[[torch.Tensor], bool] = lambda _: False,
    rank: int | None = None,
) -> Bound:
    """Sizes and layouts of one rank's arguments.

    Args:
        tensors: one per input of the signature.
        given: keyword arguments: sizes by dimension name, and the operator's constants.
        topology: how many ranks there are, and along which axes.
        shared: whether a tensor lies in memory of `tilelink.empty`.
        rank: whose arguments they are; None: of one rank or another.

    Raises:
        TilelinkError: those of `check_keywords`, `check_tensors` and `bind_shapes`.
    """
    from tilelink.runtime.memory import NAMES

    check_keywords(of.name, of.fn, of.signature, given)
    check_tensors(of, tensors)
    dtypes = [NAMES.get(t.dtype, TRUTH) for t in tensors]
    layouts = [layout(t, shared(whole)) for t, whole in zip(stored(of.signature, tensors), tensors, strict=True)]
    return bind_shapes(of, [tuple(t.shape) for t in tensors], dtypes, given, topology, layouts, rank)


def bind_shapes(
    of: Operator,
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[str],
    given: Mapping[str, Any],
    topology: Topology,
    layouts: Sequence[Layout] | None = None,
    rank: int | None = None,
) -> Bound:
    """The same of tensors of these shapes and dtypes, none of which there need be; contiguous and aligned without `layouts`.

    Raises:
        TilelinkError: those of `bind_sizes`; TL234 the ranks do not have the signature's axes.
    """
    if layouts is None:
        layouts = [contiguous(shape, ITEM_BYTES[dtype]) for shape, dtype in zip(shapes, dtypes, strict=True)]
    sizes = bound_sizes(of, shapes, given, topology, rank)
    constants = tuple(sorted(constants_of(of.signature, given).items()))
    return Bound(tuple(sizes.items()), tuple(dtypes), tuple(layouts), constants, topology)


def bound_sizes(
    of: Operator, shapes: Sequence[Sequence[Any]], given: Mapping[str, Any], topology: Topology, rank: int | None = None
) -> dict[str, Any]:
    """The global size of every dimension of the inputs, from one rank's shapes; arguments as of `bind`."""
    dims = sizes_of(of.signature)
    sizes = {k: v for k, v in given.items() if k in dims}
    axes = axes_of(of, topology)
    at = None if rank is None else {axis: topology.at(rank, axis) for axis in axes}
    return bind_sizes(of.signature, shapes, axes, sizes, loc=of.loc, at=at)


def stored(signature: Signature, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The arguments as programs know them: a rank's slice (`R/R M N`) that was passed with its axis of one element, without;
    truth values as bytes."""
    import torch

    pairs = ((t, slices_in(s, tuple(t.shape))) for t, s in zip(tensors, signature.inputs, strict=True))
    found = (t.squeeze(without) if without else t for t, without in pairs)
    return [t.view(torch.uint8) if t.dtype == torch.bool else t for t in found]


def keywords_of(of: Operator) -> dict[str, Any]:
    """The constants that a body takes, with what they are where no call says it; `Parameter.empty`: each call has to."""
    return {p.name: p.default for p in inspect.signature(of.fn).parameters.values() if p.kind is p.KEYWORD_ONLY}


def in_words(of: Operator, bound: Bound) -> str:
    """A call in words: what has to be the same on all ranks. Defaults of the operator's body are constants too."""
    constants = {**keywords_of(of), **dict(bound.constants)}
    # Without addresses: in words that are the same in every process.
    said = [f"{name}={re.sub(' at 0x[0-9a-f]+', '', repr(value))}" for name, value in sorted(constants.items())]
    return f"{of.name}({', '.join([*(f'{n}={size}' for n, size in bound.sizes), *bound.dtypes, *said])})"


def axes_of(of: Operator, topology: Topology) -> dict[str, int]:
    """How many ranks there are along each of the signature's axes of ranks.

    Raises:
        TilelinkError: TL234, they do not have these axes.
    """
    if of.signature.axes == (RANK_AXIS,):
        return {RANK_AXIS: topology.ranks}
    have = tuple(a.name for a in topology.axes)
    if have != of.signature.axes:
        shown = "no axes" if not have else f"the axes {' and '.join(have)}"
        sizes = ", ".join(f'"{axis}": …' for axis in of.signature.axes)
        raise TilelinkError(
            "TL234",
            f"`{of.name}` runs on ranks along {' and '.join(of.signature.axes)}",
            loc=of.loc,
            why=f"the {topology.ranks} ranks that call it have {shown} here",
            hint=f"pass group=tilelink.group(axes={{{sizes}}}), or launch with these axes",
        )
    return {axis: topology.size(axis) for axis in of.signature.axes}


def check_tensors(of: Operator, tensors: Sequence[Any]) -> None:
    """Number, kind and dtypes of the arguments.

    Raises:
        TilelinkError: TL221 wrong number of arguments, TL222 not a tensor, TL223 a dtype that has no kernel,
            TL224 a dtype that contradicts the signature, TL227 dtypes that differ, TL247 a negated view.
    """
    from tilelink.runtime.memory import NAMES

    if len(tensors) != len(of.signature.inputs):
        raise TilelinkError(
            "TL221",
            f"`{of.name}` takes {len(of.signature.inputs)} tensors and got {len(tensors)}",
            loc=of.loc,
            why=f"its signature is `{of.signature}`",
            hint="pass one tensor per input, in that order",
        )
    for k, t in enumerate(tensors):
        _check_tensor(of, k, t)
    free = [(k, NAMES[t.dtype]) for k, t in enumerate(tensors) if of.signature.inputs[k].dtype is None]
    for k, dtype in free:
        first, other = free[0]
        if dtype != other:
            what = f"is {dtype} and argument {first + 1} is {other}"
            why = "inputs whose signature names no dtype have one dtype: their tiles meet in one expression"
            raise _wrong(of, k, "TL227", what, why, "convert one of them, or name the dtype in the signature")


def constants_of(signature: Signature, given: Mapping[str, Any], sizes: Collection[str] = ()) -> dict[str, Any]:
    """The keyword arguments of a call that are no sizes, or these ones."""
    dims = sizes_of(signature)
    return {k: v for k, v in given.items() if k not in dims or k in sizes}


def _check_tensor(of: Operator, k: int, t: Any) -> None:
    import torch

    from tilelink.runtime.memory import NAMES

    shape = of.signature.inputs[k]
    if not isinstance(t, torch.Tensor):
        what, why = f"is {with_article(type(t).__name__)}, not a tensor", f"its shape is `{shape}`"
        hint = "pass a torch tensor (in the simulated backend also a list with one tensor per rank)"
        raise _wrong(of, k, "TL222", what, why, hint)
    if t.layout is not torch.strided:
        why = "tiles are cut from memory in which every element has a place"
        raise _wrong(of, k, "TL222", "is a sparse tensor", why, "pass its dense form")
    if t.is_neg():
        why = "programs read memory, which holds the values before: such as the imaginary part of a conjugate"
        hint = "pass `.resolve_neg()` of it"
        raise _wrong(of, k, "TL247", "is a view that torch negates where it reads it", why, hint)
    truth = t.dtype == torch.bool
    if truth and shape.dtype == TRUTH:
        return
    if t.dtype not in NAMES:
        why, hint = "tiles hold real numbers and integers of up to 64 bits", "convert it to one of these"
        if truth:
            hint = f"pass `.to(torch.uint8)` of it, or name `{TRUTH}` in the signature, which takes truth values, too"
        raise _wrong(of, k, "TL223", f"has dtype {str(t.dtype).removeprefix('torch.')}", why, hint)
    if shape.dtype is not None and NAMES[t.dtype] != shape.dtype:
        what, why = f"is {NAMES[t.dtype]} and its signature says {shape.dtype}", f"its shape is `{shape}`"
        raise _wrong(of, k, "TL224", what, why, "convert it, or change the signature")


def _wrong(of: Operator, k: int, code: str, what: str, why: str, hint: str) -> TilelinkError:
    """Of one argument."""
    return TilelinkError(code, f"argument {k + 1} of `{of.name}` {what}", loc=of.loc, why=why, hint=hint)


def layout(t: torch.Tensor, symmetric: bool = False) -> Layout:
    """What a plan may know of the tensor's memory."""
    strides = list(t.stride())
    if strides and t.is_contiguous():
        strides[-1] = 1  # torch puts anything there if the axis has one element, or the tensor none
    unit, apart = _laid(strides, t.element_size())
    return Layout(unit, apart and t.data_ptr() % 16 == 0, t.is_contiguous(), symmetric and t.is_contiguous())


def contiguous(shape: Sequence[int], item: int) -> Layout:
    """Of a contiguous tensor whose elements of `item` bytes begin at a multiple of 16 bytes."""
    strides = [math.prod(max(n, 1) for n in shape[a + 1 :]) for a in range(len(shape))]
    return Layout(*_laid(strides, item), True)


def _laid(strides: Sequence[int], item: int) -> tuple[int | None, bool]:
    """The axis whose elements lie side by side, and whether along others they lie multiples of 16 bytes apart."""
    unit = next((a for a in reversed(range(len(strides))) if strides[a] == 1), None)
    # A descriptor names the stride of an axis of one position too, and torch puts anything there.
    return unit, all(s * item % 16 == 0 for a, s in enumerate(strides) if a != unit)


def check_memory(of: Operator, tensors: Sequence[torch.Tensor], device: torch.device) -> None:
    """Every tensor has memory where the rank computes.

    Raises:
        TilelinkError: TL225 it lies elsewhere, TL222 it has none.
    """
    where = "the GPU of its rank" if device.type == "cuda" else "the CPU"
    for k, t in enumerate(tensors):
        if t.device != device:
            why = f"in this backend kernels read tensors on {where}"
            raise _wrong(of, k, "TL225", f"is on {t.device}", why, f"move it to {where}")
        if t.numel() and not t.data_ptr():
            what = f"is {with_article(type(t).__name__)} without memory of its own"
            why = "programs read memory: not what a tensor wraps, nor what has been freed"
            hint = "pass the tensor inside, such as `.to_local()` of a DTensor or `.wait()` of what a collective gave"
            raise _wrong(of, k, "TL222", what, why, hint)


def check_results(
    of: Operator,
    outs: Sequence[Any],
    results: Sequence[tuple[str, tuple[int, ...], torch.dtype]],
    device: torch.device,
) -> None:
    """What is passed as `out` can hold the results, of which it may name the first ones or skip some by None.

    Args:
        results: name, shape and dtype of each.

    Raises:
        TilelinkError: TL226.
    """
    if len(outs) > len(results):
        raise TilelinkError(
            "TL226",
            f"`out` of `{of.name}` has {len(outs)} tensors",
            loc=of.loc,
            why=f"there are {len(results)} results",
            hint="pass one for each, or none",
        )
    for out, (_, shape, dtype) in zip(outs, results, strict=False):
        got = "" if out is None else _unlike(out, shape, dtype, device)
        if got:
            raise TilelinkError(
                "TL226",
                f"`out` of `{of.name}` is {got}",
                loc=of.loc,
                why=f"the result on this rank is a contiguous {shape} of {dtype}",
                hint="pass such a tensor, or none",
            )


def _unlike(out: Any, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> str:
    """What `out` is, where it cannot hold a result of this shape and dtype."""
    import torch

    if not isinstance(out, torch.Tensor):
        return type(out).__name__
    strided = out.layout is torch.strided
    if (tuple(out.shape), out.dtype, out.device) == (shape, dtype, device) and strided and out.is_contiguous():
        return ""
    got = f"{tuple(out.shape)} {out.dtype}" + ("" if out.device == device else f" on {out.device}")
    got += f" with strides {out.stride()}" if strided and not out.is_contiguous() else ""
    return got + ("" if strided else f", {str(out.layout).removeprefix('torch.')}")


def results_of(
    of: Operator, tensors: Sequence[torch.Tensor], given: Mapping[str, Any], topology: Topology, rank: int
) -> tuple[tuple[tuple[Any, ...], torch.dtype], ...]:
    """Shape and dtype of each result, from the signature alone: nothing is planned. Sizes may be symbols of `torch.compile`.

    Args:
        tensors: the rank's part of each input, or tensors without data of the same kind.
        given: as of a call; a constant may be the size of a result.
        topology: how many ranks there are, and along which axes.
        rank: whose results.

    Raises:
        TilelinkError: TL230 a size that the signature's inputs do not have; those of a call for its arguments; TL234.
    """
    import torch

    from tilelink.runtime.memory import DTYPES

    signature = of.signature
    check_tensors(of, tensors)
    shapes = [tuple(t.shape) for t in tensors]
    axes, sizes = axes_of(of, topology), {**given, **bound_sizes(of, shapes, given, topology, rank)}
    # What this rank holds of the axes that are split evenly: an input's own length, which needs no division.
    own = {
        axis.name: length
        for shape, lengths in zip(signature.inputs, shapes, strict=True)
        if shape.rest is None and len(lengths) == len(shape.axes)
        for axis, length in zip(shape.axes, lengths, strict=True)
        if axis.split in axes and axis.name not in given
    }

    def known(dim: Dim) -> Any:
        if dim.name in sizes:
            return sizes[dim.name]
        raise TilelinkError(
            "TL230",
            f"the shapes of the inputs of `{of.name}` do not say how large `{dim}` of its results is",
            loc=of.loc,
            why=f"its signature is `{signature}`; torch asks for shapes before there is data",
            hint=f"write `{dim}` in the signature as what it is made of, `T*K`",
        )

    def extent(axis: Axis) -> Any:
        if axis.name in axes:
            return axes[axis.name]
        size = evaluated(axis.size, known)
        if axis.split is None or axis.split not in axes:
            return size
        if axis.name in own:
            return own[axis.name]
        part = -(-size // axes[axis.split])
        return torch.sym_max(0, torch.sym_min(part, size - topology.at(rank, axis.split) * part))

    found: list[tuple[tuple[Any, ...], torch.dtype]] = []
    for shape in signature.outputs:
        extents = [extent(a) for a in shape.axes if not a.own_slice]
        if shape.rest is not None:
            extents[shape.rest : shape.rest] = [sizes[name] for name in sizes if name.startswith("_")]
        found.append((tuple(extents), DTYPES[shape.dtype] if shape.dtype else tensors[0].dtype))
    return tuple(found)
