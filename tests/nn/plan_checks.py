# pyright: reportPrivateUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOptionalMemberAccess=false
"""What `parallelize` does beside splitting, checked by two processes of `style_ranks`: parameters that it replaces, whose values
count, and plans that it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from threading import Thread
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from transformers import ApertusConfig, ApertusForCausalLM
from transformers.integrations.tensor_parallel import ALL_PARALLEL_STYLES

import tilelink
from tests.nn.against_whole import close, drawn, refused
from tilelink.nn import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize

Tensor = torch.Tensor


class Scaled(nn.Module):
    """One that holds a parameter in a list, which no module knows of."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.out = nn.Parameter(torch.ones(8)), nn.Linear(8, 8)
        self.gains = [self.gain]

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x * self.gains[0])


def check_replaced(mesh: DeviceMesh) -> None:
    """Attributes of parameters stay; hooks and gradients, which cannot, are refused; who holds an old one is told so."""
    model: Any = drawn(Scaled)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.gain.weight_decay, model.out.weight.lr_scale = 0.0, 2.0
    parallelize(model, {"out": "colwise_rep"}, mesh)
    for each in (model, deepcopy(model.out), deepcopy(model.gain)):
        assert not isinstance(each, nn.Module) or all(isinstance(p, DTensor) for p in each.parameters())
    assert (model.gain.weight_decay, model.out.weight.lr_scale) == (0.0, 2.0)
    old = r"TL251: this is gain as it was before its model was split\n(.*\n)*.*a module reads self.gain$"
    uses: list[Callable[[], Any]] = [lambda: model(torch.ones(4, 8)), optimizer.step, optimizer.zero_grad]
    for use in uses:
        with pytest.raises(tilelink.TilelinkError, match=old):
            use()
    assert repr(model.gains) == "[Replaced('gain')]"
    model.gains = [model.gain]  # a DTensor among plain ones
    with pytest.raises(RuntimeError, match=r"mixed torch\.Tensor and DTensor"):
        model(torch.ones(4, 8))
    recurrent = nn.LSTM(8, 8)
    parallelize(nn.Sequential(recurrent, nn.Linear(8, 8)), {"1": "colwise"}, mesh)
    recurrent.flatten_parameters()  # of the list of them that it has
    for name in ("0.weight", "1.weight"):  # outside of the plan, and inside
        for register in ("register_hook", "register_post_accumulate_grad_hook"):
            model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8))
            hook = getattr(model.get_parameter(name), register)(lambda grad: None)
            assert f"TL241: {name} has a hook on its gradient" in refused(model, {"1": "colwise"}, mesh)
            hook.remove()
            parallelize(model, {"1": "colwise"}, mesh)
        model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8))
        model.get_parameter(name).sum().backward()
        assert f"TL241: {name} has a gradient" in refused(model, {"1": "colwise"}, mesh)


def check_source(rank: int, mesh: DeviceMesh) -> None:
    """What every rank has whole is what one rank has, inside of the plan and outside, parameters and buffers."""

    def made(seed: int) -> nn.Sequential:
        torch.manual_seed(seed)
        model: Any = nn.Sequential(
            nn.Embedding(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8), nn.BatchNorm1d(8)
        )
        for each in [*model[3].parameters(), *model[4].buffers()]:
            each.data.add_(seed)
        model[0].weight.data = model[0].weight.data.t()  # columns one after another
        return model

    plan = {"1": "colwise", "2": "rowwise", "3": SequenceParallel()}
    for source in (0, 1, None):
        split = parallelize(made(rank), plan, mesh, src_data_rank=source)
        whole = made(rank if source is None else source)
        for (name, a), b in zip(whole.named_parameters(), split.parameters(), strict=True):
            got = b.to_local()
            want = a if got.shape == a.shape else a.chunk(2, 1 if name == "2.weight" else 0)[rank]
            assert torch.equal(got, want), (name, source)
        for a, b in zip(whole.buffers(), split.buffers(), strict=True):
            assert torch.equal(a, b)


def apertus() -> Any:
    """An activation with parameters is between the layers of each MLP, and outside of its plan."""
    size = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 16}
    return ApertusForCausalLM(ApertusConfig(**size, **heads, pad_token_id=0, eos_token_id=15, bos_token_id=1))


