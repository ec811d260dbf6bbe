"""A drawn program, run on simulated ranks and held against its meaning: what becomes of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch

import tilelink
from benchmarks.mutants.simulating import OutOfTime, Timed
from tests.frontend.harness import run_cell
from tests.fuzz.outcomes import CODES
from tests.fuzz.programs.language import Fault
from tests.fuzz.programs.meaning import Meaning
from tests.fuzz.programs.memory import Extent, Ranks, Unjudged
from tests.fuzz.programs.shapes import Shape, read
from tilelink import Operator, TilelinkError
from tilelink.ir.topology import Device
from tilelink.runtime.backend import Backend
from tilelink.runtime.memory import Region, Workspace
from tilelink.runtime.simulated.scheduler import Turns

Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class Call:
    """`fed`: which result of the call before each of some arguments is; `shared`: arguments that are in `tilelink.empty`."""

    sizes: Mapping[str, int]
    constants: Mapping[str, Any]
    salt: int
    fed: Mapping[int, int]
    shared: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Case:
    """`text` defines `op`; `signature` is the operator's. `spoilt`: how the text was changed, if it was."""

    seed: int
    text: str
    signature: str
    axes: Mapping[str, int]
    calls: tuple[Call, ...]
    dtype: str
    spoilt: str = ""
    sms: int = 8
    late: bool = False

    @property
    def ranks(self) -> Ranks:
        return Ranks(self.axes)

    def __str__(self) -> str:
        said = [
            f"# seed {self.seed}, ranks {dict(self.axes)}, {self.sms} SMs, {self.dtype}, spoilt: {self.spoilt or 'no'}"
        ]
        for c in self.calls:
            more = f", shared {sorted(c.shared)}" if c.shared else ""
            said.append(f"# call: {dict(c.sizes)} {dict(c.constants)}, fed {dict(c.fed)}{more}")
        return "\n".join([*said, self.text])


@dataclass(frozen=True)
class Judgement:
    """`outcome`: refused | right | wrong | race | hang | crash | slow. `faults`: those of the meaning, None where it has none.
    `assumed`: by the proof. `text`: of what was said or seen."""

    outcome: str
    code: str
    text: str
    faults: tuple[Fault, ...] | None
    assumed: str = ""
    line: str = ""
    meaningless: str = ""

    @property
    def undefined(self) -> tuple[Fault, ...]:
        """What has no value, and that no explicit assumption covers."""
        told = self.assumed
        return tuple(
            f
            for f in self.faults or ()
            if f.fatal and not (f.by_data and any(f"`{n}`" in told or f"_{n}`" in told for n in f.tensor))
        )

    @property
    def kind(self) -> str:
        """What is counted. `assumed`: what has no value is what data makes of a promise."""
        if self.outcome in ("crash", "slow"):
            return self.outcome
        if self.outcome == "refused":
            return "right and refused" if self.faults == () else "refused"
        promised = any(f.fatal or f.by_data for f in self.faults or ())
        if self.undefined or (self.outcome != "right" and not promised):
            return "proved and wrong"
        if self.faults is None:
            return "unjudged"
        return "assumed" if any(f.fatal for f in self.faults) else "right"


def judge(case: Case, seconds: float = 20) -> Judgement:
    wanted: list[list[Tensors]] | None
    meaningless = ""
    try:
        wanted, faults = meant(case)
    except Unjudged as reason:
        wanted, faults, meaningless = None, None, str(reason)
    outcome, code, text, line, assumed = "right", "", "", "", ""
    try:
        with poisoned():
            got, assumed = ran(case, seconds, any(f.fatal for f in faults or ()))
        if wanted is not None and not any(f.fatal or f.kind == "argument" for f in faults or ()):
            text = difference(wanted, got)
            if text:
                # Tiles end where the parts of ranks do, which a program may ask for.
                cuts = (difference(meant(case, cut)[0], got) for cut in case.axes)
                text = min(cuts, key=len)
            if text and case.spoilt and "library(" in case.text:
                raise Unjudged("a function does not know of it")
            outcome = "wrong" if text else "right"
    except OutOfTime:
        outcome = "slow"
    except Unjudged as reason:
        faults, meaningless = None, str(reason)
    except TilelinkError as error:
        outcome, code, text = HOW.get(error.code, "refused"), error.code, f"{error.message}; {error.why}"
        line = error.loc.source_line().strip() if error.loc is not None else ""
        if error.code not in CODES:
            outcome = "crash"
    except Exception as error:  # noqa: BLE001  # whatever it is, it is no diagnostic
        outcome, code, text = "crash", type(error).__name__, str(error)
    return Judgement(outcome, code, text, faults, assumed, line, meaningless)


HOW = {"TL501": "hang", "TL507": "race", "TL502": "wrong", "TL505": "wrong"}


def meant(case: Case, cut: str | None = None) -> tuple[list[list[Tensors]], tuple[Fault, ...]]:
    """Results by call and rank, as the text means them, and what is wrong with it."""
    found, faults, before = list[list[Tensors]](), list[Fault](), list[Tensors]()
    for call in case.calls:
        meaning = Meaning(case.text, case.ranks, call.sizes, cut)
        given = [
            [t.double() if t.is_floating_point() else t for t in arguments(case, call, r, before[r] if before else [])]
            for r in range(case.ranks.count)
        ]
        results = meaning.results(given, call.constants)
        before = [[torch.as_tensor(v) for v in of_rank] for of_rank in results]
        found.append(before)
        faults += meaning.faults
    return found, tuple(dict.fromkeys(faults))


