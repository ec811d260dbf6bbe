"""What runs the tiles of a step. Planning, lowering, proof, cost and text ask an engine what it can do, never which one it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """`name`: as people read it. `by`: who runs it: a kernel's workers, a stream, the host's one-block kernels, or the workers of
    the step that it is inside of. `adds`: it adds to a flag; else it sets a flag to the number of the call, so that each of its
    tiles has a flag of its own. `compares`: it can wait for a count on its own rank; else a doorbell is rung for each of its
    waits there. `in_turn`: it takes tiles one after the other, of several streams stream `k` the tiles `k`, `k + streams`, …;
    else any worker may take the next. `computes`: it computes, and converts what it copies; else it moves bytes as they are.
    `sm`: for what it needs a multiprocessor: for each `worker`, until that ends; `always`; for what stays `within` the GPU, and
    to wait for peers; `never`. `launched`: it takes a launch to begin."""

    name: str
    by: Literal["kernel", "stream", "host", "step"]
    adds: bool
    compares: bool
    in_turn: bool
    computes: bool
    sm: Literal["worker", "always", "within", "never"]
    launched: bool

    def __str__(self) -> str:
        return self.name


WORKERS = Engine(
    name="workers", by="kernel", adds=True, compares=True, in_turn=False, computes=True, sm="worker", launched=True
)
COPY_ENGINE = Engine(
    name="copy engine",
    by="stream",
    adds=False,
    compares=False,
    in_turn=True,
    computes=False,
    sm="within",
    launched=False,
)
LIBRARY = replace(COPY_ENGINE, name="library function", computes=True, sm="always")
EPILOGUE = Engine(
    name="epilogue", by="step", adds=True, compares=True, in_turn=False, computes=True, sm="never", launched=False
)
HOST = Engine(name="host", by="host", adds=True, compares=True, in_turn=True, computes=False, sm="never", launched=True)
