"""Which steps share a kernel, and on which stream each runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from keyword import iskeyword

from tilelink.errors import TilelinkError
from tilelink.ir.kernel import OF_EVERY_FILE, PLANNED
from tilelink.ir.plan import MAIN, KernelPlan, StepPlan
from tilelink.ir.topology import Device, Topology
from tilelink.ir.wiring import Wiring


@dataclass(frozen=True, slots=True)
class Assignment:
    """`kernel_of`: path -> kernel; `streams`: path of a copy-engine step -> its first side stream."""

    kernels: tuple[KernelPlan, ...]
    kernel_of: dict[str, str]
    streams: dict[str, int]

    def stream(self, path: str) -> int:
        if path in self.streams:
            return self.streams[path]
        return next(k.stream for k in self.kernels if k.name == self.kernel_of[path])

    def position(self, path: str) -> int:
        """Position of the step's kernel in launch order."""
        return next(i for i, k in enumerate(self.kernels) if k.name == self.kernel_of[path])


def assign(wiring: Wiring, steps: tuple[StepPlan, ...], topology: Topology) -> Assignment:
    """Kernels in launch order.

    Raises:
        TilelinkError: TL313, the roles of one kernel ask for more SMs than the device has.
    """
    by_path = {s.path: s for s in steps}
    standing = [s for s in steps if s.engine.by == "kernel"]
    leading = _leading(wiring, standing)
    roles: dict[str, list[str]] = {s.path: [] for s in standing if s.path in leading}
    for s in standing:
        if s.path in leading:
            continue
        lead = s.joins or _neighbour(wiring, s, standing, leading)
        roles[lead if lead is not None else s.path] = [*roles.get(lead or s.path, []), s.path]
    kernels: list[KernelPlan] = []
    kernel_of: dict[str, str] = {}
    side = 1
    for s in steps:
        if s.path not in roles:
            continue
        stream = MAIN
        if s.own_kernel:
            stream, side = side, side + 1
        members = [*roles[s.path], s.path] if s.path not in roles[s.path] else roles[s.path]
        name = _kernel_name(wiring, members, [k.name for k in kernels])
        kernels.append(_kernel(name, members, by_path, stream, topology.device))
        for m in members:
            for path in (m, *by_path[m].fused):
                kernel_of[path] = name
    streams: dict[str, int] = {}
    for s in steps:
        if s.engine.by == "stream":
            streams[s.path], side = side, side + s.streams
    kernels = _share_sms(kernels, by_path, topology)
    # A side kernel must be resident before the kernel whose tiles it waits for fills the device.
    return Assignment(tuple(sorted(kernels, key=lambda k: k.stream == MAIN)), kernel_of, streams)


def _leading(wiring: Wiring, standing: list[StepPlan]) -> frozenset[str]:
    """The steps that have a kernel, which others may join: those with `own_kernel`, computing steps on all SMs, and computing
    steps on SMs of their own that share no tensor with these. Copy programs join a neighbour's kernel.
    """
    computing = [s for s in standing if s.step.program.copy_program is None and s.joins is None]
    if not computing:
        # Of copy programs alone, whoever takes what another one brings.
        brought = {t for s in standing for t in s.step.makes}
        computing = [s for s in standing if brought & set(s.step.takes)]
    found = {s.path for s in standing if s.own_kernel} | {s.path for s in computing if s.workers is None}
    for s in computing:
        if s.path not in found and _neighbour(wiring, s, standing, frozenset(found)) is None:
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


def _neighbour(wiring: Wiring, s: StepPlan, standing: list[StepPlan], leading: frozenset[str]) -> str | None:
    """The computing step whose kernel a step with SMs of its own joins: who makes its input, else who reads its output."""
    read, made = s.step.takes, set(s.step.makes)
    open_to = {o.path: o for o in standing if o.path in leading and not o.own_kernel}
    makers = [p.path for tensor in read for p in wiring.producers(tensor)]
    readers = [path for path, o in open_to.items() if made & set(o.step.takes)]
    return next((path for path in (*makers, *readers) if path in open_to), None)


def _kernel(name: str, members: list[str], steps: dict[str, StepPlan], stream: int, device: Device) -> KernelPlan:
    """Roles without a number of SMs take turns, in the order of the steps: nobody waits for a later one."""
    lead = steps[members[-1]]
    counted = [m for m in members if steps[m].workers is not None]
    turns = [m for m in steps if m in members and m not in counted]
    roles = tuple((m, steps[m].workers) for m in (*counted, *turns))
    return KernelPlan(name, roles, stream, lead.options.on(device), max(len(turns), 1))


def _share_sms(kernels: list[KernelPlan], steps: dict[str, StepPlan], topology: Topology) -> list[KernelPlan]:
    """SMs of a role without a number: what the other roles and the side kernels leave.

    Kernels on side streams stay as long as they wait, be it for a kernel of the main stream that is yet to begin: together
    with any one of these they have to fit. Those without a number share what is left with it.
    """
    # A stream waits for its peers, and for other streams, by one-block kernels, and copies what stays here by kernels of the
    # driver's: they need somewhere to run meanwhile.
    reserved = any(takes_sms(s, steps) for s in steps.values())
    sms = topology.device.sms - reserved
    beside, main = ([k for k in kernels if (k.stream != MAIN) == side] for side in (True, False))
    taken = sum(map(_counted, beside))
    sharing = sum(map(_is_open, beside))
    left = sms - taken - max(map(_counted, main), default=0)
    share = max(left // (sharing + any(map(_is_open, main))), 1) if sharing else 0
    taken += sharing * share
    out: list[KernelPlan] = []
    for k in kernels:
        here = taken + _counted(k) if k.stream == MAIN else taken
        wanted = here + (k.stream == MAIN and _is_open(k))
        if wanted > sms:
            raise _too_many(k, wanted + reserved, steps, topology)
        open_to = sms - here if k.stream == MAIN else share
        out.append(replace(k, roles=tuple((p, open_to if n is None else n) for p, n in k.roles)))
    return out


def _counted(k: KernelPlan) -> int:
    return sum(n or 0 for _, n in k.roles)


def _is_open(k: KernelPlan) -> bool:
    return any(n is None for _, n in k.roles)


def _too_many(k: KernelPlan, wanted: int, steps: dict[str, StepPlan], topology: Topology) -> TilelinkError:
    return TilelinkError(
        "TL313",
        f"kernel `{k.name}` asks for {wanted} SMs and the device has {topology.device.sms}",
        loc=steps[k.roles[0][0]].step.loc,
        why="workers that wait must all be resident at once",
        hint="give its roles fewer SMs",
    )


def takes_sms(s: StepPlan, steps: dict[str, StepPlan]) -> bool:
    """Whether what a stream runs for a step beside kernels needs an SM: to pull, to call a function, or to push, within the
    GPU too, what this call makes. (What is there already comes before kernels, `sequence`.)"""
    if s.engine.sm != "within":
        return s.engine.sm == "always"
    made = any(o is not s and not o.step.writes.isdisjoint(s.step.takes) for o in steps.values())
    return not s.push or (made and not s.skip_own)
