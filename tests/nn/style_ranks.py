# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportArgumentType=false
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
"""One of two processes on the CPU: models split by plans, against themselves unsplit.

python style_ranks.py FOLDER
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.autograd import forward_ad
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.parametrize import register_parametrization
from torch.nn.utils.prune import l1_unstructured
from transformers import (
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.distributed import DistributedConfig

import tilelink
from tests import two_processes
from tests.inductor.passes import passes
from tests.nn.against_whole import close, drawn, refused
from tests.nn.plan_checks import check_plans, check_written
from tilelink.nn import (
    ColwiseParallel,
    ParallelAttention,
    Replicated,
    ReplicatedParallel,
    RowwiseParallel,
    SequenceParallel,
    group_name,
    install_styles,
    native,
    parallelize,
    split_embedding,
)
from tilelink.nn.local import local
from tilelink.nn.styles import ColumnLinear, RowEmbedding

Tensor = torch.Tensor
SMALL: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0, "eos_token_id": 63,
}  # fmt: skip
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2}
MODELS: dict[str, Callable[[], Any]] = {
    "Llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
    "Llama, tied": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=True)),
    "Qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL)),
    "Qwen3-MoE": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**SMALL, **EXPERTS, num_experts=4, moe_intermediate_size=16)
    ),
    "Mixtral": lambda: MixtralForCausalLM(MixtralConfig(**SMALL, **EXPERTS, num_local_experts=4)),
}


def tokens(seed: int) -> Tensor:
    return torch.randint(1, 63, (2, 12), generator=torch.Generator().manual_seed(seed))


def check_transformers(name: str, steps: int) -> None:
    """Results, gradients, the norm of all gradients, a loss curve, and generation with a cache, as unsplit."""
    whole, split = drawn(MODELS[name]), drawn(MODELS[name])
    assert parallelize(split) is split
    assert [n for n, _ in split.named_parameters()] == [n for n, _ in whole.named_parameters()]
    assert isinstance(split.model.layers[0].self_attn.q_proj, ColumnLinear)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (whole, split)]
    losses: tuple[list[float], list[float]] = ([], [])
    for step in range(steps):
        ids = tokens(step % 3)
        out = [m(ids, labels=ids) for m in (whole, split)]
        for each, model, optimizer, curve in zip(out, (whole, split), optimizers, losses, strict=True):
            optimizer.zero_grad()
            each.loss.backward()
            curve.append(each.loss.item())
            model.norm_of_all = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if step == 0:
            close(out[1].logits, out[0].logits)
            for (key, a), b in zip(whole.named_parameters(), split.parameters(), strict=True):
                close(b.grad, a.grad, key)
            close(split.norm_of_all, whole.norm_of_all)
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-3, atol=1e-3)
    if steps > 1:
        assert losses[0][-1] < losses[0][0] / 2
    with torch.no_grad():
        made = [m.generate(tokens(7)[:, :5], max_new_tokens=8, do_sample=False) for m in (whole, split)]
    assert torch.equal(made[0], made[1])


def check_from_pretrained(folder: Path, rank: int) -> None:
    """transformers' own loading onto ranks, with our linear layers."""
    whole = drawn(MODELS["Llama"])
    if rank == 0:
        whole.save_pretrained(folder / "saved")
    dist.barrier()
    split: Any
    again: Any
    with install_styles():
        split = LlamaForCausalLM.from_pretrained(folder / "saved", distributed_config=DistributedConfig(tp_size=2))
    assert isinstance(split.model.layers[0].mlp.up_proj, ColumnLinear)
    close(split(tokens(0)).logits, whole(tokens(0)).logits)
    again = LlamaForCausalLM.from_pretrained(folder / "saved", distributed_config=DistributedConfig(tp_size=2))
    assert not isinstance(again.model.layers[0].mlp.up_proj, ColumnLinear)


