"""Kernels that run side by side find SMs for all their workers, and what streams run beside them finds one: workers stay
until what they wait for has come.

The rule is read off the plan's signals and host steps. The planner leaves an SM free before there are any
(`kernels.takes_sms`), so its word is not taken for it.
"""

from __future__ import annotations

from tilelink.errors import TilelinkError
from tilelink.ir.host import Keep
from tilelink.ir.plan import Plan, Signal, StepPlan
from tilelink.mapping.verify.mistakes import REPORT


def check_room(plan: Plan) -> str:
    """Raises:
    TilelinkError: TL613, kernels may take all SMs while another one, or a stream, needs them for what they wait for.
    """
    first = next((s for s in plan.steps if _takes_sms(plan, s)), None)
    taken, sms = plan.workers, plan.topology.device.sms
    waiting = next((s for s in plan.signals if s.action == "await" and plan.step(s.path).engine != "stream"), None)
    if waiting is not None and taken > sms:
        raise TilelinkError(
            "TL613",
            f"`{waiting.path}` waits in kernels that have {taken} workers side by side, and there are {sms} SMs",
            loc=waiting.op.loc,
            why="a worker stays until what it waits for has come, and whoever makes that may find no SM meanwhile",
            hint=REPORT,
        )
    if first is None or not plan.kernels:
        return ""
    if taken >= sms:
        raise TilelinkError(
            "TL613",
            f"`{first.path}` needs an SM while {taken} workers, which may wait for it, can have all {sms}",
            loc=first.step.loc,
            why="a GPU copies within itself by its SMs, and a stream waits for peers by a kernel",
            hint=REPORT,
        )
    return f"; of {sms} SMs, streams find {sms - taken} free"


def _takes_sms(plan: Plan, s: StepPlan) -> bool:
    """Whether streams do more for a step, beside kernels, than to send behind bells what goes to peers."""
    if s.engine != "stream":
        return False
    return (
        not s.push
        or _copies_within(plan, s)
        or any(_waits_by_kernel(plan, g) for g in plan.signals if g.path == s.path)
    )


def _copies_within(plan: Plan, s: StepPlan) -> bool:
    """Whether what is pushed stays on its rank in part, and neither comes first nor is read where it was."""
    return not s.skip_own and Keep(s.path) not in plan.host and s.step.moved_to not in plan.read_in_place


def _waits_by_kernel(plan: Plan, signal: Signal) -> bool:
    """Whether it is for a word, and not for a bell, that is waited."""
    if signal.action != "await":
        return False
    return not plan.channel(signal.channel or "").bells
