"""How Triton compiles a kernel: its own options, by its own names."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from tilelink.ir.topology import Device


@dataclass(frozen=True, slots=True)
class KernelOptions:
    """What a schedule says of a kernel and Triton is told when it compiles it; nothing between the two looks inside. A new
    option is a field here, of `Sms`, and a parameter of `tilelink.sms`."""

    num_warps: int = 4
    num_stages: int = 3
    maxnreg: int | None = None
    """Registers of a thread at most (NVIDIA's)."""

    def on(self, device: Device) -> KernelOptions:
        """As the device's compiler takes them."""
        # 64 KiB hold no more, and AMD's compiler unrolls them: eight took it half a minute.
        return replace(self, num_stages=min(self.num_stages, 2), maxnreg=None) if device.amd else self

    def given(self) -> dict[str, Any]:
        """For Triton: what is None is left to it."""
        return {name: value for name, value in asdict(self).items() if value is not None}


AS_GIVEN = KernelOptions()
"""Of a kernel of which a schedule says nothing."""
ONE_BLOCK = KernelOptions(num_warps=1, num_stages=1)
"""Of kernels that signal and wait, and do nothing else."""
