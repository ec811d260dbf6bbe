"""The simulated world: R ranks in one process, the emitted kernels in Triton's interpreter, seeded schedules.

Takes: what every world takes: kernels, tensors, copies, in streams.
Gives: `simulate`; results, a trace, and reports of what stands still or goes astray.
Knows: greenlet, Triton's interpreter, torch on the CPU.
Never knows: how a kernel came about: tiles, schedules, plans.
"""

from tilelink.runtime.simulated.launch import simulate
from tilelink.runtime.simulated.observing import Observer
from tilelink.runtime.simulated.policy import Policy
from tilelink.runtime.simulated.raceerror import Access, Race, RaceError
from tilelink.runtime.simulated.races import RaceDetector
from tilelink.runtime.simulated.records import Record, Recorder
from tilelink.runtime.simulated.search import Searched, search
from tilelink.runtime.simulated.standstill import StandstillError
from tilelink.runtime.simulated.world import SimulatedArena, SimulatedWorld

__all__ = [
    "Access",
    "Observer",
    "Policy",
    "Race",
    "RaceDetector",
    "RaceError",
    "Record",
    "Recorder",
    "Searched",
    "SimulatedArena",
    "SimulatedWorld",
    "StandstillError",
    "search",
    "simulate",
]
