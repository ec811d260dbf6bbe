"""Calls of mostly one kernel, with and without the LL protocol: what is drawn right is proved and gives what it
means, bit for bit; what is spoilt is refused, or does the same all the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import find, given, note
from hypothesis import strategies as st

import tilelink
from tests.fuzz.exchanges import GUARDS, SENT, SPOILT, VALUES, Made, Sent, Spoilt, Taken
from tests.fuzz.outcomes import outcome
from tests.fuzz.programs.meaning import Meaning
from tests.fuzz.programs.memory import Ranks
from tests.fuzz.test_operators import FIRST
from tests.operators.problems import part
from tests.selection import cases
from tilelink import Operator, TilelinkError, sms
from tilelink.ir.topology import Device, Topology
from tilelink.runtime.session import require

DTYPES = st.sampled_from([torch.bfloat16, torch.float16, torch.int16, torch.float32, torch.int32])
ROWS, COLUMNS = st.sampled_from([1, 2, 4, 8]), st.sampled_from([2, 4, 8, 8, 16, 1])
ORDERS = st.sampled_from(["row", "column", "ring", "ring+1", ("ring", "group 2")])
SHAPES = st.tuples(st.sampled_from([1, 2, 3, 5]), st.sampled_from([1, 2, 6, 8, 16, 17, 18]))
LIMITS = st.sampled_from([None, None, None, 4, 5, 16])


@st.composite
def operators(draw: Any) -> Made:
    sent: Sent = draw(st.sampled_from(SENT))
    # All rows of a tensor that is split along them are not a program's to take.
    axes = st.sampled_from(["MN", "MN", "M", *(["N"] if sent.rows == "M" else [])])
    guards = st.sampled_from([None, None, None, *GUARDS])
    starts = st.sampled_from([0, 0, 0, 1, 2])
    waits = st.sampled_from(["tile", "tile", "row", "all"])
    takers = st.lists(
        st.builds(Taken, axes, starts, LIMITS, LIMITS, guards, waits, st.booleans()), min_size=1, max_size=2
    )
    values = st.lists(st.sampled_from([*VALUES]), min_size=1, max_size=2)
    told = draw(st.sampled_from(["tile", "tile", "row"]))
    return Made(sent, tuple(draw(values)), draw(st.booleans()), tuple(draw(takers)), told)


@st.composite
def spoils(draw: Any) -> Spoilt:
    call = draw(st.sampled_from([*SPOILT]))
    return Spoilt(call, draw(st.sampled_from([*SPOILT[call]])), draw(st.integers(0, 3)))


@st.composite
def scheduled(draw: Any, *, spoilt: bool = False) -> tuple[Made, Operator]:
    made: Made = draw(operators())
    made = replace(made, spoilt=draw(spoils())) if spoilt else made
    rows, columns = draw(ROWS), draw(COLUMNS)
    placed: dict[str, Any] = {"send": sms(M=rows, order=draw(ORDERS), **({} if made.whole else {"N": columns}))}
    for k in range(len(made.takers)):
        placed[f"take_{k}"] = sms(M=draw(ROWS), N=draw(COLUMNS), order=draw(ORDERS), joins="send")
    return made, made.operator().schedule(placed, slots=draw(st.sampled_from([2, 2, 2, 3])))


def shards(made: Made, shape: tuple[int, int], dtype: torch.dtype, ranks: int, call: int) -> list[torch.Tensor]:
    """Small whole numbers, whose sums are exact."""
    generator = torch.Generator().manual_seed(call)
    split = made.sent.given.startswith("M/R")
    rows = [len(range(shape[0])[part(shape[0], r, ranks)]) if split else shape[0] for r in range(ranks)]
    return [torch.randint(-8, 9, (n, shape[1]), generator=generator).to(dtype) for n in rows]


def results(
    operator: Operator, calls: list[tuple[int, list[torch.Tensor]]], captured: bool, **given: Any
) -> list[list[tuple[torch.Tensor, ...]]]:
    """Of all ranks and calls. `captured`: a graph replays some of them, and uses its slot again."""

    def main() -> list[tuple[torch.Tensor, ...]]:
        found: list[tuple[torch.Tensor, ...]] = []
        for call, (rows, x) in enumerate(calls):
            y = operator(x[tilelink.rank()], M=rows)
            found.append(y if isinstance(y, tuple) else (y,))
            for workspace in require().workspaces.values() if captured else ():
                workspace.replayed.add("a graph's call")
                workspace.calls += call % 2
        return found

    return tilelink.launch(main, len(calls[0][1]), **given)


CALLS = {
    "ranks": st.integers(1, 4),
    "dtype": DTYPES,
    "shapes": st.lists(SHAPES, min_size=1, max_size=2),
    "seed": st.integers(0, 99),
    "late": st.booleans(),
    "workers": st.sampled_from([1, 2, 16]),
}


def run(
    what: Made,
    operator: Operator,
    ranks: int,
    dtype: torch.dtype,
    shapes: list[tuple[int, int]],
    seed: int,
    late: bool,
    workers: int,
) -> TilelinkError | None:
    """One after the other, of all sizes, with stragglers, late stores, few workers, and slots that are used twice running.
    What refuses it, if it is refused; else it has given what it means."""
    note(what.text)
    calls = [(shape[0], shards(what, shape, dtype, ranks, k)) for k, shape in enumerate([*shapes, shapes[0]])]
    options = {"seed": seed, "straggler": seed % ranks, "delayed_stores": late, "device": Device(sms=workers)}
    for way in (operator, operator.schedule(ll=False)):
        found = outcome(lambda way=way: results(way, calls, captured=seed % 3 == 0, races=late, **options))
        if isinstance(found, TilelinkError):
            return found
        for (rows, x), *of_ranks in zip(calls, *found, strict=True):
            for got, want in zip(of_ranks, meant(what, rows, x), strict=True):
                assert all(map(torch.equal, got, want))
    return None


def meant(what: Made, rows: int, x: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Of each rank, what the text gives as it was before it was spoilt."""
    meaning = Meaning(replace(what, spoilt=None).text, Ranks({"R": len(x)}), {"M": rows, "N": x[0].shape[1]})
    found = meaning.results([[t.double()] for t in x], {})
    return [[torch.as_tensor(v).long().to(x[0].dtype) for v in of_rank] for of_rank in found]


