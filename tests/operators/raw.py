"""Programs with raw pointers: kernels written for other systems, ported by hand."""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl


@tilelink.program("M K, s i64, s M K -> s M K")
def exchange(x: Any, flags: Any, inbox: Any, out: Any) -> None:
    """An all-gather by hand: push to rank `s` and tell it, wait for what it has pushed, copy that out."""
    s, _, _ = tl.tile_id(out)
    mine, there, words, result = tl.pointer(x), tl.pointer(inbox), tl.pointer(flags), tl.pointer(out)
    me, n = tl.rank(), tl.size(x, 0) * tl.size(x, 1)
    far = tl.symm_at(there, s)
    for i in range(0, n, 64):
        at = i + tl.arange(0, 64)
        tl.store(far + me * n + at, tl.load(mine + at, mask=at < n), mask=at < n)
    tl.notify(words + me, s, 1, sig_op="set", comm_scope="intra_node")
    token = tl.wait(words + s, 1, "sys", "acquire", waitValue=1)
    here = tl.consume_token(there, token)
    for i in range(0, n, 64):
        at = i + tl.arange(0, 64)
        tl.store(result + s * n + at, tl.load(here + s * n + at, mask=at < n), mask=at < n)
    tl.store(words + s, tl.cast(0, tl.int64))


@tilelink.program("M K, s i64, s M K -> s M K")
def without_wait(x: Any, flags: Any, inbox: Any, out: Any) -> None:
    """The same, and nobody waits."""
    s, _, _ = tl.tile_id(out)
    mine, there, words, result = tl.pointer(x), tl.pointer(inbox), tl.pointer(flags), tl.pointer(out)
    me, n = tl.rank(), tl.size(x, 0) * tl.size(x, 1)
    far = tl.symm_at(there, s)
    for i in range(0, n, 64):
        at = i + tl.arange(0, 64)
        tl.store(far + me * n + at, tl.load(mine + at, mask=at < n), mask=at < n)
    tl.notify(words + me, s)
    for i in range(0, n, 64):
        at = i + tl.arange(0, 64)
        tl.store(result + s * n + at, tl.load(there + s * n + at, mask=at < n), mask=at < n)


def gather_with(program: Any) -> Any:
    """Everyone's `x`, one slice a rank, by a program with pointers."""

    @tilelink.operator("M K -> R M K", name="gather_by_hand")
    def op(x: Any) -> Any:
        return program(x, tilelink.symmetric("R i64"), tilelink.symmetric("R M K"))

    return op


@tilelink.program("M -> M")
def no_pointer(x: Any, out: Any) -> None:
    m = tl.tile_id(out)
    tl.store(tl.tile_load(x, m), 1)
