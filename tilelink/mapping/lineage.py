"""Where the tiles of a step end up: in what it stores, in what copies bring on, and in what another program loads of that."""

from __future__ import annotations

from typing import TypeAlias

from tilelink.ir.program import Load, OfTile, Store, tile_names, walk
from tilelink.ir.wiring import Step, indexed

Lineage: TypeAlias = dict[tuple[str, int], int]
"""(tensor, axis) -> axis of the step's grid whose tile lies there."""


def stored_tiles(step: Step) -> Lineage:
    """Where the tiles of a step lie in what it stores."""
    names = {n: a for a, n in enumerate(domain_names(step)) if n}
    return {
        (step.binding(op.param).tensor, v.axis): names[e.var]
        for op in walk(step.program.body)
        if isinstance(op, Store)
        for v, e in indexed(step, op.param, op.index)
        if isinstance(e, OfTile) and v.axis is not None and e.var in names
    }


def moved_tiles(step: Step) -> Lineage:
    """Where the tiles of a copy program lie in what it fills."""
    return {(step.moved_to or "", v.axis): a for a, (_, v) in enumerate(step.moved_axes) if v.axis is not None}


def lineage_of(host: Step, steps: tuple[Step, ...]) -> Lineage:
    """Where the host's tiles end up: in what it stores, and in what copy programs make of that."""
    out = stored_tiles(host)
    for step in steps:
        source, target = step.moved_from or "", step.moved_to or ""
        for v, w in step.moved_axes:
            if v.axis is not None and w.axis is not None and (source, v.axis) in out:
                out[(target, w.axis)] = out[(source, v.axis)]
    return out


def through_loads(step: Step, lineage: Lineage) -> Lineage:
    """Axes of a computing program's tensors, reached through what it loads of the host's tiles."""
    of_var: dict[str, int] = {}
    for op in walk(step.program.body):
        if isinstance(op, Load):
            binding = step.binding(op.param)
            for v, e in indexed(step, op.param, op.index):
                if isinstance(e, OfTile) and v.axis is not None and (binding.tensor, v.axis) in lineage:
                    of_var[e.var] = lineage[(binding.tensor, v.axis)]
    binding = step.binding(step.program.domain)
    return {
        (binding.tensor, v.axis): of_var[name]
        for v, name in zip(binding.view, domain_names(step), strict=True)
        if v.axis is not None and name in of_var
    }


def domain_names(step: Step) -> tuple[str | None, ...]:
    """One name per view axis of the domain; axes of `...` have none."""
    names = tile_names(step.program)
    view = step.binding(step.program.domain).view
    return names + (None,) * (len(view) - len(names))