def check_attention(rank: int) -> None:
    """`ParallelAttention` with position embeddings, a mask and a cache, token by token, as transformers' attention."""
    model = drawn(MODELS["Llama"]).model.eval()
    whole, x = model.layers[1].self_attn, torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(3))
    projections = (whole.q_proj, whole.k_proj, whole.v_proj, whole.o_proj)
    turns = model.rotary_emb(x, torch.arange(6)[None])
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    mask[4:, 1] = False
    with torch.no_grad():
        want = whole(x, turns, None)[0]
        masked = whole(x, turns, mask[None, None])[0]
        rows = ParallelAttention.of(*projections, 4)(x.chunk(2, 1)[rank], position_embeddings=turns)
        close(rows, want.chunk(2, 1)[rank])
        split = ParallelAttention.of(*projections, 4, sequence_parallel=False, layer=1)
        close(split(x, position_embeddings=turns), want)
        close(split(x, position_embeddings=turns, mask=mask), masked)
        cache = DynamicCache()
        made: list[Tensor] = []
        for first, last in ((0, 3), (3, 4), (4, 6)):
            at = slice(first, last)
            here = (turns[0][:, at], turns[1][:, at])
            made.append(split(x[:, at], position_embeddings=here, cache=cache))
        close(torch.cat(made, 1), want)


class Block(nn.Module):
    """A norm and two linear layers with biases, and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


def rows() -> dict[str, Any]:
    """Activations are split along the sequence."""
    return {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }


def check_rows(rank: int, mesh: DeviceMesh) -> None:
    """torch's `parallelize_module`: sequence parallelism, eager and compiled, and in a copy."""
    whole, x = drawn(Block), torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(3), requires_grad=True)
    whole(x).square().sum().backward()
    split = parallelize_module(drawn(Block), mesh, rows())
    for run in (split, torch.compile(split, fullgraph=True, backend="aot_eager"), deepcopy(split)):
        run.zero_grad()
        mine = x.detach().chunk(2, 1)[rank].clone().requires_grad_()
        y = run(mine)
        y.square().sum().backward()
        close(y, whole(x).chunk(2, 1)[rank])
        close(mine.grad, x.grad.chunk(2, 1)[rank])
        for (key, a), b in zip(whole.named_parameters(), run.parameters(), strict=True):
            close(b.grad, a.grad, key)


def check_layouts(rank: int, mesh: DeviceMesh) -> None:
    """Each placement of arguments and results that torch's styles have, as torch's own give it; whether results are local
    takes turns.
    """
    from torch.distributed.tensor.parallel import ColwiseParallel as Columns
    from torch.distributed.tensor.parallel import RowwiseParallel as Rows

    layouts = (Replicate(), Shard(0), Shard(1), Shard(-1))
    kinds = ((ColwiseParallel, Columns), (RowwiseParallel, Rows))
    for (k, (ours, torchs)), (g, given), (m, made) in itertools.product(*map(enumerate, (kinds, layouts, layouts))):
        local = (k + g + m) % 2 == 0
        results: list[list[Tensor]] = []
        for style in (ours, torchs):
            how = style(input_layouts=given, output_layouts=made, use_local_output=local)
            layer = parallelize_module(drawn(lambda: nn.Linear(8, 8)), mesh, how)
            x = torch.randn(4, 2, 8, generator=torch.Generator().manual_seed(3))
            passed = DTensor.from_local(x, mesh, (Replicate(),)).redistribute(placements=(given,))
            leaf = passed.to_local().detach().clone().requires_grad_()
            y = layer(leaf if local else DTensor.from_local(leaf, mesh, (given,)))
            assert isinstance(y, DTensor) != local
            plain = y.to_local() if isinstance(y, DTensor) else y
            plain.square().sum().backward()
            results.append([plain.detach(), leaf.grad, *(p.grad.full_tensor() for p in layer.parameters())])
        for got, want in zip(*results, strict=True):
            close(got, want, f"{ours.__name__} {given} {made} {local}")


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block = nn.Embedding(16, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.embed(x))


