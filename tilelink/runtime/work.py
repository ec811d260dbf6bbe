"""What a call asks of the streams of its rank, stated once per plan and slot and done in every call.

A world makes a `Step` of each piece of work, and settles then whatever does not change from call to call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from tilelink.ir.host import MAIN
from tilelink.ir.options import KernelOptions
from tilelink.runtime.world import Descriptor

if TYPE_CHECKING:
    from tilelink.runtime.world import Stream, World


# ------------------------------------------------------------------------------------------------ what only a call knows
@dataclass(frozen=True, slots=True)
class Given:
    """An argument or result, by name. Its shape, strides, dtype, device and alignment are the same in every call."""

    name: str


@dataclass(frozen=True, slots=True)
class Instance:
    """Rank `pe`'s instance of an argument in memory of `tilelink.empty`, which is contiguous."""

    name: str
    pe: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ContextOf:
    """The context of the arena that an argument lies in; for the ranks of a line, if one is named."""

    name: str
    line: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Credits:
    """1 where the call waits for its credits, else 0."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A TMA descriptor of `tensor`, its axes in the order `axes`. `parts`: an axis that is first made two, and the length of
    the second one."""

    tensor: torch.Tensor | Given
    axes: tuple[int, ...]
    block: tuple[int, ...]
    parts: tuple[int, int] | None = None

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor as the descriptor sees it."""
        if self.parts is not None:
            tensor = tensor.unflatten(self.parts[0], (-1, self.parts[1]))
        return tensor.permute(self.axes)


Value: TypeAlias = "torch.Tensor | Given | ContextOf | Credits | Tile | bool | int | float | str | None"
"""What is passed for a kernel's parameter."""


@dataclass(slots=True)
class Call:
    """One call: its tensors by name, whether it takes its credits, and the stream that it was made on."""

    tensors: Mapping[str, torch.Tensor]
    credits: int
    main: Stream
    parts: dict[str, list[Any]] | None = None
    """What library functions have given for runs of tiles that are not through yet; None: nothing so far."""


# --------------------------------------------------------------------------------------------------------- pieces of work
@dataclass(frozen=True, slots=True)
class Launch:
    """`workers` instances of a `triton.jit` kernel; `args` by parameter name."""

    kernel: Any
    workers: int
    args: Mapping[str, Value]
    options: KernelOptions


@dataclass(frozen=True, slots=True)
class View:
    """Positions `[begin, end)` along each axis of a tensor."""

    of: torch.Tensor | Given | Instance
    box: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Copy:
    """Element by element, from one view to another."""

    target: View
    source: View


@dataclass(frozen=True, slots=True)
class WaitBell:
    """Until the one-element int64 `bell` is `times`; then it is 0 again."""

    bell: torch.Tensor
    times: int = 1


@dataclass(frozen=True, slots=True)
class Follow:
    """What comes next begins after all that the stream `other` has been given so far."""

    other: int


@dataclass(frozen=True, slots=True)
class Apply:
    """`function(*inputs, out=output, **constants)` on views, on the stream.

    `tile`: the function takes a tile run by run. Without an `output` what it gives is kept under this name; with one it is
    the merge, `function(parts, out=output)`, of what was kept, in this order.
    """

    function: Callable[..., object]
    inputs: tuple[View, ...]
    output: View | None
    constants: Mapping[str, Any]
    tile: str | None = None

    def function_in(self, call: Call) -> Callable[..., object]:
        """The function in one call, which has what runs of its tiles gave."""
        if self.tile is None:
            return self.function
        if call.parts is None:
            call.parts = {}
        function, name, kept = self.function, self.tile, call.parts

        def contribute(*inputs: torch.Tensor, **constants: Any) -> None:
            kept.setdefault(name, []).append(function(*inputs, **constants))

        def merge(*, out: torch.Tensor) -> None:
            function(kept.pop(name, []), out=out)

        return contribute if self.output is None else merge


