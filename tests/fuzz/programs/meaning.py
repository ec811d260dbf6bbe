"""What an operator's text means: its programs run one after the other on all ranks, in numpy, with nothing of tilelink.

Tensors have one value in each place. A run that reads what is not there yet goes on when it is. What is never there, or there
twice, is a fault; so are waits and notifies that miss, although the values do not depend on them here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
from greenlet import getcurrent, greenlet

from tests.fuzz.programs.blocks import Tile, power
from tests.fuzz.programs.language import Fault, Language, Run
from tests.fuzz.programs.memory import GIVEN, Coordinate, Extent, Instance, Memory, Param, Ranks, Unjudged
from tests.fuzz.programs.shapes import Shape, read
from tests.fuzz.programs.wiring import Operator, Placement, Program, Sizes, axis_of, bound, extent, param_of, sizes_of


@dataclass(eq=False)
class Meaning:
    """One call of the operator `op` of a text. `arguments`: of every rank."""

    text: str
    ranks: Ranks
    sizes: Mapping[str, int]
    cut: str | None = None
    """Whether all tiles end where ranks' parts do: those of a host may, for the sake of what is fused into it."""
    faults: list[Fault] = field(default_factory=list[Fault])
    reads: list[tuple[Memory, Instance, Any]] = field(default_factory=list[Any])

    def __post_init__(self) -> None:
        self._numbers, self._stuck, self._stepped = 0, False, False
        self._tasks: list[tuple[Run, greenlet]] = []
        self._runs: list[Run] = []
        self._memories: list[Memory] = []
        self._faults: dict[tuple[str, Memory, str], bool] = {}

    # -------------------------------------------------------------------------------------------------------- the operator
    def results(self, arguments: Sequence[Sequence[Any]], constants: Mapping[str, Any]) -> list[list[Any]]:
        """Of every rank, all results.

        Raises:
            Unjudged: the text has no meaning here, or is no operator.
        """
        try:
            with np.errstate(all="ignore"):
                made = self._called(arguments, constants)
        except (TypeError, ValueError, NameError, IndexError, AttributeError, KeyError) as error:
            raise Unjudged(f"{type(error).__name__}: {error}") from error
        found = made if isinstance(made, tuple) else (made,)
        if not all(isinstance(m, Memory) for m in found):
            raise Unjudged("results that are no tensors")
        self._check(found)
        return [[m.instances[r].values for m in found] for r in range(self.ranks.count)]

    def _called(self, arguments: Sequence[Sequence[Any]], constants: Mapping[str, Any]) -> Any:
        names = self._names()
        code = "\n".join(line for line in self.text.splitlines() if not line.startswith("import "))
        exec(compile(code, "<meaning>", "exec"), names)
        op: Operator = names["op"]
        self._placements = op.placements
        shapes = op.signature.inputs
        given = [self._argument(s, k, [a[k] for a in arguments]) for k, s in enumerate(shapes)]
        self._dtype = next((m.dtype for m, s in zip(given, shapes, strict=True) if s.dtype is None), given[0].dtype)
        made = op.fn(*given, **constants)
        self._work()
        return made

    def _names(self) -> dict[str, Any]:
        def program(signature: str, *, axes: str = "R", name: str | None = None) -> Any:
            ranks = tuple(axes.split())
            return lambda fn: Program(self.step, read(signature, ranks), ranks, fn, name or fn.__name__)

        def operator(signature: str, *, axes: str = "R", **_: Any) -> Any:
            ranks = tuple(axes.split())
            return lambda fn: Operator(fn, read(signature, ranks), ranks)

        def placed(*_: Any, **sizes: Any) -> Placement:
            return Placement({n: v for n, v in sizes.items() if type(v) is int})

        def fused(into: str, **sizes: Any) -> Placement:
            return Placement(placed(**sizes).sizes, into)

        words: dict[str, Any] = dict.fromkeys(("sms", "copy_engine", "library"), placed)
        words["fused"] = fused
        words |= {"program": program, "operator": operator, "symmetric": self._symmetric}
        return {"tilelink": SimpleNamespace(**words), "tl": Language(self), "__name__": "text"}

    def _argument(self, shape: Shape, number: int, values: Sequence[Any]) -> Memory:
        sizes = {n: Extent(s) for n, s in self.sizes.items()}
        made = self._allocated(shape, f"argument {number}", sizes, "f32", over=None)
        made.given = True
        for instance, value in zip(made.instances, values, strict=True):
            instance.values[...] = value
            instance.writer[...] = GIVEN
        return made

    def _symmetric(
        self,
        shape: str,
        *,
        like: Memory | None = None,
        owner: str | None = None,
        dtype: str | None = None,
        **sizes: int,
    ) -> Memory:
        parsed = read(shape, tuple(self.ranks.sizes)).inputs[0]
        known = {n: Extent(s) for n, s in {**self.sizes, **sizes}.items()}
        word = dtype or (like.dtype if like is not None else self._dtype)
        made = self._allocated(parsed, f"symmetric_{len(self._memories)}", known, word, over=None)
        made.owner = owner
        return made

    def _allocated(self, shape: Shape, name: str, sizes: Sizes, dtype: str, over: str | None, rest: Any = ()) -> Memory:
        """`over`: what `R` stands for; None: names are those of the operator."""
        axes = [extent(a, sizes, self.ranks, over) for a in shape.axes]
        at = len(axes) if shape.rest is None else shape.rest
        axes[at:at] = rest
        made = Memory.of(name, tuple(axes), shape.dtype or dtype, self.ranks, contract=shape.contract)
        self._memories.append(made)
        return made

    # -------------------------------------------------------------------------------------------------------------- steps
    def step(self, p: Program, tensors: Sequence[Memory], path: str, over: str | None, given: dict[str, Any]) -> Any:
        """A call of a program: its runs, to be worked off, and its results."""
        names = p.fn.__code__.co_varnames[: p.fn.__code__.co_argcount]
        shapes, inputs = (*p.signature.inputs, *p.signature.results), len(p.signature.inputs)
        if len(names) != len(shapes) or not inputs <= len(tensors) <= len(shapes):
            raise Unjudged(f"{path} takes other tensors")
        taken = [bound(s, m) for s, m in zip(shapes, tensors, strict=False)]
        axis = over or axis_of(p, taken, self.ranks)
        sizes, rest = sizes_of(p, taken, given)
        dtype = next((b.memory.dtype for b in taken if b.shape.dtype is None), self._dtype)
        for n, s in zip(names[len(tensors) :], shapes[len(tensors) :], strict=True):
            taken.append(bound(s, self._allocated(s, f"{path}.{n}", sizes, dtype, axis, rest)))
        made = [b.memory for b in taken[len(tensors) :]]
        constants = {n: v for n, v in given.items() if n in p.fn.__code__.co_varnames and n not in names}
        for rank in range(self.ranks.count):
            params = [param_of(p, n, b, rank, axis, self.ranks, self.cut) for n, b in zip(names, taken, strict=True)]
            self._start(p, path, params, rank, constants)
        return made[0] if len(made) == 1 else tuple(made)

    def _width(self, path: str, *, walked: bool = False) -> dict[str, int]:
        """Sizes of a step's tiles, those of its host where it has one. `walked`: in loops, which the pieces of a tile take no
        shorter."""
        found = self._placements.get(path)
        if found is None:
            return {}
        if found.host in (None, path):
            return {**found.sizes}
        return {**self._width(found.host), **({} if walked else found.sizes)}

    # --------------------------------------------------------------------------------------------------------------- runs
    def _start(self, p: Program, path: str, params: list[Param], rank: int, constants: dict[str, Any]) -> None:
        by_name = {q.name: q for q in params}
        for q in params:
            q.memory.names.add(q.name)
        for q in params:
            for k, table in enumerate(q.tables):
                if table is not None:
                    instance = by_name[table].memory.instances[rank]
                    if not (instance.writer == GIVEN).all():
                        raise Unjudged("a table that is made")
                    q.segments[k], q.memory.by_data = instance.values, True
        domain = by_name[self._domain(p)]
        named = len((*p.signature.inputs, *p.signature.results)[params.index(domain)].axes)
        width = self._width(path, walked=True)
        for tile in self._tiles(domain, named, self._width(path)):
            run = Run(len(self._runs) + 1, path, rank, tile, domain.name, params, domain.line, width)
            self._runs.append(run)
            self._tasks.append((run, greenlet(lambda p=p, params=params: p.fn(*params, **constants))))

    def _domain(self, p: Program) -> str:
        """The parameter of `tl.tile_id`."""
        found = re.search(rf"def {p.fn.__name__}\(.*?tl\.tile_id\((\w+)\)", self.text, re.DOTALL)
        if found is None:
            raise Unjudged("no domain")
        return found[1]

    def _tiles(self, domain: Param, named: int, width: Mapping[str, int]) -> Iterator[tuple[Any, ...]]:
        axes = [list(self._along(domain, k, width)) for k in range(named)]
        for at in np.ndindex(*(len(a) for a in axes)):
            yield tuple(a[i] for a, i in zip(axes, at, strict=True))

    def _along(self, q: Param, k: int, width: Mapping[str, int]) -> Iterator[Any]:
        view, rank = q.views[k], q.rank
        mine = self.ranks.at(rank, str(view.over))
        low, high = 0, view.size
        if view.kind == "own":
            low, high = mine, mine + 1
        if view.kind == "split":
            low, high = mine * view.part, min((mine + 1) * view.part, view.size)
        if q.units[k]:
            ranks = view.kind in ("own", "ranks")
            yield from (Coordinate.of(i, view.size) if ranks else i for i in range(low, high))
            return
        step = width.get(q.dims[k], power(max(high - low, 1)))
        borders = [int(b) for b in q.segments[k]] if k in q.segments else [*range(low, high, view.part), high]
        for first, last in pairwise(borders):
            for begin in range(first, last, step):
                if view.owner is None or view.holder(begin, self.ranks) == mine:
                    yield Tile(begin, min(begin + step, last), step)

    def _work(self) -> None:
        hub = getcurrent()
        for _, task in self._tasks:
            task.parent = hub
        while self._tasks:
            self._stepped = False
            for run, task in list(self._tasks):
                self.run = run
                task.switch()
                if task.dead:
                    self._stepped = True
                    self._tasks.remove((run, task))
            self._stuck = not self._stepped

    def give_way(self) -> bool:
        if not self._stuck:
            run = self.run
            hub = getcurrent().parent
            assert hub is not None
            hub.switch()
            self.run = run
        stuck, self._stuck = self._stuck, False
        return not stuck

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def fault(self, kind: str, memory: Memory, text: str, by_data: bool = False) -> None:
        self._faults[kind, memory, text] = by_data and self._faults.get((kind, memory, text), True)

    # ------------------------------------------------------------------------------------------------------------- checks
    def _check(self, results: Sequence[Memory]) -> None:
        for m in results:
            if not all((i.writer != 0).all() for i in m.instances):
                perhaps = all(i.perhaps[i.writer == 0].all() for i in m.instances)
                self.fault("unwritten", m, "a result that nobody writes all of", perhaps)
        for m, instance, index in self.reads:
            if (instance.told[index] == 0).any():
                self.fault("untold", m, "read by others, and never announced")
        for m in self._memories:
            if m.waited and not m.notified and not m.given:
                self.fault("untold", m, "waited for, and never announced")
        if self._circle():
            self.faults.append(Fault("circle", (), "waits in a circle"))
        for run in self._runs:
            for q in run.params if run.steered else ():
                q.memory.by_data = True
        for (kind, m, text), by_data in self._faults.items():
            self.faults.append(Fault(kind, (m.name, *sorted(m.names)), text, by_data or m.by_data))

    def _circle(self) -> bool:
        """Whether waits for what is announced cannot all end."""
        done, at = {0}, {run.number: 0 for run in self._runs}
        needs = {
            run.number: [
                e if isinstance(e, int) else {int(n) for i, index in e for n in np.unique(i.told[index])}
                for e in run.events
            ]
            for run in self._runs
        }
        moved = True
        while moved:
            moved = False
            for number, events in needs.items():
                while at[number] < len(events):
                    event = events[at[number]]
                    if isinstance(event, set) and not event <= done:
                        break
                    if isinstance(event, int):
                        done.add(event)
                    at[number] += 1
                    moved = True
        return any(at[number] < len(events) for number, events in needs.items())
