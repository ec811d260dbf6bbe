"""On GPUs: every operator of the library against its unfused form in torch, by default and at ragged sizes; back-to-back
calls with other data; and, captured in a graph, replayed.

    torchrun --nproc-per-node=2 -m benchmarks.gpu.operators --out benchmarks/results [--only ag_moe ep_dispatch]

`TILELINK_BACKEND=nvshmem` runs the same on NVSHMEM's device library, `TILELINK_SHARE_GPUS=1` on fewer GPUs. The expected is
computed in fp32 from the same bf16 data.
"""

from __future__ import annotations

import functools
import sys
import time
from typing import Any

import torch
from triton.errors import TritonError

from benchmarks.harness import Machine, Row, Sheet, captured, judged, parser
from benchmarks.operator_cases import CASES, Call, Draw, differences, expected
from tilelink import Operator, ops, sms
from tilelink.errors import TilelinkError

TOLERANCE = 2e-2
LOOSE = {"ep_dispatch_fp8": 5e-2}
CALLS = 3


def _case(machine: Machine, name: str, ragged: bool, seed: int) -> Call:
    return CASES[name](Draw(machine.rank, machine.ranks, machine.device, seed), ragged)


ON_SMS = {"ag_attention": {"flash": sms(S=128, T=128, order="group 32", num_warps=8, num_stages=3)}}
"""Kernels that work where a library does as the operator comes."""


@functools.cache
def tiled(name: str, on_sms: bool = False) -> Operator:
    """The operator by default, and never its unfused form, which is what it is compared with."""
    return getattr(ops, name).schedule(ON_SMS[name] if on_sms else {}, unfused=False)


def eager(machine: Machine, name: str, ragged: bool, on_sms: bool = False) -> dict[str, Any]:
    """Calls back to back with other data each, then compared: the second meets what the first left behind."""
    operator = tiled(name, on_sms)
    calls = [_case(machine, name, ragged, seed) for seed in range(CALLS)]
    wanted = [expected(operator, call) for call in calls]
    started = time.time()
    found = [operator(*c.arguments, **c.given) for c in calls]
    torch.cuda.synchronize()
    took = time.time() - started
    worst = max(e for f, w in zip(found, wanted, strict=True) for e in differences(name, f, w))
    return {"error": machine.worst(worst), "first_calls_s": round(took, 2)}


def replayed(machine: Machine, name: str) -> dict[str, Any]:
    """A captured call on other data than it was captured with, and an eager call between the replays."""
    operator = tiled(name)
    call = _case(machine, name, False, 10)
    operator(*call.arguments, **call.given)
    graph, out = captured(lambda: operator(*call.arguments, **call.given))
    worst = 0.0
    for replay in range(4):
        fresh = _case(machine, name, False, 11 + replay)
        want = expected(operator, fresh)
        for held, new in zip(call.arguments, fresh.arguments, strict=True):
            held.copy_(new)
        graph.replay()
        between = operator(*fresh.arguments, **fresh.given)
        torch.cuda.synchronize()
        for got in (out, between):
            worst = max(worst, *differences(name, got, want))
    return {"error": machine.worst(worst)}


def on_two_streams(machine: Machine, name: str) -> Row:
    """Calls on two streams in turn, of which no result is looked at before all are made."""
    operator = tiled(name)
    calls = [_case(machine, name, False, 20 + k) for k in range(6)]
    wanted = [expected(operator, call) for call in calls]
    streams, found = [torch.cuda.Stream(), torch.cuda.Stream()], list[Any]()
    torch.cuda.synchronize()
    for k, call in enumerate(calls):
        with torch.cuda.stream(streams[k % 2]):
            found.append(operator(*call.arguments, **call.given))
    torch.cuda.synchronize()
    pairs = zip(found, wanted, strict=True)
    return {"error": machine.worst(max(max(differences(name, got, want)) for got, want in pairs))}


def check(sheet: Sheet, name: str) -> None:
    machine = sheet.machine
    parts: dict[str, Any] = {
        "default": lambda: eager(machine, name, False),
        "ragged": lambda: eager(machine, name, True),
        "graph": lambda: replayed(machine, name),
        "two streams": lambda: on_two_streams(machine, name),
    }
    if name in ON_SMS:
        parts["on SMs"] = lambda: eager(machine, name, False, on_sms=True)
        parts["on SMs, ragged"] = lambda: eager(machine, name, True, on_sms=True)
    for case, part in parts.items():
        row: Row = {"operator": name, "case": case, "schedule": ""}
        try:
            row |= part()
            row["ok"] = row["error"] < LOOSE.get(name, TOLERANCE)
        except (TilelinkError, TritonError, RuntimeError) as problem:  # the same on every rank
            row |= {"ok": False, "problem": str(problem).splitlines()[0]}
        found = f"{row.get('error', row.get('problem'))} {row.get('first_calls_s', '')}"
        sheet.add(row, f"{name:20s} {case:12s} {found}")
    for on_sms in (False, True) if name in ON_SMS else (False,):
        tiled(name, on_sms).close()
    torch.cuda.empty_cache()


def main() -> int:
    given = parser(__doc__)
    given.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    options = given.parse_args()

    def every(sheet: Sheet) -> None:
        for name in options.only:
            check(sheet, name)
            sheet.save()

    return judged("operators", every, options.out)


if __name__ == "__main__":
    sys.exit(main())
