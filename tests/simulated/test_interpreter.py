"""The emitted file is executed as it is, and nothing of the execution stays behind."""

import warnings
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import interpreter as stock
from triton.runtime.jit import JITFunction

from tests.selection import table
from tests.simulated import emitted_part, emitted_small
from tests.simulated.programs import Problem, pull
from tilelink.errors import TilelinkError
from tilelink.ir.schedule import KernelOptions
from tilelink.runtime.backend import Descriptor
from tilelink.runtime.simulated import SimulatedBackend, simulate
from tilelink.runtime.simulated.builder import Builder


def run(kernel: Any, count: int = 1, /, **args: Any) -> None:
    def main(backend: SimulatedBackend) -> None:
        backend.main_stream().launch(kernel, count, args, KernelOptions(1, 1))

    simulate(main, 1)


NEWER = {"create_atomic_load", "create_atomic_poll", "create_atomic_store", "get_bf16"}
"""Methods that an older Triton has not, and does without."""


OVERRIDDEN = {name for name in vars(Builder) if name[0] != "_"}


@table("name", sorted(OVERRIDDEN - NEWER))
def test_every_overridden_method_is_one_of_this_tritons_builder(name: str) -> None:
    assert hasattr(stock.InterpreterBuilder, name)


@table(
    "name",
    ["_LangPatchScope", "_get_np_dtype", "_implicit_cvt", "_patch_builtin", "_patch_lang_core", "_patch_lang_tensor"],
)
def test_every_private_name_in_use_is_one_of_this_tritons(name: str) -> None:
    assert hasattr(stock, name)


def test_every_access_of_this_tritons_builder_is_overridden() -> None:
    """A new Triton with a new way to reach memory fails here, with its name."""
    flags = ("load", "store", "atomic", "barrier", "asm", "extern", "fence")
    found = {n for n in vars(stock.InterpreterBuilder) if n.startswith("create_") and any(w in n for w in flags)}
    # Block pointers, which 3.9 no longer has, and which nobody emits; and what is made into accesses with a mask.
    stock_ways = {"create_tensor_pointer_load", "create_tensor_pointer_store", "create_load", "create_store"}
    assert found - OVERRIDDEN <= stock_ways


def test_functions_of_another_module() -> None:
    source, out = torch.arange(64, dtype=torch.float32), torch.zeros(65)
    run(emitted_small.through_another_module, source=source, out=out, N=64)
    assert torch.equal(out[:32], source[:32] * 2 + source[32:])
    assert torch.equal(out[32:64], source[:32] * 2) is False
    assert torch.equal(out[32:64], source[:32])
    assert out[64] == source[:32].sum()


def test_what_follows_from_a_shape_is_shared_and_right() -> None:
    """As Triton makes it: a block's sizes, its number of elements and its name; a type that cannot be is refused again."""

    def facts() -> list[object]:
        shapes: list[Any] = [[4, 8], [tl.constexpr(8), 4], [16], tl.tuple([4, 8])]
        blocks: list[Any] = [
            tl.block_type(ty, shape) for ty in (tl.int32, tl.pointer_type(tl.float16)) for shape in shapes
        ]
        tensors: list[Any] = [tl.tensor(None, ty) for ty in (tl.int32, tl.int64, *blocks)]
        found: list[object] = [(b.name, list(b.shape), b.numel, b.element_ty.name, b.scalar.name) for b in blocks]
        found += [(t.dtype.name, t.type.name, [s.value for s in t.shape], t.numel.value) for t in tensors]
        for _ in range(2):
            with pytest.raises(ValueError, match="power of 2"):
                tl.block_type(tl.int32, [3, 8])
        return found

    as_triton = facts()

    def main(backend: SimulatedBackend) -> None:
        one, other = (tl.tensor(None, tl.block_type(tl.int32, [4, 8])) for _ in range(2))
        assert one.shape is other.shape
        assert facts() == as_triton == facts()

    simulate(main, 1)


def test_program_ids() -> None:
    out = torch.zeros(3, dtype=torch.int32)
    run(emitted_small.axes, 3, out=out)
    assert out.tolist() == [301, 301, 301]


def test_nothing_stays_behind() -> None:
    before = dict(vars(emitted_small)), dict(vars(emitted_part))
    call, builder, options = (
        JITFunction.__call__,
        dict(vars(stock.interpreter_builder)),
        stock.interpreter_builder.options,
    )
    language = {(owner, name): getattr(owner, name) for owner in (tl, tl.tensor) for name in dir(owner)}
    test_functions_of_another_module()
    with pytest.raises(TilelinkError):
        run(emitted_small.assembly, flags=torch.zeros(1, dtype=torch.int64))
    assert (dict(vars(emitted_small)), dict(vars(emitted_part))) == before
    assert JITFunction.__call__ is call
    assert vars(stock.interpreter_builder) == builder
    assert stock.interpreter_builder.options is options
    assert {(owner, name): getattr(owner, name) for owner, name in language} == language
    with pytest.raises(RuntimeError, match=r"Cannot call @triton.jit'd outside"):
        emitted_part.twice(1)


