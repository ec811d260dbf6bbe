"""Waits that end: after a time limit, or when the host says so; and conditions that are checked while a kernel runs.

Compiled only into kernels that were emitted for it. `watch` points to int64 `[source, guard]`: the number of the
emitted file, and the address of its GPU's guard. The guard, int64 in this GPU's memory, is
`[limit in ns, alarm, entries taken, report]`; the report, int64 in memory that the host reads at any time, is
`[stop]` followed, from `FIRST` on, by entries of `LENGTH` flags:
`[kind, source, site, tile, index, expected, seen, worker, ns]`.

A wait that takes too long raises the alarm, which ends all waits of this GPU, so that every kernel ends. Only waits that
have lasted half the limit make an entry: later ones miss what those before them did not get.

What a wait costs more than one without a limit: after every 64th poll it reads the clock and the alarm, which lie on its
own GPU. The host's memory is across PCIe, and all threads of all waiting programs read it at once, which takes up what
launches and copy engines need to begin: so a wait leaves it alone until it has lasted a 64th of the limit, and reads
it as seldom from then on.
"""

from typing import Any

import triton
import triton.language as tl
from triton.language import core

from tilelink.device.clocks import clock
from tilelink.device.fences import block_barrier, system_fence, warps
from tilelink.device.ll import LL_WORDS, ll_data, ll_first_late, ll_lanes, ll_late, ll_oldest, ll_words

LIMIT = tl.constexpr(0)
ALARM = tl.constexpr(1)
TAKEN = tl.constexpr(2)
REPORT = tl.constexpr(3)
GUARD = 4
"""Flags of a guard."""

STOP = tl.constexpr(0)
FIRST = tl.constexpr(8)
LENGTH = tl.constexpr(16)
ENTRIES = tl.constexpr(32)
WORDS = FIRST.value + LENGTH.value * ENTRIES.value
"""Flags of a report."""

LATE = tl.constexpr(1)
FALSE = tl.constexpr(2)
"""Kinds of entries: a wait that took too long, a condition that does not hold."""

_GPU: Any = tl.constexpr("gpu")
SYSTEM: Any = tl.constexpr("sys")
_NOTHING = tl.constexpr(-(1 << 62))
_POLLS = tl.constexpr(64)
_ONE = tl.constexpr(1)
_ASKS = tl.constexpr(64)
"""How often a wait reads the host's flag until it is over by its limit."""


@core.builtin
def _polls_per_look(_semantic: Any = None) -> core.constexpr:
    """How often a flag is polled before the clock is looked at. The interpreter's clock stands still most of the time."""
    return _ONE if _semantic.builder.options.backend_name == "interpreter" else _POLLS


@triton.jit
def _pointer(address):
    return tl.cast(address, tl.pointer_type(tl.int64))


@triton.jit
def look_at_clock(watch, waited, asked):
    """Raise the alarm if this wait has lasted too long; 0 unless it was raised before, and when the host was asked last.

    `waited`, `asked`: nanoseconds since the wait began.
    """
    guard = _pointer(tl.load(watch + 1))
    limit = tl.load(guard + LIMIT)
    ask = waited - asked >= limit // _ASKS
    stop = tl.load(_pointer(tl.load(guard + REPORT)) + STOP, mask=ask, other=0, volatile=True)
    late = (waited > limit) | (stop != 0)
    # Threads read clocks of their own. One of them does the atomic, and all get its answer: they leave the loop together.
    alarm = tl.atomic_or(guard + ALARM, late.to(tl.int64), sem="relaxed", scope="gpu")
    return alarm, tl.where(ask, waited, asked)


@triton.jit
def _enter(watch, kind, site, tile, index, expected, seen, waited, wanted):
    """Add an entry to the report if it is wanted and there is room."""
    guard = _pointer(tl.load(watch + 1))
    at = tl.atomic_add(guard + TAKEN, 1, mask=wanted, sem="relaxed", scope="gpu")
    room = wanted & (at < ENTRIES)
    entry = _pointer(tl.load(guard + REPORT)) + FIRST + tl.where(room, at, 0) * LENGTH
    tl.store(entry + 1, tl.load(watch), mask=room)
    tl.store(entry + 2, tl.cast(site, tl.int64), mask=room)
    tl.store(entry + 3, tl.cast(tile, tl.int64), mask=room)
    tl.store(entry + 4, tl.cast(index, tl.int64), mask=room)
    tl.store(entry + 5, tl.cast(expected, tl.int64), mask=room)
    tl.store(entry + 6, tl.cast(seen, tl.int64), mask=room)
    tl.store(entry + 7, tl.program_id(0).to(tl.int64), mask=room)
    tl.store(entry + 8, tl.cast(waited, tl.int64), mask=room)
    # The host takes an entry whose kind it sees: the rest has to be there by then, whichever thread has stored it.
    block_barrier()
    system_fence()
    tl.store(entry, tl.cast(kind, tl.int64), mask=room)


