"""What an operator says when it is called wrongly: the whole text, on every rank; and then the next call works.

`messages.txt` holds calls and what is said about them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tilelink
from tests.operators import wrong
from tests.operators.problems import AG
from tilelink.pipeline.arguments import check_memory

FILE = Path(__file__).parent / "messages.txt"
ROOT = f"{Path(__file__).parents[2]}/"
RANKS = 2
GOOD = [AG.call(8, 32, 24, RANKS, torch.bfloat16, salt=salt) for salt in range(3)]


@dataclass(frozen=True)
class Case:
    name: str
    call: str
    text: str

    def run(self) -> object:
        """The call, on this rank: 4 of 8 rows of `x`."""
        x, weight = GOOD[0].inputs[tilelink.rank()]
        offered = {name: getattr(tilelink, name) for name in tilelink.__all__}
        names = {**vars(wrong), **offered, "torch": torch, "x": x, "weight": weight, "me": tilelink.rank()}
        return eval(self.call, names)


def read() -> list[Case]:
    cases: list[Case] = []
    for section in FILE.read_text(encoding="utf-8").split("## ")[1:]:
        head, text = section.split("\n--\n")
        name, call = head.split("\n", 1)
        cases.append(Case(name, call, text.strip("\n")))
    return cases


def test_messages() -> None:
    """All in one run, and each with a call behind it that is right: they take turns in slots."""
    cases, operator = read(), wrong.op

    def main() -> dict[str, str]:
        tensors = [c.inputs[tilelink.rank()] for c in GOOD]
        said, outs = dict[str, str](), [operator(*tensors[0])]
        for n, case in enumerate(cases, 1):
            with pytest.raises(tilelink.TilelinkError) as caught:
                case.run()
            said[case.name] = str(caught.value).replace(ROOT, "")
            outs.append(operator(*tensors[n % len(GOOD)]))
        for n, out in enumerate(outs):
            GOOD[n % len(GOOD)].assert_on(tilelink.rank(), out)
        return said

    assert tilelink.launch(main, RANKS, seed=1) == [{case.name: case.text for case in cases}] * RANKS


def test_the_file_is_read() -> None:
    codes = {case.text[:5] for case in read()}
    assert len(read()) > 30
    assert {f"TL3{n}" for n in range(10, 21) if n != 17} <= codes


def test_a_tensor_on_the_wrong_device() -> None:
    """Asked as a GPU backend does, of tensors that every machine has; another GPU of the process is another device, too."""
    elsewhere: Any = SimpleNamespace(device=torch.device("cuda", 1))
    with pytest.raises(tilelink.TilelinkError, match="TL225: argument 1 of `op` is on cuda:1"):
        check_memory(wrong.op, [elsewhere], torch.device("cuda", 0))
    with pytest.raises(tilelink.TilelinkError) as caught:
        check_memory(wrong.op, GOOD[0].inputs[0], torch.device("cuda", 0))
    assert str(caught.value).replace(ROOT, "") == (
        "TL225: argument 1 of `op` is on cpu\n"
        "  --> tests/operators/wrong.py:30\n"
        "     |\n"
        '  30 | @tilelink.operator("M/R K, K N -> M N")\n'
        "     | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "  why: in this backend kernels read tensors on the GPU of its rank\n"
        "  do:  move it to the GPU of its rank"
    )


def test_an_exception_of_one_rank_ends_the_run() -> None:
    """Nobody waits for ever for a rank that has left."""

    def main() -> torch.Tensor:
        x, weight = GOOD[0].inputs[tilelink.rank()]
        return wrong.op(x, weight) if tilelink.rank() == 0 else wrong.op(x, weight[:-1])

    with pytest.raises(tilelink.TilelinkError, match="`K` is 24 and 23"):
        tilelink.launch(main, RANKS)
