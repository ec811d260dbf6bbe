"""What is compared on one case."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from tilelink.errors import TilelinkError
from tilelink.explore.comparison import Simulated
from tilelink.pipeline.operator import Operator
from tilelink.runtime.backend import Backend

Run = Callable[[], Any]
Sizes = Mapping[str, int]
Variants = Mapping[str, Operator]
"""Ours by name: `OURS`, and further schedules that are to be compared with it."""

OURS = "ours"
TILED = "ours, tile programs"
"""Ours where a call would run the unfused form."""
GEMM = "cublas gemm"
TRITON = "triton gemm"
COMM = "nccl"
OWN_COMM = "own communication"
UNFUSED = "unfused"
ASYNC_TP = "async-tp"

NO_GPU = "simulated: there is no GPU"
PLAIN = "it runs the unfused form, which may ask the host"


def how(operator: Operator, tensors: tuple[torch.Tensor, ...], **given: Any) -> str:
    """How an operator runs on these tensors, step by step, or that it does not overlap, and why."""
    choice = operator.calls.how(tensors, given)
    if choice.schedule.unfused:
        return str(choice)
    return "; ".join(f"{s.path}: {s}" for s in operator.plan(*tensors, **given).steps)


def same(result: Any) -> Any:
    return result


class Turns:
    """Sets of inputs that take turns, so that no call finds its own in a cache."""

    def __init__(self, sets: Sequence[tuple[torch.Tensor, ...]]) -> None:
        self._sets = sets
        self._next = 0

    def __call__(self) -> tuple[torch.Tensor, ...]:
        taken = self._sets[self._next % len(self._sets)]
        self._next += 1
        return taken

    def rewind(self, to: int = 0) -> None:
        self._next = to


@dataclass(frozen=True, slots=True)
class Roles:
    """Which contenders a row's figures are of, by name; "": none, the figure has no meaning.

    `gemm`: work without communication. `comm`: communication alone. `unfused`: the two after one another. `baseline`:
    what ours is to beat: the fastest of these.
    """

    gemm: str = GEMM
    comm: str = COMM
    unfused: str = UNFUSED
    baseline: tuple[str, ...] = (UNFUSED,)


@dataclass(frozen=True, slots=True)
class Contender:
    """`run`: what is timed. `checked`: the same once, into poisoned memory, on the inputs that all contenders have; gives
    what is compared with ours, None if it has no result that ours has. `reads`: of a result of `run`, what is compared.
    `ungraphed`: why no CUDA graph can hold it. `library`: it runs without GPUs too, but not in simulated time."""

    run: Run
    checked: Run | None = None
    reads: Callable[[Any], Any] = same
    ungraphed: str = ""
    library: bool = False


@dataclass(slots=True, eq=False)
class Contest:
    """Contenders on one case's inputs, on one rank.

    `contenders`: by name, `OURS` and further schedules of ours among them. `missing`: the names of those that cannot be run
    here, and why. `ran`: how each of ours runs. `inputs`: what gets new random values before every round; `redraws`: what
    else is new then. `outputs`: what contenders write to, poisoned before results are compared. `graphed`: calls that a
    captured graph has; 0: no graphs.
    """

    contenders: dict[str, Contender] = field(default_factory=dict[str, Contender])
    missing: dict[str, str] = field(default_factory=dict[str, str])
    inputs: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    outputs: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    redraws: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    turns: list[Turns] = field(default_factory=list[Turns])
    ran: dict[str, Callable[[], str]] = field(default_factory=dict[str, Callable[[], str]])
    used: list[Operator] = field(default_factory=list[Operator])
    """What has a workspace that is given back after the contest."""
    kept: list[Any] = field(default_factory=list[Any])
    """What has to live as long."""
    roles: Roles = field(default_factory=Roles)
    graphed: int = 0

    def fresh(self) -> None:
        for t in self.inputs:
            if t.numel():
                t.normal_()
        for redraw in self.redraws:
            redraw()

    def rewind(self, to: int = 0) -> None:
        for turns in self.turns:
            turns.rewind(to)

    def poison(self) -> None:
        for t in self.outputs:
            poisoned(t)

    def add(self, name: str, run: Run, checked: Run | None = None, **more: Any) -> None:
        """A contender; `more` as of `Contender`."""
        self.contenders[name] = Contender(run, checked, **more)

    def rival(self, name: str, run: Run, **more: Any) -> None:
        """A contender that is compared by what it gives whenever it runs."""
        self.add(name, run, run, **more)

    def enter(
        self,
        name: str,
        operator: Operator,
        tensors: tuple[torch.Tensor, ...] | Turns,
        reads: Callable[[Any], Any] = same,
        **given: Any,
    ) -> None:
        """One of ours; where a call would run the unfused form, its tile programs too.

        Args:
            reads: of its result, what is compared.
            given: as of a call.
        """
        turns = tensors if isinstance(tensors, Turns) else Turns([tensors])
        first = turns()
        turns.rewind()
        plain = _plain(operator, first, given)

        def run() -> Any:
            return operator(*turns(), **given)

        def checked() -> Any:
            mine = turns()
            return reads(operator(*mine, out=alike(operator(*mine, **given)), **given))

        if turns not in self.turns:
            self.turns.append(turns)
        self.add(name, run, checked, reads=reads, ungraphed=PLAIN if plain else "")
        self.ran[name] = lambda: how(operator, first, **given)
        self.used.append(operator)
        if plain and not operator.scheduled:
            tiled = operator.schedule(unfused=False)
            self.enter(TILED if name == OURS else f"{name}, tile programs", tiled, turns, reads, **given)

    def close(self) -> None:
        """Collective."""
        for operator in self.used:
            operator.close()


def _plain(operator: Operator, tensors: tuple[torch.Tensor, ...], given: dict[str, Any]) -> bool:
    """Whether a call runs the unfused form."""
    try:
        return operator.calls.how(tensors, given).schedule.unfused
    except TilelinkError:
        return False  # which the call will raise again


def poisoned(t: torch.Tensor) -> torch.Tensor:
    """`t`, full of what no contender computes."""
    return t.fill_(float("nan") if t.dtype.is_floating_point else -7)


def alike(result: Any) -> Any:
    """Poisoned tensors like a result."""
    if isinstance(result, torch.Tensor):
        return poisoned(torch.empty_like(result))
    return tuple(poisoned(torch.empty_like(t)) for t in result)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a contest is held: this rank's backend, and the name of the process group that torch's own contenders use."""

    backend: Backend
    group: str | None

    @property
    def simulated(self) -> bool:
        return self.group is None

    @property
    def device(self) -> torch.device:
        return torch.device("cpu") if self.simulated else torch.device("cuda", torch.cuda.current_device())

    @property
    def libraries(self) -> Any:
        """What has the collectives of `torch.distributed`, by their names: of simulated ranks right, and without a time."""
        return Simulated(self.backend) if self.simulated else dist

    def random(self, *shape: int) -> torch.Tensor:
        """bf16, normally distributed."""
        return torch.randn(shape, device=self.device).to(torch.bfloat16)

    def empty(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(shape, device=self.device, dtype=dtype)

    def alike(self) -> torch.Generator:
        """Random numbers that all ranks have alike."""
        return torch.Generator(self.device).manual_seed(2025)

    def part(self, size: int) -> tuple[int, int]:
        """Elements of the whole parts, and how many of them this rank holds: the even split by ceil."""
        each = max(1, -(-size // self.backend.ranks))
        return each, min(size, (self.backend.rank + 1) * each) - min(size, self.backend.rank * each)
