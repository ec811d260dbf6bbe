"""A plan and its proof as sheets: titles, columns and rows of text, for terminals, notebooks and pages alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from tilelink.ir import formula as F
from tilelink.ir.lowered import Buffer
from tilelink.ir.partition import Channel, ChannelAxis, GridAxis
from tilelink.ir.plan import (
    CallEntry,
    CallExit,
    Fork,
    HostStep,
    Join,
    Keep,
    KernelPlan,
    Launch,
    Plan,
    Stage,
    StepPlan,
    Transfer,
)
from tilelink.ir.program import Notify, Wait
from tilelink.ir.schedule import Schedule, as_written
from tilelink.ir.shape import ITEM_BYTES, RANK_AXIS
from tilelink.ir.verdict import Verdict
from tilelink.ir.wiring import TensorAxis, TensorDecl
from tilelink.mapping.signal_matching import crosses, reads_remote

if TYPE_CHECKING:
    from tilelink.explore.anomalies import Walk
    from tilelink.tracing import Total, Trace
    from tilelink.tuning.study import Study
    from tilelink.tuning.tables import Entry


_SIGNS = str.maketrans("", "", ".,-")


@dataclass(frozen=True, slots=True)
class Sheet:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def numbers(self, k: int) -> bool:
        """Whether a column has nothing but numbers, which stand at the right."""
        return all(row[k].translate(_SIGNS).isdigit() for row in self.rows if row[k])


def plan_sheets(plan: Plan) -> tuple[Sheet, ...]:
    """The derived mapping; sheets that would be empty are left out."""
    sheets = (
        Sheet(
            "Steps",
            ("step", "does", "runs on", "tiles", "tiles a rank", "order"),
            tuple(_step(plan, s) for s in plan.steps),
        ),
        Sheet(
            "Tensors",
            ("tensor", "shape", "dtype", "who has what", "lives in", "slots", "a rank's instance"),
            tuple(_tensor(plan, t) for t in plan.wiring.tensors),
        ),
        Sheet(
            "Channels",
            ("flags of", "flags", "one stands for", "raised by", "times a call", "waited for by"),
            tuple(_channel(plan, c) for c in plan.channels),
        ),
        Sheet("Dependences", ("tensor", "from", "to", "across ranks", "kept by"), tuple(_dependences(plan))),
        Sheet(
            "Credits",
            ("slots of", "may be written again"),
            tuple((b.name, _credit(plan.credits_implied_by)) for b in plan.buffers if b.shared),
        ),
        Sheet("A call", ("", "on the host"), tuple((str(i), _host(plan, h)) for i, h in enumerate(plan.host, 1))),
        Sheet("Notes", ("",), tuple((n,) for n in plan.notes)),
    )
    return tuple(s for s in sheets if s.rows)


def totals_sheet(trace: Trace) -> Sheet:
    """Where the time of a call went: of a rank's workers with one task, and of its streams, the mean per worker."""
    groups: dict[tuple[int, str], list[Total]] = {}
    for t in trace.totals():
        groups.setdefault((t.rank, t.label), []).append(t)
    rows = tuple(
        (str(rank), label, str(len(found)), *(f"{mean:.1f}" for mean in _means(found)))
        for (rank, label), found in groups.items()
    )
    title = f"Mean µs of the {trace.span:.1f} from the first begin to the last end"
    return Sheet(title, ("rank", "what", "workers", "computing", "communicating", "both", "waiting", "idle"), rows)


SHOWN = 4
"""Schedules of a study, the best ones."""


def tuned_sheet(name: str, entry: Entry, study: Study | None) -> Sheet:
    """What tuning has found; `study` is None where it was known."""
    if study is None:
        rows = ((f"{entry.ms:.4f}", str(entry.schedule)),)
        return Sheet(f"{name}: {entry.won}, known, {entry.measured}", ("ms", "schedule"), rows)
    return study_sheet(name, study)


def study_sheet(name: str, study: Study) -> Sheet:
    """The best schedules of a search, the unfused form among them, whether the first ones tie, and why others cannot run."""
    best = [(t.us or 0.0, str(t.schedule)) for t in study.ranked[:SHOWN]]
    if study.plain_ms is not None:
        best = sorted([*best, (1e3 * study.plain_ms, str(Schedule(unfused=True)))])
    rows = [(f"{us / 1e3:.4f}", said) for us, said in best]
    if len(study.ties) > 1:
        rows.append(("–", f"the first {len(study.ties)} tie: their times differ by less than a hundredth"))
    reasons = Counter(t.why for t in study.failed)
    rows += [("–", f"{n} cannot run: {why}") for why, n in reasons.items()]
    ran = len(study.trials) - len(study.failed)
    verb = "measured" if study.on == "gpu" else "simulated" if study.on == "simulated" else "estimated"
    counts = f"{ran} {verb}, {study.estimated_away} left out by the cost model, {study.left} left when it ended"
    return Sheet(f"{name}: {study.won} won, {counts}", ("ms", "schedule"), tuple(rows))


