"""Arguments that nobody would pass: a diagnostic on every rank, or what torch gives."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

import tilelink
from tests.fuzz.outcomes import outcome
from tests.selection import cases
from tilelink.errors import TilelinkError
from tilelink.ops import ag_gemm, gemm_rs, gemm_rs_ring

OPERATORS = {op.name: op for op in (ag_gemm, gemm_rs, gemm_rs_ring)}
DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int32,
    torch.bool,
    torch.complex64,
    torch.uint8,
]
SHAPES = st.one_of(
    st.tuples(st.integers(0, 20), st.integers(0, 20)), st.lists(st.integers(0, 9), max_size=4).map(tuple)
)
FORMS = ["plain", "plain", "plain", "turned", "strided", "expanded", "offset", "sparse", "meta", "grad", "parameter"]
ODD: st.SearchStrategy[Any] = st.sampled_from([None, 0, 1.5, "x", b"x", [], (), {}, object(), [1, 2], torch, int])


def tensor(shape: tuple[int, ...], dtype: torch.dtype, form: str) -> Any:
    if form == "sparse":
        return torch.zeros(shape, dtype=dtype).to_sparse() if dtype != torch.bool else torch.zeros(shape, dtype=dtype)
    if form == "meta":
        return torch.empty(shape, dtype=dtype, device="meta")
    if form == "turned" and shape:
        return torch.ones(shape[::-1], dtype=dtype).permute(*reversed(range(len(shape))))
    if form == "strided" and shape:
        return torch.ones((*shape[:-1], 2 * shape[-1]), dtype=dtype)[..., ::2]
    if form == "expanded" and shape:
        return torch.ones((1, *shape[1:]), dtype=dtype).expand(shape)
    if form == "offset":
        count = 1
        for n in shape:
            count *= n
        return torch.ones(count + 1, dtype=dtype)[1:].view(shape)
    made = torch.ones(shape, dtype=dtype)
    if form == "grad" and dtype.is_floating_point:
        return made.requires_grad_()
    return torch.nn.Parameter(made) if form == "parameter" and dtype.is_floating_point else made


TENSORS = st.builds(tensor, SHAPES, st.sampled_from(DTYPES), st.sampled_from(FORMS))
THINGS = st.integers(0, 7).flatmap(lambda n: ODD if n == 0 else TENSORS)
GIVEN = st.dictionaries(
    st.sampled_from(["M", "K", "N", "R", "T", "group_", "x", "ranks_"]),
    st.one_of(st.integers(-3, 40), st.sampled_from([None, 1.5, "4", 2**70, True, [], float("nan")])),
    max_size=2,
)
OUT = st.one_of(st.none(), st.none(), THINGS, st.lists(THINGS, max_size=2).map(tuple))


@cases(80)
@given(st.sampled_from(sorted(OPERATORS)), st.lists(THINGS, max_size=3), GIVEN, OUT, st.integers(1, 3))
def test_any_call(name: str, tensors: list[Any], given: dict[str, Any], out: Any, ranks: int) -> None:
    """The same on every rank."""
    operator = OPERATORS[name]
    more = {} if out is None else {"out": out}
    found = outcome(lambda: tilelink.launch(lambda: operator(*tensors, **more, **given), ranks))
    assert isinstance(found, TilelinkError) or len(found) == ranks


@cases(40)
@given(st.sampled_from(sorted(OPERATORS)), st.lists(st.lists(THINGS, max_size=3), max_size=3), GIVEN)
def test_any_call_with_lists(name: str, lists: list[list[Any]], given: dict[str, Any]) -> None:
    found = outcome(lambda: OPERATORS[name](*lists, **given))
    assert isinstance(found, TilelinkError) or len(found) == len(lists[0])


@st.composite
def ragged(draw: Any) -> tuple[str, list[tuple[torch.Tensor, torch.Tensor]], dict[str, Any]]:
    """Parts of each rank as a person might cut them: evenly, unevenly, by another size than the one that is said."""
    operator = draw(st.sampled_from(sorted(OPERATORS)))
    ranks, n = draw(st.integers(1, 4)), draw(st.integers(0, 9))
    split = draw(st.lists(st.integers(0, 7), min_size=ranks, max_size=ranks))
    if draw(st.booleans()):
        split = [split[0]] * ranks
    whole = draw(st.integers(0, 9))
    gathers = operator == "ag_gemm"
    parts = [
        (torch.randn(c, whole), torch.randn(whole, n)) if gathers else (torch.randn(whole, c), torch.randn(c, n))
        for c in split
    ]
    name = "M" if gathers else "K"
    given = draw(st.sampled_from([{}, {name: sum(split)}, {name: sum(split) + 1}, {name: ranks * max(split)}]))
    return operator, parts, given


@cases(30)
@given(ragged())
def test_shards_of_any_lengths(made: tuple[str, list[tuple[torch.Tensor, torch.Tensor]], dict[str, Any]]) -> None:
    """No wrong result: what is not refused is the product of what was passed."""
    name, parts, given = made
    operator = OPERATORS[name]
    found = outcome(lambda: tilelink.launch(lambda: operator(*parts[tilelink.rank()], **given), len(parts)))
    if isinstance(found, TilelinkError):
        return
    if operator is ag_gemm:
        rows = torch.cat([x for x, _ in parts])
        expected = [rows @ w for _, w in parts]
    else:
        total = torch.stack([x @ w for x, w in parts]).sum(0)
        length = max(1, -(-total.shape[0] // len(parts)))
        expected = [total[r * length : (r + 1) * length] for r in range(len(parts))]
    for got, want in zip(found, expected, strict=True):
        assert got.shape == want.shape
        assert torch.allclose(got, want, rtol=1e-3, atol=1e-3)
