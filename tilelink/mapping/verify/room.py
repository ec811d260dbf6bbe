"""What streams run on SMs beside kernels finds one: workers stay until what they wait for has come."""

from __future__ import annotations

from tilelink.errors import TilelinkError
from tilelink.ir.host import Keep
from tilelink.ir.plan import Plan, Signal, StepPlan
from tilelink.mapping.exact.room import most_workers
from tilelink.mapping.in_place import kept_first
from tilelink.mapping.kernels import takes_sms


def check_room(plan: Plan) -> str:
    """Raises:
    TilelinkError: TL613, kernels may take all SMs while a stream needs one for what they wait for.
    """
    by_path = {s.path: s for s in plan.steps}
    late = [p for p in kept_first(plan.steps, plan.signals, plan.channels) if Keep(p) not in plan.host]
    needing = late + [s.path for s in plan.steps if takes_sms(s, by_path)]
    needing += [s.path for s in plan.signals if s.action == "await" and _waits_by_kernel(plan, s)]
    needing += [s.path for s in plan.steps if _copies_within(plan, s)]
    taken, sms = most_workers(plan), plan.topology.device.sms
    if not needing or not plan.kernels:
        return ""
    if taken >= sms:
        first = by_path[needing[0]]
        raise TilelinkError(
            "TL613",
            f"`{first.path}` needs an SM while {taken} workers, which may wait for it, can have all {sms}",
            loc=first.step.loc,
            why="a GPU copies within itself by its SMs, and a stream waits for peers by a kernel",
            hint="this is the plan's mistake and not yours: please report it with the schedule",
        )
    return f"; of {sms} SMs, streams find {sms - taken} free"


def _copies_within(plan: Plan, s: StepPlan) -> bool:
    """Whether what a stream pushes stays on its rank in part, and neither comes first nor is read where it was."""
    moves = s.engine == "stream" and s.library is None and s.step.program.movement is not None
    if not moves or not s.push or s.skip_own or Keep(s.path) in plan.host:
        return False
    return not any(i.tensor == s.step.moved_to for o in plan.steps for i in o.in_place)


def _waits_by_kernel(plan: Plan, signal: Signal) -> bool:
    """Whether a stream waits for a word, and not for a bell."""
    channel = plan.channel(signal.channel or "")
    return plan.step(signal.path).engine == "stream" and not (channel.bells and channel.scope == "gpu")