def walk_sheet(name: str, walk: Walk) -> Sheet:
    """Shapes that are far off their bound."""
    rows = tuple(
        (
            " ".join(f"{n}={size}" for n, size in a.sizes),
            f"{a.us:.0f}",
            f"{a.bound_us:.0f}",
            f"{a.gap:.0%}",
            a.binds,
            "–" if a.better is None else f"{a.better.us:.0f}",
            "" if a.better is None else str(a.better.schedule),
        )
        for a in walk.anomalies
    )
    refused = f", no plan for {walk.refused} of them" if walk.refused else ""
    title = f"{name}: {walk.looked} shapes{refused}, {walk.median:.0%} off the bound in the middle"
    return Sheet(title, ("shape", "µs", "bound µs", "gap", "binds", "better µs", "by"), rows)


def _means(found: list[Total]) -> list[float]:
    columns = [("compute",), ("communicate", "set up"), ("compute + communicate",), ("wait",)]
    sums = [*(sum(t.of(*kinds) for t in found) for kinds in columns), sum(t.idle for t in found)]
    return [total / len(found) for total in sums]


def verdict_sheets(verdict: Verdict) -> tuple[Sheet, ...]:
    """What was proved and how long it took, what the proof takes on trust, an interleaving that goes wrong."""
    rows = tuple((p.rule, p.text, f"{p.ms:.1f}") for p in verdict.proofs)
    found = [Sheet("Proof" if verdict.ok else verdict.said.capitalize(), ("rule", "shown", "ms"), rows)]
    if verdict.assumed:
        rows = tuple((a.removeprefix("assumed for "),) for a in verdict.assumed)
        found.append(Sheet("Why" if verdict.said == "not verified" else "Assumed of data", ("",), rows))
    wrong = verdict.counterexample
    if wrong is not None:
        title = "A circle of waits" if wrong.kind == "deadlock" else "What can happen"
        calls = len({i.call for i in wrong.steps}) > 1
        rows = tuple(
            (str(k), f"{i.rank}, call {i.call}" if calls else str(i.rank), i.path, i.tile, i.does, str(i.loc or ""))
            for k, i in enumerate(wrong.steps, 1)
        )
        found.append(Sheet(f"{title}: {wrong.sizes}", ("", "rank", "program", "tile", "", "line"), rows))
    return tuple(found)


# --------------------------------------------------------------------------------------------------------------- steps
def _step(plan: Plan, s: StepPlan) -> tuple[str, ...]:
    order = "" if s.into is not None else as_written(s.order_said)
    return (s.path, _does(s), _runs_on(plan, s), _tiles(s), _range([tiles_on(plan, s, r) for r in _ranks(plan)]), order)


def _does(s: StepPlan) -> str:
    if not s.copies:
        return "compute"
    along = "" if s.step.axis == RANK_AXIS else f" along {s.step.axis}"
    return ("push" if s.push else "pull") + along


def _runs_on(plan: Plan, s: StepPlan) -> str:
    if s.into is not None:
        return f"the workers of {s.into}"
    if s.library is not None:
        return f"{s.library.name}, {s.streams} stream{'s' if s.streams > 1 else ''}"
    if s.engine.by == "stream":
        return f"a {s.engine}" if s.streams == 1 else f"{s.engine}s, {s.streams} streams"
    kernel = next(k for k in plan.kernels if any(path == s.path for path, _ in k.roles))
    beside = [path for path, _ in kernel.roles if path != s.path]
    where = f", with {' and '.join(beside)}" if beside else ""
    return f"{s.workers} SMs{where}" + (", on a side stream" if kernel.stream else "")


def _tiles(s: StepPlan) -> str:
    blocks = " × ".join(_tile(g) for g in s.grid if not g.coordinate)
    loops = ", ".join(_tile(g) for g in s.loops)
    return f"{blocks}, over {loops}" if loops else blocks


def _tile(g: GridAxis) -> str:
    name = "…" if g.dim.startswith("_") else g.dim
    if g.unit:
        return f"{name} by 1"
    return f"{name} by {g.tile}" if g.tile else f"all of {name}" if not g.by_parts else f"{name} by {name}/R"


def tiles_on(plan: Plan, s: StepPlan, rank: int) -> int | None:
    """The tiles of a step on a rank; None where a table decides."""
    return None if any(g.table is not None for g in s.grid) else int(F.evaluate(s.total, plan.env(rank)))


