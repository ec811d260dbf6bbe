"""The verdict on a plan: its programs, its structure, and what its lowered form says.

Structure is what a plan has to have for lowering to make sense of it: its steps started once, its signals kept; and local
shards that are read in the argument hold what would have been moved, and lie as the text takes them to lie.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from tilelink.errors import Note, TilelinkError
from tilelink.ir import plan as H
from tilelink.ir.lowered import Lowered
from tilelink.ir.partition import Channel
from tilelink.ir.plan import MAIN, Plan, Signal, StepPlan
from tilelink.ir.program import Notify, Wait, walk
from tilelink.ir.schedule import as_written
from tilelink.ir.verdict import REPORT, Counterexample, Proof, Verdict
from tilelink.mapping.buffers import brought_along
from tilelink.mapping.flow import check_flow
from tilelink.mapping.lower import lower
from tilelink.mapping.lower.call import unkept
from tilelink.proof.check import check


# ---------------------------------------------------------------------------------------------------------------- structure
def check_structure(plan: Plan) -> str:
    """
    Raises:
        TilelinkError: TL604, TL607, TL609, TL614.
    """
    _check_started(plan)
    for step in plan.steps:
        _check_signals(plan, step)
        if step.deferred:
            _check_behind(plan, step)
    _check_signature(plan)
    return f"{len(plan.steps)} steps are started once each, in {len(plan.host)} steps of the host"


def _check_started(plan: Plan) -> None:
    """Each step is; and the epoch is advanced before everything else: kernels that begin and end a call by themselves are all
    there is of it."""
    loc = plan.wiring.loc
    started: Counter[str] = Counter()
    for h in plan.host:
        if isinstance(h, H.Launch):
            started.update(path for path, _ in plan.kernel(h.kernel).roles)
        elif isinstance(h, H.Transfer):
            started[h.path] += 1
    for s in plan.steps:
        if started[s.executor] != 1:
            why = "each step runs once per call, on workers or a stream of its own or of the step it is fused into"
            raise unkept(f"`{s.path}` is started {started[s.executor]} times in a call", why, s.step.loc)
    once = [h for h in plan.host if isinstance(h, H.Keep | H.CallExit | H.Stage)]
    twice = next((h for h in once if once.count(h) > 1), None)
    if twice is not None:
        raise unkept(f"`{twice}` stands twice in a call", "what it does is done, and told, once", loc)
    entries = [h for h in plan.host if isinstance(h, H.CallEntry)]
    told = bool(plan.channels) or any(s.action == "ready" for s in plan.signals)
    if told and (len(entries) != 1 or plan.host[0] is not entries[0]):
        why = "flags are never reset: without a new epoch every wait ends at once, by the last call's signals"
        raise unkept("the epoch of a call is not advanced before everything else", why, loc)
    for entry in entries:
        if entry.kernels and plan.host[1:] != tuple(H.Launch(k, MAIN) for k in entry.kernels):
            why = "the last of them raises the totals that all waits of the call count from"
            raise unkept("the kernels that begin and end the call are not all that there is of it", why, loc)


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
            raise unkept(f"{what}: the plan says {'two things' if found else 'nothing'} of it", why, op.loc)
        tensor = step.step.binding(op.param).tensor
        channel = next((c for c in plan.channels if c.tensor == found[0].channel), None)
        if found[0].action in ("await", "notify") and (channel is None or channel.tensor != tensor):
            raise unkept(f"{what}: the channel that it names is not this tensor's", why, op.loc)
        if found[0].action == "ready" and plan.wiring.tensor(tensor).origin != "argument":
            raise unkept(f"{what}: only arguments are ready when a call begins", why, op.loc)
        if found[0].action == "notify" and channel is not None:
            _check_notify(plan, step, found[0], channel)


def _check_notify(plan: Plan, step: StepPlan, signal: Signal, channel: Channel) -> None:
    """It is given by the kind of engine that the flags are kept for, and counted as they are."""
    tables = {g.table for g in step.grid if g.kind == "table"}
    others = [s for s in plan.signals if s.channel == channel.tensor and s.action == "notify" and s is not signal]
    joined = channel.joined is not None
    if step.engine.adds != channel.adds:
        what = f"`{step.path}` notifies flags of `{channel.tensor}` that are kept for another kind of engine"
        why = "a wait looks for a count where workers add, and for the call where a copy engine sets"
    elif tables != ({channel.joined} if joined else set[str]()) or (joined and (others or signal.to != "self")):
        what = (
            f"the tiles of `{step.path}` that notify `{channel.tensor}` are not counted by the table that splits them"
        )
        why = "who waits for tiles of a run-time split waits for the last of them, which the device finds out"
    else:
        return
    raise TilelinkError("TL607", what, loc=signal.op.loc, why=why, hint=REPORT)


def _check_behind(plan: Plan, step: StepPlan) -> None:
    host = plan.step(step.executor)
    shared = not any(host.executor in dict(k.roles) and len(k.roles) == 1 for k in plan.kernels)
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
    bound = [(b.tensor, s.step.program.param(b.param).shape.written) for s in plan.steps for b in s.step.bindings]
    for name, declared in zip(wiring.results, wiring.signature.outputs, strict=False):
        if (name, "partial") in bound and declared.written != "partial":
            raise TilelinkError(
                "TL614",
                f"result `{name}` of `{wiring.name}` may be left unwritten in part",
                loc=wiring.loc,
                why=f"the program that makes it declares it `partial`, and `{declared}` does not",
                hint=f"write `{declared} partial` in the operator's signature",
            )


# ------------------------------------------------------------------------------------------------------------ local shards
def check_local_shards(plan: Plan) -> str:
    """One copy engine moves the argument as it is, position by position, and whoever reads the local shard in the argument
    waits for the tensor. (That nobody misses what is not moved, and that the argument reaches as far, tables show.)

    Raises:
        TilelinkError: TL609.
    """
    wiring = plan.wiring
    for step, own in ((s, i) for s in plan.steps for i in s.in_place):
        makers = wiring.producers(own.tensor)
        notes = tuple(Note("moved here", m.loc) for m in makers)
        reads = f"`{step.path}` reads `{own.tensor}` in place,"
        found = brought_along(plan, makers[0], wiring.tensor(own.tensor)) if len(makers) == 1 else None
        if found is None or found.name != own.source:
            why = "reader and mover have to mean the same elements"
            raise unkept(f"{reads} whose local shard is not that of `{own.source}`", why, step.step.loc, notes)
        here, there = (plan.buffer(name).extents[1:] for name in (own.source, own.tensor))
        if here != there:
            why = "the text reads both by the strides of one"
            raise unkept(f"{reads} whose rows are not as long as those of `{own.source}`", why, step.step.loc, notes)
        for s in plan.signals:
            if s.path == step.path and s.action != "await" and step.step.binding(s.op.param).tensor == own.tensor:
                why = "the text finds the local shard where it waits for the tensor"
                raise unkept(f"{reads} without a wait", why, s.op.loc, notes)
    named = ", ".join(f"`{t}`" for t in plan.read_in_place)
    return f"read where the rank has brought it: {named}" if named else "nothing is read in place of what moves"


# ------------------------------------------------------------------------------------------------------------ the verdict
RULES: tuple[tuple[str, Callable[[Plan], str]], ...] = (
    ("order in a tile", check_flow),
    ("structure", check_structure),
    ("local shards", check_local_shards),
)
"""What programs have to be by themselves, and what a plan has to be to have a meaning."""


def judge(plan: Plan) -> Verdict:
    """Show that a plan computes what its programs say, on every rank and in every order of events; or give the diagnostic, and
    an interleaving that goes wrong where there is one.

    A plan with raw pointers is neither proved nor refused: its verdict is not `ok` and has no `error`. Others are: TL602 a load
    without its wait, TL603 a store without its notify, TL604 coverage, TL605 deadlock, TL606 not proven, TL607 counts, TL609 a
    dependence that nothing keeps, TL610 a missing credit, TL611 bounds, TL612 a signal that does not reach far enough, TL613 no
    SM for a kernel beside others, or for what a stream does, TL614 data decides and nothing is declared.
    """
    return judged(plan)[0]


def judged(plan: Plan) -> tuple[Verdict, Lowered | None]:
    """The verdict, and what it is of; None: the plan was refused before it was lowered."""
    if plan.unverified:
        names = ", ".join(f"`{path}`" for path in plan.unverified)
        said = f"nothing is proven: {names} uses raw pointers, which no proof sees through"
        return Verdict(False, (), assumed=(said,)), None
    proofs: list[Proof] = []
    started = time.perf_counter()
    for rule, ask in RULES:
        try:
            text = ask(plan)
        except TilelinkError as error:
            seen = None
            if rule == "order in a tile":
                # What programs lack may be seen in what they do, too.
                with suppress(TilelinkError):
                    check_structure(plan)
                    seen = check(lower(plan)).counterexample
            return Verdict(False, tuple(proofs), error, seen), None
        now = time.perf_counter()
        proofs.append(Proof(rule, text, (now - started) * 1e3))
        started = now
    try:
        lowered = lower(plan)
    except TilelinkError as error:
        return Verdict(False, tuple(proofs), error), None
    found = check(lowered)
    error, shown = found.error, found.counterexample
    if error is not None and shown is not None and shown.kind == "deadlock":
        hint = _other_order(plan, shown)
        error = TilelinkError(error.code, error.message, loc=error.loc, why=error.why, hint=hint, notes=error.notes)
        found = replace(found, error=error)
    return replace(found, proofs=(*proofs, *found.proofs), assumed=(*_contracts(plan), *found.assumed)), lowered


def _other_order(plan: Plan, cycle: Counterexample) -> str:
    """Whoever hands rows on has to take others' rows first, and all of a cycle have to take theirs in one order; where they do,
    a wait that stands before a signal on a worker has to leave it."""
    paths = {plan.step(i.path).executor for i in cycle.steps if any(s.path == i.path for s in plan.steps)}
    steps = [plan.step(path) for path in sorted(paths)]
    names = " and ".join(f"`{s.path}`" for s in steps)
    if all(s.order_said[:1] == ("ring+1",) for s in steps):
        waiting = " and ".join(f"`{path}`" for path in dict.fromkeys(i.path for i in cycle.steps[::2]))
        return f"place {waiting} on workers of its own, as tilelink.sms(1): here it waits before the tiles that it waits for"
    have = " and ".join(
        ", ".join(f'"{n}"' if isinstance(n, str) else as_written(n) for n in s.order_said) for s in steps
    )
    if len(steps) == 1:
        return f'order {names} so that what others wait for comes first, such as order="ring+1" (now {have})'
    return f'let {names} take their tiles in one order, such as order="ring+1" (now {have})'


def _contracts(plan: Plan) -> Iterator[str]:
    """What is assumed of tables whose contract is written in a signature, and that debug mode can check on the device."""
    promises = {
        "offsets": "its values begin at 0 and never fall (`offsets`)",
        "permutation": "no value stands there twice (`permutation`)",
    }
    for tensor in plan.wiring.tensors:
        if tensor.contract is not None:
            below = f"every value is at least 0 and below {tensor.contract.of} (`{tensor.contract}`)"
            yield f"assumed for `{tensor.name}`: {promises.get(tensor.contract.kind, below)}"
    for step in plan.steps:
        for g in step.grid:
            if g.kind == "table":
                yield (
                    f"assumed for `{g.table}`: `{step.path}` finds all of axis `{g.dim}` between its first and last value"
                )
