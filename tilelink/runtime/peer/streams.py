"""CUDA streams as `runtime.backend.Stream`: launches, events; and what a copy engine is asked for."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tilelink.errors import TilelinkError
from tilelink.ir.schedule import KernelOptions
from tilelink.runtime import kernels
from tilelink.runtime.backend import Descriptor, Library
from tilelink.runtime.kernels import compiling
from tilelink.runtime.peer import driver
from tilelink.runtime.refusals import check_arguments, check_copy

_LARGEST_PITCH = 2**31 - 1
"""What `cuMemcpy2DAsync` takes on every device."""


@dataclass(frozen=True, slots=True)
class Piece:
    """`rows` rows of `width` bytes; all fields are in bytes but `rows`, offsets count from the tensors' first bytes.

    With one row the pitches mean nothing and equal `width`.
    """

    target: int
    source: int
    width: int
    rows: int
    target_pitch: int
    source_pitch: int


def pieces(target: torch.Tensor, source: torch.Tensor) -> tuple[Piece, ...]:
    """Pieces that together copy `source` to `target`; none if empty. Where elements of the last axis do not follow one another,
    each is a row. Raises TL423, shapes or dtypes differ."""
    check_copy(target, source)
    return _pieces(tuple(target.shape), target.stride(), source.stride(), target.element_size())


@functools.lru_cache(maxsize=4096)
def _pieces(shape: tuple[int, ...], target: tuple[int, ...], source: tuple[int, ...], item: int) -> tuple[Piece, ...]:
    if 0 in shape:
        return ()
    axes: list[tuple[int, int, int]] = []
    for size, to, start in zip(shape, target, source, strict=True):
        if axes and axes[-1][1:] == (size * to, size * start):  # the two are one axis in both
            axes[-1] = (axes[-1][0] * size, to, start)
        elif size != 1:
            axes.append((size, to, start))
    width = axes.pop()[0] * item if axes and axes[-1][1:] == (1, 1) else item
    rows, target_pitch, source_pitch = 1, width, width
    if axes and all(width <= stride * item <= _LARGEST_PITCH for stride in axes[-1][1:]):
        rows, target_step, source_step = axes.pop()
        target_pitch, source_pitch = target_step * item, source_step * item
    found = list[Piece]()
    for at in itertools.product(*(range(size) for size, _, _ in axes)):
        to, start = (sum(i * axis[side] for i, axis in zip(at, axes, strict=True)) * item for side in (1, 2))
        found.append(Piece(to, start, width, rows, target_pitch, source_pitch))
    return tuple(found)


def copy_pieces(parts: tuple[Piece, ...], target: int, source: int, stream: int) -> None:
    """Between memory that begins at these addresses, on the CUDA stream with this handle."""
    for p in parts:
        to, start = target + p.target, source + p.source
        if p.rows == 1:
            driver.check(driver.library().cuMemcpyDtoDAsync_v2(to, start, p.width, stream), "cuMemcpyDtoDAsync")
        else:
            driver.copy_rows(to, p.target_pitch, start, p.source_pitch, p.width, p.rows, stream)


@dataclass(slots=True, eq=False)
class Launcher:
    """Kernels and their arguments on one device.

    `device`: where every tensor argument must be. `options`: further compiler options of every kernel, such as `extern_libs`.
    `prepare`: called once with each compiled kernel, loaded and not yet started. `room`: bytes of shared memory that a block
    may have; None: not looked at.
    """

    device: torch.device
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    prepare: Callable[[Any], None] | None = None
    room: int | None = None
    _admitted: dict[Any, int] = field(default_factory=dict[Any, int])

    def load(self, kernel: Any, workers: int, args: Mapping[str, Any], options: KernelOptions) -> tuple[Any, list[Any]]:
        """The compiled kernel, loaded and checked, and the values to start it with in order.

        The first time of each specialisation compiles it; `warmup` finds the later ones in Triton's own cache, and starting
        what it gives spares a second look at the arguments.

        Its loops have as many stages as asked for, or as shared memory holds. Raises TL405 more workers than can run at
        once, TL410 more shared memory than there is, TL412 a line that Triton does not accept, TL424 arguments and
        parameters differ, TL425 a tensor is elsewhere, TL426 a tensor has no TMA descriptor.
        """
        values = {name: self._value(name, value) for name, value in args.items()}
        check_arguments(kernel.__name__, kernel.arg_names, values)
        compiled = self._compiled(kernel, options, dict(grid=(workers,), **self.options, **values))
        _ = compiled.run  # loads it, which checks and preparations need
        if self._admitted.get(compiled, 0) < workers:
            kernels.require_resident(compiled, workers)
            if self.prepare is not None and compiled not in self._admitted:
                self.prepare(compiled)
            self._admitted[compiled] = workers
        return compiled, [values[name] for name in kernel.arg_names]

    def _compiled(self, kernel: Any, options: KernelOptions, given: Mapping[str, Any]) -> Any:
        """The kernel with the most stages, up to those asked for, that it has the shared memory for."""
        with compiling(kernel):
            compiled = kernel.warmup(**options.given(), **given)
        if self.room is None or compiled.metadata.shared <= self.room:
            return compiled
        if options.num_stages > 1:
            return self._compiled(kernel, replace(options, num_stages=options.num_stages - 1), given)
        raise TilelinkError(
            "TL410",
            f"kernel {compiled.name} needs {compiled.metadata.shared} bytes of shared memory, and a block has {self.room}",
            why="tiles of a product, and tiles that TMA stores, go through shared memory",
            hint="give it smaller tiles",
        )

    def _value(self, name: str, value: Any) -> Any:
        tensor = value.tensor if isinstance(value, Descriptor) else value
        if isinstance(tensor, torch.Tensor) and tensor.device != self.device:
            raise TilelinkError(
                "TL425",
                f"argument {name} is on {tensor.device}, and this rank runs on {self.device}",
                why="kernels see the memory of their own GPU and the symmetric memory of its peers",
                hint=f"move it: {name}.to({str(self.device)!r})",
            )
        return value.of_argument(name) if isinstance(value, Descriptor) else value


def own_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream that nobody else has, for as long as the process lives: torch hands out its 32 again and again, so that one
    day a caller's would be the one that this rank's work waits for. It goes first where hardware can choose."""
    if torch.version.hip:
        return torch.cuda.Stream(device, priority=-1)
    driver.enter(device.index)
    return torch.cuda.ExternalStream(driver.create_stream(priority=-1), device)


