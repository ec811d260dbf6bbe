"""The verdict on a plan: its programs, what its emitted text takes for granted, and what its lowered form says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from tilelink.errors import Note, TilelinkError
from tilelink.ir.lowered import Lowered
from tilelink.ir.plan import Plan
from tilelink.ir.schedule import as_written
from tilelink.ir.verdict import Counterexample, Proof, Verdict
from tilelink.mapping.buffers import brought_along
from tilelink.mapping.flow import check_flow
from tilelink.mapping.lower import lower
from tilelink.mapping.lower.call import unkept
from tilelink.proof.check import check


def check_signature(plan: Plan) -> str:
    """A result that may be left unwritten in part says so where callers look.

    Raises:
        TilelinkError: TL614.
    """
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
    return "what results leave unwritten is declared"


def check_text(plan: Plan) -> str:
    """What emitted text takes for granted and tables do not show. Of a local shard that is read in the argument: one copy engine
    moves the argument as it is, position by position, both lie by the same strides, and the reader waits for the tensor. Of a
    deferred epilogue: its mainloop step's workers draw its work indices, which are those of this rank's own tiles.

    Raises:
        TilelinkError: TL609.
    """
    wiring = plan.wiring
    for step in (s for s in plan.steps if s.deferred):
        alone = any([path for path, _ in k.roles] == [step.executor] for k in plan.kernels)
        if not alone or step.own_axis is None:
            why = "others share its workers" if not alone else "it takes other tiles than this rank's own"
            raise unkept(f"`{step.path}` comes behind the tiles of `{step.executor}`", why, step.step.loc)
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
    ("signature", check_signature),
    ("emitted text", check_text),
)
"""What is written, and not what happens."""


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
    a wait that stands before a signal on a worker has to leave it. No order helps where it stands there in one tile."""
    turns = zip(cycle.steps[1::2], (*cycle.steps[2::2], cycle.steps[0]), strict=True)
    if all((told.rank, told.path, told.tile) == (wait.rank, wait.path, wait.tile) for told, wait in turns):
        path = cycle.steps[0].path
        return f"let `{path}` notify before it waits, or let one rank begin: in each tile it waits first, on every rank alike"
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