def check_compiled_alone(mesh: DeviceMesh) -> None:
    """A block that is compiled by itself gets what torch's style of an embedding gives, and that gets its gradient."""
    whole, split, x = drawn(Embedded), drawn(Embedded), torch.arange(16)[None]
    style = ColwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())
    parallelize(split, {"embed": style}, mesh)
    split.block.compile(backend="aot_eager")
    for each in (whole, split):
        each(x).square().sum().backward()
    close(split.embed.weight.grad, whole.embed.weight.grad)


def check_embedding(rank: int, mesh: DeviceMesh) -> None:
    """Each rank has some rows: of an even number and an odd one, with a row that gets no gradient, and compiled."""
    for rows, padding in ((8, None), (8, 6), (7, 2), (2, None)):
        whole = drawn(lambda r=rows, p=padding: nn.Embedding(r, 4, padding_idx=p))
        split = parallelize(
            drawn(lambda r=rows, p=padding: nn.Embedding(r, 4, padding_idx=p)), {"": "embedding_rowwise"}, mesh
        )
        assert type(split) is RowEmbedding
        ids = torch.randint(0, rows, (2, 6), generator=torch.Generator().manual_seed(3))
        for run in (split, torch.compile(split, fullgraph=True, backend="aot_eager")):
            for each in (whole, run):
                each.weight.grad = None
                y = each(ids)
                (y.square() * torch.arange(12.0).view(2, 6, 1)).sum().backward()
            close(run(ids), whole(ids))
            close(split.weight.grad, whole.weight.grad, f"{rows} {padding}")
    halves = DTensor.from_local(ids.chunk(2)[rank], mesh, (Shard(0),), run_check=False)  # every rank needs all
    close(split(halves), whole(ids))
    close(split(ids[0, 0]), whole(ids[0, 0]))
    twice: list[Tensor] = []
    for each in (whole, split):
        (first,) = torch.autograd.grad(each(ids).pow(3).sum(), each.weight, create_graph=True)
        each.weight.grad = None
        first.pow(2).sum().backward()
        twice.append(each.weight.grad)
    close(twice[1], twice[0], "differentiated twice")
    # Such an id would be zeros if every rank took it for somebody else's.
    wrong = torch.tensor([-1 if rank == 0 else 7])
    with pytest.raises(IndexError):
        split_embedding.embedding(wrong, split.weight, first=rank, total=2, padding=None, group=group_name(mesh))
    counted = parallelize(nn.Embedding(8, 4, max_norm=1.0), {"": "embedding_rowwise"}, mesh)
    assert type(counted) is nn.Embedding


def check_twice(mesh: DeviceMesh) -> None:
    """A penalty on gradients, of activations and of weights, reaches whatever those gradients depend on."""
    plan = {"0": "embedding_rowwise", "1.norm": ReplicatedParallel(summed=False)}
    plan |= {"1.up": ColwiseParallel(), "1.down": RowwiseParallel()}
    whole, split = (drawn(lambda: nn.Sequential(nn.Embedding(8, 8), Block(), nn.Tanh())) for _ in range(2))
    parallelize(split, plan, mesh)
    ids = torch.randint(0, 8, (3, 4), generator=torch.Generator().manual_seed(3))
    for each in (whole, split):
        first = torch.autograd.grad(each(ids).pow(3).sum(), [*each.parameters()], create_graph=True)
        penalty = sum((g.full_tensor() if isinstance(g, DTensor) else g).square().sum() for g in first)
        torch.as_tensor(penalty).backward()
    for (key, a), b in zip(whole.named_parameters(), split.parameters(), strict=True):
        close(b.grad, a.grad, key)


