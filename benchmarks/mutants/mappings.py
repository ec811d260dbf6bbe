"""Every operator of the library, and every way to place it: found by trying, so that nothing has to be listed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count, product
from math import prod
from typing import Any

from tests.mapping.plans import verify
from tilelink import copy_engine, fused, library, ops, sms
from tilelink.errors import TilelinkError
from tilelink.explore.cases import Case, constants_of, numbers_of
from tilelink.ir.plan import Layout, Plan
from tilelink.ir.program import Tile, TileProgram
from tilelink.ir.schedule import Placement
from tilelink.ir.shape import RANK_AXIS, Computed, Dim, Shape
from tilelink.ir.topology import Device, Topology
from tilelink.ir.wiring import Step, Wiring
from tilelink.mapping import make_plan
from tilelink.pipeline.operator import Operator

TILE = 16
RANKS = 3
DEVICE = Device(sms=10)
MANY = 150
"""Combinations of placements up to which all are tried; above, each step's are tried with the others as they were."""
ORDERS = ("ring", "ring+1")
DEFAULT = "SMs"
DEFAULTS = (DEFAULT, "SMs push")
"""How programs and copy programs run that a mapping's name does not tell of."""
LIBRARIES = {"matmul": ("torch.mm", "M"), "flash": ("tilelink.libraries.attention", "T")}
"""By the name of a program, what computes the same, and along which dimension part by part: nothing else of this suite knows
a program."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """One way to place an operator, on the sizes that the suite runs it with, and its plan."""

    name: str
    case: Case
    plan: Plan

    @property
    def operator(self) -> Operator:
        return self.case.operator

    def key(self, number: int) -> tuple[str, str, int]:
        """Of a mutant: the operator, how it is placed, the mutant's number there."""
        return self.operator.name, self.name, number


Choice = tuple[str, Placement]
"""The name of the resources that a step gets, and its placement; one name may have several orders to try."""


def operators() -> dict[str, Operator]:
    """What `tilelink.ops` exports, by name."""
    found = {name: getattr(ops, name) for name in ops.__all__}
    return {name: op for name, op in found.items() if isinstance(op, Operator)}


def mappings(operator: Operator) -> Iterator[Mapping]:
    """Each assignment of the steps to resources that can be planned and is proven, in the first order of which it is. Looked for
    once in a process, as far as somebody asks."""
    search, found = _search(operator)
    for n in count():
        if n == len(found):
            one = next(search, None)
            if one is None:
                return
            found.append(one)
        yield found[n]


@cache
def _search(operator: Operator) -> tuple[Iterator[Mapping], list[Mapping]]:
    return _proven(operator), []


def _proven(operator: Operator) -> Iterator[Mapping]:
    wiring = Case(operator, sizes(operator), RANKS, "f32").wiring()
    seen: set[str] = set()
    for choices in _combinations(operator, wiring):
        named = [f"{path}: {found[0]}" for path, found in choices.items() if found[0] not in DEFAULTS]
        name = ", ".join(named) or DEFAULT
        mapping = None if name in seen else _mapping(operator, wiring, name, choices)
        if mapping is not None:
            seen.add(name)
            yield mapping


def sizes(operator: Operator) -> tuple[tuple[str, int], ...]:
    """Two tiles along every axis of a result; of a split one, two tiles on each rank, and the last ones are ragged; one tile
    along what is summed on each rank alone. Of what is walked singly, two. Constants are sizes too, such as a capacity.
    """
    computed = (a.size for s in operator.signature.inputs for a in s.axes if isinstance(a.size, Computed))
    sums = [size.left for size in computed if size.op == "+"]
    axes = [a for s in operator.signature.inputs for a in s.axes if isinstance(a.size, Dim) and a.name != RANK_AXIS]
    split = {a.name for s in operator.signature.shapes for a in s.axes if a.split == RANK_AXIS}
    named = {a.name for s in operator.signature.shapes for a in s.axes}
    left = {a.name for s in operator.signature.outputs for a in s.axes}
    # There are two parts, and what is as long as a tile is a tile: then parts of ranks are a multiple of it.
    numbers = {name: 2 if usual < TILE else TILE for name, usual in numbers_of(operator).items()}
    length = 2 * TILE * RANKS if TILE in numbers.values() else (TILE + 1) * RANKS - 1
    found: dict[str, int] = {}
    summands = [one for one in sums if isinstance(one, Dim)]
    for dim in (*(Dim(a.name) for a in axes), *summands, *map(Dim, constants_of(operator))):
        if dim.name in split:
            found[dim.name] = 2 * RANKS - 1 if dim.unit else length
        elif dim.name in named:
            found[dim.name] = 2 if dim.unit else 2 * TILE if dim.name in left else TILE
        else:
            found[dim.name] = TILE + 3
    return *found.items(), *numbers.items()


