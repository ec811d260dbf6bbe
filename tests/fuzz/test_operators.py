"""Operators made at random: any signature, contracts and owner maps included, over the library's programs and wrong ones."""

from __future__ import annotations

import ast
from typing import Any

import torch
from hypothesis import Phase, find, given, note, settings
from hypothesis import strategies as st

import tilelink
from tests.fuzz.outcomes import outcome
from tests.fuzz.test_text import TEXT
from tests.selection import cases
from tilelink import Operator, copy_engine, fused, sms
from tilelink.errors import TilelinkError
from tilelink.frontend import parse_signature
from tilelink.ir.topology import Device, Topology
from tilelink.ops.programs import gather, matmul, reduce, scatter, share

PROGRAMS = (gather, matmul, reduce, scatter, share)
TENSORS = [
    "M/R K", "K N", "M N", "M K/R", "K/R N", "R/R M N", "M ...", "M/R ...", "e H N", "T*K N", "e+1 i32", "e+1 i32 offsets",
    "T i32 permutation",
    "T K i32 <e", "M", "1 N", "P/o K", "R M N", "s M/R N", "e/R R C N", "M/R K bf16", "R",
]  # fmt: skip
SIGNATURES = st.tuples(
    st.lists(st.sampled_from(TENSORS), min_size=1, max_size=3).map(", ".join),
    st.sampled_from(["M N", "M/R N", "M K", "R/R M N", "M, N", "Q", "M/R K, M N", "s M N"]),
).map(" -> ".join)
USUAL = st.sampled_from(
    ["M/R K, K N -> M N", "M K/R, K/R N -> M/R N", "R/R M N -> M/R N", "M/R K -> M K", "M/R K -> M/R K", "M K -> R M K"]
)
OWNERS = st.one_of(
    st.none(), st.sampled_from(["m -> m // 4 % R", "m, n -> m", "m -> n", "s -> s", "m -> m // 0"]), TEXT
)
SIZES = st.sampled_from([0, 1, 2, 3, 4, 6, 8, 16, 17])
RECIPES: list[tuple[str, list[tuple[Any, list[int]]]]] = [
    ("M/R K -> M K", [(gather, [0])]),
    ("M/R K, K N -> M N", [(gather, [0]), (matmul, [-1, 1])]),
    ("M K/R, K/R N -> M/R N", [(matmul, [0, 1]), (scatter, [-1]), (reduce, [-1])]),
    ("R/R M N -> M/R N", [(scatter, [0]), (reduce, [-1])]),
    ("M/R K, K N -> M/R N", [(matmul, [0, 1])]),
    ("M/R K, K K -> M K", [(gather, [0]), (matmul, [-1, 1]), (matmul, [-1, 1])]),
    (
        "M/R K, K H/R, H/R N -> M/R N",
        [(gather, [0]), (matmul, [-1, 1]), (matmul, [-1, 2]), (scatter, [-1]), (reduce, [-1])],
    ),
]
NAMES = st.one_of(
    st.none(), st.none(), st.sampled_from(["op", "x y", "", 'a"""\nimport os\n"""', "lambda", "é", "tl", "../up"])
)
PLACEMENTS: list[Any] = [sms(M=4), sms(2, M=4, own_kernel=True), copy_engine(push=True), copy_engine(), fused("matmul")]


def _call(program: Any) -> st.SearchStrategy[tuple[Any, list[int]]]:
    """A program on as many tensors as it takes, mostly the latest; now and then on another number of them."""
    inputs = len(program.signature.inputs)
    counts = st.integers(0, 14).map(lambda n: inputs if n else 1 + inputs % 3)
    at = st.one_of(st.just(-1), st.integers(0, 4))
    return counts.flatmap(lambda n: st.lists(at, min_size=n, max_size=n).map(lambda found: (program, found)))


CALLS = st.sampled_from(PROGRAMS).flatmap(_call)