def ran(case: Case, seconds: float, asked: bool) -> tuple[list[list[Tensors]], str]:
    """The same on simulated ranks, and what the proof assumed, if that is asked for."""
    op = run_cell(case.text)["op"]
    assert isinstance(op, Operator)
    said: list[str] = []
    salt = case.seed
    turns = Turns(salt, None if salt % 2 else salt // 2 % case.ranks.count)

    def main() -> list[Tensors]:
        rank, out, before = tilelink.rank(), list[Tensors](), Tensors()
        for call in case.calls:
            given = arguments(case, call, rank, before)
            for k in sorted(call.shared if _even(case, call) else ()):
                place = tilelink.empty(*given[k].shape, dtype=given[k].dtype)
                place.copy_(given[k])
                given[k] = place
            named = {**call.sizes, **call.constants}
            found = op(*given, **named)
            if asked and not rank:
                said.extend(op.verify(*given, **named).assumed)
            before = [*found] if isinstance(found, tuple) else [found]
            out.append(before)
        return out

    options: dict[str, Any] = {"axes": case.axes} if len(case.axes) > 1 else {}
    timed = Timed(turns, time.monotonic() + seconds)
    device = Device(sms=case.sms)
    by_rank = tilelink.launch(
        main, case.ranks.count, policy=timed, device=device, delayed_stores=case.late, races=True, **options
    )
    return [[of_rank[k] for of_rank in by_rank] for k in range(len(case.calls))], "; ".join(said)


def _even(case: Case, call: Call) -> bool:
    """Whether all ranks hold as much: `tilelink.empty` gives all the same."""
    return not any(call.sizes[n] % case.ranks.count for n in "MN")


def difference(wanted: Sequence[Sequence[Tensors]], got: Sequence[Sequence[Tensors]]) -> str:
    for k, (calls, others) in enumerate(zip(wanted, got, strict=True)):
        for rank, (want, have) in enumerate(zip(calls, others, strict=True)):
            if len(want) != len(have):
                return f"call {k}, rank {rank}: {len(have)} results"
            for n, (a, b) in enumerate(zip(want, have, strict=True)):
                if a.shape != b.shape:
                    return f"call {k}, rank {rank}, result {n}: {tuple(b.shape)}, not {tuple(a.shape)}"
                # Sums that are too large for the dtype may be rounded on their way.
                if not torch.allclose(
                    a.to(b.dtype).double(), b.double(), rtol=3e-2 if a.numel() and a.abs().max() > 200 else 0, atol=0
                ):
                    return f"call {k}, rank {rank}, result {n}: {b.tolist()}, not {a.tolist()}"
    return ""


def arguments(case: Case, call: Call, rank: int, before: Sequence[torch.Tensor]) -> Tensors:
    """Small whole numbers; some are what the call before has given."""
    shapes = read(case.signature, tuple(case.axes)).inputs
    return [
        before[call.fed[k]].clone() if k in call.fed and before else _argument(case, call, s, k, rank)
        for k, s in enumerate(shapes)
    ]


def _argument(case: Case, call: Call, shape: Shape, number: int, rank: int) -> torch.Tensor:
    extents = [
        Extent(case.axes[a.size] if a.rank else a.extent(call.sizes), a.split, a.own, a.rank) for a in shape.axes
    ]
    dims = tuple(e.here(case.ranks, rank) for e in extents if not e.own)
    alike = shape.contract in ("offsets", "permutation")
    rng = torch.Generator().manual_seed(hash((case.seed, call.salt, number, 0 if alike else rank)) % 2**31)
    dtype = getattr(torch, NAMES[shape.dtype or case.dtype])
    if shape.contract == "offsets":
        end = call.sizes["M"]
        cuts = sorted(torch.randint(0, end + 1, (dims[0] - 2,), generator=rng).tolist())
        return torch.tensor([0, *cuts, end], dtype=dtype)
    count = int(torch.tensor(dims).prod())
    if shape.contract == "permutation":
        return torch.randperm(count, generator=rng).to(dtype).view(dims)
    if shape.contract is not None:
        below = call.sizes.get(shape.contract[1:]) or int(shape.contract[1:])
        return torch.randint(-(call.salt % 2), max(below, 1), dims, generator=rng).to(dtype)
    values = torch.randint(1, 5, dims, generator=rng)
    return torch.where(torch.rand(dims, generator=rng) < 0.4, -values, values).to(dtype)


NAMES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "i32": "int32"}


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """What the workspace has for tensors begins as NaN, or -1: nobody may read what nobody has written."""
    allocate = Workspace.allocate

    def made(backend: Backend, wanted: tuple[Region, ...]) -> Workspace:
        found = allocate(backend, wanted)
        for r in wanted:
            if "/" in r.name and "." not in r.name:
                found.view(r.name, torch.uint8, r.nbytes).fill_(255)
        backend.barrier()
        return found

    with patch.object(Workspace, "allocate", staticmethod(made)):
        yield