class Tables(nn.Module):
    """Two parameters with one gradient, a bias, and a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Parameter(torch.ones(4, 8)), nn.Parameter(torch.ones(4, 8)), nn.Linear(8, 8)
        self.last = nn.Parameter(torch.zeros(4, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x + self.a + self.b) + self.last


def check_gradients_apart(mesh: DeviceMesh) -> None:
    """No gradient shares memory with another, nor with one that the user passes: they are added up and clipped as unsplit."""
    backends = (None, passes) if native.steps() is None else (None,)  # compilers trace what is in Python
    for backend, style in itertools.product(backends, ("colwise_rep", "rowwise_rep")):
        whole, split = drawn(Tables), parallelize(drawn(Tables), {"out": style}, mesh)
        run = split if backend is None else torch.compile(split, backend=backend, fullgraph=True)
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(3))
        for model, called in ((whole, whole), (split, run)):
            passed = torch.ones(8).expand(4, 8)
            for _ in range(2):
                called(x).backward(passed)
            assert (passed == 1).all()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for (key, a), b in zip(whole.named_parameters(), split.parameters(), strict=True):
            close(b.grad, a.grad, f"{'compiled ' if backend else ''}{style} {key}")


def check_accumulated(mesh: DeviceMesh) -> None:
    """Gradients come to `grad` as torch brings them there: through hooks, one added to another, and what a user holds stays."""

    def gradients(model: Any, x: Tensor) -> list[Tensor]:
        up, down = model.up.weight, model.down.weight
        seen: list[Tensor] = []
        up.register_hook(lambda grad: grad * 2)
        hook = down.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
        first = torch.autograd.grad(model(x).square().sum(), [up, down])
        assert up.grad is down.grad is None
        model(x).square().sum().backward()
        held = [p.grad for p in model.parameters()]
        kept = [grad.clone() for grad in held]
        model.zero_grad()
        for _ in range(2):
            model(model(x)).square().sum().backward()  # each weight twice in a graph
        again = [p.grad.clone() for p in model.parameters()]
        graph = model(x)  # holds what takes gradients
        for p in model.parameters():
            assert not p.grad.requires_grad
            p.grad, given = None, torch.ones_like(p).requires_grad_(False)
            p.sum().backward()  # one number, everywhere
            p.grad.mul_(0.5)
            halves = p.grad
            p.grad = None
            torch.autograd.backward([p], [given])
            p.grad.add_(halves)
            assert local(given).eq(1).all()
        del graph
        results = [*seen, *first, *held, *kept, *again, *(p.grad for p in model.parameters())]
        hook.remove()
        model.zero_grad()
        y = model(x).square().sum()
        model.requires_grad_(False)
        y.backward()
        assert all(p.grad is None for p in model.parameters())
        model.requires_grad_(True)
        return results

    plan = {"norm": ReplicatedParallel(summed=False), "up": ColwiseParallel(), "down": RowwiseParallel()}
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(3))
    want, got = (gradients(model, x) for model in (drawn(Block), parallelize(drawn(Block), plan, mesh)))
    assert len(got) == len(want)
    for k, (a, b) in enumerate(zip(want, got, strict=True)):
        close(b, a, str(k))


def check_traced(mesh: DeviceMesh) -> None:
    """A graph that `make_fx` takes of a call has the products with their communication, as operators."""
    plan = {"norm": ReplicatedParallel(summed=False), "up": ColwiseParallel(), "down": RowwiseParallel()}
    split, x = parallelize(drawn(Block), plan, mesh), torch.randn(3, 8, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        want = split(x)
        graph = make_fx(lambda x: split(x))(x)
        close(graph(x + 1), split(x + 1))
    close(graph(x), want)
    assert any(node.target is torch.ops.tilelink.gemm_ar.default for node in graph.graph.nodes)


def check_threads(mesh: DeviceMesh) -> None:
    """Threads that call one module side by side leave its parameters as they are."""
    split, x = (
        parallelize(drawn(Block), {"up": ColwiseParallel(), "down": RowwiseParallel()}, mesh),
        torch.randn(100_000, 8),
    )

    def serve() -> None:
        with torch.no_grad():
            for _ in range(10):
                split.get_submodule("norm")(x)

    before, threads = dict(split.named_parameters()), [Thread(target=serve) for _ in range(2)]
    for step in ("start", "join"):
        for thread in threads:
            getattr(thread, step)()
    assert all(p is before[name] for name, p in split.named_parameters())


class Unused(nn.Module):
    """Of two norms one is used; or both, with one weight."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.tied, self.a, self.b = tied, nn.LayerNorm(8), nn.LayerNorm(8)
        if tied:
            self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x)) if self.tied else self.a(x)


