"""Every operator on one GPU as one rank, small, with ragged sizes, and those of a gather or a scatter in every
placement: for compute-sanitizer.

python -m benchmarks.gpu.one_rank [--watchdog SECONDS]
"""

from __future__ import annotations

import argparse
import sys

import torch

import tilelink
from benchmarks.gpu.matmuls import SMALL, ag_schedules, ring_schedules, rs_schedules
from benchmarks.mutants.mappings import operators, sizes
from tilelink.explore.cases import TOLERANCE, Case
from tilelink.explore.running import run_case
from tilelink.runtime.session import Session, require

SHAPES = [(256, 128, 128), (200, 72, 40)]
OURS = {"ag_attention": {"flash": tilelink.sms(S=128, T=128, num_warps=8, num_stages=3)}}
"""What comes with a kernel of others: racecheck names two places inside cuDNN's, which is not ours to look at."""


def of_the_library(session: Session | None) -> list[str]:
    """What is wrong with the operators by default, of those that a case knows the result of; `session`: None for a
    simulated rank."""
    bad: list[str] = []
    for name, operator in operators().items():
        case = Case(operator.schedule(OURS.get(name), unfused=False), sizes(operator), 1)
        found = run_case(case, session, calls=2)
        if not found.within(TOLERANCE[case.dtype]):
            bad.append(f"{name} {case}: {found.worst}")
        if session is not None:
            case.operator.close()
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--watchdog", type=float)
    seconds = parser.parse_args().watchdog
    found = {**ag_schedules(SMALL), **rs_schedules(SMALL), **ring_schedules(SMALL)}
    bad: list[str] = []

    def body() -> None:
        for name, operator in found.items():
            for m, n, k in SHAPES:
                x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
                w = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
                want = x.float() @ w.float()
                for _ in range(3):
                    error = float((operator(x, w).float() - want).norm() / want.norm())
                    if error > 2e-2:
                        bad.append(f"{name} {m}x{n}x{k}: {error}")
            operator.close()
        bad.extend(of_the_library(require()))

    tilelink.launch(body, watchdog=seconds)
    print("\n".join(bad) or f"{len(found)} placements and {len(operators())} operators are right")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
