"""Rule 2, continued: each signal of a program has become words, or something else implies it (G22)."""

from __future__ import annotations

from tilelink.errors import Note, TilelinkError
from tilelink.ir.host import Launch, Stage
from tilelink.ir.plan import Plan, Signal, StepPlan
from tilelink.ir.program import Load, Move, Notify, OfTile, Store, Wait, walk
from tilelink.ir.wiring import TensorDecl, entries
from tilelink.mapping.verify.mistakes import REPORT


def check_elided(plan: Plan) -> str:
    """Raises:
    TilelinkError: TL609, a dependence that nothing keeps.
    """
    kept: dict[str, int] = {}
    for step in plan.steps:
        _check_tables(plan, step)
        for op in walk(step.step.program.body):
            if isinstance(op, (Wait, Notify)):
                reason = _check(plan, step, op)
                kept[reason] = kept.get(reason, 0) + 1
    return ", ".join(f"{n} by {_BY.get(reason, reason)}" for reason, n in sorted(kept.items()))


_BY = {
    "worker": "the same worker",
    "stream": "the order of kernels",
    "argument": "being this rank's own argument",
    "words": "words",
    "ready": "an argument's ready flag",
    "nobody waits": "nobody waiting",
}


def _check(plan: Plan, step: StepPlan, op: Wait | Notify) -> str:
    found = [s for s in plan.signals if s.path == step.path and s.op == op]
    if len(found) != 1:
        raise _lost(step, op, "the plan says nothing of it" if not found else "the plan says two things of it")
    signal = found[0]
    tensor = plan.wiring.tensor(step.step.binding(op.param).tensor)
    if signal.action in ("await", "notify"):
        if all(c.name != signal.channel or c.tensor != tensor.name for c in plan.channels):
            raise _lost(step, op, "the channel that it names is not this tensor's")
        return "words"
    if isinstance(op, Notify):
        _check_unheard(plan, step, signal, tensor)
        return "nobody waits"
    if signal.action == "ready":
        _check_ready(plan, step, op, tensor)
        return "ready"
    _check_implied(plan, step, op, signal, tensor)
    return signal.reason or ""


def _check_unheard(plan: Plan, step: StepPlan, signal: Signal, tensor: TensorDecl) -> None:
    """A notify may be dropped if nobody awaits words of the tensor."""
    for s in plan.signals:
        if s.action == "await" and plan.step(s.path).step.binding(s.op.param).tensor == tensor.name:
            raise _lost(step, signal.op, f"`{s.path}` waits for it", Note("the wait", s.op.loc))


def _check_ready(plan: Plan, step: StepPlan, op: Wait, tensor: TensorDecl) -> None:
    if tensor.origin != "argument":
        raise _lost(step, op, "only arguments are ready when a call begins")
    buffer = plan.buffer(tensor.name)
    staged = any(isinstance(h, Stage) and tensor.name in h.tensors for h in plan.host)
    if buffer.staged != staged or not (staged or plan.layout(tensor.name).symmetric):
        raise _lost(step, op, "the argument is never put where its peers can read it")


def _check_implied(plan: Plan, step: StepPlan, op: Wait, signal: Signal, tensor: TensorDecl) -> None:
    made_by = makers(plan, tensor.name)
    if signal.reason == "argument":
        if tensor.origin != "argument" or _reads_remote(plan, step, op.param):
            raise _lost(step, op, "it is not only this rank's own argument that is read")
        return
    if signal.reason not in ("worker", "stream"):
        raise _lost(step, op, f"`{signal.reason}` keeps nothing")
    if _reads_remote(plan, step, op.param):
        raise _lost(step, op, "it reads what other ranks make")
    for maker in made_by:
        if _pushes(maker, tensor.name):
            raise _lost(
                step, op, f"`{maker.path}` of other ranks writes it", Note("written here", maker.step.program.loc)
            )
        kept = _same_tile(plan, step, maker, op) if signal.reason == "worker" else launched_before(plan, maker, step)
        if not kept:
            what = (
                "is no tile that the same worker has just made" if signal.reason == "worker" else "may still be running"
            )
            raise _lost(step, op, f"`{maker.path}` {what}", Note("the step that makes it", maker.step.loc))


def makers(plan: Plan, tensor: str) -> list[StepPlan]:
    return [
        s
        for s in plan.steps
        if any(
            isinstance(op, (Store, Move)) and s.step.binding(op.param).tensor == tensor
            for op in walk(s.step.program.body)
        )
    ]


def _reads_remote(plan: Plan, step: StepPlan, param: str) -> bool:
    movement = step.step.program.movement
    if movement is None or step.push or movement.source != param:
        return False
    binding = step.step.binding(param)
    return plan.wiring.tensor(binding.tensor).names_holders(binding.view)