def _mapping(operator: Operator, wiring: Wiring, name: str, choices: dict[str, Choice]) -> Mapping | None:
    # Signals are changed here: what is sent without any would be right however they are.
    placed = operator.schedule({path: placement for path, (_, placement) in choices.items()}, ll=False)
    case = Case(placed, sizes(placed), RANKS, "f32")
    try:
        plan = planned(case, wiring)
        verify(plan)
    except TilelinkError:
        return None
    return Mapping(name, case, plan)


def planned(case: Case, wiring: Wiring) -> Plan:
    """Of a case's operator as it is scheduled, at the case's sizes.

    Raises:
        TilelinkError: they cannot be placed so.
    """
    shapes = dict(zip(wiring.arguments, case.operator.signature.inputs, strict=True))
    layouts = {n: _layout(case, shape) for n, shape in shapes.items()}
    bound = {n: v for n, v in case.sizes if n in wiring.sizes}
    return make_plan(wiring, Topology(RANKS, device=DEVICE), case.operator.schedules, bound, layouts)


def _layout(case: Case, shape: Shape) -> Layout:
    """One that the argument has on every rank."""
    local = [case.local_shape(shape, rank) for rank in range(RANKS)]
    return Layout(len(local[0]) - 1, aligned=all(s[-1] % 4 == 0 for s in local))


def _combinations(operator: Operator, wiring: Wiring) -> Iterator[dict[str, Choice]]:
    choices = {s.path: list(_choices(wiring, s)) for s in wiring.steps}
    many = prod(map(len, choices.values()))
    every = (dict(zip(choices, found, strict=True)) for found in product(*choices.values()))
    if many <= MANY:
        yield from every
        return
    first = next(c for c in every if _mapping(operator, wiring, "", c) is not None)
    yield first
    for path, found in choices.items():
        yield from ({**first, path: choice} for choice in found)


def _choices(wiring: Wiring, step: Step) -> Iterator[Choice]:
    yield from _of_movement(step) if step.program.copy_program is not None else _of_program(step)
    for host in wiring.steps:
        if host.path == step.path:
            return
        if host.program.copy_program is None:
            yield f"fused into {host.path}", fused(host.path)


def _of_movement(step: Step) -> Iterator[Choice]:
    axes = [a.name for a in step.program.param(step.program.domain).shape.axes if not a.unit and a.name != RANK_AXIS]
    tile: dict[str, Any] = {axes[0]: TILE} if axes else {}
    for word, push in (("push", True), ("pull", False)):
        for order in ORDERS:
            yield f"SMs {word}", sms(2, order=order, push=push, **tile)
            yield f"own kernel {word}", sms(2, order=order, push=push, own_kernel=True, **tile)
        yield f"copy engine {word}", copy_engine(push=push, **tile)
        yield f"copy engine {word} whole parts", copy_engine(push=push)
    yield "copy engine push over 2 streams", copy_engine(push=True, streams=2, **tile)


def _of_program(step: Step) -> Iterator[Choice]:
    unnamed = _taken_whole(step.program)
    names = [a.name for p in step.program.params for a in p.shape.axes if not a.unit and a.name not in unnamed]
    tile: dict[str, Any] = dict.fromkeys(names, TILE)
    for order in ORDERS:
        yield DEFAULT, sms(order=(order, "group 2"), **tile)
    if step.program.name in LIBRARIES:
        function, dim = LIBRARIES[step.program.name]
        parts: dict[str, Any] = {dim: f"{dim}/R"}
        yield "library", library(function, **parts)


def _taken_whole(program: TileProgram) -> set[str]:
    """Axes that a program gives no name, as in `s, h, _ = tl.tile_id(out)`; and that of the ranks."""
    domain = program.param(program.domain).shape
    named = next(op for op in program.body if isinstance(op, Tile)).names
    skipped = (
        {a.name for a, name in zip(domain.axes, named, strict=True) if name is None}
        if domain.rest is None
        else set[str]()
    )
    return skipped | {RANK_AXIS}
