"""A transformer that is split over the GPUs, trained under `torch.compile`, beside the same one whole on every GPU.

    torchrun --nproc-per-node=4 -m benchmarks.gpu.training --out benchmarks/results --graphs [--steps 200]

Both begin with the same weights and see the same data; their loss curves must agree. What differs is the order in which
numbers are added, so that curves of bf16 products part slowly. Times are of whole steps: forward, backward, AdamW.
Each model makes a step without the compiler first, so that what it prints tells kernels of tiles from torch.compile.
"""

from __future__ import annotations

import argparse
import faulthandler
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu

import tilelink
from benchmarks.harness import gpus_of, parser, write
from tilelink.nn import ParallelAttention, ParallelMLP, Replicated, group_name
from tilelink.ops import all_reduce
from tilelink.runtime.session import require

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Tokens and what follows them, to the mean loss over all positions; of a split model this rank's part of it."""
Tell = Callable[[str], None]
"""Says how far it is."""


@dataclass(frozen=True)
class Options:
    """What is trained, how, and how far apart the curves may come, relative to the loss. `graphs`: also with torch.compile's
    mode `reduce-overhead`, which replays CUDA graphs."""

    vocabulary: int = 4096
    features: int = 1024
    hidden: int = 2816
    heads: int = 8
    groups: int = 4
    layers: int = 2
    sequence: int = 1024
    batch: int = 4
    steps: int = 200
    rate: float = 3e-4
    autocast: bool = True
    backend: str = "inductor"
    tolerance: float = 2e-2
    graphs: bool = False

    @property
    def width(self) -> int:
        return self.features // self.heads


def rotated(t: torch.Tensor) -> torch.Tensor:
    """Rotary positions (arXiv:2104.09864) of `[…, heads, S, width]`."""
    half = t.shape[-1] // 2
    frequencies = 10000.0 ** (-torch.arange(half, device=t.device, dtype=torch.float32) / half)
    angles = torch.arange(t.shape[-2], device=t.device, dtype=torch.float32)[:, None] * frequencies
    cos, sin = angles.cos().to(t.dtype), angles.sin().to(t.dtype)
    first, second = t[..., :half], t[..., half:]
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


class Attention(nn.Module):
    def __init__(self, options: Options) -> None:
        super().__init__()
        inner = options.groups * options.width
        self.query = nn.Linear(options.features, options.features, bias=False)
        self.key, self.value = (nn.Linear(options.features, inner, bias=False) for _ in range(2))
        self.output = nn.Linear(options.features, options.features, bias=False)
        self.width = options.width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            p(x).unflatten(-1, (-1, self.width)).transpose(-2, -3) for p in (self.query, self.key, self.value)
        )
        seen = scaled_dot_product_attention(rotated(query), rotated(key), value, is_causal=True, enable_gqa=True)
        return self.output(seen.transpose(-2, -3).flatten(-2))