def check_between(mesh: DeviceMesh) -> None:
    """Parameters that each rank applies to its part of the activations: their gradients are sums, or nothing is split."""

    def made() -> nn.Sequential:
        return nn.Sequential(nn.Linear(8, 12), nn.PReLU(), nn.Linear(12, 8), nn.LayerNorm(8))

    plan = {"0": "colwise", "2": "rowwise"}
    said = refused(made(), plan, mesh)
    assert said.startswith(
        "TL241: 1.weight is outside of the plan, beside layers that split activations for one another"
    )
    assert "add '1': \"replicated_with_grad_allreduce\" if" in said
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(3))
    ids = torch.arange(1, 13).view(2, 6)
    cases: list[tuple[Callable[[], Any], Any, Callable[[Any], Tensor]]] = [
        (made, plan | {"1": "replicated_with_grad_allreduce"}, lambda model: model(x).pow(3).sum()),
        (apertus, None, lambda model: model(ids, labels=ids).loss),
    ]
    for make, how, loss in cases:
        whole, split = drawn(make), parallelize(drawn(make), how, mesh)
        for each in (whole, split):
            loss(each).backward()
        for (key, a), b in zip(whole.named_parameters(), split.parameters(), strict=True):
            close(b.grad, a.grad, key)
            if a.numel() == 1:
                torch.testing.assert_close(b.grad.full_tensor(), a.grad, rtol=1e-4, atol=0, msg=key)
    parallelize(made(), plan | {"1": "replicate"}, mesh)
    nested = nn.Sequential(nn.Sequential(nn.Linear(8, 12), nn.Sequential(nn.PReLU())), nn.Sequential(nn.Linear(12, 8)))
    assert refused(nested, {"0.0": "colwise", "1.0": "rowwise"}, mesh).startswith("TL241: 0.1.0.weight is outside")
    own = nn.ModuleDict({"up": nn.Linear(8, 12), "down": nn.Linear(12, 8)})
    own.register_parameter("scale", nn.Parameter(torch.ones(1)))
    block = nn.ModuleDict({"mlp": own, "norm": nn.LayerNorm(8)})
    said = refused(block, {"mlp.up": "colwise", "mlp.down": "rowwise"}, mesh)
    assert said.startswith("TL241: mlp.scale is outside of the plan")
    assert "add 'mlp': " in said
    parallelize(block, {"mlp.up": "colwise", "mlp.down": "rowwise", "mlp": "replicate"}, mesh)
    for name, model, how in held_between():
        assert refused(model, how, mesh).startswith(f"TL241: {name}.weight is outside of the plan"), name
    wide = nn.ModuleDict({"up": nn.Linear(8, 32), "key": nn.Linear(8, 2), "down": nn.Linear(32, 8)})
    parallelize(wide, {"up": "colwise", "down": "rowwise"}, mesh)  # a matrix that takes what every rank has


def held_between() -> Iterator[tuple[str, nn.Module, dict[str, Any]]]:
    """What may be between split layers though it is not plainly so: its name, the model and the plan."""

    def of(**others: nn.Module) -> nn.Module:
        return nn.ModuleDict({"up": nn.Linear(8, 12), "down": nn.Linear(12, 8), "act": nn.PReLU(), **others})

    plan: dict[str, Any] = {"up": "colwise", "down": "rowwise"}
    layers = nn.ModuleList([nn.Linear(8, 12), nn.Linear(12, 8)])
    yield "act", nn.ModuleDict({"layers": layers, "act": nn.PReLU()}), {"layers.0": "colwise", "layers.1": "rowwise"}
    shared = nn.PReLU()
    blocks = [nn.Sequential(nn.Linear(8, 12), shared, nn.Linear(12, 8)) for _ in range(2)]
    yield "1.1", nn.Sequential(*blocks), {"1.0": "colwise", "1.2": "rowwise"}
    yield "act", of(head=nn.Linear(8, 1)), plan
    for key, width in ((2, 2), (4, 8)):  # heads as wide as keys that are not split, and as the model
        heads = {"up": nn.Linear(8, 16), "norm": nn.RMSNorm(width), "key": nn.Linear(8, key)}
        yield "norm", nn.ModuleDict({**heads, "down": nn.Linear(16, 8)}), plan
    yield "act", of(up=nn.Embedding(8, 12)), plan | {"up": ColwiseParallel(output_layouts=Shard(-1))}
    yield "act", of(), plan | {"down": ColwiseParallel(input_layouts=Shard(-1))}


