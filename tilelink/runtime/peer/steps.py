"""Work of CUDA streams, with everything settled that does not change.

A cached call writes a few addresses and calls the driver.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from triton import knobs

from tilelink.runtime import backend as W
from tilelink.runtime.peer import driver
from tilelink.runtime.peer.packing import pack
from tilelink.runtime.peer.streams import Launcher, pieces, require_gpu

Address = Callable[[W.Call], int]


def settled(work: W.Work, number: int, backend: W.Backend, launcher: Launcher, first: W.Call) -> W.Step:
    """The step of `work` on stream `number`."""
    if isinstance(work, W.Launch):
        return _launch(work, number, backend, launcher, first)
    if isinstance(work, W.WaitDoorbell):
        return _wait_doorbell(work, number, backend)
    if isinstance(work, W.Follow):
        return _follow(work, number, backend)
    if isinstance(work, W.Apply):
        return _apply(work, number, backend, first)
    return _copy(work, number, backend, first)


def _handle(number: int, backend: W.Backend) -> Callable[[W.Call], int]:
    """The stream, as the driver knows it."""
    # Streams of this backend are `CudaStream`s; each launch asks, so that nothing is checked here.
    if number == W.MAIN:
        return lambda call: call.main.handle  # pyright: ignore[reportAttributeAccessIssue]
    handle: int = backend.side_stream(number).handle  # pyright: ignore[reportAttributeAccessIssue]
    return lambda call: handle


# --------------------------------------------------------------------------------------------------------------- launches
def _launch(work: W.Launch, number: int, backend: W.Backend, launcher: Launcher, first: W.Call) -> W.Step:
    plain = W.plain_step(work, number, backend)
    # A call with credits has parameters of its own, and so does one without.
    varies = any(isinstance(value, W.Credits) for value in work.args.values())
    made = [pack(work, backend, launcher, W.Call(first.tensors, c, first.main)) for c in ((0, 1) if varies else (0,))]
    packed = [p for p in made if p is not None]
    if len(packed) != len(made):
        return plain
    start, handle, context_of = driver.library().cuLaunchKernelEx, _handle(number, backend), backend.context_of
    launches = [
        (p, ctypes.c_void_p(ctypes.addressof(p.config)), ctypes.c_void_p(p.function), p.parameters)
        for p in (packed if varies else packed * 2)
    ]

    def launch(call: W.Call) -> None:
        if hooked():
            return plain(call)
        (values, config, function, parameters), tensors = launches[call.credits], call.tensors
        for value, name in values.pointers:
            value.value = tensors[name].data_ptr()
        for value, name, line in values.contexts:
            value.value = context_of(tensors[name], line).data_ptr()
        for at, name, maps in values.maps:
            parameters[at] = maps.address(tensors[name])
        values.config.stream = handle(call)
        status = start(config, function, parameters, None)
        if status:
            driver.check(status, "cuLaunchKernelEx")
        return None

    return launch


def hooked() -> bool:
    """Whether somebody, such as a profiler, asks Triton to be told of launches: then Triton makes them."""
    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


# ----------------------------------------------------------------------------------------------------------------- copies
def _copy(work: W.Copy, number: int, backend: W.Backend, first: W.Call) -> W.Step:
    ends = W.ends_of(work, first, backend)
    require_gpu(*ends)
    parts = pieces(*ends)
    sides = work.target.of, work.source.of
    (target, fixed_target), (source, fixed_source) = (
        _address(side, end, backend, first) for side, end in zip(sides, ends, strict=True)
    )
    handle = _handle(number, backend)
    if any(part.rows > 1 for part in parts):

        def copy_rows(call: W.Call) -> None:
            to, start, stream = target(call), source(call), handle(call)
            for p in parts:
                ends = to + p.target, p.target_pitch, start + p.source, p.source_pitch
                driver.copy_rows(*ends, p.width, p.rows, stream)

        return copy_rows
    copy = driver.library().cuMemcpyDtoDAsync_v2
    runs = [(part.target, part.source, part.width) for part in parts]
    if len(runs) == 1 and number != W.MAIN:
        ((target_at, source_at, width),) = runs
        stream = handle(first)
        if fixed_target and fixed_source:
            return _copy_fixed(target(first) + target_at, source(first) + source_at, width, stream)

        def copy_run(call: W.Call) -> None:
            status = copy(target(call) + target_at, source(call) + source_at, width, stream)
            if status:
                driver.check(status, "cuMemcpyDtoDAsync")

        return copy_run

    def copy_runs(call: W.Call) -> None:
        to, start, stream = target(call), source(call), handle(call)
        for target_at, source_at, width in runs:
            driver.copy_bytes(to + target_at, start + source_at, width, stream)

    return copy_runs


def _copy_fixed(target: int, source: int, nbytes: int, stream: int) -> W.Step:
    copy = driver.library().cuMemcpyDtoDAsync_v2
    to, start, size, on = (
        ctypes.c_uint64(target),
        ctypes.c_uint64(source),
        ctypes.c_size_t(nbytes),
        ctypes.c_void_p(stream),
    )

    def copy_fixed(call: W.Call) -> None:
        status = copy(to, start, size, on)
        if status:
            driver.check(status, "cuMemcpyDtoDAsync")

    return copy_fixed


def _address(
    side: torch.Tensor | W.Given | W.Instance, end: torch.Tensor, backend: W.Backend, first: W.Call
) -> tuple[Address, bool]:
    """Where one end of a copy begins, and whether it is the same in every call."""
    begin = end.data_ptr()
    if isinstance(side, W.Given):
        name, offset = side.name, begin - first.tensors[side.name].data_ptr()
        return lambda call: call.tensors[name].data_ptr() + offset, False
    if isinstance(side, W.Instance):
        offset = begin - W.tensor_of(side, first, backend).data_ptr()
        return lambda call: W.tensor_of(side, call, backend).data_ptr() + offset, False
    return lambda call: begin, True


# -------------------------------------------------------------------------------------------------------------- libraries
def _apply(work: W.Apply, number: int, backend: W.Backend, first: W.Call) -> W.Step:
    """Views of memory of the workspace are made now, those of the call's own tensors in each call."""
    inputs = [_view(v, first, backend) for v in work.inputs]
    output = _view(work.output, first, backend) if work.output is not None else None
    stream = backend.side_stream(number)

    def apply(call: W.Call) -> None:
        written = output(call) if output is not None else None
        stream.apply(work.function_in(call), [view(call) for view in inputs], written)

    return apply


