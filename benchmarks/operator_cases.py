"""Inputs for every operator of the library, at the sizes of a model and at ragged ones, and how to compare what comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

T = torch.Tensor
CAPACITY = 64


@dataclass(frozen=True, slots=True)
class Call:
    """This rank's arguments, and what a call names."""

    arguments: tuple[T, ...]
    given: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Draw:
    """Random data of one rank, or of all alike; `seed` changes with each call."""

    rank: int
    ranks: int
    device: torch.device
    seed: int

    def own(self, *shape: int, salt: int = 0) -> T:
        return self._normal(shape, 2 * (self.seed * 64 + salt) + 1, self.rank)

    def alike(self, *shape: int, salt: int = 0) -> T:
        return self._normal(shape, 2 * (self.seed * 64 + salt), 0)

    def choices(self, tokens: int, k: int, experts: int, *, alike: bool = False) -> T:
        """Different experts for each token, one in sixteen of them −1."""
        generator = self._generator(self.seed, 0 if alike else self.rank)
        chosen = torch.rand(tokens, experts, generator=generator, device=self.device).topk(k).indices
        nobody = torch.rand(tokens, k, generator=generator, device=self.device) < 1 / 16
        return torch.where(nobody, -1, chosen).int()

    def scores(self, tokens: int, k: int, *, alike: bool = False) -> T:
        return torch.rand(
            tokens, k, generator=self._generator(self.seed + 7, 0 if alike else self.rank), device=self.device
        )

    def _normal(self, shape: tuple[int, ...], salt: int, rank: int) -> T:
        return torch.randn(shape, generator=self._generator(salt, rank), device=self.device).bfloat16()

    def _generator(self, salt: int, rank: int) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(salt * 4096 + rank)


Make = Callable[[Draw, bool], Call]
"""A call of one operator; True: at sizes that no tile divides."""


def _rows(d: Draw, ragged: bool) -> Call:
    return Call((d.own(*((331, 3, 40) if ragged else (2048, 4096))),))


def _whole(d: Draw, ragged: bool) -> Call:
    return Call((d.own(*((331 * d.ranks, 40) if ragged else (4096, 4096))),))


def _to_ranks(d: Draw, ragged: bool) -> Call:
    return Call((d.own(*((331 * d.ranks, 3, 40) if ragged else (4096, 2048))),))


def _to_heads(d: Draw, ragged: bool) -> Call:
    return Call((d.own(*((331, 3 * d.ranks, 40) if ragged else (1024, 32, 128))),))


def _from_heads(d: Draw, ragged: bool) -> Call:
    return Call((d.own(*((331 * d.ranks, 3, 40) if ragged else (2048, 16, 128))),))


def _split_rows(d: Draw, ragged: bool) -> Call:
    m, n, k = (331, 200, 136) if ragged else (1024, 2048, 4096)
    return Call((d.own(m, k) * (d.rank + 1), d.own(k, n, salt=1)))


def _split_columns(d: Draw, ragged: bool) -> Call:
    m, n, k = (331 * d.ranks, 200, 136) if ragged else (4096, 4096, 1024)
    return Call((d.own(m, k) * (d.rank + 1), d.own(k, n, salt=1)))


def _few_rows(d: Draw, ragged: bool) -> Call:
    m, n, k = (7, 200, 136) if ragged else (16, 4096, 1024)
    return Call((d.own(m, k), d.own(k, n, salt=1)))


def _outer(d: Draw, ragged: bool) -> Call:
    m, n, k = (331, 200, 136) if ragged else (1024, 2048, 1024)
    return Call((d.own(m, k), d.own(m * d.ranks, n, salt=1)))


def _outer_turned(d: Draw, ragged: bool) -> Call:
    x, y = _outer(d, ragged).arguments
    return Call((y, x))


def _queries_keys_values(d: Draw, s: int, heads: int, groups: int, size: int) -> Call:
    return Call((d.own(s, heads, size), d.own(s, groups, size, salt=1), d.own(s, groups, size, salt=2)))


def _attention(d: Draw, ragged: bool) -> Call:
    return _queries_keys_values(d, *((331, 3, 3, 96) if ragged else (1024, 8, 2, 128)))


def _attention_around(d: Draw, ragged: bool) -> Call:
    return _queries_keys_values(d, *((331, 2, 1, 192) if ragged else (1024, 4, 4, 256)))


def _attention_to_and_fro(d: Draw, ragged: bool) -> Call:
    return _queries_keys_values(d, *((128 * 3, 3, 1, 64) if ragged else (1024, 8, 2, 128)))


