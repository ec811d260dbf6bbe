"""State dicts of the whole model, from and to ranks that have parts of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tilelink.errors import TilelinkError
from tilelink.nn import functional as F
from tilelink.nn.groups import rank_of, ranks_of
from tilelink.nn.layer import Layer
from tilelink.nn.replicated import Replicated

SAID = 3
"""Names of each kind that an error gives; a model has hundreds."""


def whole_state_dict(model: nn.Module, *, keep: bool = True) -> dict[str, Any]:
    """The state dict of the unsplit model: what torch's layers in the place of these would have, by name and shape.

    `Replicated(module)` stands as the module; gates, queries, keys and values stand by themselves, as the layers' `of`
    takes them. Collective over the groups of the model's layers.

    Args:
        model: with this rank's part of each layer.
        keep: whether this rank wants it; False: it takes part only, and gets an empty one.

    Returns:
        copies on the CPU, since the whole may not fit a GPU; bit by bit what the ranks have.
    """
    found: dict[str, Any] = {}
    for entry, mine in _entries(model):
        for name, piece in entry.pieces(mine).items():
            whole = piece if entry.group is None else _gathered(piece, entry.axis, entry.group)
            if keep:
                found[name] = whole.detach().to("cpu", copy=True) if isinstance(whole, torch.Tensor) else whole
    return found


def load_whole_state_dict(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Load this rank's part of what `whole_state_dict` gives, or the unsplit model in torch's layers.

    No rank hears of another: each takes its part of `state`, and reads nothing else of a file that `torch.load(…, mmap=True)`
    opened.

    Args:
        model: with this rank's part of each layer.
        state: on any device, in any dtype.

    Raises:
        TilelinkError: TL236, names or shapes are not those of the whole model.
    """
    entries = [*_entries(model)]
    _require_whole(entries, state)
    model.load_state_dict({entry.name: entry.part([state[name] for name in entry.lengths]) for entry, _ in entries})


@dataclass(frozen=True, slots=True)
class _Entry:
    """One of this rank's state dict, in which those of the whole model follow one another along `axis`, by name and length.

    Args:
        name: this rank's.
        lengths: of what this rank has of each; of one alone nobody asks.
        group: the ranks that have parts; None: every rank has all.
    """

    name: str
    lengths: Mapping[str, int]
    axis: int
    group: str | None

    @property
    def ranks(self) -> int:
        return 1 if self.group is None else ranks_of(self.group)

    def pieces(self, mine: Any) -> dict[str, Any]:
        """What this rank has of each, as views."""
        if len(self.lengths) == 1:
            return dict.fromkeys(self.lengths, mine)
        return dict(zip(self.lengths, mine.split([*self.lengths.values()], self.axis), strict=True))

    def shape(self, piece: Any) -> tuple[int, ...] | None:
        """Of the whole one of which this rank has `piece`; None: it is no tensor."""
        if not isinstance(piece, torch.Tensor):
            return None
        whole = [*piece.shape]
        if self.group is not None:
            whole[self.axis] *= self.ranks
        return tuple(whole)

    def part(self, whole: Sequence[Any]) -> Any:
        """What this rank has of them, in one."""
        mine = [t if self.group is None else t.chunk(self.ranks, self.axis)[rank_of(self.group)] for t in whole]
        return torch.cat(mine, self.axis) if len(mine) > 1 else mine[0]


def _entries(model: nn.Module) -> Iterator[tuple[_Entry, Any]]:
    """Those of the state dict, with what this rank has; on all ranks in one order."""
    for name, mine in model.state_dict().items():
        yield _entry(model, name), mine


def _entry(model: nn.Module, name: str) -> _Entry:
    """By the modules on the way to it, and what they say."""
    said: list[str] = []
    joined: Mapping[str, int] = {}
    first = behind = 0  # of what is said, the part in whose place the joined names stand
    holder, module = None, model
    *_, own = path = name.split(".")
    for part in path:
        if isinstance(module, Layer) and "" in module.joined:
            joined, first, behind = module.joined[""], max(len(said) - 1, 0), len(said)
        if isinstance(module, Layer) and part in module.joined:
            joined, first, behind = module.joined[part], len(said), len(said) + 1
        if not (isinstance(module, Replicated) and part == "module"):
            said.append(part)
        holder, module = module, dict(module.named_children()).get(part) if module is not None else None
    names = {".".join([*said[:first], each, *said[behind:]]): n for each, n in joined.items()} or {".".join(said): 0}
    if isinstance(holder, Layer) and own in holder.split_parameters:
        return _Entry(name, names, holder.split_parameters[own], holder.group)
    return _Entry(name, names, 0, None)


def _gathered(piece: torch.Tensor, axis: int, group: str) -> torch.Tensor:
    """The parts of all ranks, as bytes: neither operators nor NCCL know every dtype."""
    if ranks_of(group) == 1:
        return piece
    rows = piece.detach().movedim(axis, 0)
    flat = rows.reshape(len(rows), math.prod(rows.shape[1:])).contiguous()
    whole = F.all_gather(flat.view(torch.uint8), group=group).view(piece.dtype)
    return whole.reshape(len(whole), *rows.shape[1:]).movedim(0, axis)


def _require_whole(entries: Sequence[tuple[_Entry, Any]], state: Mapping[str, Any]) -> None:
    """Raises TL236 where a state dict is not of the whole model."""
    wanted = {name: e.shape(piece) for e, mine in entries for name, piece in e.pieces(mine).items()}
    given = {name: tuple(t.shape) if isinstance(t, torch.Tensor) else None for name, t in state.items()}
    other = [
        f"{name} is {given[name]} and not {shape}"
        for name, shape in wanted.items()
        if name in given and given[name] != shape
    ]
    kinds = {
        "it lacks": [name for name in wanted if name not in given],
        "the model has no": [name for name in given if name not in wanted],
        "of other shapes:": other,
    }
    if any(kinds.values()):
        raise TilelinkError(
            "TL236",
            "the state dict is not that of the whole model",
            why="; ".join(f"{what} {_some(names)}" for what, names in kinds.items() if names),
            hint="name and shape tensors as `whole_state_dict` does; this rank's own parts load by `model.load_state_dict`",
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SAID]) + (f" and {len(names) - SAID} more" if len(names) > SAID else "")