class CudaStream:
    """One CUDA stream of this rank; all methods are asynchronous and legal under CUDA-graph capture.

    Kernels must have been launched once before capture, because that compiles and loads them.
    """

    def __init__(self, stream: torch.cuda.Stream, launcher: Launcher) -> None:
        self.stream = stream
        self.handle: int = stream.cuda_stream
        self._launcher = launcher

    def launch(self, kernel: Any, workers: int, args: Mapping[str, Any], options: KernelOptions) -> None:
        """Start `workers` instances of a `triton.jit` function; raises as `Launcher.load`."""
        compiled, values = self._launcher.load(kernel, workers, args, options)
        compiled[(workers, 1, 1)](*values, stream=self.handle)

    def apply(self, function: Library, inputs: Sequence[torch.Tensor], output: torch.Tensor | None) -> None:
        # `torch.cuda.stream` does the same, and takes its host 9 µs to find the device out.
        before = torch.cuda.current_stream(self.stream.device_index)
        torch.cuda.set_stream(self.stream)
        # A program's products do not depend on who calls it, and so those of the function in its place do not.
        cast = torch._C._is_any_autocast_enabled()
        try:
            with torch.no_grad(), torch.autocast(self._launcher.device.type, enabled=False) if cast else nullcontext():
                if output is None:
                    function(*inputs)
                else:
                    function(*inputs, out=output)
        finally:
            torch.cuda.set_stream(before)

    def capturing(self) -> bool:
        """Whether it is being captured into a CUDA graph."""
        with torch.cuda.stream(self.stream):
            return torch.cuda.is_current_stream_capturing()

    def record(self) -> Any:
        return self.stream.record_event()

    def stamp(self) -> Any:
        return self.stream.record_event(torch.cuda.Event(enable_timing=True))

    def wait(self, event: Any) -> None:
        self.stream.wait_event(event)
