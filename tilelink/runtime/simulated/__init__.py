"""The simulated backend: R ranks in one process, the emitted kernels in Triton's interpreter, seeded schedules.

Takes: what every backend takes: kernels, tensors, copies, in streams.
Gives: `simulate`; results, a trace, and reports of what stands still or goes astray.
Knows: greenlet, Triton's interpreter, torch on the CPU.
Never knows: how a kernel came about: tiles, schedules, plans.
"""

from tilelink.runtime.simulated.backend import SimulatedBackend, simulate
from tilelink.runtime.simulated.machine import Observer, Record, Recorder
from tilelink.runtime.simulated.races import Access, Race, RaceDetector, RaceError
from tilelink.runtime.simulated.scheduler import Searched, StandstillError, search

__all__ = [
    "Access",
    "Observer",
    "Race",
    "RaceDetector",
    "RaceError",
    "Record",
    "Recorder",
    "Searched",
    "SimulatedBackend",
    "StandstillError",
    "search",
    "simulate",
]
