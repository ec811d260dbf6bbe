# pyright: reportArgumentType=false
"""Operators of some of the ranks: data and tensor parallel at once, groups that overlap, and what they refuse."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import tilelink
from tests.operators.problems import AG, RS, Problem
from tests.selection import table
from tilelink import copy_engine, fused, sms
from tilelink.ops import ag_gemm, gemm_rs
from tilelink.runtime.session import require

FAST = {"M": 16, "N": 16, "K": 16}
MATMUL = sms(2, order="ring+1", **FAST)
OPERATORS = {
    "AG+GEMM, copy engine": (AG, ag_gemm.schedule(gather=copy_engine(push=True), matmul=MATMUL)),
    "AG+GEMM, pull": (AG, ag_gemm.schedule(gather=sms(2, M=16), matmul=MATMUL)),
    "GEMM+RS, fused": (RS, gemm_rs.schedule(scatter=fused("matmul"), reduce=sms(M=16, N=16), matmul=MATMUL)),
    "GEMM+RS, copy engine": (RS, gemm_rs.schedule(scatter=copy_engine(M=16), reduce=fused("matmul"), matmul=MATMUL)),
}
PAIRS = ((0, 1), (2, 3))


def own(groups: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    return next(g for g in groups if tilelink.rank() in g)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize(("seed", "straggler"), [(0, None), (1, 2)])
def test_two_replicas_of_two_ranks(name: str, seed: int, straggler: int | None) -> None:
    """Each replica has its own data and its own sizes; both run at once."""
    kind, op = OPERATORS[name]
    calls = {
        pair: [kind.call(32 + 16 * r, 32, 40, 2, torch.float32, salt=s) for s in range(3)]
        for r, pair in enumerate(PAIRS)
    }

    def main() -> None:
        mine = own(PAIRS)
        group = tilelink.group(mine)
        assert (tilelink.rank(group), tilelink.ranks(group)) == (mine.index(tilelink.rank()), 2)
        for call in calls[mine]:
            call.solve(op, group)

    tilelink.launch(main, 4, seed=seed, straggler=straggler)


def test_overlapping_groups_and_all_ranks_in_turn() -> None:
    """One operator, in rows of ranks, in columns of ranks and in all of them: each has its own memory."""
    kind, op = OPERATORS["GEMM+RS, fused"]
    two = [kind.call(32, 32, 32, 2, torch.float32, salt=s) for s in range(2)]
    four = kind.call(32, 32, 32, 4, torch.float32)

    def main() -> int:
        for _ in range(3):
            for call, groups in zip(two, (PAIRS, ((0, 2), (1, 3))), strict=True):
                call.solve(op, tilelink.group(reversed(own(groups))))
            four.solve(op, tilelink.group(range(4)))
        op.close()
        session = require()
        return sum(len(s.workspaces) for s in (session, *session.groups.values()))

    assert tilelink.launch(main, 4, seed=3) == [0] * 4


def test_a_group_of_a_group_of_one() -> None:
    """Each rank computes its own product, of its own numbers."""
    calls = [AG.call(16, 32, 16, 1, torch.float32, salt=rank) for rank in range(2)]
    op = ag_gemm.schedule(matmul=MATMUL)

    def main() -> torch.Tensor:
        ((x, weight),) = calls[tilelink.rank()].inputs
        return op(x, weight, group=tilelink.group([tilelink.rank()]))

    for call, got in zip(calls, tilelink.launch(main, 2), strict=True):
        ((x, weight),) = call.inputs
        torch.testing.assert_close(got, x @ weight)


def test_arguments_in_memory_of_the_group() -> None:
    """`tilelink.empty` of a group is read in place by calls of that group, and is an ordinary tensor to all others."""
    op = ag_gemm.schedule(gather=sms(2, M=16), matmul=MATMUL)
    two, four = (AG.call(32, 32, 16, ranks, torch.float32) for ranks in (2, 4))

    def run(call: Problem, group: object, owner: object) -> bool:
        me = tilelink.rank(group)
        x, weight = call.inputs[me]
        mine = tilelink.empty(*x.shape, dtype=x.dtype, group=owner)
        mine.copy_(x)
        call.assert_on(me, op(mine, weight, group=group))
        return require().of(group).shares(mine)

    def main() -> list[bool]:
        group = tilelink.group(own(PAIRS))
        return [run(two, group, group), run(four, None, group)]

    assert tilelink.launch(main, 4) == [[True, False]] * 4


def test_a_groups_name_finds_it_again() -> None:
    """Each rank's own, for graphs that torch compiles once for the process."""

    def main() -> str:
        session, mine = require(), own(PAIRS)
        assert session.named(session.backend.name) is session
        pair = session.named(f"rank {tilelink.rank()} of {','.join(map(str, mine))}")
        assert pair is session.of(tilelink.group(mine)) is session.named(pair.backend.name)
        alone = pair.of(pair.backend.among([pair.backend.rank]))
        assert (pair.named(alone.backend.name).backend.ranks, pair.named(alone.backend.name).backend.rank) == (1, 0)
        other = "rank 1 of 0,1" if tilelink.rank() != 1 else "rank 0 of 0,1"
        for wrong in (other, "0", "", "rank 0 of 0,x", "rank 0 of 0,7", "rank 9 of 9"):
            with pytest.raises(tilelink.TilelinkError) as caught:
                session.named(wrong)
            assert str(caught.value) == (
                f"TL456: there is no group of ranks named {wrong!r} here\n"
                "  why: a name stands for a group of this process, and of this simulated rank\n"
                "  do:  take it where it is used: tilelink.nn.group_name(group)"
            )
        return pair.backend.name

    assert tilelink.launch(main, 4) == ["rank 0 of 0,1", "rank 1 of 0,1", "rank 2 of 2,3", "rank 3 of 2,3"]