def check_used(rank: int, mesh: DeviceMesh) -> None:
    """What a call does not use has no gradient, for optimizers to leave alone; what is one parameter stays one."""
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(3))
    for tied in (False, True):
        whole = drawn(lambda t=tied: Unused(t))
        whole(x).square().sum().backward()
        for split in (
            parallelize(drawn(lambda t=tied: nn.Sequential(Unused(t))), {"0": SequenceParallel(sequence_dim=0)}, mesh),
            drawn(lambda t=tied: Replicated(Unused(t))),
        ):
            split(x.chunk(2)[rank]).square().sum().backward()
            held = [*split.parameters()]
            assert len(held) == len([*whole.parameters()])
            for (key, a), b in zip(whole.named_parameters(), held, strict=True):
                assert (a.grad is None) == (b.grad is None), key
                if a.grad is not None:
                    close(b.grad, a.grad, key)


def check_changed_between(rank: int, mesh: DeviceMesh) -> None:
    """Weights that change between a call and its gradient are torch's error, not a wrong gradient."""
    split = Shard(0)
    styles = (
        ColwiseParallel(), ColwiseParallel(input_layouts=split), RowwiseParallel(output_layouts=split), RowwiseParallel(),
    )  # fmt: skip
    layer: Any
    for style in styles:
        layer = parallelize_module(drawn(lambda: nn.Linear(8, 8)), mesh, style)
        x = torch.randn(4, 8).chunk(2, 0 if style.input_layouts[0] == split else -1)[rank]
        x = torch.randn(4, 8) if type(style.input_layouts[0]) is Replicate else x
        y = layer(x.clone().requires_grad_())
        with torch.no_grad():
            layer.weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def check_checkpointed(mesh: DeviceMesh) -> None:
    """Activations that are computed again, as transformers' `gradient_checkpointing_enable` has it."""
    model: Any
    whole, split = drawn(MODELS["Llama"]), parallelize(drawn(MODELS["Llama"]), None, mesh)
    for model in (whole, split):
        model.gradient_checkpointing_enable()
        model.train()
        model(tokens(1), labels=tokens(1)).loss.backward()
    for (key, a), b in zip(whole.named_parameters(), split.parameters(), strict=True):
        close(b.grad, a.grad, key)


def check_uneven_dtensors(rank: int, mesh: DeviceMesh) -> None:
    """Results that are DTensors know how long they are where ranks have parts of different sizes."""
    x = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(3))
    rows = RowwiseParallel(output_layouts=Shard(1), use_local_output=False)
    y = parallelize_module(drawn(lambda: nn.Linear(8, 8)), mesh, rows)(x.chunk(2, -1)[rank])
    z = parallelize_module(nn.LayerNorm(8), mesh, SequenceParallel())(distribute_tensor(x, mesh, [Shard(1)]))
    for got, want in ((y, drawn(lambda: nn.Linear(8, 8))(x)), (z, nn.LayerNorm(8)(x))):
        assert got.shape == want.shape
        close(got.square().mean(), want.square().mean())


