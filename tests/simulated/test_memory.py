"""No address that a program has no business with is read or written."""

from typing import Any

import pytest
import torch

from tests.simulated import emitted_gather, emitted_small
from tilelink.errors import TilelinkError
from tilelink.ir.schedule import KernelOptions
from tilelink.runtime.backend import Descriptor
from tilelink.runtime.simulated import SimulatedBackend, simulate


def copy_elements(backend: SimulatedBackend, source: torch.Tensor, offset: int, count: int) -> torch.Tensor:
    target = backend.zeros(16, source.dtype)
    args = {"source": source, "target": target, "offset": offset, "count": count, "BLOCK": 16}
    backend.main_stream().launch(emitted_small.copy_elements, 1, args, KernelOptions(1, 1))
    backend.finish()
    return target


def test_masked_addresses_are_not_touched() -> None:
    source = torch.arange(64, dtype=torch.float32)
    assert simulate(lambda w: copy_elements(w, source, 60, 4), 1)[0].tolist() == [60.0, 61.0, 62.0, 63.0] + [0.0] * 12
    assert simulate(lambda w: copy_elements(w, source, 10_000_000, 0), 1)[0].tolist() == [0.0] * 16


@pytest.mark.parametrize(
    ("offset", "count", "place"),
    [(60, 8, "0 bytes after the end of source"), (-4, 8, "16 bytes before source"), (48, 17, None)],
)
def test_an_access_past_the_edge(offset: int, count: int, place: str | None) -> None:
    source = torch.zeros(64)
    if place is None:
        simulate(lambda w: copy_elements(w, source, offset, count), 1)
        return
    with pytest.raises(
        TilelinkError, match=f"TL502: rank 0, worker 0 of copy_elements: reads 4 bytes at .*{place}"
    ) as caught:
        simulate(lambda w: copy_elements(w, source, offset, count), 1)
    assert caught.value.loc is not None
    assert "tl.load(source + offset + at" in caught.value.loc.source_line()


def test_one_wild_address_among_many() -> None:
    """Both ends lie in memory: first and last element are no proof."""

    def main(backend: SimulatedBackend) -> None:
        table = torch.tensor([0, 1, 1 << 40, 2])
        args = {"source": torch.zeros(64), "table": table, "out": backend.zeros(4, torch.float32)}
        backend.main_stream().launch(emitted_gather.gather, 1, args, KernelOptions(1, 1))

    with pytest.raises(TilelinkError, match="TL502"):
        simulate(main, 1)


def test_a_neighbour_in_the_same_storage() -> None:
    """On GPUs each rank has its rows in a tensor of its own."""
    rows = torch.zeros(4, 64)
    with pytest.raises(TilelinkError, match=r"TL502: rank \d, .*(after the end of source|in source of ranks)"):
        simulate(lambda w: copy_elements(w, rows[w.rank], 60, 8), 4)


def test_private_memory_of_another_rank() -> None:
    """Symmetric memory is open to all, the rest of a rank's memory is not."""
    secret = torch.zeros(64)

    def main(backend: SimulatedBackend) -> None:
        arena = backend.arena(256)
        offset = (secret.data_ptr() - arena.local.data_ptr()) // 4
        if backend.rank == 0:
            args: dict[str, Any] = {"flags": backend.zeros(1, torch.int64), "other": secret}
            backend.side_stream(0).launch(emitted_small.spin_volatile, 1, args, KernelOptions(1, 1))
        if backend.rank == 1:
            copy_elements(backend, arena.local.view(torch.float32), offset, 4)

    with pytest.raises(TilelinkError, match=r"TL502: rank 1.*reads 4 bytes"):
        simulate(main, 2, straggler=1)


def test_a_descriptor_clips() -> None:
    def main(backend: SimulatedBackend) -> torch.Tensor:
        source = torch.arange(96 * 40, dtype=torch.float32).view(96, 40)
        target = backend.maker((32, 32), torch.float32)()
        args = {"source": Descriptor(source, (32, 32)), "target": Descriptor(target, (32, 32)), "row": 80, "column": 24}
        backend.main_stream().launch(emitted_small.copy_tile, 1, args, KernelOptions(1, 1))
        backend.finish()
        expected = torch.zeros(32, 32)
        expected[:16, :16] = source[80:, 24:]
        return target - expected

    assert simulate(main, 1)[0].abs().max() == 0


def test_a_block_copy_checks_both_sides() -> None:
    def main(backend: SimulatedBackend, count: int) -> torch.Tensor:
        arena = backend.arena(4096)
        flags = arena.local.view(torch.int32)
        source = torch.arange(2048, dtype=torch.int32)
        if backend.rank == 0:
            args = {"target": flags, "source": source, "count": count, "pe": 1, "context": arena.context}
            backend.main_stream().launch(emitted_small.put, 1, args, KernelOptions(1, 1))
        backend.barrier()
        return flags.clone()

    received = simulate(lambda w: main(w, 1003), 2)[1]
    assert received[:1003].tolist() == list(range(1003))
    assert received[1003:].abs().max() == 0
    with pytest.raises(
        TilelinkError, match=r"rank 0, worker 0 of put: writes 4 bytes .* after the end of arena 0 of rank 1"
    ):
        simulate(lambda w: main(w, 1025), 2)


def test_a_freed_arena_is_gone() -> None:
    def main(backend: SimulatedBackend) -> None:
        arena = backend.arena(256)
        context = arena.context
        arena.free()
        args = {"flags": backend.zeros(1, torch.int64), "value": 1, "context": context, "OP": 10}
        backend.main_stream().launch(emitted_small.signal_all, 1, args, KernelOptions(1, 1))

    with pytest.raises(TilelinkError, match="TL502"):
        simulate(main, 2)
