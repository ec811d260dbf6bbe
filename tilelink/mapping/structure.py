"""What a plan has to be for lowering to make sense of it: its steps started once, on streams that are there; and local
shards that are read in the argument hold what would have been moved, and lie as the text takes them to lie."""

from __future__ import annotations

from collections import Counter

from tilelink.errors import Loc, Note, TilelinkError
from tilelink.ir.partition import Channel
from tilelink.ir.plan import (
    MAIN,
    CallEntry,
    CallExit,
    Fork,
    HostStep,
    InPlace,
    Join,
    Keep,
    Launch,
    Plan,
    Signal,
    Stage,
    StepPlan,
    Transfer,
)
from tilelink.ir.program import Notify, Wait, walk
from tilelink.mapping.aliases import brought_along
from tilelink.proof.runs import REPORT


def check_structure(plan: Plan) -> str:
    """
    Raises:
        TilelinkError: TL604, TL607, TL609, TL614.
    """
    _check_started(plan)
    _check_begin(plan)
    _check_streams(plan)
    for channel in plan.channels:
        if channel.counted and not channel.doorbells:
            why = "streams wait for doorbells, and count them where nobody else waits"
            raise _refused(f"`{channel.tensor}` is counted by doorbells that it does not have", why, plan.wiring.loc)
    for step in plan.steps:
        _check_signals(plan, step)
        if step.deferred:
            _check_behind(plan, step)
    _check_signature(plan)
    return f"{len(plan.steps)} steps are started once each, in {len(plan.host)} steps of the host"


def _check_started(plan: Plan) -> None:
    started: Counter[str] = Counter()
    once: Counter[HostStep] = Counter(h for h in plan.host if isinstance(h, Keep | CallExit | Stage))
    for h in plan.host:
        if isinstance(h, Launch):
            started.update(path for path, _ in plan.kernel(h.kernel).roles)
        elif isinstance(h, Transfer):
            started[h.path] += 1
    for s in plan.steps:
        if started[s.executor] != 1:
            why = "each step runs once per call, on workers or a stream of its own or of the step it is fused into"
            raise _refused(f"`{s.path}` is started {started[s.executor]} times in a call", why, s.step.loc)
    twice = next((h for h, times in once.items() if times > 1), None)
    if twice is not None:
        raise _refused(f"`{twice}` stands twice in a call", "what it does is done, and told, once", plan.wiring.loc)


def _check_begin(plan: Plan) -> None:
    """The epoch is advanced before everything else; kernels that begin and end a call by themselves are all there is of it."""
    entries = [h for h in plan.host if isinstance(h, CallEntry)]
    told = bool(plan.channels) or any(s.action == "ready" for s in plan.signals)
    if told and (len(entries) != 1 or plan.host[0] is not entries[0]):
        raise _refused(
            "the epoch of a call is not advanced before everything else",
            "flags are never reset: without a new epoch every wait ends at once, by the last call's signals",
            plan.wiring.loc,
        )
    for entry in entries:
        if entry.kernels and plan.host[1:] != tuple(Launch(k, MAIN) for k in entry.kernels):
            raise _refused(
                "the kernels that begin and end the call are not all that there is of it",
                "the last of them raises the totals that all waits of the call count from",
                plan.wiring.loc,
            )


def _check_streams(plan: Plan) -> None:
    """A side stream is used between its fork and its join; of several that share a step, all go on from the same."""
    behind: dict[int, frozenset[str]] = {MAIN: frozenset()}
    loose: set[int] = set()
    for h in plan.host:
        if isinstance(h, Fork):
            behind[h.stream] = behind.get(h.stream, frozenset()) | behind[MAIN]
            loose.add(h.stream)
        elif isinstance(h, Join):
            behind[MAIN] |= behind.get(h.stream, frozenset())
            loose.discard(h.stream)
        elif isinstance(h, Launch | Transfer):
            streams = range(h.stream, h.stream + (plan.step(h.path).streams if isinstance(h, Transfer) else 1))
            for stream in streams:
                if stream != MAIN and stream not in loose:
                    why = "what runs there would not wait for the call before, nor for the arguments"
                    raise _refused(f"side stream {stream} is used before it is forked", why, plan.wiring.loc)
            if isinstance(h, Transfer) and len({behind[stream] for stream in streams}) > 1:
                why = "what one of its streams comes behind, the others need not"
                raise _refused(f"the streams of `{h.path}` go on from different steps", why, plan.step(h.path).step.loc)
            done = h.executor if isinstance(h, Transfer) else h.kernel
            behind |= {stream: behind[stream] | {done} for stream in streams}
        elif isinstance(h, Stage | Keep | CallEntry):
            behind[MAIN] |= {getattr(h, "executor", "call_entry")}
    if loose:
        why = "the next call, and whoever reads the results, would overtake it"
        raise _refused(f"side stream {min(loose)} is never joined", why, plan.wiring.loc)


def _check_signals(plan: Plan, step: StepPlan) -> None:
    """The plan says one thing of each signal of a program, and names a channel of the tensor that it is about."""
    for op in walk(step.step.program.body):
        if not isinstance(op, Wait | Notify):
            continue
        found = [s for s in plan.signals if s.path == step.path and s.op == op]
        word = "notify" if isinstance(op, Notify) else "wait"
        what = f"nothing keeps this {word} of `{op.param}` in `{step.path}`"
        why = "a signal of a program becomes flags, or something else implies it"
        if len(found) != 1:
            raise _refused(f"{what}: the plan says {'two things' if found else 'nothing'} of it", why, op.loc)
        tensor = step.step.binding(op.param).tensor
        channels = [c for c in plan.channels if c.name == found[0].channel]
        if found[0].action in ("await", "notify") and (not channels or channels[0].tensor != tensor):
            raise _refused(f"{what}: the channel that it names is not this tensor's", why, op.loc)
        if found[0].action == "ready" and plan.wiring.tensor(tensor).origin != "argument":
            raise _refused(f"{what}: only arguments are ready when a call begins", why, op.loc)
        if found[0].action == "notify":
            _check_notify(plan, step, found[0], channels[0])