REFUSALS = {
    "of others": (
        lambda: tilelink.group([0, 1]),
        "TL455: rank 2 is not in the group of ranks 0, 1\n"
        "  why: an operator is called by the ranks of its group, and by no others\n"
        "  do:  pass the group that this rank is in",
    ),
    "a number": (
        lambda: tilelink.rank(2),
        "TL454: an int is no group of simulated ranks\n"
        "  why: ranks of this process are not those of torch.distributed\n"
        "  do:  name them: tilelink.group([0, 1])",
    ),
    "of torch": (
        lambda: tilelink.rank(torch.device("cpu")),
        "TL454: a device is no group of simulated ranks\n"
        "  why: ranks of this process are not those of torch.distributed\n"
        "  do:  name them: tilelink.group([0, 1])",
    ),
}


@table("case", REFUSALS)
def test_refusals(case: str) -> None:
    refused, text = REFUSALS[case]

    def main() -> str:
        if tilelink.rank() != 2:
            return text
        with pytest.raises(tilelink.TilelinkError) as caught:
            refused()
        return str(caught.value)

    assert tilelink.launch(main, 3) == [text] * 3


def test_there_are_no_groups_without_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILELINK_BACKEND", "simulated")
    with pytest.raises(tilelink.TilelinkError, match="TL451"):
        ag_gemm(torch.zeros(4, 4), torch.zeros(4, 4), group=object())


def test_a_mesh_of_torch_needs_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the line that asks for it. What a program raises itself goes through, also about something in torch."""
    monkeypatch.delenv("RANK", raising=False)

    def main() -> None:
        init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))

    with pytest.raises(tilelink.TilelinkError) as caught:
        tilelink.launch(main, 2)
    first, _, _, line, _, *rest = str(caught.value).splitlines()
    assert first.startswith("TL458: torch.distributed has no process group here: ")
    assert line.endswith('        init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))')
    assert rest == [
        "  why: simulated ranks are threads of one process: meshes, process groups and its collectives are for torchrun",
        '  do:  name ranks by tilelink.group([0, 1]), axes by tilelink.group(axes={"DP": 2, "TP": 2}), and call tilelink.ops',
    ]
    for other in (lambda: int("x"), lambda: torch.zeros(2) @ torch.zeros(3)):
        with pytest.raises((ValueError, RuntimeError), match=r"invalid literal|inconsistent tensor size"):
            tilelink.launch(other, 2)
    monkeypatch.setenv("TILELINK_BACKEND", "simulated")
    monkeypatch.setattr(dist, "is_initialized", lambda: True)  # a program that has made processes of its own
    with pytest.raises(ValueError, match="process group"):
        tilelink.launch(dist.barrier, 2)
