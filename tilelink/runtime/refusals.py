"""What every backend refuses, in the same words: what ranks do not do alike, and what is not there. And how it warns."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import torch

from tilelink.errors import Loc, TilelinkError


@cache  # once per process
def warn_once(text: str) -> None:
    logging.getLogger("tilelink").warning(text)


def check_option(name: str, value: object, holds: bool, what: str) -> None:
    """Raises TL464, an option of `launch` cannot have this value."""
    if not holds:
        raise TilelinkError("TL464", f"`launch` cannot take {name}={value!r}", hint=f"pass {what}")


# ---------------------------------------------------------------------------------------------------------------------
# What all ranks must ask alike, or they do not make the same call.

Place: TypeAlias = tuple[int, int]
"""Where a tensor begins in memory of `tilelink.empty`: the number of the allocation, from 1, and a byte of it."""

_IN_ORDER = "make the same calls in the same order on all ranks"
_VERSIONS = "let all ranks run the same code, with the same schedules and settings"
_EQUAL = (
    "pass equal shapes and constants, or the global size by name where shards are uneven (`M=…`, of a layer `length=…`)"
)


@dataclass(frozen=True, slots=True)
class Stated:
    """What a rank says of a call that all ranks are to make alike.

    `call`: in words, with sizes, dtypes and constants. `how`: schedule and checks. `places`: of each argument that peers read
    where it lies, or would if it lay in memory of `tilelink.empty`: its name and place. `text`: digest of what was emitted,
    which ranks with arguments of one layout on one device have alike: `of` names these two.
    """

    call: str
    how: str = ""
    places: tuple[tuple[str, Place | None], ...] = ()
    of: str = ""
    text: str = ""
    loc: Loc | None = None

    @property
    def shared(self) -> tuple[object, ...]:
        """What is the same on all ranks, whatever their arguments' layouts."""
        return self.call, self.how, self.places


def compare_stated(said: Sequence[Stated]) -> None:
    """Every rank makes the same call in the same way; else TL452, or TL459 where an argument lies elsewhere, on every rank."""
    compare_calls([each.call for each in said])
    first, texts = said[0], dict[str, tuple[int, str]]()
    name = first.call.partition("(")[0]
    for rank, each in enumerate(said):
        if each.how != first.how:
            what = f"how `{name}` runs: rank 0 runs it {first.how}, and rank {rank} {each.how}"
            raise _disagreement(0, rank, what, _VERSIONS)
        other, text = texts.setdefault(each.of, (rank, each.text))
        if each.text != text or len(each.places) != len(first.places):
            what = f"what `{name}` is: their programs, constants or the versions of tilelink differ"
            raise _disagreement(other if each.text != text else 0, rank, what, _VERSIONS)
        for (argument, here), (_, there) in zip(first.places, each.places, strict=True):
            if here != there:
                raise TilelinkError(
                    "TL459",
                    f"argument `{argument}` of `{name}` lies {_placed(here)} on rank 0 and {_placed(there)} on rank {rank}",
                    loc=first.loc,
                    why="peers read it where it lies, at the place that it has on their own rank",
                    hint="pass the same contiguous part of the same allocation on every rank, or ordinary tensors, which are "
                    "copied",
                )


def _placed(place: Place | None) -> str:
    return (
        "in no memory that peers read" if place is None else f"at byte {place[1]} of allocation {place[0]} of `empty`"
    )


def compare_calls(said: Sequence[str]) -> None:
    """Every rank has said the same call in words, with the same sizes and constants; else TL452, on every rank."""
    for rank, call in enumerate(said):
        if call != said[0]:
            other = call.partition("(")[0] != said[0].partition("(")[0]
            what = f"a call: rank 0 calls {said[0]}, and rank {rank} calls {call}"
            raise _disagreement(0, rank, what, _IN_ORDER if other else _EQUAL)


def compare_memory(asked: list[tuple[tuple[str, int], ...]]) -> None:
    """Every rank needs the same symmetric memory, pieces by name and bytes; else TL452, on every rank."""
    for rank, wanted in enumerate(asked):
        differing = sorted(set(wanted) ^ set(asked[0]))
        if differing:
            name = differing[0][0]
            here, there = (dict(w).get(name) for w in (asked[0], wanted))
            raise _disagreement(0, rank, f"the sizes of a call: `{name}` has {here} and {there} bytes")


def compare_meetings(what: Sequence[str]) -> None:
    """Every rank meets the others for the same reason, does `what` all others do; else TL452, on every rank."""
    for rank, each in enumerate(what):
        if each != what[0]:
            said = f"what comes next: rank 0 {what[0]}, and rank {rank} {each}"
            raise _disagreement(0, rank, said, _IN_ORDER)


def _disagreement(one: int, other: int, what: str, hint: str = _EQUAL) -> TilelinkError:
    return TilelinkError(
        "TL452",
        f"ranks {one} and {other} disagree on {what}",
        why="an operator's call is collective: every rank passes parts of the same global tensors",
        hint=hint,
    )


def not_in_group(rank: int, members: Sequence[int] = ()) -> TilelinkError:
    """TL455: rank `rank` calls with a group that it does not belong to."""
    return TilelinkError(
        "TL455",
        f"rank {rank} is not in the group{' of ranks ' if members else ''}{', '.join(map(str, members))}",
        why="an operator is called by the ranks of its group, and by no others",
        hint="pass the group that this rank is in",
    )


def no_such_group(name: str) -> TilelinkError:
    """TL456: a graph or a call names a group that is not there."""
    return TilelinkError(
        "TL456",
        f"there is no group of ranks named {name!r} here",
        why="a name stands for a group of this process, and of this simulated rank",
        hint="take it where it is used: tilelink.nn.group_name(group)",
    )


def reported(rank: int, message: str) -> TilelinkError:
    """TL471: for the ranks that have not found anything themselves."""
    return TilelinkError(
        "TL471",
        f"rank {rank} reports: {message}",
        why="a call is collective: what goes wrong on one rank leaves no result on any",
        hint="see what that rank prints",
    )


def check_arguments(kernel: str, parameters: Iterable[str], given: Iterable[str]) -> None:
    """Raises TL424, a kernel's arguments are not its parameters."""
    missing, unknown = sorted({*parameters} - {*given}), sorted({*given} - {*parameters})
    if missing or unknown:
        said = f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}"
        raise TilelinkError(
            "TL424",
            f"kernel {kernel} gets other arguments than it has parameters; {said}",
            why="arguments are passed by name, all of them",
            hint="emit the file again; if that does not help, report this",
        )


def check_copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Raises TL423, the two sides of a copy differ."""
    if target.shape != source.shape or target.dtype != source.dtype:
        here, there = (f"{t.dtype} of shape {tuple(t.shape)} and strides {t.stride()}" for t in (source, target))
        raise TilelinkError(
            "TL423",
            f"no copy engine copies {here} to {there}",
            why="a copy engine moves bytes: both sides have one shape and one dtype",
            hint="pass tensors of one shape and dtype",
        )


def no_kernels() -> TilelinkError:
    """TL475: something asks for kernels, or for their times."""
    return TilelinkError(
        "TL475",
        "there are no kernels to trace or to time in processes on the CPU",
        why="operators run their references there, in plain torch",
        hint="do it on GPUs, or on simulated ranks: TILELINK_BACKEND=simulated, and no torchrun",
    )