def _packed(d: Draw, ragged: bool) -> Call:
    whole = _attention(d, ragged).arguments
    positions = whole[0].shape[0] * d.ranks
    starts = torch.tensor([0, 1, positions // 3, positions // 3, positions // 2 + 5, positions])
    return Call((*whole, starts.to(whole[0].device, torch.int32)))


def _decoding(d: Draw, ragged: bool) -> Call:
    batch, groups, queries, size, cache = (3, 2, 3, 64, 331) if ragged else (4, 8, 4, 128, 8192)
    lengths = torch.tensor([cache * d.ranks, 1, cache + 1, cache // 2])[:batch]
    keys, values = (d.own(batch, cache, groups, size, salt=s) for s in (1, 2))
    return Call((d.alike(batch, groups, queries, size), keys, values, lengths.to(d.device, torch.int32)))


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a mixture of experts: tokens of a rank, their width, columns of a rank, experts, choices of a token."""

    tokens: int
    h: int
    i: int
    experts: int
    k: int

    @staticmethod
    def of(ragged: bool) -> Sizes:
        return Sizes(77, 200, 72, 6, 3) if ragged else Sizes(512, 1024, 512, 16, 4)


def _ag_moe(d: Draw, ragged: bool) -> Call:
    s = Sizes.of(ragged)
    choice = d.choices(s.tokens, s.k, s.experts)
    return Call((d.own(s.tokens, s.h), choice, d.own(s.experts, s.h, s.i, salt=1)))


def _moe_rs(d: Draw, ragged: bool) -> Call:
    from tilelink.ops import plain

    s = Sizes.of(ragged)
    choice = d.choices(s.tokens * d.ranks, s.k, s.experts, alike=True)
    _, start, slot = plain.tables(choice, s.experts)
    hidden, down = d.own(choice.numel(), s.i), d.own(s.experts, s.i, s.h, salt=1)
    return Call((hidden, start, slot, down, d.scores(s.tokens * d.ranks, s.k, alike=True)))


def _moe_layer(d: Draw, ragged: bool) -> Call:
    s = Sizes.of(ragged)
    up, gate = (d.own(s.experts, s.h, s.i, salt=salt) / 16 for salt in (1, 2))
    down, score = d.own(s.experts, s.i, s.h, salt=3), d.scores(s.tokens, s.k)
    return Call((d.own(s.tokens, s.h), d.choices(s.tokens, s.k, s.experts), score, gate, up, down))


def _ag_moe_outer(d: Draw, ragged: bool) -> Call:
    s = Sizes.of(ragged)
    choice = d.choices(s.tokens, s.k, s.experts)
    others = d.own(s.tokens * d.ranks * s.k, s.i, salt=1)
    return Call((d.own(s.tokens, s.h), choice, others), {"experts": s.experts})


def _dispatch(d: Draw, ragged: bool) -> Call:
    tokens, h, experts, k = (37, 200, 3 * d.ranks, 3) if ragged else (128, 7168, 64, 8)
    return Call((d.own(tokens, h), d.choices(tokens, k, experts)), {"experts": experts, "capacity": CAPACITY})


def _combine(d: Draw, ragged: bool) -> Call:
    from tilelink.ops import ep_dispatch

    there = _dispatch(d, ragged)
    x, choice = there.arguments
    assert ep_dispatch.reference_fn is not None
    rows, counts, at = ep_dispatch.reference_fn(x, choice, **there.given, group=None)
    return Call((rows * 2, counts, choice, at, d.scores(*choice.shape)))


CASES: dict[str, Make] = {
    "ag_attention": _attention,
    "ag_attention_varlen": _packed,
    "ag_attention_zigzag": _attention_to_and_fro,
    "ag_gemm": _split_rows,
    "ag_moe": _ag_moe,
    "ag_moe_outer": _ag_moe_outer,
    "ag_outer": _outer,
    "all_gather": _rows,
    "all_reduce": _whole,
    "all_reduce_one_shot": _whole,
    "all_reduce_ring": _whole,
    "all_reduce_two_shot": _whole,
    "all_to_all": _to_ranks,
    "ep_combine": _combine,
    "ep_dispatch": _dispatch,
    "ep_dispatch_fp8": _dispatch,
    "flash_decode": _decoding,
    "gemm_ar": _few_rows,
    "gemm_ar_one_shot": _few_rows,
    "gemm_ar_two_shot": _split_columns,
    "gemm_rs": _split_columns,
    "gemm_rs_ring": _split_columns,
    "moe_layer": _moe_layer,
    "moe_rs": _moe_rs,
    "outer_ag": _outer_turned,
    "reduce_scatter": _whole,
    "ring_attention": _attention_around,
    "ulysses": _to_heads,
    "ulysses_back": _from_heads,
}


# ------------------------------------------------------------------------------------------------------------- comparing
def expected(operator: Any, call: Call) -> tuple[T, ...]:
    """What the operator's unfused form gives, its numbers in fp32."""
    exact = [a.float() if a.is_floating_point() else a for a in call.arguments]
    found = operator.reference_fn(*exact, **call.given, group=None)
    return found if isinstance(found, tuple) else (found,)


def differences(name: str, got: Any, want: tuple[T, ...]) -> Iterator[float]:
    """For each result the relative error (Frobenius); of a table 0 or infinite. NaN counts as infinite."""
    found = got if isinstance(got, tuple) else (got,)
    if name in ("ep_dispatch", "ep_dispatch_fp8"):
        found, want = _received(found), _received(want)
    if name == "ag_moe":
        filled = int(want[1][-1])
        found, want = (found[0][:filled], *found[1:]), (want[0][:filled], *want[1:])
    for a, b in zip(found, want, strict=True):
        yield error(a, b)


def _received(results: tuple[T, ...]) -> tuple[T, ...]:
    """Rows that came, by their values, whatever lies in those that did not."""
    rows, *scale, counts, at = results
    value = rows.float() * scale[0][..., None] if scale else rows
    came = torch.arange(rows.shape[2], device=rows.device) < counts[..., None]
    return value[came], counts, at


def error(a: T, b: T) -> float:
    """Relative, of the Frobenius norm; infinite if anything is NaN. Of integers 0 or infinite."""
    if a.shape != b.shape:
        return float("inf")
    if not b.is_floating_point():
        return 0.0 if torch.equal(a, b) else float("inf")
    if b.numel() == 0:
        return 0.0
    value = float((a.float() - b.float()).norm() / b.float().norm().clamp_min(1e-30))
    return value if value == value else float("inf")