class MLP(nn.Module):
    def __init__(self, options: Options) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(options.features, options.hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(options.hidden, options.features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Of whole parts or of split ones."""

    def __init__(self, norms: tuple[nn.Module, nn.Module], attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.norm1, self.norm2 = norms
        self.attention, self.mlp = attention, mlp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    """A decoder: `[batch, S]` tokens to `[batch, S, vocabulary]`; of a split one both are this rank's part of `S`."""

    def __init__(self, embed: nn.Module, blocks: list[Block], norm: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.embed, self.blocks, self.norm, self.head = embed, nn.ModuleList(blocks), norm, head

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def whole(options: Options) -> Model:
    torch.manual_seed(0)
    blocks = [
        Block((nn.LayerNorm(options.features), nn.LayerNorm(options.features)), Attention(options), MLP(options))
        for _ in range(options.layers)
    ]
    embed = nn.Embedding(options.vocabulary, options.features)
    nn.init.normal_(embed.weight, std=0.02)
    head = nn.Linear(options.features, options.vocabulary, bias=False)
    return Model(embed, blocks, nn.LayerNorm(options.features), head)


def split(model: Model, options: Options, group: str) -> Model:
    """This rank's part of a model that every rank has; the model's own modules are used up."""

    def block(one: Any) -> Block:
        attention = ParallelAttention.of(
            one.attention.query, one.attention.key, one.attention.value, one.attention.output, options.heads,
            rotate=rotated, group=group,
        )  # fmt: skip
        mlp = ParallelMLP.of(one.mlp.up, one.mlp.down, one.mlp.gate, activation=silu, group=group)
        return Block((Replicated(one.norm1, group=group), Replicated(one.norm2, group=group)), attention, mlp)

    embed, norm, head = (Replicated(m, group=group) for m in (model.embed, model.norm, model.head))
    return Model(embed, [block(one) for one in model.blocks], norm, head)


def data(options: Options, step: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences that can be learnt: each token follows from the one before, but for one in eight that is drawn."""
    count = options.sequence + 1
    generator = torch.Generator().manual_seed(1000 + step)
    tokens = torch.randint(options.vocabulary, (options.batch, count), generator=generator)
    drawn = torch.rand(tokens.shape, generator=generator) < 1 / 8
    at = torch.arange(count)
    last = torch.where(drawn, at, 0).cummax(1).values
    factors, addends = (torch.tensor(column) for column in zip(*followers(options.vocabulary, count), strict=True))
    distance = at - last
    tokens = (factors[distance] * tokens.gather(1, last) + addends[distance]) % options.vocabulary
    return tokens[:, :-1].to(device), tokens[:, 1:].to(device)


@cache
def followers(vocabulary: int, count: int) -> list[tuple[int, int]]:
    """What `5 * token + 7` becomes when applied 0, 1, … times: a factor and an addend, modulo the vocabulary."""
    found = [(1 % vocabulary, 0)]
    for _ in range(count - 1):
        factor, addend = found[-1]
        found.append((5 * factor % vocabulary, (5 * addend + 7) % vocabulary))
    return found


def part(t: torch.Tensor) -> torch.Tensor:
    """This rank's positions."""
    return t.chunk(tilelink.ranks(), 1)[tilelink.rank()].contiguous()


def trained(
    model: Model, options: Options, device: str, mode: str | None, *, parts: bool, tell: Tell
) -> tuple[list[float], list[float], dict[str, float]]:
    """Losses and milliseconds by step, and the seconds that the first steps took, without torch.compile and with it."""

    def cast() -> AbstractContextManager[Any]:
        return torch.autocast(device, torch.bfloat16) if options.autocast else nullcontext()

    def loss_of(tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        with cast():
            guesses = model(tokens)
        total = cross_entropy(guesses.float().flatten(0, 1), following.flatten(), reduction="sum")
        return total / (options.batch * options.sequence)

    def given(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, following = data(options, number, device)
        return (part(tokens), part(following)) if parts else (tokens, following)

    step: Step = torch.compile(loss_of, fullgraph=True, backend=options.backend, mode=mode)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
    begun = finished(device)
    loss_of(*given(0)).backward()
    first = {"eager": finished(device) - begun}
    tell(f"a step without torch.compile took {first['eager']:.1f} s")
    losses, times = [], []
    for number in range(options.steps):
        tokens, following = given(number)
        begun = finished(device)
        optimizer.zero_grad()
        loss = step(tokens, following)
        loss.backward()
        optimizer.step()
        times.append(1000 * (finished(device) - begun))
        losses.append(loss.detach().clone())  # a graph's next replay writes over it
        if number % max(1, options.steps // 8) == 0:
            tell(f"step {number}: {times[-1]:.1f} ms")
    first["compiled"] = times[0] / 1000
    curve = torch.stack(losses)
    return (all_reduce(curve[None])[0] if parts else curve).tolist(), times, first


def finished(device: str) -> float:
    """The time when the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def compare(options: Options) -> dict[str, Any]:
    """Train both on this rank; collective. `ok`: the curves agree and fall."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    group, begun = group_name(), time.monotonic()

    def told(name: str) -> Tell:
        def tell(text: str) -> None:
            if tilelink.rank() == 0:
                print(f"{time.monotonic() - begun:6.1f} s  {name}: {text}", flush=True)

        return tell

    losses, step_ms, first = dict[str, list[float]](), dict[str, float](), dict[str, dict[str, float]]()
    settled = slice(min(10, options.steps // 2), None)
    modes: dict[str, str | None] = {"": None, ", in graphs": "reduce-overhead"}
    for suffix, mode in modes.items() if options.graphs else [("", None)]:
        for kind in ("whole", "split"):
            torch._dynamo.reset()
            model = whole(options).to(device)
            model, name = split(model, options, group).to(device) if kind == "split" else model, kind + suffix
            losses[name], times, first[name] = trained(
                model, options, device, mode, parts=kind == "split", tell=told(name)
            )
            step_ms[name] = statistics.median(times[settled])
    alone = losses["whole"]
    worst = max(abs(a - b) / a for curve in losses.values() for a, b in zip(alone, curve, strict=True))
    return {
        "options": asdict(options),
        "losses": losses,
        "step_ms": step_ms,
        "first_s": first,
        "seconds": time.monotonic() - begun,
        "worst": worst,
        # Written so that a NaN fails.
        "ok": worst <= options.tolerance and all(curve[-1] < curve[0] for curve in losses.values()),
    }


def main(arguments: list[str] | None = None, ranks: int = 4) -> bool:
    """`ranks`: how many are simulated, without torchrun."""
    made = parser(__doc__)
    made.add_argument("--limit", type=float, default=0.0, help="seconds after which it says where it is, and ends")
    for name, default in asdict(Options()).items():
        kind = argparse.BooleanOptionalAction if isinstance(default, bool) else None
        how: dict[str, Any] = {"action": kind} if kind is not None else {"type": type(default)}
        made.add_argument(f"--{name}", default=default, **how)
    given = vars(made.parse_args(arguments))
    out, limit = given.pop("out"), given.pop("limit")
    if limit:
        faulthandler.dump_traceback_later(limit, exit=True)

    def one_rank() -> bool:
        row = compare(Options(**given))
        tilelink.check()
        if tilelink.rank() == 0:
            backend = require().backend
            write(out, "training", [row], gpus=gpus_of(backend), ranks=backend.ranks, backend=backend.topology.backend)
            print(
                f"worst relative difference {row['worst']:.1e}, ms a step {row['step_ms']}, {row['seconds']:.0f} s, "
                f"ok {row['ok']}"
            )
        return row["ok"]

    try:
        return all(tilelink.launch(one_rank, ranks))
    finally:
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