@triton.jit
def wait_at_least(flag, target, scope: tl.constexpr, watch, site, tile, index):
    """Until `flag` is at least `target`, or the alarm is raised; whether it is."""
    seen = tl.atomic_add(flag, 0, sem="acquire", scope=scope)
    polls = tl.cast(0, tl.int32)
    began = tl.cast(0, tl.int64)
    waited = tl.cast(0, tl.int64)
    asked = tl.cast(0, tl.int64)
    alarm = tl.cast(0, tl.int64)
    while (seen < target) & (alarm == 0):
        polls += 1
        if polls % _polls_per_look() == 0:
            now = clock()
            began = tl.where(began == 0, now, began)
            waited = now - began
            alarm, asked = look_at_clock(watch, waited, asked)
        seen = tl.atomic_add(flag, 0, sem="acquire", scope=scope)
    if seen < target:
        half = tl.load(_pointer(tl.load(watch + 1)) + LIMIT) // 2
        _enter(watch, LATE, site, tile, index, target, seen, waited, waited >= half)
    return seen >= target


@triton.jit
def local_wait_within(flag, cmp: tl.constexpr, value, watch, site, tile, index):
    """`local_wait_until` that ends in any case. `site`, `tile` and `index` (of the flag) say in the report who waits."""
    tl.static_assert(cmp == 5, "a wait with a limit knows CMP_GE")
    wait_at_least(flag, tl.cast(value, tl.int64), _GPU, watch, site, tile, index)


@triton.jit
def signal_wait_within(flag, cmp: tl.constexpr, value, watch, site, tile, index):
    """`signal_wait_until` that ends in any case; see `local_wait_within`."""
    tl.static_assert(cmp == 5, "a wait with a limit knows CMP_GE")
    wait_at_least(flag, tl.cast(value, tl.int64), SYSTEM, watch, site, tile, index)


@triton.jit
def ll_load_within(words, number, mask, dtype: tl.constexpr, base, watch, site, tile):
    """`ll_load` that ends in any case; see `local_wait_within`. The report has the place, from `base` on, of the first flag that
    is missing, and the lowest number that was seen."""
    got = ll_words(words, number, mask)
    polls = tl.cast(0, tl.int32)
    began = tl.cast(0, tl.int64)
    waited = tl.cast(0, tl.int64)
    asked = tl.cast(0, tl.int64)
    alarm = tl.cast(0, tl.int64)
    while (ll_late(got, number) != 0) & (alarm == 0):
        polls += 1
        if polls % _polls_per_look() == 0:
            now = clock()
            began = tl.where(began == 0, now, began)
            waited = now - began
            alarm, asked = look_at_clock(watch, waited, asked)
        got = ll_words(words, number, mask)
    if ll_late(got, number) != 0:
        half = tl.load(_pointer(tl.load(watch + 1)) + LIMIT) // 2
        index = ll_first_late(words, got, number, base)
        _enter(watch, LATE, site, tile, index, number, ll_oldest(got), waited, waited >= half)
    return ll_data(got, dtype)


@triton.jit
def ll_load_block_within(dst, words, count, number, dtype: tl.constexpr, base, watch, site, tile):
    """`ll_load_block` that ends in any case; see `ll_load_within`."""
    each: tl.constexpr = 32 // dtype.primitive_bitwidth  # pyright: ignore[reportAttributeAccessIssue]
    for first in range(0, count // each, LL_WORDS * warps()):
        at, elements, inside, held = ll_lanes(LL_WORDS * warps(), count // each - first, 1, each)
        got = ll_load_within(words + first + at, number, inside, dtype, base, watch, site, tile)
        tl.store(dst + first * each + elements, got, mask=held)


@triton.jit
def check_below(index, size, watch, site, tile):
    """Report a position, or a block of them, that is neither below `size` nor -1 (no element). Nothing else happens."""
    position = index.to(tl.int64)
    wrong = (position >= size) | (position + 1 < 0)
    # One of the wrong ones, whichever is largest; `any` is 0 if there is none.
    worst = tl.max(tl.ravel(tl.where(wrong, position, _NOTHING) + tl.zeros([1], tl.int64)), 0)
    any = tl.max(tl.ravel(wrong.to(tl.int32) + tl.zeros([1], tl.int32)), 0)
    _enter(watch, FALSE, site, tile, 0, size, worst, 0, any == 1)


@triton.jit
def check(fine, watch, site, tile):
    """Report a condition that does not hold in some lane. Nothing else happens."""
    held = tl.min(tl.ravel(fine.to(tl.int32) + tl.zeros([1], tl.int32)), 0)
    _enter(watch, FALSE, site, tile, 0, 1, held, 0, held == 0)
