"""Starts a simulated world: every rank's program in one process, one seeded schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilelink import cost
from tilelink.ir.topology import Device
from tilelink.runtime.simulated.agents import Agent
from tilelink.runtime.simulated.interpreter import Interpreter
from tilelink.runtime.simulated.machine import Machine
from tilelink.runtime.simulated.observing import Observer
from tilelink.runtime.simulated.policy import Policy, Turns
from tilelink.runtime.simulated.records import Recorder
from tilelink.runtime.simulated.scheduler import Blame, Scheduler, Standstill
from tilelink.runtime.simulated.standstill import report
from tilelink.runtime.simulated.storebuffer import StoreBuffer
from tilelink.runtime.simulated.world import Meetings, SimulatedWorld


def simulate(
    main: Callable[[SimulatedWorld], Any],
    ranks: int,
    *,
    seed: int = 0,
    straggler: int | None = None,
    policy: Policy | Turns | None = None,
    device: Device = Device(),
    costs: cost.Machine = cost.H200,
    recorder: Recorder | None = None,
    observer: Observer | None = None,
    delayed_stores: bool = False,
    nodes: int = 1,
) -> list[Any]:
    """Run `main(world)` as every rank, and return the results by rank.

    The same seed gives the same schedule. The rank `straggler` runs only while no other can. `policy` stands for both,
    and there are more of them. `recorder` keeps a trace; `observer` sees every access. With `delayed_stores` what a program
    stores arrives late and in any order that its barriers, fences and releases allow, by `seed`. The ranks lie on
    `nodes` nodes, as many on each, with a network between them. An exception of one rank ends the run and says which rank
    it was, and under which policy. Triton kernels are interpreted while this lasts: compile
    nothing inside.
    """
    if policy is None:
        policy = Policy(seed=seed) if straggler is None else Policy("straggler", seed, straggler)
    turns = policy.turns() if isinstance(policy, Policy) else policy
    stores = StoreBuffer(policy.seed if isinstance(policy, Policy) else seed) if delayed_stores else None
    machine = Machine(ranks, device, Scheduler(turns), costs, recorder, observer, stores, nodes)
    interpreter, meetings = Interpreter(machine), Meetings(machine, tuple(range(ranks)))
    results: list[Any] = [None] * ranks
    with Blame(f"under the policy {policy}"), interpreter.patched():
        for rank in range(ranks):
            host = Agent(rank)
            world = SimulatedWorld(machine, interpreter, meetings, host)
            machine.scheduler.spawn(host, _program(main, world, results))
        try:
            # Streams and workers write to what programs gave them, in whatever mode those were.
            with torch.inference_mode():
                machine.scheduler.run()
        except Standstill as still:
            raise report(still.waiting, machine.codes) from None
        finally:
            machine.scheduler.close()
    return results


def _program(main: Callable[[SimulatedWorld], Any], world: SimulatedWorld, results: list[Any]) -> Callable[[], None]:
    def run() -> None:
        results[world.rank] = main(world)
        world.finish()

    return run