def _ranks(plan: Plan) -> list[int]:
    """Those that a table looks at: all, or the first and the last of very many, which are the ones that differ."""
    count = plan.topology.ranks
    return list(range(count)) if count <= 64 else [*range(32), *range(count - 32, count)]


def _range(values: list[int | None], said: Callable[[int], str] = str) -> str:
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return "at run time"
    low, high = min(known), max(known)
    return said(low) if low == high else f"{said(low)} to {said(high)}"


# ------------------------------------------------------------------------------------------------------------- tensors
def _tensor(plan: Plan, t: TensorDecl) -> tuple[str, ...]:
    buffer = plan.buffer_or_none(t.name)
    shape = " × ".join(_axis(plan, a) for a in t.axes)
    held = "registers only" if buffer is None else _lives(buffer)
    slots = str(buffer.slots) if buffer is not None and buffer.shared else ""
    nbytes = "" if buffer is None else _range([bytes_of(plan, buffer, r) for r in _ranks(plan)], _size)
    return (t.name, shape, t.dtype, _whose(t), held, slots, nbytes)


def _axis(plan: Plan, a: TensorAxis) -> str:
    size = int(F.evaluate(a.size, plan.env(0)))
    return f"{a.name}={size}" + (f"/{a.over}" if a.over is not None and not a.own_slice else "")


def _whose(t: TensorDecl) -> str:
    if t.owned is not None:
        return str(t.axes[t.owned].owner)
    split = [a for a in t.axes if a.over is not None]
    if any(a.own_slice for a in split):
        return "each rank its slice"
    if split:
        over = {a.name: "the ranks" if a.over == RANK_AXIS else a.over for a in split}
        return "split: " + ", ".join(f"{name} over {ranks}" for name, ranks in over.items())
    tables = [a.split for a in t.axes if a.split is not None]
    return f"split by {tables[0]}" if tables else "each rank all of its own"


def _lives(buffer: Buffer) -> str:
    if buffer.staged:
        return "argument, copied to symmetric memory"
    return {"device": "device memory", "symmetric": "symmetric memory"}.get(buffer.space, buffer.space)


def bytes_of(plan: Plan, buffer: Buffer, rank: int) -> int:
    """Of one slot of a rank's instance."""
    return ITEM_BYTES[buffer.dtype] * prod(int(F.evaluate(e, plan.env(rank))) for e in buffer.stage or buffer.extents)


def _size(count: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.4g} {name}"
    return f"{count} B"


# ------------------------------------------------------------------------------------------------------------ channels
def _channel(plan: Plan, c: Channel) -> tuple[str, ...]:
    words = _range([int(F.evaluate(c.flags, plan.env(r))) for r in _ranks(plan)])
    piece = " × ".join(_piece(plan, c, a) for a in c.axes) or "all of it"
    return (c.tensor, words, piece, _raised_by(plan, c), _times(plan, c), _waiting(plan, c))


def _piece(plan: Plan, c: Channel, axis: ChannelAxis) -> str:
    if axis.axis is None:
        return "a source rank"
    name = plan.wiring.tensor(c.tensor).axes[axis.axis].name
    if axis.within == "position":
        return "a rank" if name == "R" else f"one {name}"
    inside = {"parts": " within a rank's part", "own part": " of the own part"}.get(axis.within, "")
    # A piece larger than any tensor stands for the whole axis.
    return f"{'all' if axis.span is None else axis.span} of {name}{inside}"


def _raised_by(plan: Plan, c: Channel) -> str:
    notifying = _paths(plan, c, "notify")
    where = "on its own rank" if c.scope == "gpu" else "on any rank"
    how = "sets the epoch" if not c.adds or plan.epoch_signalled else "adds 1"
    how = "LL protocol, the data brings it" if plan.ll else how
    return f"{', '.join(notifying)} {where}: {how}"


def _waiting(plan: Plan, c: Channel) -> str:
    return ", ".join(_paths(plan, c, "await")) + (", by a doorbell" if c.doorbells else "")


def _paths(plan: Plan, c: Channel, action: str) -> list[str]:
    return list(dict.fromkeys(s.path for s in plan.signals if s.action == action and s.channel == c.tensor))


def _times(plan: Plan, c: Channel) -> str:
    if not c.adds:
        return "1"
    return _range([t for r in _ranks(plan) for t in _targets(plan, c, r)] or [0])


def tiles_of(plan: Plan) -> int:
    """The tiles of a call, of all steps on all ranks together; those that tables decide are not among them."""
    return sum(tiles_on(plan, s, rank) or 0 for s in plan.steps for rank in range(plan.topology.ranks))