class Renormed(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        self.weight.data = self.weight.data / 2
        return super().forward(input)


class Reader(nn.Module):
    """Parameters of modules that nobody calls."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.full((8,), 2.0))])
        self.named = nn.ParameterDict({"shift": nn.Parameter(torch.ones(8))})
        self.attention, self.out = nn.MultiheadAttention(8, 2), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scales[0] + self.named["shift"]
        return self.out(self.attention(x, x, x)[0])


def check_readers(mesh: DeviceMesh) -> None:
    """Lists of parameters, and torch's attention, which reads a weight of a module inside; a weight that is no longer split."""
    whole, split = drawn(Reader), parallelize(drawn(Reader), {"out": "colwise_rep"}, mesh)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(3))
    for each in (whole, split):
        each(x).square().sum().backward()
    close(split(x), whole(x))
    for (key, a), b in zip(whole.named_parameters(), split.parameters(), strict=True):
        close(b.grad, a.grad, key)
    for style in ("colwise_rep", "rowwise_rep"):
        layer = parallelize(nn.Sequential(nn.Linear(8, 8)), {"0": style}, mesh)
        layer.load_state_dict(nn.Sequential(nn.Linear(8, 8)).state_dict(), assign=True)
        with pytest.raises(tilelink.TilelinkError, match=r"TL250: a weight of 8 by axis . is whole, and the"):
            layer(x)
    table = parallelize(nn.Sequential(nn.Embedding(8, 8)), {"0": "embedding_rowwise"}, mesh)
    table.load_state_dict(nn.Sequential(nn.Embedding(8, 8)).state_dict(), assign=True)
    with pytest.raises(tilelink.TilelinkError, match="TL250"):
        table(torch.arange(8))
    dropped = parallelize(nn.Sequential(nn.Dropout(), nn.Linear(8, 8)), {"0": SequenceParallel(), "1": "colwise"}, mesh)
    assert type(dropped.get_submodule("0")) is nn.Dropout  # whose numbers torch draws as of the whole, on GPUs


class Halves(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.softmax(0)


def check_odd_modules(mesh: DeviceMesh) -> None:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(3))
    model = parallelize(nn.Sequential(Renormed(8, 8), nn.Linear(8, 8)), {"1": "colwise"}, mesh)
    with pytest.raises(tilelink.TilelinkError, match="TL243: 0 sets its parameter weight when it is called"):
        model(x)
    # A parametrization of a whole weight gives one that every rank has whole.
    whole, split = (drawn(lambda: nn.Sequential(nn.Linear(8, 8, False))) for _ in range(2))
    parallelize(split, {"0": "colwise_rep"}, mesh)
    for each in (whole, split):
        register_parametrization(each[0], "weight", Halves())
        each(x).square().sum().backward()
    close(split(x), whole(x))
    close(split[0].parametrizations.weight.original.grad, whole[0].parametrizations.weight.original.grad)
    # One parameter by two names, of a module outside the plan.
    twice = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8))
    twice[0].again = twice[0].weight
    parallelize(twice, {"1": "colwise"}, mesh)
    assert twice[0].again is twice[0].weight
    narrow = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(-1))
    with torch.autocast("cpu", torch.bfloat16):
        assert parallelize_module(nn.Linear(8, 8), mesh, narrow)(x).dtype == torch.bfloat16
    other = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
    linear = parallelize_module(nn.Linear(8, 8), other["tensor"], ColwiseParallel())
    with pytest.raises(tilelink.TilelinkError, match="TL249: an argument lies over"):
        linear(distribute_tensor(x, other, [Shard(0), Replicate()]))


def check_tangents(mesh: DeviceMesh) -> None:
    """Derivatives in forward mode, which operators do not have, are an error with gradients and without."""
    for style in (ColwiseParallel(), ColwiseParallel(input_layouts=Shard(0)), RowwiseParallel()):
        x = torch.randn(4, 4 if isinstance(style, RowwiseParallel) else 8)
        layer = parallelize_module(nn.Linear(8, 8), mesh, style).requires_grad_(False)
        for off in (torch.no_grad, torch.enable_grad):
            with off(), pytest.raises(NotImplementedError, match="no forward-mode derivatives"):
                torch.func.jvp(layer, (x,), (x,))
            with (
                off(),
                forward_ad.dual_level(),
                pytest.raises(NotImplementedError, match="no forward-mode derivatives"),
            ):
                layer(forward_ad.make_dual(x, x))


