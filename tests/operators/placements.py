"""Every placement of the operators that exists without a GPU. Only schedules differ: the programs are the library's."""

from __future__ import annotations

from dataclasses import dataclass

from tests.operators.problems import AG, RS, Kind
from tilelink import Operator, copy_engine, fused, sms
from tilelink.ir.schedule import Placement
from tilelink.ops import ag_gemm, gemm_rs, gemm_rs_ring

RING = ("ring", "group 4")
NEXT = ("ring+1", "group 4")


@dataclass(frozen=True)
class Placed:
    """An operator with a schedule, and what it computes."""

    name: str
    kind: Kind
    operator: Operator

    def __str__(self) -> str:
        return self.name


def placements(tile: int = 16, warps: int = 4, stages: int = 3) -> tuple[Placed, ...]:
    """All of them, with tiles of `tile` × `tile`."""
    ag = _matmul(tile, RING, warps, stages)
    rs = _matmul(tile, NEXT, warps, stages)
    add = sms(M=tile, N=tile)
    found = [Placed(f"ag_gemm {n}", AG, ag_gemm.schedule(gather=g, matmul=ag)) for n, g in _gathers(tile).items()]
    found += [
        Placed(f"gemm_rs {n}", RS, gemm_rs.schedule(scatter=s, matmul=rs, reduce=add))
        for n, s in _scatters(tile).items()
    ]
    found += [
        Placed(f"gemm_rs {n}, reduction fused", RS, gemm_rs.schedule(scatter=s, matmul=rs, reduce=fused("matmul")))
        for n, s in _scatters(tile).items()
        if n in ("fused", "copy engine", "copy engine in whole parts", "SMs push")
    ]
    found += [
        Placed(f"gemm_rs_ring {n}", RS, gemm_rs_ring.schedule(matmul=rs, ring=r)) for n, r in _rings(tile).items()
    ]
    return (*found, Placed("ag_gemm by default", AG, ag_gemm), Placed("gemm_rs by default", RS, gemm_rs),
            Placed("gemm_rs_ring by default", RS, gemm_rs_ring))  # fmt: skip


def _matmul(tile: int, order: tuple[str, ...], warps: int, stages: int) -> Placement:
    return sms(M=tile, N=tile, K=tile, order=order, num_warps=warps, num_stages=stages)


def _gathers(tile: int) -> dict[str, Placement]:
    return {
        "SMs pull": sms(2, M=tile, order="ring"),
        "SMs push": sms(2, M=tile, order="ring", push=True),
        "own kernel pull": sms(2, M=tile, order="ring", own_kernel=True),
        "own kernel push": sms(2, M=tile, push=True, own_kernel=True),
        "copy engine push": copy_engine(M=tile, push=True),
        "copy engine push in whole parts": copy_engine(push=True),
        "copy engine push over 2 streams": copy_engine(M=tile, push=True, streams=2),
        "copy engine pull": copy_engine(M=tile, push=False),
        "copy engine pull in whole parts": copy_engine(push=False),
    }


def _scatters(tile: int) -> dict[str, Placement]:
    return {
        "SMs push": sms(2, M=tile, order="ring+1"),
        "SMs pull": sms(2, M=tile, push=False),
        "own kernel push": sms(2, M=tile, order="ring+1", own_kernel=True),
        "fused": fused("matmul"),
        "copy engine": copy_engine(M=2 * tile, order="ring+1"),
        "copy engine in whole parts": copy_engine(order="ring+1"),
        "copy engine over 2 streams": copy_engine(M=tile, order="ring+1", streams=2),
        "copy engine pull": copy_engine(M=tile, push=False),
    }


def _rings(tile: int) -> dict[str, Placement]:
    return {
        "fused": fused("matmul"),
        "SMs": sms(4, M=tile, N=tile, order=NEXT),
        "own kernel": sms(4, M=tile, N=tile, order=NEXT, own_kernel=True),
    }


PLACEMENTS = placements()


def named(name: str) -> Placed:
    return next(p for p in PLACEMENTS if p.name == name)
