"""What an operator needs of the backend it runs in: memory, streams, and the ranks' agreement; and what it asks of streams.

Four backends implement it: `simulated`, `peer`, `nvshmem` and `gloo`, which runs no kernels. One `Backend` object is one rank.
What a call asks of its streams is stated once per plan and slot (`Work`) and done in every call: a backend makes a `Step` of
each piece, and settles then whatever does not change from call to call.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, TypeVar

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from tilelink.errors import TilelinkError
from tilelink.ir.plan import MAIN
from tilelink.ir.schedule import KernelOptions
from tilelink.ir.topology import Topology
from tilelink.runtime.grid import Grid, laid_out
from tilelink.runtime.memory import Arena, Arenas
from tilelink.runtime.refusals import no_kernels, not_in_group, reported

if TYPE_CHECKING:
    from tilelink.runtime.watchdog import Guard, StoreWatcher

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Given:
    """An argument or result, by name. Its shape, strides, dtype, device and alignment are the same in every call."""

    name: str


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A kernel argument that becomes a TMA descriptor: a tensor of two axes or more, and the block shape. `axes`: the tensor's in
    another order. `parts`: an axis that is first made two, and the length of the second one."""

    tensor: torch.Tensor | Given
    block: tuple[int, ...]
    axes: tuple[int, ...] | None = None
    parts: tuple[int, int] | None = None

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor as the descriptor sees it."""
        if self.parts is not None:
            tensor = tensor.unflatten(self.parts[0], (-1, self.parts[1]))
        return tensor if self.axes is None else tensor.permute(self.axes)

    def of_argument(self, name: str) -> TensorDescriptor:
        """Triton's descriptor, for argument `name`, of a tensor that is known. Raises TL426, there can be none."""
        assert isinstance(self.tensor, torch.Tensor)
        # Without elements it has no address, and no tile. That memory is nobody's: to touch it is an error.
        seen = self.view(self.tensor) if self.tensor.numel() else self.tensor.new_zeros(self.block)
        try:
            return TensorDescriptor(seen, list(seen.shape), list(seen.stride()), list(self.block))
        except (AssertionError, ValueError, TypeError) as error:
            raise TilelinkError(
                "TL426",
                f"argument {name} has no TMA descriptor: {error}",
                why="TMA needs the first byte and all rows at multiples of 16 bytes, and a contiguous last axis",
                hint="make the last axis a multiple of 16 bytes, or load this tensor by pointers",
            ) from error


Library: TypeAlias = Callable[..., object]
"""A function of tensors, which may take `out=`."""


class Stream(Protocol):
    """Work in order: what all backends do alike. Everything here is asynchronous to the host and legal under CUDA-graph
    capture."""

    def launch(self, kernel: Any, workers: int, args: Mapping[str, Any], options: KernelOptions) -> None:
        """Start `workers` instances of a `triton.jit` kernel; `args` by parameter name."""

    def apply(self, function: Library, inputs: Sequence[torch.Tensor], output: torch.Tensor | None) -> None:
        """`function(*inputs, out=output)` with this stream as torch's current one, without gradients; no `out` where there is no
        output."""

    def record(self) -> Any:
        """A point in the stream, for `wait`."""

    def stamp(self) -> Any:
        """A point in the stream whose time `Backend.read` gives; not under capture."""

    def wait(self, event: Any) -> None: ...


