"""Work of CUDA streams, with everything settled that does not change.

A cached call writes a few addresses and calls the driver.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace

import torch
from triton import knobs

from tilelink.runtime import backend as W
from tilelink.runtime.peer import driver
from tilelink.runtime.peer.packing import pack
from tilelink.runtime.peer.streams import Launcher, copy_pieces, pieces


def settled(work: W.Work, number: int, launcher: Launcher, first: W.Call) -> W.Step:
    """The step of `work` on stream `number`."""
    if isinstance(work, W.Launch):
        return _launch(work, number, launcher, first)
    if isinstance(work, W.WaitDoorbell):
        return _wait_doorbell(work, number, first)
    if isinstance(work, W.Follow):
        return _follow(work, number, first)
    if isinstance(work, W.Apply):
        return W.apply_step(work, number, first)
    return _copy(work, number, first)


def handle_of(number: int, first: W.Call) -> Callable[[W.Call], int]:
    """The stream, as the driver knows it."""
    # Streams of this backend are `CudaStream`s; each launch asks, so that nothing is checked here.
    if number == W.MAIN:
        return lambda call: call.main.handle  # pyright: ignore[reportAttributeAccessIssue]
    handle: int = first.backend.side_stream(number).handle  # pyright: ignore[reportAttributeAccessIssue]
    return lambda call: handle


# --------------------------------------------------------------------------------------------------------------- launches
def _launch(work: W.Launch, number: int, launcher: Launcher, first: W.Call) -> W.Step:
    plain = W.plain_step(work, number)
    # A call with credits has parameters of its own, and so does one without.
    varies = any(isinstance(value, W.Credits) for value in work.args.values())
    made = [pack(work, launcher, replace(first, credits=c)) for c in ((0, 1) if varies else (0,))]
    packed = [p for p in made if p is not None]
    if len(packed) != len(made):
        return plain
    start, handle, holding = driver.library().cuLaunchKernelEx, handle_of(number, first), first.backend.arenas.holding
    launches = [
        (p, ctypes.c_void_p(ctypes.addressof(p.config)), ctypes.c_void_p(p.function), p.parameters())
        for p in (packed if varies else packed * 2)
    ]

    def launch(call: W.Call) -> None:
        if hooked():
            return plain(call)
        (values, config, function, parameters), tensors = launches[call.credits], call.tensors
        for value, name in values.pointers:
            value.value = tensors[name].data_ptr()
        for value, name, line in values.contexts:
            value.value = holding(tensors[name]).along(line).data_ptr()
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
def _copy(work: W.Copy, number: int, first: W.Call) -> W.Step:
    if torch.version.hip:

        def copy_by_torch(call: W.Call) -> None:
            target, source = W.ends_of(work, call)
            with torch.cuda.stream(W.stream_of(number, call).stream):  # pyright: ignore[reportAttributeAccessIssue]
                target.copy_(source, non_blocking=True)

        return copy_by_torch
    ends = W.ends_of(work, first)
    parts, sides = pieces(*ends), (work.target, work.source)
    target, source = (_address(side, end, first) for side, end in zip(sides, ends, strict=True))
    handle = handle_of(number, first)
    if number == W.MAIN or [part.rows for part in parts] != [1]:
        return lambda call: copy_pieces(parts, target(call), source(call), handle(call))
    copy, stream, (run,) = driver.library().cuMemcpyDtoDAsync_v2, handle(first), parts
    if all(isinstance(side.of, torch.Tensor) for side in sides):
        # The same in every call: nothing is left for ctypes to convert.
        to, start = ctypes.c_uint64(target(first) + run.target), ctypes.c_uint64(source(first) + run.source)
        size, on = ctypes.c_size_t(run.width), ctypes.c_void_p(stream)

        def copy_fixed(call: W.Call) -> None:
            status = copy(to, start, size, on)
            if status:
                driver.check(status, "cuMemcpyDtoDAsync")

        return copy_fixed
    target_at, source_at, width = run.target, run.source, run.width

    def copy_run(call: W.Call) -> None:
        status = copy(target(call) + target_at, source(call) + source_at, width, stream)
        if status:
            driver.check(status, "cuMemcpyDtoDAsync")

    return copy_run


def _address(side: W.View, end: torch.Tensor, first: W.Call) -> Callable[[W.Call], int]:
    """Where one end of a copy begins."""
    begin = end.data_ptr()
    if isinstance(side.of, torch.Tensor):
        return lambda call: begin
    offset = begin - W.whole_of(side, first).data_ptr()
    if side.pe is not None:
        return lambda call: W.whole_of(side, call).data_ptr() + offset
    name = side.of.name
    return lambda call: call.tensors[name].data_ptr() + offset


# --------------------------------------------------------------------------------------------------- doorbells and events
def _wait_doorbell(work: W.WaitDoorbell, number: int, first: W.Call) -> W.Step:
    """The stream looks at the low half only: a doorbell is rung less than 2**31 times. A stream that waits can hold up others
    that share its hardware queue, so whatever rings the doorbell is enqueued first where both are known. Raises TL420 on
    HIP."""
    operate = driver.library().cuStreamBatchMemOp_v2
    operations = driver.doorbell_operations(work.doorbell.data_ptr(), work.times)
    handle, count = handle_of(number, first), len(operations)

    def wait(call: W.Call) -> None:
        status = operate(handle(call), count, operations, 0)
        if status:
            driver.check(status, "cuStreamBatchMemOp")

    return wait


def _follow(work: W.Follow, number: int, first: W.Call) -> W.Step:
    if torch.version.hip:
        return W.plain_step(work, number)
    event, library = driver.Event(), driver.library()
    record, wait, point = library.cuEventRecord, library.cuStreamWaitEvent, ctypes.c_void_p(event.handle)
    handle, other = handle_of(number, first), handle_of(work.other, first)

    def follow(call: W.Call, _kept: driver.Event = event) -> None:
        status = record(point, other(call)) or wait(handle(call), point, 0)
        if status:
            driver.check(status, "cuEventRecord or cuStreamWaitEvent")

    return follow