Work: TypeAlias = Launch | Copy | WaitBell | Follow | Apply


Step: TypeAlias = Callable[[Call], None]
"""Enqueues a piece of work; what does not change from call to call has been settled."""


# --------------------------------------------------------------------------------------------------------------- resolving
def tensor_of(what: torch.Tensor | Given | Instance, call: Call, world: World) -> torch.Tensor:
    if isinstance(what, Given):
        return call.tensors[what.name]
    if isinstance(what, Instance):
        # The last ranks may have less than this one says that they have.
        flat = world.symmetric_arena(call.tensors[what.name], what.pe)
        strides = (math.prod(what.shape[k + 1 :]) for k in range(len(what.shape)))
        return flat.as_strided(what.shape, tuple(strides))
    return what


def view_of(view: View, call: Call, world: World) -> torch.Tensor:
    return tensor_of(view.of, call, world)[tuple([slice(begin, end) for begin, end in view.box])]


def ends_of(work: Copy, call: Call, world: World) -> tuple[torch.Tensor, torch.Tensor]:
    """Target and source of a copy, with as few axes as both allow, the last one without gaps."""
    # One of the two may have an axis of one element more: a slice's, or a tile's that is one position.
    target, source = view_of(work.target, call, world), view_of(work.source, call, world)
    pairs = zip(_longer(target), _longer(source), strict=True)
    axes = merged((size, to, start) for (size, to), (_, start) in pairs)
    if not axes or axes[-1][1:] != (1, 1):
        axes.append((1, 1, 1))
    shape, to, start = zip(*axes, strict=True)
    return target.as_strided(shape, to), source.as_strided(shape, start)


def _longer(tensor: torch.Tensor) -> list[tuple[int, int]]:
    """(size, stride) of each axis that is not of one element."""
    return [axis for axis in zip(tensor.shape, tensor.stride(), strict=True) if axis[0] != 1]


def merged(axes: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """(size, target stride, source stride) per axis, with axes joined that are one axis in both."""
    found: list[tuple[int, int, int]] = []
    for size, target, source in axes:
        if found and found[-1][1:] == (size * target, size * source):
            found[-1] = (found[-1][0] * size, target, source)
        else:
            found.append((size, target, source))
    return found


def value_of(value: Value, call: Call, world: World) -> Any:
    """A kernel's argument as `Stream.launch` takes it."""
    if isinstance(value, Credits):
        return call.credits
    if isinstance(value, ContextOf):
        return world.context_of(call.tensors[value.name], value.line)
    if isinstance(value, Tile):
        return Descriptor(value.view(tensor_of(value.tensor, call, world)), value.block)
    return call.tensors[value.name] if isinstance(value, Given) else value


def stream_of(number: int, call: Call, world: World) -> Stream:
    return call.main if number == MAIN else world.side_stream(number)


def plain_step(work: Work, number: int, world: World) -> Step:
    """A step that asks stream `number` anew in every call."""
    if isinstance(work, Launch):

        def launch(call: Call) -> None:
            args = {name: value_of(value, call, world) for name, value in work.args.items()}
            stream = stream_of(number, call, world)
            stream.launch(work.kernel, work.workers, args, work.options)

        return launch
    if isinstance(work, WaitBell):
        return lambda call: stream_of(number, call, world).wait_bell(work.bell, work.times)
    if isinstance(work, Follow):
        other = work.other
        return lambda call: stream_of(number, call, world).wait(stream_of(other, call, world).record())

    if isinstance(work, Apply):

        def apply(call: Call) -> None:
            inputs = [view_of(v, call, world) for v in work.inputs]
            output = view_of(work.output, call, world) if work.output is not None else None
            stream_of(number, call, world).apply(work.function_in(call), inputs, output, work.constants)

        return apply

    return lambda call: stream_of(number, call, world).copy(*ends_of(work, call, world))
