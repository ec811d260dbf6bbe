"""What the plan may know of the machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """`sms` multiprocessors (at most that many workers run at once per kernel), `shared_bytes` per SM, capability as 90."""

    name: str = "simulated"
    sms: int = 16
    shared_bytes: int = 227 * 1024
    copy_engines: int = 2
    capability: int = 90


@dataclass(frozen=True, slots=True)
class Topology:
    """`world`: simulated | peer | nvshmem. `reach`: `peer` (loads and stores reach every rank) or `network` (puts only)."""

    ranks: int
    world: str = "simulated"
    reach: str = "peer"
    device: Device = Device()