def signals_of(plan: Plan) -> int:
    """How often workers raise flags in a call, on all ranks together, as far as the plan knows."""
    ranks = plan.topology.ranks
    count = ranks * ranks * sum(isinstance(h, (CallEntry, Stage)) for h in plan.host)
    ends = () if plan.epoch_signalled else plan.whole_call[-1:]
    count += sum(_through(plan, k, rank) for k in plan.kernels if k.name in ends for rank in range(ranks))
    for s in (s for s in plan.steps if s.deferred):
        count += sum(_taken(plan, s, rank) for rank in range(ranks))
    for c in (c for c in plan.channels if c.adds and not plan.ll):
        for rank in range(ranks):
            targets = _targets(plan, c, rank)
            doorbells = np.arange(len(targets) if c.doorbells == "beside" else 0)
            rung = F.evaluate(F.of(1) if c.rings is None else c.rings, c.at(doorbells, plan.env(rank)))
            count += sum(t or 0 for t in targets) + int(np.broadcast_to(rung, doorbells.shape).sum())
    return count


def _taken(plan: Plan, step: StepPlan, rank: int) -> int:
    """What workers say of tiles that come behind their host's: that each is made, and of which they draw work indices, one each
    too many."""
    host = plan.step(step.executor)
    own = int(F.evaluate(step.own_tiles(host), plan.env(rank)))
    kernel = next(k for k in plan.kernels if host.path in k.in_turn)
    return own + own * step.subtiles + _through(plan, kernel, rank)


def _through(plan: Plan, kernel: KernelPlan, rank: int) -> int:
    """How many workers of a kernel say that they are through: no more than there are tiles for."""
    tiles = [tiles_on(plan, plan.step(path), rank) for path in kernel.in_turn]
    known = [t for t in tiles if t is not None]
    if len(known) < len(tiles):
        return kernel.workers
    return min(kernel.workers, sum(n or 0 for _, n in kernel.beside) + max(1, *known))


def _targets(plan: Plan, c: Channel, rank: int) -> list[int | None]:
    """How often each flag of a channel is raised in a call on one rank; None where a table decides."""
    env = plan.env(rank)
    size = int(F.evaluate(c.flags, env))
    env = c.at(np.arange(size), env)
    if not F.symbols(c.target) <= env.keys():
        return [None]
    target = np.broadcast_to(F.evaluate(c.target, env), (size,))
    return [int(v) for v in target[target != 0]]


# ------------------------------------------------------------------------------------------------- credits and the host
KEPT = {None: "a signal", "stream": "stream order", "worker": "the same worker", "argument": "being ready"}
"""What keeps a dependence, by the reason why its wait needs no signal."""


def _dependences(plan: Plan) -> Iterator[tuple[str, ...]]:
    """The tensor of each wait, who makes it, who waits, whether it crosses ranks, and what keeps it."""
    for s in (s for s in plan.signals if isinstance(s.op, Wait)):
        tensor = plan.wiring.tensor(plan.step(s.path).step.binding(s.op.param).tensor)
        pulled = reads_remote(plan.step(s.path), s.op.param)
        makers = [(plan.step(n.path), n.op.param) for n in plan.signals if isinstance(n.op, Notify)]
        told = [(m.path, pulled or crosses(m, p)) for m, p in makers if m.step.binding(p).tensor == tensor.name]
        for maker, far in [("caller", pulled)] if tensor.origin == "argument" else told:
            yield tensor.name, maker, s.path, "yes" if far else "no", KEPT[s.reason]


def _credit(implied_by: str | None) -> str:
    if implied_by is None:
        return "when every peer has left the call that used them last: waited for on entry"
    return f"at once: the signals of {implied_by} imply that every peer has left that call"


def _host(plan: Plan, step: HostStep) -> str:
    match step:
        case CallEntry():
            return "call_entry: count the call, tell the peers, raise the expected values"
        case CallExit():
            return "call_exit: wait until every peer has read the arguments that it reads in place"
        case Stage(tensors):
            return f"copy {', '.join(tensors)} to symmetric memory, say so to the peers"
        case Fork(stream):
            return f"side stream {stream} goes on from here"
        case Join(stream):
            return f"wait for side stream {stream}"
        case Launch(kernel, stream):
            k = plan.kernel(kernel)
            roles = [*((path, n) for path, n in k.beside), (", then ".join(k.in_turn), k.roles[-1][1])]
            inside = " and ".join(f"{path} on {workers} SMs" for path, workers in roles)
            return f"launch {kernel}: {inside}" + (f", on side stream {stream}" if stream else "")
        case Keep(path):
            return f"{path}: keeps this rank's own part, before kernels that wait for it take all SMs"
        case Transfer(path, stream):
            does = "copies" if plan.step(path).library is None else "calls a library"
            return f"{path}: {does} on side stream {stream}" + (
                f" to {stream + plan.step(path).streams - 1}" if plan.step(path).streams > 1 else ""
            )
