"""What things cost in simulated time, in microseconds. It gives timelines their shape; it predicts no GPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """Rates of one worker (one SM) in bytes and flops per microsecond, and latencies in microseconds.

    The defaults are an H200's, divided by its SMs: 990 TFLOP/s, 4.8 TB/s (L2 helps), NVLink at 400 GB/s by copy engine.
    """

    flops: float = 6.0e6
    local_bytes: float = 120_000.0
    remote_bytes: float = 20_000.0
    copy_bytes: float = 380_000.0
    launch: float = 3.0
    copy: float = 2.0
    signal: float = 0.7
    remote_signal: float = 1.5

    def access(self, nbytes: int, remote: bool) -> float:
        return nbytes / (self.remote_bytes if remote else self.local_bytes)

    def library(self, flops: int, nbytes: int, sms: int) -> float:
        """A library function on all SMs."""
        return self.launch + max(flops / self.flops, nbytes / self.local_bytes) / sms

    def flight(self, remote: bool) -> float:
        """From the moment a word is written until whoever waits for it knows."""
        return self.remote_signal if remote else self.signal
