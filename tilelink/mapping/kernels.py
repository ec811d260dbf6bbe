"""Which steps share a kernel, on which stream each runs, and what the host starts in a call, one behind the other."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from keyword import iskeyword

from tilelink.errors import Note, TilelinkError
from tilelink.ir import plan as H
from tilelink.ir.kernel import OF_EVERY_FILE, PLANNED
from tilelink.ir.plan import MAIN, HostStep, KernelPlan, Plan, StepPlan
from tilelink.ir.schedule import Sms
from tilelink.ir.wiring import Step, Wiring


def assign(plan: Plan) -> tuple[KernelPlan, ...]:
    """Kernels in launch order.

    Raises:
        TilelinkError: TL313, the roles of one kernel ask for more SMs than the device has.
    """
    wiring = plan.wiring
    sms = {s.path: s.placement for s in wiring.steps if isinstance(s.placement, Sms)}
    leading = _leading(wiring, sms)
    roles: dict[str, list[str]] = {path: [] for path in sms if path in leading}
    for s in wiring.steps:
        if s.path in sms and s.path not in leading:
            lead = sms[s.path].joins or _neighbour(wiring, s, sms, leading) or s.path
            roles[lead] = [*roles.get(lead, []), s.path]
    kernels: list[KernelPlan] = []
    side = MAIN
    for path in (path for path in sms if path in roles):
        side += sms[path].own_kernel
        members = [*roles[path], path] if path not in roles[path] else roles[path]
        name = _kernel_name(wiring, members, [k.name for k in kernels])
        counted = [m for m in members if sms[m].count is not None]
        # Roles without a number of SMs take turns, in the order of the steps: nobody waits for a later one.
        turns = [m for m in sms if m in members and m not in counted]
        workers = tuple((m, sms[m].count) for m in (*counted, *turns))
        options = sms[members[-1]].options.on(plan.topology.device)
        kernels.append(KernelPlan(name, workers, side if sms[path].own_kernel else MAIN, options, max(len(turns), 1)))
    # A side kernel must be resident before the kernel whose tiles it waits for fills the device.
    return tuple(sorted(_share_sms(plan, kernels), key=lambda k: k.stream == MAIN))


def _leading(wiring: Wiring, sms: dict[str, Sms]) -> frozenset[str]:
    """The steps that have a kernel, which others may join: those with `own_kernel`, computing steps on all SMs, and computing
    steps on SMs of their own that share no tensor with these. Copy programs join a neighbour's kernel.
    """
    standing = [s for s in wiring.steps if s.path in sms]
    computing = [s for s in standing if s.moves is None and sms[s.path].joins is None]
    if not computing:
        # Of copy programs alone, whoever takes what another one brings.
        brought = {t for s in standing for t in s.makes}
        computing = [s for s in standing if brought & set(s.takes)]
    found = {path for path, on in sms.items() if on.own_kernel}
    found |= {s.path for s in computing if sms[s.path].count is None}
    for s in computing:
        if s.path not in found and _neighbour(wiring, s, sms, frozenset(found)) is None:
            found.add(s.path)
    return frozenset(found)


def _kernel_name(wiring: Wiring, members: list[str], taken: list[str]) -> str:
    """After its step or its steps; never what a tensor, a size or anything else of the emitted file is called."""
    words = members[-1:] if len(members) == 1 else [wiring.name, members[-1]]
    name = "_".join(w.replace(".", "_") for w in words)
    programs = [s.program for s in wiring.steps]
    users = {n for p in programs for n in (*dict(p.globals), *[h.name for h in p.helpers])}
    users |= {t.name for t in wiring.tensors} | set(wiring.sizes) | OF_EVERY_FILE | set(taken)
    while name in users or iskeyword(name) or PLANNED.fullmatch(name):
        name += "_kernel"
    return name


def _neighbour(wiring: Wiring, s: Step, sms: dict[str, Sms], leading: frozenset[str]) -> str | None:
    """The computing step whose kernel a step with SMs of its own joins: who makes its input, else who reads its output."""
    open_to = {path for path in leading if not sms[path].own_kernel}
    makers = [p.path for tensor in s.takes for p in wiring.producers(tensor)]
    readers = [o.path for o in wiring.steps if not set(s.makes).isdisjoint(o.takes)]
    return next((path for path in (*makers, *readers) if path in open_to), None)


def _share_sms(plan: Plan, kernels: list[KernelPlan]) -> list[KernelPlan]:
    """SMs of a role without a number: what the other roles and the side kernels leave.

    Kernels on side streams stay as long as they wait, be it for a kernel of the main stream that is yet to begin: together
    with any one of these they have to fit. Those without a number share what is left with it.
    """
    # A stream waits for its peers, and for other streams, by one-block kernels, and copies what stays here by kernels of the
    # driver's: they need somewhere to run meanwhile.
    reserved = any(_takes_sms(plan, s) for s in plan.steps)
    sms = plan.topology.device.sms - reserved
    beside, main = ([k for k in kernels if (k.stream != MAIN) == side] for side in (True, False))
    # Those without a number are the last of their kernel.
    sharing, others = (sum(k.roles[-1][1] is None for k in of) for of in (beside, main))
    taken = sum(k.workers for k in beside)
    left = sms - taken - max((k.workers for k in main), default=0)
    share = max(left // (sharing + bool(others)), 1) if sharing else 0
    taken += sharing * share
    out: list[KernelPlan] = []
    for k in kernels:
        here = taken + k.workers if k in main else taken
        wanted = here + (k in main and k.roles[-1][1] is None)
        if wanted > sms:
            raise TilelinkError(
                "TL313",
                f"kernel `{k.name}` asks for {wanted + reserved} SMs and the device has {plan.topology.device.sms}",
                loc=plan.step(k.roles[0][0]).step.loc,
                why="workers that wait must all be resident at once",
                hint="give its roles fewer SMs",
            )
        each = sms - here if k in main else share
        out.append(replace(k, roles=tuple((p, each if n is None else n) for p, n in k.roles)))
    return out


def _takes_sms(plan: Plan, s: StepPlan) -> bool:
    """Whether what a stream runs for a step beside kernels needs an SM: to pull, to call a function, or to push, within the
    GPU too, what this call makes. (What is there already comes before kernels, `host_steps`.)"""
    if s.engine.sm != "within":
        return s.engine.sm == "always"
    made = any(o is not s and not o.step.writes.isdisjoint(s.step.takes) for o in plan.steps)
    return not s.push or (made and not s.skip_own)


# ---------------------------------------------------------------------------------------------------- the host's sequence
def host_steps(plan: Plan) -> tuple[HostStep, ...]:
    """The sequence of one call. It ends with leaving where peers read an argument in place.

    A stream that waits for a doorbell can hold up others that share its queue: whoever rings it goes first. A kernel that
    waits for what a library function makes starts behind it: its workers stay until they have it, and could take all
    the room that the function needs.

    Raises:
        TilelinkError: TL312, a library function between two steps of one kernel.
    """
    awaited = {plan.step(s.path).step.binding(s.op.param).tensor for s in plan.signals if s.action == "ready"}
    staged = tuple(b.name for b in plan.buffers if b.staged)
    call = _Call(plan)
    side = 1 + sum(k.stream != MAIN for k in plan.kernels)
    for s in plan.steps:
        if s.engine.by == "stream":
            call.streams[s.path], side = range(side, side + s.streams), side + s.streams
    call.out += [H.CallEntry()] if plan.channels or awaited or plan.unverified else []
    call.out += [H.Stage(staged)] if staged else []
    call.out += [H.Fork(n) for streams in call.streams.values() for n in streams]
    call.transfer()
    call.out += [H.Keep(path) for path in _kept_first(plan)]
    for k in plan.kernels:
        call.launch(k)
    call.out += [H.Transfer(path, streams[0]) for path, streams in call.streams.items() if path not in call.done]
    call.out += [H.Join(n) for n in call.loose]
    call.out += [H.CallExit()] if not awaited <= {*staged} else []
    return tuple(call.out)


def _kept_first(plan: Plan) -> tuple[str, ...]:
    """The copy-engine steps that move what stays on a rank before kernels start.

    Somebody waits for it, and it is there from the beginning. A GPU copies within itself by its SMs: beside kernels whose
    workers have taken them all, and wait, it would never begin.
    """
    awaited = {s.channel for s in plan.signals if s.action == "await"} - {*plan.read_in_place}
    waiting = {s.path for s in plan.signals if s.action == "await"}
    moved = {s.path: s.step.moved_to for s in plan.steps if s.engine.sm == "within"}
    return tuple(path for path, to in moved.items() if path not in waiting and to in awaited)


@dataclass(slots=True)
class _Call:
    """`streams`: of the steps that streams run, by path; `done`: the steps that have been started."""

    plan: Plan
    streams: dict[str, range] = field(default_factory=dict[str, range])
    out: list[HostStep] = field(default_factory=list[HostStep])
    done: set[str] = field(default_factory=set[str])

    @property
    def loose(self) -> list[int]:
        """The side streams that have been forked and are yet to be joined."""
        forked = [h.stream for h in self.out if isinstance(h, H.Fork)]
        return [n for n in forked if H.Join(n) not in self.out]

    def transfer(self) -> None:
        """All transfers whose input somebody makes who has been started."""
        waiting = [s for s in self.plan.steps if s.path in self.streams.keys() - self.done]
        while ready := [s.path for s in waiting if s.path not in self.done and self._needs(s) <= self.done]:
            self.out += [H.Transfer(path, self.streams[path][0]) for path in ready]
            self.done |= {*ready}

    def _needs(self, s: StepPlan) -> set[str]:
        """The steps that make what a stream moves, or computes with."""
        read = s.step.takes if s.step.moved_from is None else (s.step.moved_from,)
        return {p.path for tensor in read for p in self.plan.wiring.producers(tensor)} - {s.path}

    def launch(self, k: KernelPlan) -> None:
        """A kernel, behind the library functions whose results it waits for, and the transfers that it makes ready."""
        if k.stream != MAIN:
            self.out.append(H.Fork(k.stream))
        members = [s for s in self.plan.steps if s.executor in dict(k.roles)]
        functions = [s for s in self.plan.steps if s.library is not None]
        read = {t for s in members if functions for t in self.plan.wiring.read_from(s.step)}
        before = [s for s in functions if not read.isdisjoint(s.step.makes)]
        for s in before:
            if s.path not in self.done:
                raise TilelinkError(
                    "TL312",
                    f"`{s.path}` cannot be placed in a library function",
                    loc=s.step.program.loc,
                    why=f"kernel `{k.name}` makes what it needs and takes what it makes: neither can be over before the other "
                    "begins",
                    hint="give the steps of that kernel kernels of their own (own_kernel=True), or place it on SMs",
                    notes=(Note("the step", s.step.loc),),
                )
        self.out += [H.Join(n) for s in before for n in self.streams[s.path] if n in self.loose]
        self.out.append(H.Launch(k.name, k.stream))
        self.done |= {s.path for s in members}
        self.transfer()