def test_the_same_function_compiles_afterwards(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    flags = torch.zeros(2, dtype=torch.int64)
    run(emitted_small.chain, 2, flags=flags)
    assert flags[0] == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = triton.compile(ASTSource(emitted_small.chain, {"flags": "*i64"}, {}), target=GPUTarget("cuda", 90, 32))
    assert "ld.global.gpu.acquire" in made.asm["ptx"]


@pytest.mark.parametrize("kernel", [emitted_small.spin, emitted_small.spin_volatile], ids=["atomic", "volatile"])
def test_spin_loops_need_no_wait_function(kernel: Any) -> None:
    def main(backend: SimulatedBackend) -> int:
        arena = backend.arena(64)
        flags, other = arena.local.view(torch.int64), backend.zeros(1, torch.int64)
        if backend.rank == 0:
            backend.main_stream().launch(kernel, 1, {"flags": flags, "other": other}, KernelOptions(1, 1))
        else:
            args = {"flags": flags, "value": 1, "context": arena.context, "OP": 9}
            backend.main_stream().launch(emitted_small.signal_all, 1, args, KernelOptions(1, 1))
        backend.finish()
        return int(other)

    for seed in range(5):
        assert simulate(main, 2, seed=seed, straggler=seed % 2) == [7, 0]


def test_old_values_of_local_counters() -> None:
    out = torch.zeros(1, dtype=torch.int64)
    run(emitted_small.last_one, 5, flags=torch.zeros(1, dtype=torch.int64), out=out, workers=5)
    assert out.item() == 5


def test_a_broken_promise_of_alignment_is_found() -> None:
    with pytest.raises(TilelinkError, match=r"TL505: .*promises a multiple of 16, but the value is") as caught:
        run(emitted_small.hint, flags=torch.zeros(4, dtype=torch.int64))
    assert "tl.multiple_of(flags + 1, 16)" in str(caught.value)


def test_unknown_assembly_is_refused() -> None:
    with pytest.raises(TilelinkError, match=r"TL503: .*the assembly `trap;` cannot be simulated"):
        run(emitted_small.assembly, flags=torch.zeros(1, dtype=torch.int64))


def test_arguments_are_checked_by_name() -> None:
    with pytest.raises(TilelinkError, match=r"TL424: kernel chain gets other arguments(.|\n)*flags; unknown: other"):
        run(emitted_small.chain, other=1)


def test_descriptors_are_checked_at_the_launch() -> None:
    source = Descriptor(torch.zeros(8, 3, dtype=torch.bfloat16), (8, 4))
    with pytest.raises(TilelinkError, match="TL426: argument source has no TMA descriptor: strides must be 16-byte"):
        run(emitted_small.copy_tile, source=source, target=source, row=0, column=0)


def test_a_descriptor_of_nothing_may_be_passed_but_not_used() -> None:
    empty = Descriptor(torch.zeros(0, 64), (32, 32))
    target = Descriptor(torch.zeros(32, 32), (32, 32))
    with pytest.raises(TilelinkError, match=r"TL502: .*reads 4 bytes"):
        run(emitted_small.copy_tile, source=empty, target=target, row=0, column=0)


def test_one_simulation_at_a_time() -> None:
    def inner(backend: SimulatedBackend) -> int:
        return 1

    def main(backend: SimulatedBackend) -> list[int]:
        return simulate(inner, 1)

    with pytest.raises(TilelinkError, match="TL450: a simulation is running"):
        simulate(main, 1)
    assert simulate(inner, 2) == [1, 1]


def test_after_an_error_the_next_simulation_works() -> None:
    problem = Problem.random(64, 32, 32, torch.bfloat16)
    for seed in range(3):
        with pytest.raises(TilelinkError, match=r"TL506: rank 1, worker 0 .*this rank is bad"):
            simulate(_fails(1), 3, seed=seed)
        problem.assert_right(simulate(pull(problem), 2, seed=seed))


def _fails(bad: int) -> Any:
    def main(backend: SimulatedBackend) -> None:
        args = {"flags": backend.zeros(1, torch.int64), "rank": backend.rank, "bad": bad}
        backend.main_stream().launch(emitted_small.fail_on, 1, args, KernelOptions(1, 1))
        backend.barrier()

    return main


def test_an_error_names_its_rank() -> None:
    with pytest.raises(TilelinkError) as caught:
        simulate(_fails(2), 3)
    assert caught.value.__notes__ == ["in rank 2, worker 0 of fail_on", "under the policy random-0"]
