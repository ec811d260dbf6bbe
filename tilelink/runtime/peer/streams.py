"""CUDA streams as `runtime.world.Stream`: launches, copy engines, bells, events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tilelink.errors import TilelinkError
from tilelink.ir.options import KernelOptions
from tilelink.runtime.peer import driver
from tilelink.runtime.peer.launch import Launcher
from tilelink.runtime.peer.pieces import pieces

HIGH_PRIORITY = -1


class CudaStream:
    """One CUDA stream of this rank; all methods are asynchronous and legal under CUDA-graph capture.

    Kernels must have been launched once before capture, because that compiles and loads them.
    """

    def __init__(self, stream: torch.cuda.Stream, launcher: Launcher) -> None:
        self.stream = stream
        self.handle: int = stream.cuda_stream
        self._launcher = launcher

    def launch(self, kernel: Any, workers: int, args: Mapping[str, Any], options: KernelOptions) -> None:
        """Start `workers` instances of a `triton.jit` kernel; raises as `Launcher.launch` does."""
        self._launcher.launch(kernel, workers, args, self.handle, options)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy bytes by a copy engine; either side may be a peer's memory.

        Raises:
            TilelinkError: TL423 not of one shape and dtype with contiguous rows, TL427 not on a GPU.
        """
        require_gpu(target, source)
        if torch.version.hip:
            with torch.cuda.stream(self.stream):
                target.copy_(source, non_blocking=True)
        else:
            self._copy_pieces(target, source)

    def apply(
        self,
        function: Callable[..., object],
        inputs: Sequence[torch.Tensor],
        output: torch.Tensor | None,
        constants: Mapping[str, Any],
    ) -> None:
        """Let a library compute on this stream; whatever the function raises."""
        # `torch.cuda.stream` does the same, and takes its host 9 µs to find the device out.
        before = torch.cuda.current_stream(self.stream.device_index)
        torch.cuda.set_stream(self.stream)
        try:
            with torch.no_grad():
                if output is None:
                    function(*inputs, **constants)
                else:
                    function(*inputs, out=output, **constants)
        finally:
            torch.cuda.set_stream(before)

    def wait_bell(self, bell: torch.Tensor, times: int = 1) -> None:
        """Block the stream until the one-element int64 `bell` is at least `times`, then set it back to 0.

        The stream looks at the low half only: a bell is rung less than 2**31 times. A stream that waits can hold up
        others that share its hardware queue, so enqueue whatever rings the bell first where both are known.

        Raises:
            TilelinkError: TL420 on HIP, TL428 `bell` is none.
        """
        if bell.dtype != torch.int64 or bell.numel() != 1 or not bell.is_cuda:
            raise TilelinkError(
                "TL428",
                f"{bell.dtype} of shape {tuple(bell.shape)} on {bell.device} is no bell",
                why="a bell is one int64 in the memory of this rank's GPU",
                hint="pass one word of the arena",
            )
        driver.operate(driver.bell_operations(bell.data_ptr(), times), self.handle)

    def record(self) -> torch.cuda.Event:
        """A point after everything enqueued so far."""
        event = torch.cuda.Event()
        event.record(self.stream)
        return event

    def stamp(self) -> torch.cuda.Event:
        """A point whose time can be read."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(self.stream)
        return event

    def wait(self, event: Any) -> None:
        """Let what is enqueued from now on begin after `event`, which some CudaStream recorded."""
        self.stream.wait_event(event)

    def _copy_pieces(self, target: torch.Tensor, source: torch.Tensor) -> None:
        for piece in pieces(target, source):
            to, start = target.data_ptr() + piece.target, source.data_ptr() + piece.source
            if piece.rows == 1:
                driver.copy_bytes(to, start, piece.width, self.handle)
            else:
                driver.copy_rows(
                    to, piece.target_pitch, start, piece.source_pitch, piece.width, piece.rows, self.handle
                )


def require_gpu(*tensors: torch.Tensor) -> None:
    """
    Raises:
        TilelinkError: TL427, one of them is not on a GPU.
    """
    for tensor in tensors:
        if not tensor.is_cuda:
            raise TilelinkError(
                "TL427",
                f"a tensor on {tensor.device} cannot be copied in this world",
                why="copies go between the memories of GPUs",
                hint="move it to this rank's GPU first",
            )


class SideStreams:
    """Streams beside the caller's, made when first asked for and then kept; they go first where hardware can choose."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams: dict[int, torch.cuda.Stream] = {}

    def __getitem__(self, index: int) -> torch.cuda.Stream:
        if index not in self._streams:
            self._streams[index] = torch.cuda.Stream(self._device, priority=HIGH_PRIORITY)
        return self._streams[index]