def _check_notify(plan: Plan, step: StepPlan, signal: Signal, channel: Channel) -> None:
    """It is given by the kind of engine that the flags are kept for, and counted as they are."""
    if step.engine.adds != channel.adds:
        raise TilelinkError(
            "TL607",
            f"`{step.path}` notifies flags of `{channel.tensor}` that are kept for another kind of engine",
            loc=signal.op.loc,
            why="a wait looks for a count where workers add, and for the call where a copy engine sets",
            hint=REPORT,
        )
    tables = {g.table for g in step.grid if g.kind == "table"}
    others = [s for s in plan.signals if s.channel == channel.name and s.action == "notify" and s is not signal]
    joined = channel.joined is not None
    if tables != ({channel.joined} if joined else set[str]()) or (joined and (others or signal.to != "self")):
        raise TilelinkError(
            "TL607",
            f"the tiles of `{step.path}` that notify `{channel.tensor}` are not counted by the table that splits them",
            loc=signal.op.loc,
            why="who waits for tiles of a run-time split waits for the last of them, which the device finds out",
            hint=REPORT,
        )


def _check_behind(plan: Plan, step: StepPlan) -> None:
    host = plan.step(step.executor)
    kernel = plan.kernel_of(host)
    shared = kernel is None or len(kernel.roles) != 1
    if shared or step.own_axis is None:
        raise TilelinkError(
            "TL604",
            f"`{step.path}` cannot come behind the tiles of `{host.path}`",
            loc=step.step.loc,
            why="others share its workers, whose work indices they would be"
            if shared
            else "it takes other tiles than this rank's own, which work indices stand for",
            hint=f'let it come right after each tile: fused("{host.path}")',
        )


def _check_signature(plan: Plan) -> None:
    """A result that may be left unwritten in part says so where callers look."""
    wiring = plan.wiring
    for at, name in enumerate(wiring.results):
        partial = any(
            s.step.program.param(b.param).shape.written == "partial"
            for s in plan.steps
            for b in s.step.bindings
            if b.tensor == name
        )
        if not partial:
            continue
        declared = wiring.signature.outputs[at]
        if declared.written != "partial":
            raise TilelinkError(
                "TL614",
                f"result `{name}` of `{wiring.name}` may be left unwritten in part",
                loc=wiring.loc,
                why=f"the program that makes it declares it `partial`, and `{declared}` does not",
                hint=f"write `{declared} partial` in the operator's signature",
            )


def _refused(what: str, why: str, loc: Loc | None) -> TilelinkError:
    return TilelinkError("TL609", what, loc=loc, why=why, hint=REPORT)


# ------------------------------------------------------------------------------------------------------------- local shards
def check_local_shards(plan: Plan) -> str:
    """One copy engine moves the argument as it is, position by position, and whoever reads the local shard in the argument
    waits for the tensor. (That nobody misses what is not moved, and that the argument reaches as far, tables show.)

    Raises:
        TilelinkError: TL609.
    """
    for tensor in plan.read_in_place:
        makers = [s for s in plan.steps if s.step in plan.wiring.producers(tensor)]
        for step in plan.steps:
            for own in (i for i in step.in_place if i.tensor == tensor):
                _check_in_place(plan, step, own, makers)
    named = ", ".join(f"`{t}`" for t in plan.read_in_place)
    return f"read where the rank has brought it: {named}" if named else "nothing is read in place of what moves"


def _check_in_place(plan: Plan, step: StepPlan, own: InPlace, makers: list[StepPlan]) -> None:
    tensor, layouts = plan.wiring.tensor(own.tensor), dict(plan.layouts)
    found = brought_along(plan.wiring, makers[0].step, tensor, layouts) if len(makers) == 1 else None
    if found is None or found.name != own.source or found.axes[own.axis].split is None:
        what = f"whose local shard is not that of `{own.source}`"
        raise _not_in_place(step, own, what, "reader and mover have to mean the same elements", makers, step.step.loc)
    here, there = (plan.buffer(name).extents[own.axis + 1 :] for name in (own.source, own.tensor))
    if here != there:
        what = f"whose rows are not as long as those of `{own.source}`"
        raise _not_in_place(step, own, what, "the text reads both by the strides of one", makers, step.step.loc)
    for s in plan.signals:
        if s.path == step.path and s.action != "await" and step.step.binding(s.op.param).tensor == own.tensor:
            why = "the text finds the local shard where it waits for the tensor"
            raise _not_in_place(step, own, "without a wait", why, makers, s.op.loc)


def _not_in_place(
    step: StepPlan, own: InPlace, what: str, why: str, makers: list[StepPlan], loc: Loc | None
) -> TilelinkError:
    return TilelinkError(
        "TL609",
        f"`{step.path}` reads `{own.tensor}` in place, {what}",
        loc=loc,
        why=why,
        hint=REPORT,
        notes=tuple(Note("moved here", m.step.loc) for m in makers),
    )