def check_sharded(rank: int, folder: Path) -> None:
    """FSDP2 around it, over two ranks with other data, a checkpoint with the optimizer's state, and torch's `clip_grad_norm_`."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))

    def made(lr: float) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = parallelize(
            nn.Sequential(drawn(Block), drawn(Block)), {f"*.{k}": v for k, v in rows().items()}, mesh["tensor"]
        )
        for each in (*model.children(), model):
            fully_shard(each, mesh=mesh["data"])
        return model, torch.optim.AdamW(model.parameters(), lr=lr)

    x = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(3))
    mine = x.chunk(2)[rank // 2].chunk(2, 1)[rank % 2]
    whole = nn.Sequential(drawn(Block), drawn(Block))
    plain = torch.optim.AdamW(whole.parameters(), lr=0.01)
    model, optimizer = made(0.01)
    for _ in range(2):
        for each, step, some, shares in ((whole, plain, x, 2), (model, optimizer, mine, 1)):  # FSDP averages
            step.zero_grad()
            (each(some).square().sum() / shares).backward()
            norm = torch.nn.utils.clip_grad_norm_(each.parameters(), 0.5)
            each.norm_of_all = norm
            step.step()
        close(model.norm_of_all, whole.norm_of_all)
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    assert list(state["model"]) == list(whole.state_dict())
    dcp.save(state, checkpoint_id=folder)
    other, later = made(0.5)
    empty = dict(zip(("model", "optimizer"), get_state_dict(other, later), strict=True))
    dcp.load(empty, checkpoint_id=folder)
    set_state_dict(other, later, model_state_dict=empty["model"], optim_state_dict=empty["optimizer"])
    for each, step, some, shares in ((whole, plain, x, 2), (other, later, mine, 1)):
        step.zero_grad()
        (each(some).square().sum() / shares).backward()
        step.step()
    for (key, a), b in zip(whole.named_parameters(), other.parameters(), strict=True):
        close(b, a, key)


def check_refusals(mesh: DeviceMesh) -> None:
    odd: dict[str, Any] = {"0.up": ColwiseParallel(), "0.dwn": RowwiseParallel()}
    model = nn.Sequential(drawn(Block))
    assert refused(model, odd, mesh) == (
        "TL241: the plan names '0.dwn', and Sequential has no such module\n"
        "  why: a name is a module's path, each part of which may be a pattern\n"
        "  do:  it has 0.down"
    )
    assert "TL241: the plan splits '0.up' by 'columns', which is no style of a module" in refused(
        model, {"0.up": "columns"}, mesh
    )
    assert refused(model, {"0.norm": ColwiseParallel()}, mesh).startswith(
        "TL241: 0.norm is LayerNorm, and ColwiseParallel splits linear layers"
    )
    assert "two names of the plan stand for 0.up" in refused(model, {"0.up": "colwise", "*.up": "colwise"}, mesh)
    assert "Sequential has no plan" in refused(model, None, mesh)
    uneven = nn.Sequential(nn.Linear(8, 12), nn.Linear(12, 7))
    assert refused(uneven, {"0": "rowwise", "1": "colwise"}, mesh).startswith(
        "TL232: 1.out_features=7 cannot be split evenly over 2 ranks"
    )
    heads = LlamaForCausalLM(LlamaConfig(**SMALL | {"num_key_value_heads": 1}))
    assert refused(heads, None, mesh).startswith(
        "TL232: model.layers.0.self_attn.k_proj: heads=1 cannot be split evenly over 2 ranks"
    )
    tied = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8, bias=False))
    tied[1].weight = tied[0].weight
    # found when all else is split already
    assert refused(tied, {"1": "colwise"}, mesh).startswith(
        "TL241: 0.weight and 1.weight are one parameter, and the plan splits them in two ways"
    )
    normed = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 4)))
    assert refused(normed, {"0": "colwise"}, mesh).startswith("TL241: 0 has a weight that is made of other parameters")
    pruned = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 4))
    l1_unstructured(pruned[0], "weight", 0.5)
    for plan in ({"0": "colwise"}, {"1": "colwise"}):
        assert refused(pruned, plan, mesh).startswith("TL241: 0 has a weight that is made of other parameters")
    assert refused(model, [("0.up", "colwise")], mesh).startswith("TL241: the plan is [('0.up', 'colwise')]\n")
    assert "split a model over: it is a ProcessGroup\n" in refused(model, odd, mesh.get_group())
    several = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
    assert "it has 2 dimensions\n" in refused(model, odd, several)
    assert 'do:  pass one of them: mesh["tensor"]' in refused(model, odd, several)
    parallelize(model, {"0.up": "colwise", "0.down": "rowwise"}, mesh)
    assert "0.up is split already" in refused(model, {"0.up": "colwise"}, mesh)


def check_torn_down(rank: int, folder: Path, mesh: DeviceMesh) -> None:
    """After `destroy_process_group` names of groups come again: they are of other groups."""
    split = parallelize(drawn(Block), {"up": "colwise", "down": "rowwise"}, mesh)
    x = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(3))
    close(split(x), drawn(Block)(x))
    dist.barrier()
    dist.destroy_process_group()
    with pytest.raises(tilelink.TilelinkError, match="TL451: there is no rank here") as caught:
        split(x)
    assert caught.value.__notes__ == ["in module 'up'; split the model anew if its group of ranks was destroyed"]
    with pytest.raises(tilelink.TilelinkError, match="TL242: the mesh is not one that this job can split a model over"):
        parallelize(drawn(Block), {"up": "colwise"}, mesh)
    dist.init_process_group("gloo", init_method=f"file://{folder}/again", rank=1 - rank, world_size=2)
    assert tilelink.rank() == 1 - rank
    again = parallelize(drawn(Block), {"up": "colwise", "down": "rowwise"}, init_device_mesh("cpu", (2,)))
    close(again(x), drawn(Block)(x))


def of_four(rank: int, folder: Path) -> None:
    for name, steps in (("python", None), ("compiled", native.load(native.built()))):
        native.steps = lambda steps=steps: steps
        check_sharded(rank, folder / name)


def main(rank: int, folder: Path) -> None:
    native.steps = lambda: None
    mesh = init_device_mesh("cpu", (2,))
    check_rows(rank, mesh)
    check_layouts(rank, mesh)
    check_compiled_alone(mesh)
    check_embedding(rank, mesh)
    check_odd_modules(mesh)
    check_readers(mesh)
    check_plans(rank, mesh)
    check_uneven_dtensors(rank, mesh)
    check_tangents(mesh)
    compiled = native.load(native.built())
    for steps in (None, compiled):
        native.steps = lambda steps=steps: steps
        check_twice(mesh)
        check_gradients_apart(mesh)
        check_accumulated(mesh)
        check_traced(mesh)
        check_threads(mesh)
        check_used(rank, mesh)
        check_changed_between(rank, mesh)
        check_checkpointed(mesh)
        check_written(mesh)
    # What follows runs by compiled steps, what was before in Python.
    check_refusals(mesh)
    for name in MODELS:
        check_transformers(name, {"Llama": 100, "Llama, tied": 1}.get(name, 22))
    check_attention(rank)
    check_from_pretrained(folder, rank)
    check_torn_down(rank, folder, mesh)


if __name__ == "__main__":
    two_processes.run(main, of_four=of_four)
