"""Emitted files do what their plans say, and a file that does not is seen, with its line."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tilelink
from benchmarks.mutants.emitted import OUT, Placed, read
from benchmarks.mutants.mappings import mappings, operators
from tests.operators.placements import PLACEMENTS
from tests.operators.raw import exchange, gather_with
from tests.operators.test_collectives import along_gpus
from tilelink.errors import TilelinkError
from tilelink.ir.topology import RankAxis, Topology
from tilelink.ops import ag_gemm, all_reduce_one_shot, gemm_rs
from tilelink.pipeline.arguments import bind
from tilelink.runtime.simulated.agents import Scatter
from tilelink.validation import Validation, validate
from tilelink.validation.event_matching import EARLY, KNOWN, UNSAID, WORDS
from tilelink.validation.places import Places

SOME = random.Random(0).sample(PLACEMENTS, 8)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILELINK_CACHE", str(tmp_path))


def tensors(*shapes: tuple[int, ...], ranks: int = 3) -> list[list[torch.Tensor]]:
    return [[torch.randn(shape) for _ in range(ranks)] for shape in shapes]


@cache
def placed(operator: str, *flags: str) -> Placed:
    return Placed(next(m for m in mappings(operators()[operator]) if all(w in m.name for w in flags)))


def elided(found: Validation) -> dict[str, int]:
    return dict(found.elided)


# ---------------------------------------------------------------------------------------------------------------- the same
@pytest.mark.parametrize("operator", sorted(operators()))
def test_the_emitted_file_does_what_the_plan_says(operator: str) -> None:
    """As it is placed by default, every tensor with flags; `make mutants` looks at all placements."""
    found, _ = Placed(next(mappings(operators()[operator]))).run(calls=1)
    assert found.ok, found
    done = dict(found.compared)
    assert done["tiles"]
    assert done["elements read"]
    assert done["elements written"]
    assert done["signals"]


@pytest.mark.parametrize("one", SOME, ids=str)
def test_whoever_moves_and_computes(one: Any) -> None:
    arguments = tensors((17, 16), (16, 32)) if one.operator.name == "ag_gemm" else tensors((50, 16), (16, 32))
    found = one.operator.validate(*arguments)
    assert found.ok, found


def test_what_is_left_out_has_a_name() -> None:
    assert elided(all_reduce_one_shot.validate(*tensors((20, 30)))).keys() == {UNSAID, WORDS}
    assert elided(gemm_rs.validate(*tensors((50, 16), (16, 32)))).keys() == {EARLY}
    alike = gemm_rs.validate(torch.randn(50, 16), torch.randn(16, 32), topology=Topology(2))
    assert elided(alike).keys() == {EARLY}
    found, _ = placed("ag_attention_varlen", "SMs").run()
    assert KNOWN in elided(found)


def test_ranks_along_two_axes() -> None:
    topology = Topology(6, axes=(RankAxis("NODE", 3), RankAxis("GPU", 2)))
    found = along_gpus.validate(*tensors((4, 8), ranks=6), topology=topology)
    assert found.ok, found
    assert dict(found.compared)["awaits"] == 144


def test_an_argument_with_axes_in_another_order() -> None:
    x, w = tensors((17, 16), (32, 16))
    found = ag_gemm.validate(x, [one.t() for one in w])
    assert found.ok, found


@pytest.mark.parametrize("symmetric", [True, False], ids=["in place", "copied"])
def test_an_argument_of_tilelink_empty_is_read_where_it_lies(symmetric: bool) -> None:
    arguments, topology = tensors((17, 16), (16, 32)), Topology(3)
    ranks = [list(mine) for mine in zip(*arguments, strict=True)]
    bound = bind(ag_gemm, ranks[0], {}, topology, lambda t: symmetric)
    made = ag_gemm.compiled(bound)
    x = made.plan.buffer("x")
    assert (x.reached, x.staged) == (True, not symmetric)
    found = validate("ag_gemm", made.lowered, [made.on(rank) for rank in range(3)], ranks)
    assert found.ok, found
    assert (".stage" in made.source.text or "x_stage" in made.source.text) != symmetric


def test_raw_pointers_are_not_compared() -> None:
    found = gather_with(exchange).validate(*tensors((8, 8), ranks=2))
    assert not found.ok
    assert str(found).startswith("gather_by_hand: not compared, a program has raw pointers")
    error = found.error
    assert error is not None
    assert (error.code, error.message) == (
        "TL616",
        "the emitted file of `gather_by_hand` cannot be compared with its plan",
    )
    assert error.why == "a program with raw pointers may touch any memory, and its plan does not say which"
    assert error.hint == "use tiles, or rely on tests on simulated ranks, whose race detector sees raw accesses too"


def test_not_in_a_rank() -> None:
    with pytest.raises(TilelinkError, match="a simulation was started inside a rank"):
        tilelink.launch(lambda: all_reduce_one_shot.validate(torch.randn(8, 8)), 1)


# --------------------------------------------------------------------------------------------------------------- different
KINDS = {
    "ag_gemm": (
        "flag + 1",
        "value - 1",
        "scope of an await",
        "fewer ranks told",
        "edge - 1",
        "target box",
        "count of a copy",
        "signal before the store",
    ),
    "all_reduce_one_shot": ("load before the wait",),
    "ag_attention": ("await dropped", "load before the wait"),
    "gemm_rs": (
        "flag - 1",
        "another flag",
        "pointer + 1",
        "mask dropped",
        "source box",
        "await of fewer",
        "fence dropped",
        "release of a signal",
        "scope of a signal",
        "target rank",
    ),
}


@pytest.mark.parametrize(
    ("operator", "kind"), [(operator, kind) for operator, kinds in KINDS.items() for kind in kinds]
)
def test_a_changed_line_is_seen(operator: str, kind: str) -> None:
    one = placed(operator, "SMs")
    changes = [(n, change) for n, (change, _) in enumerate(one.changes) if change.kind == kind]
    number, change = next(
        (n, c)
        for n, c in changes
        if not c.same and c.function not in ("call_entry", "finish") and c.was != "tl.minimum(m_begin + 16, M)"
    )
    assert one.seen(number)[0] == "events", change


def test_a_difference_names_the_emitted_line_and_the_users() -> None:
    one = placed("ag_gemm", "SMs")
    number = next(n for n, (c, _) in enumerate(one.changes) if (c.kind, c.function) == ("flag + 1", "gather"))
    found, _ = one.run(number, 1)
    first = found.differences[0]
    assert first.does.startswith("does not signal flag ")
    assert first.says == "it is signalled here"
    assert first.loc is not None
    assert "producer_tile_notify" in str(first.loc.text)
    error = found.error
    assert error is not None
    assert error.code == "TL615"
    assert error.message == f"the emitted file of `ag_gemm` {first.does}"
    assert error.why == "what was proved is the plan, and the file does something else: this is a defect of tilelink"
    assert error.hint == "report it with the operator, its sizes and its schedule"
    said = [n.text for n in error.notes]
    assert said[:2] == ["the plan says: it is signalled here", f"seen on {first.where}"]
    assert said[-1] == f"{len(found.differences) - 1} more differences"
    other = next(d for d in found.differences if d.does.startswith("signals flag "))
    assert "shmem.signal_all(" in other.text
    assert other.line == one.changes[number][0].line


def test_what_lies_between_elements_is_no_element() -> None:
    """Rows of six elements, eight apart."""
    places, rows = Places(), torch.zeros(4, 8)[:, :6]
    places.tensor(rows, "x", 0)
    first = rows.data_ptr()
    for elements, want in (([0, 5, 8], [0, 5, 6]), ([5, 6], None), ([-1, 0], None), ([29, 30], None)):
        addresses = np.array([first + 4 * n for n in elements])
        place, found = places.touched(Scatter(addresses, 4))
        assert (found.tolist() if place else None) == want
        assert places.own(addresses)
    assert not places.own(np.array([first - 4, first + 4 * 30]))


UNSEEN = {
    # A pointer is computed earlier; the first row of a run, one more, in a tile of 16 rows that is rounded down to its first.
    ("ag_attention_zigzag", "flash_there"): 2,
    # The first row of a run, one less: the same where a block has no more rows than a tile. From 512 tokens a rank on it has, and
    # with 567 the difference shows.
    ("ag_moe_outer", "count"): 1,
    # A number that only says whether a flag was the last one awaited.
    ("flash_decode", "merge"): 1,
}
"""Changes of the table that nothing shows at the sizes tried, where they do the same."""


def test_of_the_committed_changes_no_further_one_is_unseen() -> None:
    """The others are seen by events, by not running, or, where data decides what is touched, by the numbers; or they do the same,
    and why is said."""
    rows = read(OUT)
    assert {r.operator for r in rows} == set(operators())
    assert Counter((r.operator, r.function) for r in rows if not r.by and not r.same) == UNSEEN