@st.composite
def operators(draw: Any) -> Operator:
    """A body of a few calls on what there is, some of it declared; what it returns need not fit."""
    signature, calls = draw(
        st.one_of(st.sampled_from(RECIPES), st.tuples(st.one_of(USUAL, SIGNATURES), st.lists(CALLS, max_size=4)))
    )
    if draw(st.integers(0, 4)) == 0:
        calls = [*calls, draw(CALLS)]
    declared = draw(st.sampled_from(TENSORS)) if draw(st.integers(0, 9)) == 7 else None
    declared = draw(TEXT) if draw(st.integers(0, 29)) == 7 else declared
    like, named, owner = draw(st.booleans()), draw(st.booleans()), draw(OWNERS)
    results = draw(st.sampled_from([1, 1, 1, 1, 1, 1, 1, 2, 3, 0]))

    def body(*arguments: Any) -> Any:
        known: list[Any] = list(arguments)
        if declared is not None:
            more: dict[str, Any] = {"like": known[0]} if like else {"dtype": "bf16"}
            more |= {} if owner is None else {"owner": owner}
            known.append(tilelink.symmetric(declared, **more))
        for k, (program, at) in enumerate(calls):
            made: Any = program(
                *[known[i % len(known) if i >= 0 else -1] for i in at], **({"name": f"step_{k}"} if named else {})
            )
            known += made if isinstance(made, tuple) else [made]
        return tuple(known[-results:]) if results > 1 else known[-1] if results else None

    placed = draw(
        st.dictionaries(
            st.sampled_from(["gather", "matmul", "reduce", "scatter", "step_0", "step_1"]), st.sampled_from(PLACEMENTS)
        )
    )
    note(f"calls {[(p.name, at) for p, at in calls]} beside {declared!r} {like=} {owner=}, {results=}, {placed=}")
    bodies = {1: lambda a: body(a), 2: lambda a, b: body(a, b), 3: lambda a, b, c: body(a, b, c)}
    fn = bodies[len(signature.split("->")[0].split(","))]
    fn.__name__ = "made"
    return tilelink.operator(signature, name=draw(NAMES), schedule=placed)(fn)


@st.composite
def calls(draw: Any) -> tuple[Any, dict[str, int], int]:
    """The operator is made while the test runs: making it may be what is refused."""

    def made() -> Any:
        return draw(operators())

    return outcome(made), {n: draw(SIZES) for n in "MNKHTCPeo_s"}, draw(st.integers(1, 4))


@cases(120)
@given(calls())
def test_operators_made_at_random(made: tuple[Any, dict[str, int], int]) -> None:
    found = emitted(made)
    assert isinstance(found, TilelinkError) or ast.parse(found)


def test_some_of_them_are_emitted() -> None:
    """Or else the test above would show what is said of mistakes, and nothing more."""
    assert emitted(find(calls(), lambda made: isinstance(emitted(made), str), settings=FIRST))


FIRST = settings(max_examples=2000, phases=[Phase.generate], derandomize=True, database=None, deadline=None)
"""Until the first that there is, and no smaller one."""


def emitted(made: tuple[Any, dict[str, int], int]) -> str | TilelinkError:
    """The text for an operator that could be made at all."""
    operator, sizes, ranks = made
    if not isinstance(operator, Operator):
        return operator
    shapes = [_local(s, sizes, ranks) for s in operator.signature.inputs]
    tensors = [torch.zeros(shape, dtype=dtype) for shape, dtype in shapes]
    topology = Topology(ranks, device=Device(sms=6))
    return outcome(lambda: operator.source(*tensors, topology=topology))


def _local(shape: Any, sizes: dict[str, int], ranks: int) -> tuple[tuple[int, ...], torch.dtype]:
    out: list[int] = []
    for axis in shape.axes:
        size = {"R": ranks}.get(axis.name, sizes.get(axis.name, 5))
        out.append(1 if axis.name == "R" and axis.split else -(-size // ranks) if axis.split == "R" else size)
    return tuple(out), torch.int32 if shape.dtype == "i32" else torch.bfloat16


def test_signatures_of_this_file_parse() -> None:
    assert all(parse_signature(tensor).inputs for tensor in TENSORS)