def _pushes(step: StepPlan, tensor: str) -> bool:
    movement = step.step.program.movement
    if movement is not None:
        return bool(step.push)
    return any(
        isinstance(op, Store) and op.to == "holders" and step.step.binding(op.param).tensor == tensor
        for op in walk(step.step.program.body)
    )


# ---------------------------------------------------------------------------------------------------------------- tables
def _check_tables(plan: Plan, step: StepPlan) -> None:
    """The offsets of a run-time split are read before the first tile, where no wait of the program can cover them."""
    for table in dict.fromkeys(g.table for g in step.grid if g.table is not None):
        for maker in makers(plan, table):
            if _pushes(maker, table) or not launched_before(plan, maker, step):
                raise TilelinkError(
                    "TL609",
                    f"`{step.path}` is split by `{table}`, which `{maker.path}` may still be making",
                    loc=step.step.loc,
                    why="how many tiles there are is read when the kernel begins: no wait in a tile comes before it",
                    hint=f"let `{maker.path}` end first: in an earlier kernel of the same stream, with rows of its own rank",
                    notes=(Note("the step that makes it", maker.step.loc),),
                )


# ----------------------------------------------------------------------------------------------------------- same worker
def _same_tile(plan: Plan, reader: StepPlan, maker: StepPlan, op: Wait) -> bool:
    """The maker runs just before in the same worker, and the tile that is read is the one that it has made."""
    root = reader.into
    if root is None or (maker.path != root and maker.into != root):
        return False
    sequence = [root, *plan.step(root).fused]
    if reader.path not in sequence or maker.path not in sequence:
        return False
    if sequence.index(maker.path) >= sequence.index(reader.path):
        return False
    tensor = reader.step.binding(op.param).tensor
    made, read = _host_axes(maker, tensor, writing=True), _host_axes(reader, tensor, writing=False)
    return all(made.get(axis, read.get(axis)) == read.get(axis) for axis in made)


def _host_axes(step: StepPlan, tensor: str, *, writing: bool) -> dict[int, int | None]:
    """Axis of the tensor -> axis of the host's grid whose tile lies there; an axis that is whole is left out."""
    out: dict[int, int | None] = {}
    movement = step.step.program.movement
    if movement is not None:
        param = movement.destination if writing else movement.source
        for k, v in enumerate(step.step.binding(param).view):
            if v.axis is not None and not (writing and _whole(step, k)):
                out[v.axis] = _host_axis(step, k)
        return out
    for op in walk(step.step.program.body):
        if not isinstance(op, Store if writing else Load) or step.step.binding(op.param).tensor != tensor:
            continue
        for v, e in zip(step.step.binding(op.param).view, entries(step.step, op.param, op.index), strict=True):
            if v.axis is not None and isinstance(e, OfTile):
                k = next((a for a, g in enumerate(step.grid) if g.var == e.var), None)
                if k is None or not (writing and _whole(step, k)):
                    out[v.axis] = _host_axis(step, k) if k is not None else None
    return out


def _whole(step: StepPlan, axis: int) -> bool:
    """One tile is the whole axis: whoever reads any of it reads that tile."""
    return step.grid[axis].kind == "plain" and step.grid[axis].tile is None


def _host_axis(step: StepPlan, axis: int) -> int | None:
    return axis if step.into is None else step.host_axes[axis]


# ---------------------------------------------------------------------------------------------------------- same stream
def launched_before(plan: Plan, maker: StepPlan, reader: StepPlan) -> bool:
    """Both are kernels of one stream, and the maker's was launched first."""
    launches = [h for h in plan.host if isinstance(h, Launch)]
    first, then = (_launch_of(plan, launches, s) for s in (maker, reader))
    if first is None or then is None or first >= then:
        return False
    return launches[first].stream == launches[then].stream


def _launch_of(plan: Plan, launches: list[Launch], step: StepPlan) -> int | None:
    kernel = plan.kernel_of(step)
    return next((i for i, h in enumerate(launches) if kernel is not None and h.kernel == kernel.name), None)


def _lost(step: StepPlan, op: Wait | Notify, what: str, *notes: Note) -> TilelinkError:
    word = "notify" if isinstance(op, Notify) else "wait"
    return TilelinkError(
        "TL609",
        f"nothing keeps this {word} of `{op.param}` in `{step.path}`: {what}",
        loc=op.loc,
        why="a signal may only be left out where the same worker, the order of kernels or another signal implies it",
        hint=REPORT,
        notes=notes,
    )