def _view(view: W.View, first: W.Call, backend: W.Backend) -> Callable[[W.Call], torch.Tensor]:
    if not isinstance(view.of, W.Given):
        fixed = W.view_of(view, first, backend)
        return lambda call: fixed
    name = view.of.name
    if all((0, n) == span for n, span in zip(first.tensors[name].shape, view.box, strict=True)):
        return lambda call: call.tensors[name]
    place = tuple([slice(begin, end) for begin, end in view.box])
    return lambda call: call.tensors[name][place]


# --------------------------------------------------------------------------------------------------- doorbells and events
def _wait_doorbell(work: W.WaitDoorbell, number: int, backend: W.Backend) -> W.Step:
    operate, operations = (
        driver.library().cuStreamBatchMemOp_v2,
        driver.doorbell_operations(work.doorbell.data_ptr(), work.times),
    )
    handle, count = _handle(number, backend), len(operations)

    def wait(call: W.Call) -> None:
        status = operate(handle(call), count, operations, 0)
        if status:
            driver.check(status, "cuStreamBatchMemOp")

    return wait


def _follow(work: W.Follow, number: int, backend: W.Backend) -> W.Step:
    event, library = driver.Event(), driver.library()
    record, wait, point = library.cuEventRecord, library.cuStreamWaitEvent, ctypes.c_void_p(event.handle)
    handle, other = _handle(number, backend), _handle(work.other, backend)

    def follow(call: W.Call, _kept: driver.Event = event) -> None:
        status = record(point, other(call)) or wait(handle(call), point, 0)
        if status:
            driver.check(status, "cuEventRecord or cuStreamWaitEvent")

    return follow
