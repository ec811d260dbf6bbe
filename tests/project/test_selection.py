"""What `make test` leaves out of products of parameters, and what it does not."""

from __future__ import annotations

from itertools import combinations, product

from tests.selection import covering, first, sampled, words

AXES = (("pull", "push"), ("bf16", "f16", "f32"), (1, 2, 3, 4))


def test_of_three_axes_every_two_values_meet() -> None:
    pairs = [set(combinations(enumerate(case), 2)) for case in product(*AXES)]
    kept = covering(pairs)
    assert set().union(*(pairs[n] for n in kept)) == set().union(*pairs)
    assert len(kept) < len(pairs)


def test_of_two_axes_each_value_is_there_and_values_take_turns() -> None:
    cases = list(product(*AXES[1:]))
    kept = [cases[n] for n in covering([set(enumerate(case)) for case in cases])]
    assert [{case[axis] for case in kept} for axis in (0, 1)] == [set(AXES[1]), set(AXES[2])]
    assert len(kept) == 4


def test_each_word_of_a_list_is_kept() -> None:
    names = ["ag_gemm SMs pull", "ag_gemm SMs push", "gemm_rs SMs pull", "gemm_rs fused"]
    kept = [p for p in sampled(names) if not p.marks]
    assert set().union(*(words(p.values) for p in kept)) == words(names)
    assert len(kept) == 3


def test_the_first_are_kept() -> None:
    assert [len(p.marks) for p in first(2, "abcd")] == [0, 0, 1, 1]