@cases(8)
@given(scheduled(), st.fixed_dictionaries(CALLS))
def test_what_is_drawn_right_is_proved_and_right(made: tuple[Made, Operator], given: dict[str, Any]) -> None:
    """Nothing of it may be refused."""
    assert run(*made, **given) is None


@cases(40)
@given(scheduled(spoilt=True), st.fixed_dictionaries(CALLS))
def test_what_is_spoilt_is_refused_or_right(made: tuple[Made, Operator], given: dict[str, Any]) -> None:
    """For what is wrong with it: no other rule may be what notices, nor a run that goes wrong."""
    found, spoilt = run(*made, **given), made[0].spoilt
    assert spoilt is not None
    assert found is None or found.code in SPOILT[spoilt.call][spoilt.how], found


@pytest.mark.parametrize("call", SPOILT)
def test_each_call_is_missed(call: str) -> None:
    """Or else the test above would look at what does no harm. On two ranks, with several tiles each."""

    def refused(made: tuple[Made, Operator]) -> bool:
        x = torch.empty(8, 16, dtype=torch.bfloat16)
        rows = 16 if made[0].sent.given == "M/R N" else 8
        found = outcome(lambda: made[1].plan(x, topology=Topology(2), M=rows, verify=True))
        return isinstance(found, TilelinkError) and found.code.startswith("TL6")

    def of(made: tuple[Made, Operator]) -> bool:
        return made[0].spoilt is not None and made[0].spoilt.call == call

    assert refused(find(scheduled(spoilt=True).filter(of), refused, settings=FIRST))


def test_tensors_come_by_the_protocol_in_each_way() -> None:
    """Or else the test above would look at calls with signals alone."""

    def words(made: tuple[Made, Operator]) -> bool:
        x = torch.empty(4, 16, dtype=torch.bfloat16)
        found = outcome(lambda: made[1].plan(x, topology=Topology(2), M=8 if made[0].sent.given == "M/R N" else 4))
        return not isinstance(found, TilelinkError) and found.ll

    for sent in SENT:
        assert words(find(scheduled().filter(lambda made, sent=sent: made[0].sent is sent), words, settings=FIRST))
