"""Starts Triton kernels: arguments by name, refused when its workers cannot all run at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from tilelink.errors import TilelinkError
from tilelink.ir.options import KernelOptions
from tilelink.runtime import kernels
from tilelink.runtime.refusals import tensor_descriptor
from tilelink.runtime.unaccepted import compiling
from tilelink.runtime.world import Descriptor


class Launcher:
    """Launches on one device.

    Args:
        device: where every tensor argument must be.
        options: further compiler options of every kernel, such as `extern_libs`.
        prepare: called once with each compiled kernel, loaded and not yet started.
        room: bytes of shared memory that a block may have; None: not looked at.
    """

    def __init__(
        self,
        device: torch.device,
        options: Mapping[str, Any] | None = None,
        prepare: Callable[[Any], None] | None = None,
        room: int | None = None,
    ) -> None:
        self.device = device
        self._room = room
        self._options = dict(options or {})
        self._prepare = prepare
        self._admitted: dict[Any, int] = {}
        self._unused: dict[tuple[torch.dtype, tuple[int, ...]], torch.Tensor] = {}

    def launch(self, kernel: Any, workers: int, args: Mapping[str, Any], stream: int, options: KernelOptions) -> None:
        """Start `workers` instances of a `triton.jit` function on the CUDA stream with handle `stream`.

        The first launch of each specialisation compiles it; `warmup` finds the later ones in Triton's own cache, and
        starting what it gives spares a second look at the arguments.

        Its loops have as many stages as asked for, or as shared memory holds.

        Raises:
            TilelinkError: TL405 more workers than can run at once, TL410 more shared memory than there is, TL412 a line
                that Triton does not accept, TL424 arguments and parameters differ, TL425 a tensor is elsewhere, TL426 a
                tensor has no TMA descriptor.
        """
        compiled, values = self.load(kernel, workers, args, options)
        compiled[(workers, 1, 1)](*values, stream=stream)

    def load(self, kernel: Any, workers: int, args: Mapping[str, Any], options: KernelOptions) -> tuple[Any, list[Any]]:
        """The compiled kernel, loaded and checked, and the values to start it with in order; raises as `launch`."""
        values = {name: self._value(name, value) for name, value in args.items()}
        if values.keys() != set(kernel.arg_names):
            raise _mismatch(kernel.arg_names, values)
        compiled = self._compiled(kernel, options, dict(grid=(workers,), **self._options, **values))
        _ = compiled.run  # loads it, which checks and preparations need
        if self._admitted.get(compiled, 0) < workers:
            self._admit(compiled, workers)
        return compiled, [values[name] for name in kernel.arg_names]

    def _compiled(self, kernel: Any, options: KernelOptions, given: Mapping[str, Any]) -> Any:
        """The kernel with the most stages, up to those asked for, that it has the shared memory for."""
        with compiling(kernel):
            compiled = kernel.warmup(**options.given(), **given)
        if self._room is None or compiled.metadata.shared <= self._room:
            return compiled
        if options.num_stages > 1:
            return self._compiled(kernel, replace(options, num_stages=options.num_stages - 1), given)
        raise TilelinkError(
            "TL410",
            f"kernel {compiled.name} needs {compiled.metadata.shared} bytes of shared memory, and a block has {self._room}",
            why="tiles of a product, and tiles that TMA stores, go through shared memory",
            hint="give it smaller tiles",
        )

    def _admit(self, compiled: Any, workers: int) -> None:
        kernels.require_resident(compiled, workers)
        if self._prepare is not None and compiled not in self._admitted:
            self._prepare(compiled)
        self._admitted[compiled] = workers

    def _value(self, name: str, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._here(name, value)
        if isinstance(value, Descriptor):
            self._here(name, value.tensor)
            empty = not value.tensor.numel()
            return tensor_descriptor(
                name, Descriptor(self.unused(value.tensor.dtype, value.block), value.block) if empty else value
            )
        return value

    def unused(self, dtype: torch.dtype, block: tuple[int, ...]) -> torch.Tensor:
        """Memory for the descriptor of an empty tensor, which has no address, and no tile that a kernel would touch."""
        if (dtype, block) not in self._unused:
            self._unused[dtype, block] = torch.zeros(block, dtype=dtype, device=self.device)
        return self._unused[dtype, block]

    def _here(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device != self.device:
            raise TilelinkError(
                "TL425",
                f"argument {name} is on {tensor.device}, and this rank runs on {self.device}",
                why="kernels see the memory of their own GPU and the symmetric memory of its peers",
                hint=f"move it: {name}.to({str(self.device)!r})",
            )
        return tensor


def _mismatch(parameters: list[str], values: Mapping[str, Any]) -> TilelinkError:
    missing = ", ".join(name for name in parameters if name not in values) or "none"
    unknown = ", ".join(sorted(values.keys() - set(parameters))) or "none"
    return TilelinkError(
        "TL424",
        f"a kernel's arguments are not its parameters; missing: {missing}; unknown: {unknown}",
        why="arguments are passed by name, all of them",
        hint="emit the file again; if that does not help, report this",
    )
