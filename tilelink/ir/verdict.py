"""What a proof has shown, or what goes wrong without it."""

from __future__ import annotations

from dataclasses import dataclass

from tilelink.errors import Loc, TilelinkError
from tilelink.ir import Shown

REPORT = "this is the plan's mistake and not yours: please report it with the schedule"
"""To do about what no user wrote."""


@dataclass(frozen=True, slots=True)
class Proof:
    rule: str
    text: str
    ms: float


@dataclass(frozen=True, slots=True)
class Instant:
    """One step of an interleaving. `call`: which of the calls back to back, from 0; `tile`: as its program names it."""

    rank: int
    path: str
    tile: str
    loc: Loc | None
    does: str
    call: int = 0

    def __str__(self) -> str:
        where = f" tile {self.tile}" if self.tile else ""
        place = f"  ({self.loc})" if self.loc is not None else ""
        return f"call {self.call}, rank {self.rank}: {self.path}{where} {self.does}{place}"


@dataclass(frozen=True, slots=True)
class Counterexample:
    """An order of events that can happen and goes wrong, with few ranks. `kind`: deadlock | race | reuse | count | twice |
    never | bounds | plan. `sizes`: of its ranks and dimensions. `steps`: in the order in which they happen; of a deadlock, each
    has to come before the next, and the last before the first. `missing`: the steps between which there should be an edge, by
    number. `edges`: which steps one knows to have happened before another."""

    kind: str
    sizes: str
    text: str
    steps: tuple[Instant, ...]
    edges: tuple[tuple[int, int], ...] = ()
    missing: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Verdict(Shown):
    """Of a plan. `proofs`: what was shown, by rule; `error`: what could not be; `assumed`: what was taken on trust. Neither
    `ok` nor an `error`: not verified, because programs use raw pointers."""

    ok: bool
    proofs: tuple[Proof, ...]
    error: TilelinkError | None = None
    counterexample: Counterexample | None = None
    assumed: tuple[str, ...] = ()

    @property
    def said(self) -> str:
        """`proved`, `refused` or `not verified`."""
        return "proved" if self.ok else "refused" if self.error is not None else "not verified"

    def __str__(self) -> str:
        """What was shown, rule by rule, and what was assumed; else the diagnostic, and the interleaving that goes wrong."""
        width = max((len(p.rule) for p in self.proofs), default=0)
        lines = [self.said]
        lines += [f"    {p.rule.ljust(width)}  {p.text}" for p in self.proofs]
        lines += [f"    {said}" for said in self.assumed]
        lines += [str(self.error)] if self.error is not None else []
        if self.counterexample is not None:
            lines += [f"{self.counterexample.text} ({self.counterexample.sizes}):"]
            lines += [f"    {step}" for step in self.counterexample.steps]
        return "\n".join(lines)

    def __bool__(self) -> bool:
        return self.ok
