"""`examples/m2n.py`: experts on ranks of their own, on groups of several sizes, and in which order its steps run."""

from __future__ import annotations

import pytest
import torch

import tilelink
from examples import m2n
from tests.mapping.plans import verify
from tilelink import TilelinkError
from tilelink.ir.plan import Launch, Plan
from tilelink.ir.topology import Device, Topology


@pytest.mark.parametrize(
    ("attention", "expert", "slow"),
    [(1, 1, 0), pytest.param(3, 2, 4, marks=pytest.mark.each_triton), (2, 3, 0), (1, 3, 2)],
)
def test_groups(monkeypatch: pytest.MonkeyPatch, attention: int, expert: int, slow: int) -> None:
    for name, value in {"ATTENTION": attention, "EXPERT": expert, "TOKENS": 7, "EXPERTS": 3 * expert}.items():
        monkeypatch.setattr(m2n, name, value)
    ranks = attention + expert
    found = tilelink.launch(m2n.main, ranks, seed=ranks, straggler=slow, device=Device(sms=6))
    assert torch.tensor(found).le(2e-2).all()


def planned(attention: int) -> Plan:
    x, choice, score = torch.empty(16, 64), torch.empty(16, 2, dtype=torch.int32), torch.empty(16, 2)
    tensors = (x, choice, score) * 2 + (torch.empty(64, 64), torch.empty(3, 64, 64))
    return m2n.layer.plan(*tensors, topology=Topology(6), attention=attention, experts=6, capacity=16)


def test_one_micro_batch_is_made_while_the_other_travels() -> None:
    """An attention rank waits for nothing until both are on their way; an expert rank begins with the first."""
    plan = planned(4)
    assert verify(plan)
    roles = {k.name: k.roles for k in plan.kernels}
    launched = [role for h in plan.host if isinstance(h, Launch) for role, _ in roles[h.kernel]]
    wanted = ["m2n_send_a", "attend_b", "m2n_send_b", "expert_a", "expert_b", "m2n_recv_a", "m2n_recv_b"]
    assert [role for role in launched if role in wanted] == wanted


def test_an_expert_that_no_rank_has() -> None:
    """With five attention ranks there is one rank for two ranks' experts."""
    with pytest.raises(TilelinkError) as caught:
        planned(5)
    assert caught.value.code == "TL306"
    assert caught.value.why == "position 3 would lie with rank 6 of 6"