class Threaded(nn.Module):
    """One with a parameter of its own, which calls the modules inside from another thread."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.norm, self.out = nn.Parameter(torch.ones(8)), nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        found: list[Tensor] = []
        thread = Thread(target=lambda: found.append(self.norm(x)), daemon=True)
        thread.start()
        thread.join(20)
        return self.out(found[0] * self.gain)


def check_threaded(mesh: DeviceMesh) -> None:
    """A call inside a call comes through, in a copy as well."""
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(3))
    split = parallelize(drawn(Threaded), {"out": "colwise_rep"}, mesh)
    for each in (split, deepcopy(split)):
        close(each(x), drawn(Threaded)(x))
    turns = [each.get_submodule("norm").turn for each in (split, deepcopy(split))]
    assert turns[0] is not turns[1]


def check_ids(mesh: DeviceMesh) -> None:
    """An id that is no row is an error on all ranks, and the next call is paired with its own."""
    whole = drawn(lambda: nn.Embedding(8, 4))
    split = parallelize(drawn(lambda: nn.Embedding(8, 4)), {"": "embedding_rowwise"}, mesh)
    for wrong in (8, -1):
        with pytest.raises(IndexError, match="index out of range in self"), torch.autocast("cpu", torch.bfloat16):
            split(torch.tensor([1, wrong]))
    close(split(torch.arange(8)), whole(torch.arange(8)))
    assert split(torch.arange(0)).shape == (0, 4)


class Normed(nn.Embedding):
    def __init__(self) -> None:
        super().__init__(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, input: Tensor) -> Tensor:
        return self.norm(super().forward(input))


def check_misfits(mesh: DeviceMesh) -> None:
    """Plans whose modules could not be called: nothing is replaced."""

    def of(module: nn.Module) -> nn.Module:
        return nn.Sequential(module, nn.Linear(8, 8))

    own = "TL241: the plan splits 0 by '{}', and it has parameters of its own: weight"
    styles = ("mla_kv_a_proj", "all_reduce", "packed_rowwise", "moe_identity_expert")
    cases: list[tuple[nn.Module, dict[str, Any], str]] = [
        *((nn.Linear(8, 8), {"0": style}, own.format(style)) for style in styles),
        (
            nn.Linear(8, 8),
            {"0": "embedding_colwise"},
            # a name that not all releases of transformers have
            "TL241: 0 is Linear, and 'embedding_colwise' splits Embedding"
            if "embedding_colwise" in ALL_PARALLEL_STYLES
            else "TL241: the plan splits '0' by 'embedding_colwise', which is no style of a module",
        ),
        (nn.LayerNorm(8), {"0": "packed_colwise"}, "TL241: 0 is LayerNorm, and 'packed_colwise' splits Linear"),
        (nn.Linear(8, 8), {"0.weight": "colwise"}, "TL241: the plan splits the parameter 0.weight, and not the module"),
        (nn.LazyLinear(8), {"1": "colwise"}, "TL241: 0.weight has no size yet"),
        (Normed(), {"0": "embedding_rowwise"}, "TL241: 0 has norm.weight inside, and RowwiseParallel splits its own"),
        (nn.MultiheadAttention(8, 2), {"0.out_proj": "rowwise"}, "TL241: 0.out_proj is not called: the module around"),
        (of(nn.Linear(8, 8)), {"0": SequenceParallel(), "0.1": "colwise"}, "TL241: 0.1 is inside of 0, and the plan"),
    ]
    for module, plan, said in cases:
        assert refused(of(module), plan, mesh).startswith(said)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(3))
    model = parallelize(drawn(lambda: of(nn.Linear(8, 8))), {"0": "replicate"}, mesh)
    close(model(x), drawn(lambda: of(nn.Linear(8, 8)))(x))


class Twice(nn.Module):
    """One module by two names."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Linear(8, 8))
        self.b = self.a


class Pair(nn.LayerNorm):
    def forward(self, input: Tensor) -> Any:
        return super().forward(input), input, None


def check_calls(rank: int, mesh: DeviceMesh) -> None:
    """Second names of modules, a bias that is whole, and norms that are called by keyword, or give tuples."""
    model: Any = parallelize(Twice(), {"b.0": "colwise"}, mesh)
    assert model.a[0].split.name == "a.0"
    model.load_state_dict({"a.0.bias": torch.zeros(8), "b.0.bias": torch.zeros(8)}, strict=False, assign=True)
    x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(3))
    with pytest.raises(tilelink.TilelinkError, match="TL250: a bias of 8 by axis 0 is whole, and the module takes 1/2"):
        model.a(x)
    mine = x.chunk(2, 1)[rank]
    norm: Any = parallelize(nn.Sequential(nn.LayerNorm(8)), {"0": SequenceParallel()}, mesh)
    close(norm[0](input=mine), nn.LayerNorm(8)(x))
    pair: Any = parallelize(nn.Sequential(Pair(8)), {"0": SequenceParallel()}, mesh)
    first, second, none = pair(mine)
    close(first, nn.LayerNorm(8)(x))
    close(second, x)
    assert none is None
    for rows in (x, x[0]):  # the last axis by its number, and a bias
        style = RowwiseParallel(output_layouts=Shard(rows.dim() - 1))
        narrow = parallelize(drawn(lambda: nn.Linear(8, 8)), {"": style}, mesh)
        close(narrow(rows.chunk(2, -1)[rank]), drawn(lambda: nn.Linear(8, 8))(rows).chunk(2, -1)[rank])


def check_written(mesh: DeviceMesh) -> None:
    """Results of layers without a bias can be written to, as unsplit ones can."""
    x, ids = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(3)), torch.arange(8)
    linear, rows = (
        lambda: nn.Linear(8, 8, bias=False),
        RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    )
    cases: list[tuple[Callable[[], Any], Any, Tensor]] = [
        (linear, "rowwise_rep", x[0]),
        (linear, "rowwise_rep", x),
        (linear, rows, x),
        (lambda: nn.Embedding(8, 8), "embedding_rowwise", ids),
    ]
    for make, style, given in cases:
        whole, split = drawn(make), parallelize(drawn(make), {"": style}, mesh)
        for each in (whole, split):
            y = each(given)
            y *= 2
            y.square().sum().backward()
        close(split.weight.grad, whole.weight.grad)


def check_plans(rank: int, mesh: DeviceMesh) -> None:
    check_replaced(mesh)
    check_source(rank, mesh)
    check_between(mesh)
    check_threaded(mesh)
    check_ids(mesh)
    check_misfits(mesh)
    check_calls(rank, mesh)