class Backend(ABC):
    """One rank of a backend, and what all backends have alike: ranks laid out along axes, symmetric memory.

    A backend that runs kernels overrides what streams and clocks need; one that runs none inherits the refusals.
    """

    rank: int
    ranks: int
    topology: Topology
    members: tuple[int, ...]
    """Each rank's number among all ranks that there are."""
    numbers: tuple[int, ...]
    """Each rank's number where device functions are told of it."""
    device: torch.device
    """Where tensors of this rank lie."""
    group: Any
    """The ranks as a group of torch.distributed; None where they are simulated."""
    only_references = False
    """Whether nothing but an operator's reference runs here: processes on CPUs."""
    arenas: Arenas
    """Symmetric memory that is not freed."""
    late = False
    """Whether this rank's device began before its host had started all of the call that was timed last."""

    # -------------------------------------------------------------------------------------------------------- the ranks
    @property
    @abstractmethod
    def name(self) -> str:
        """By which `named` finds the group again on this rank, for graphs of torch, whose constants are no groups."""

    @property
    def alive(self) -> bool:
        """Whether its ranks can be called: a process group may have been destroyed, and its name be that of another one now."""
        return True

    @abstractmethod
    def named(self, name: str) -> Any:
        """What `within` takes for the group of that name. Raises TL456, there is none."""

    def among(self, ranks: Sequence[int]) -> Any:
        """What `within` takes for some of this backend's ranks, in rising order. All of them call this, and no others, each with
        its groups in the same order. Raises TL455, this rank is not among them."""
        if self.rank not in ranks:
            raise not_in_group(self.rank, ranks)
        return self._group_of(tuple(self.members[r] for r in ranks))

    @abstractmethod
    def _group_of(self, members: tuple[int, ...]) -> Any:
        """A group of these, by their numbers among all ranks that there are."""

    def within(self, group: Any) -> Self:
        """The backend of a group that this rank is in: its ranks are numbered from 0, its streams are this backend's. Collective
        over the group. Raises TL454, it is no group; TL455: this rank is not in it."""
        (members, found), me = self._members_of(group), self.members[self.rank]
        if me not in members:
            raise not_in_group(me, members)
        if members == self.members:
            return self
        part = self._part([self.members.index(m) for m in members])
        part.group = found
        return part

    @abstractmethod
    def _members_of(self, group: Any) -> tuple[tuple[int, ...], Any]:
        """The ranks of a group, by their numbers among all that there are, and the group as `Backend.group` has it. Raises TL454,
        it is no group."""

    def grid(self, group: Any) -> Grid | None:
        """The axes that a group comes with, such as a `DeviceMesh` of several dimensions; None: it is one of `within`."""
        del group
        return None

    def laid_out(self, grid: Grid) -> Self:
        """This backend with its ranks along several axes, the last one of neighbours: the same memory, streams and meetings.
        Raises TL457, there are more or fewer ranks."""
        made = copy.copy(self)
        made.topology = laid_out(self.topology, grid, self._reach_among)
        return made

    def _part(self, ranks: Sequence[int]) -> Self:
        """This backend for some of its ranks, this one among them: the same device and streams, memory of its own."""
        made = copy.copy(self)
        made.rank, made.ranks = ranks.index(self.rank), len(ranks)
        made.members, made.numbers = (tuple(of[r] for r in ranks) for of in (self.members, self.numbers))
        made.topology = replace(self.topology, ranks=len(ranks), reach=self._reach_among(ranks), axes=())
        made.arenas = Arenas()
        return made

    def _reach_among(self, ranks: Sequence[int]) -> str:
        """How some ranks reach one another."""
        del ranks
        return self.topology.reach

    @abstractmethod
    def agree(self, value: Any) -> list[Any]:
        """Collective, on the host: every rank's `value`, which must be picklable, by rank."""

    @abstractmethod
    def barrier(self) -> None:
        """Collective, on host and device: all earlier work of all ranks is complete."""

    # ----------------------------------------------------------------------------------------------------------- memory
    def arena(self, nbytes: int, *, wrong: str = "") -> Arena:
        """Collective: symmetric memory, zeroed on every rank before any rank returns. Every rank asks for the same number of
        bytes in the same order; `wrong`: why this rank cannot go on with it, and so none does. Raises TL436, they ask for
        different sizes, or for none; TL471, something is wrong on some rank; and what the backend's memory does."""
        asked: list[int | str] = self.agree(wrong or nbytes)
        for rank, said in enumerate(asked):
            if isinstance(said, str):
                raise reported(rank, said)
        if nbytes <= 0 or set(asked) != {nbytes}:
            raise TilelinkError(
                "TL436",
                f"the ranks ask for symmetric memory of {', '.join(map(str, asked))} bytes",
                why="symmetric memory has one size, above 0, on every rank",
                hint="make the ranks run the same operators in the same order",
            )
        arena = self._allocate(nbytes)
        self.arenas.add(arena)
        return arena

    @abstractmethod
    def _allocate(self, nbytes: int) -> Arena:
        """Collective: zeroed on every rank."""

    def zeros(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        """Plain device memory of this rank, zeroed."""
        return self.lasting(partial(torch.zeros, size, dtype=dtype, device=self.device))

    def lasting(self, make: Callable[[], T]) -> T:
        """What `make` gives, whose tensors outlive the modes that the caller's are made under. In inference mode nobody could
        write to them later, such as a library function, or the watchdog."""
        with torch.inference_mode(False):
            return make()

    def maker(self, shape: Sequence[int], dtype: torch.dtype) -> Callable[[], torch.Tensor]:
        """Makes tensors for results, in plain device memory of this rank."""
        return partial(torch.empty, tuple(shape), dtype=dtype, device=self.device)

    def shared_words(self, count: int, *, on_host: bool) -> torch.Tensor:
        """Plain int64 words, zeroed, that this rank's kernels find by address: in its GPU's memory, or where the host
        reads and writes them while kernels run."""
        del on_host
        return self.zeros(count, torch.int64)

    # ----------------------------------------------------------------------------------------------- streams and clocks
    def main_stream(self, capturing: bool | None = None) -> Stream:
        """The caller's current stream, behind what the one has been given that was asked for before.

        Calls on two streams would use one slot at a time, and peers would wait for kernels that find no room beside others.

        Args:
            capturing: what `capturing` says, if it has been asked: calls in graphs are in order among themselves.
        """
        raise no_kernels()

    def side_stream(self, index: int) -> Stream:
        """The stream with this number: always the same one."""
        raise no_kernels()

    def step(self, work: Work, stream: int, first: Call) -> Step:
        """Work of the stream with this number (`ir.plan.MAIN`: that of the call), ready to be done in calls like `first`.

        Its kernel is compiled and loaded here. Nothing is started.
        """
        raise no_kernels()

    def capturing(self) -> bool:
        """Whether the main stream is being captured into a CUDA graph."""
        return False

    def drain(self) -> None:
        """This rank's work is complete. Not collective."""
        return None

    def finish(self) -> None:
        """In the simulated backend: run until all streams of this rank are idle. On GPUs, which run by themselves: nothing."""
        return None

    def timed(self, call: Callable[[], Any], host_us: float = 0.0) -> float:
        """Collective: milliseconds (in the simulated backend: simulated ones) that `call` takes on this rank's device.

        All ranks begin together; what the host does is not part of it, and no input lies in a cache.

        Args:
            host_us: microseconds that the host may take to start it; the device begins after twice as many.
        """
        raise no_kernels()

    def read(self, stamps: Sequence[Any]) -> list[int]:
        """Nanoseconds of the clock that this rank's kernels read; waits until the streams have come to the stamps."""
        raise no_kernels()

    def skew(self) -> int:
        """Collective: nanoseconds by which this rank's clock is ahead of rank 0's, to within a few microseconds."""
        raise no_kernels()

    # ---------------------------------------------------------------------------------------------------------- watching
    def limit_waits(self, seconds: float | None) -> None:
        """Waits with a time limit have so many. In the simulated backend, where only this makes time pass; on GPUs: nothing."""
        del seconds

    def watch_over(self, guard: Guard, doorbells: Callable[[], list[torch.Tensor]]) -> StoreWatcher | None:
        """Start what looks after a guard beside the rank's program; `doorbells`: the flags that its streams wait for.

        None where nobody has to: gloo has timeouts of its own, and a simulated program looks for itself at the end of each call.
        """
        del guard, doorbells
        return None


# ------------------------------------------------------------------------------------------------ what only a call knows
@dataclass(frozen=True, slots=True)
class ContextOf:
    """The context of the arena that an argument lies in; for the ranks of a line, if one is named."""

    name: str
    line: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Credits:
    """1 where the call waits for its credits, else 0."""


Value: TypeAlias = "torch.Tensor | Given | ContextOf | Credits | Descriptor | bool | int | float | str | None"
"""What is passed for a kernel's parameter."""


@dataclass(slots=True)
class Call:
    """One call on one rank: its tensors by name, whether it takes its credits, and the stream that it was made on."""

    tensors: Mapping[str, torch.Tensor]
    credits: int
    backend: Backend
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

    def enqueue(self, stream: Stream, call: Call) -> None:
        """Let a stream do it."""
        args = {name: value_of(value, call) for name, value in self.args.items()}
        stream.launch(self.kernel, self.workers, args, self.options)


@dataclass(frozen=True, slots=True)
class View:
    """Positions `[begin, end)` along each axis of a tensor. `pe`: the rank whose memory it is, if it is another's: then `shape`
    is that of its instance of an argument in memory of `tilelink.empty`, which is contiguous."""

    of: torch.Tensor | Given
    box: tuple[tuple[int, int], ...]
    pe: int | None = None
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Copy:
    """Element by element, from one view to another."""

    target: View
    source: View


@dataclass(frozen=True, slots=True)
class WaitDoorbell:
    """Until the one-element int64 `doorbell` is `times`; then it is 0 again."""

    doorbell: torch.Tensor
    times: int = 1


@dataclass(frozen=True, slots=True)
class Follow:
    """What comes next begins after all that the stream `other` has been given so far."""

    other: int

    def enqueue(self, stream: Stream, call: Call) -> None:
        stream.wait(stream_of(self.other, call).record())


@dataclass(frozen=True, slots=True)
class Apply:
    """`function(*inputs, out=output)` on views, on the stream.

    `tile`: the function takes a tile run by run. Without an `output` what it gives is kept under this name; with one it is
    the merge, `function(parts, out=output)`, of what was kept, in this order.
    """

    function: Library
    inputs: tuple[View, ...]
    output: View | None
    tile: str | None = None

    def function_in(self, call: Call) -> Library:
        """The function in one call, which has what runs of its tiles gave."""
        if self.tile is None:
            return self.function
        if call.parts is None:
            call.parts = {}
        function, name, kept = self.function, self.tile, call.parts

        def contribute(*inputs: torch.Tensor) -> None:
            kept.setdefault(name, []).append(function(*inputs))

        def merge(*, out: torch.Tensor) -> None:
            function(kept.pop(name, []), out=out)

        return contribute if self.output is None else merge


Work: TypeAlias = Launch | Copy | WaitDoorbell | Follow | Apply
Step: TypeAlias = Callable[[Call], None]
"""Enqueues a piece of work; what does not change from call to call has been settled."""


# --------------------------------------------------------------------------------------------------------------- resolving
def tensor_of(what: torch.Tensor | Given, call: Call) -> torch.Tensor:
    return call.tensors[what.name] if isinstance(what, Given) else what


def whole_of(view: View, call: Call) -> torch.Tensor:
    """The tensor that it is a part of."""
    mine = tensor_of(view.of, call)
    if view.pe is None or isinstance(view.of, torch.Tensor):
        return mine
    # The last ranks may have less than this one says that they have.
    flat = call.backend.arenas.holding(mine).instance(mine, view.pe)
    strides = (math.prod(view.shape[k + 1 :]) for k in range(len(view.shape)))
    return flat.as_strided(view.shape, tuple(strides))


def view_of(view: View, call: Call) -> torch.Tensor:
    return whole_of(view, call)[tuple([slice(begin, end) for begin, end in view.box])]


def ends_of(work: Copy, call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """Target and source of a copy, in one shape: one of the two may have an axis of one element more, a slice's, or a tile's
    that is one position."""
    return view_of(work.target, call).squeeze(), view_of(work.source, call).squeeze()


def value_of(value: Value, call: Call) -> Any:
    """A kernel's argument as `Stream.launch` takes it."""
    if isinstance(value, Credits):
        return call.credits
    if isinstance(value, ContextOf):
        return call.backend.arenas.holding(call.tensors[value.name]).along(value.line)
    if isinstance(value, Descriptor):
        return replace(value, tensor=tensor_of(value.tensor, call))
    return call.tensors[value.name] if isinstance(value, Given) else value


def stream_of(number: int, call: Call) -> Stream:
    return call.main if number == MAIN else call.backend.side_stream(number)


def plain_step(work: Launch | Follow, number: int) -> Step:
    """A step that asks stream `number` anew in every call."""
    return lambda call: work.enqueue(stream_of(number, call), call)


def apply_step(work: Apply, number: int, first: Call) -> Step:
    """Views of memory of the workspace are made now, those of the call's own tensors in each call."""
    inputs = [_viewing(v, first) for v in work.inputs]
    output = _viewing(work.output, first) if work.output is not None else None
    stream = first.backend.side_stream(number)

    def apply(call: Call) -> None:
        written = output(call) if output is not None else None
        stream.apply(work.function_in(call), [view(call) for view in inputs], written)

    return apply


def _viewing(view: View, first: Call) -> Callable[[Call], torch.Tensor]:
    if isinstance(view.of, torch.Tensor):
        fixed = view_of(view, first)
        return lambda call: fixed
    if view.pe is not None:
        return lambda call: view_of(view, call)
    name = view.of.name
    if all((0, n) == span for n, span in zip(first.tensors[name].shape, view.box, strict=True)):
        return lambda call: call.tensors[name]
    place = tuple([slice(begin, end) for begin, end in view.box])
    return lambda call: call.tensors[name][place]
