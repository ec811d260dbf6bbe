"""The verdict on a plan: its programs, its structure, and what its lowered form says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from tilelink.errors import TilelinkError
from tilelink.ir.lowered import Lowered
from tilelink.ir.plan import Plan
from tilelink.ir.verdict import Counterexample, Proof, Verdict
from tilelink.ir.wiring import TensorDecl
from tilelink.mapping.lower import lower
from tilelink.mapping.programs import check_flow
from tilelink.mapping.structure import check_local_shards, check_structure
from tilelink.proof.check import check

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
            seen = _seen(plan) if rule == "order in a tile" else None
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
    if all(s.order_names[:1] == ("ring+1",) for s in steps):
        waiting = " and ".join(f"`{path}`" for path in dict.fromkeys(i.path for i in cycle.steps[::2]))
        return f"place {waiting} on workers of its own, as tilelink.sms(1): here it waits before the tiles that it waits for"
    have = " and ".join(", ".join(f'"{n}"' for n in s.order_names) for s in steps)
    if len(steps) == 1:
        return f'order {names} so that what others wait for comes first, such as order="ring+1" (now {have})'
    return f'let {names} take their tiles in one order, such as order="ring+1" (now {have})'


def _seen(plan: Plan) -> Counterexample | None:
    """What programs lack may be seen in what they do, too."""
    try:
        check_structure(plan)
        lowered = lower(plan)
    except TilelinkError:
        return None
    return check(lowered).counterexample


def _contracts(plan: Plan) -> Iterator[str]:
    """What is assumed of tables whose contract is written in a signature, and that debug mode can check on the device."""
    for tensor in plan.wiring.tensors:
        if tensor.contract is not None:
            yield f"assumed for `{tensor.name}`: {_promise(tensor)}"
    for step in plan.steps:
        for g in step.grid:
            if g.kind == "table":
                yield (
                    f"assumed for `{g.table}`: `{step.path}` finds all of axis `{g.dim}` between its first and last value"
                )


def _promise(tensor: TensorDecl) -> str:
    contract = tensor.contract
    assert contract is not None
    if contract.kind == "offsets":
        return "its values begin at 0 and never fall (`offsets`)"
    if contract.kind == "permutation":
        return "no value stands there twice (`permutation`)"
    return f"every value is at least 0 and below {contract.of} (`{contract}`)"
