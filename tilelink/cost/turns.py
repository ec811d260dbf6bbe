"""Workers that share the tiles of a loop in turn."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any


def take_turns(free: Array, ready: Array, us: Array) -> tuple[Array, Array, Array]:
    """When tiles end of which worker `w` of `workers` takes those at positions `w`, `w + workers`, … one after the other.

    Args:
        free: (rank, worker), when each can begin.
        ready: (rank, position), when each tile can.
        us: (rank, position), how long each takes.

    Returns:
        when each tile could have begun if it had had to wait for its worker only, when it ends, and when each worker is through.
    """
    ranks, workers = free.shape
    tiles = ready.shape[1]
    waves = -(-tiles // workers)
    if not waves:
        return ready, ready, free
    shape, pad = (ranks, waves, workers), ((0, 0), (0, waves * workers - tiles))
    long = np.pad(us, pad).reshape(shape)
    done = np.cumsum(long, axis=1)
    # Without a wait the tile of wave k begins when those before it have taken their time; each wait moves all behind it.
    late = np.pad(ready, pad, constant_values=-np.inf).reshape(shape) - (done - long)
    ends = np.maximum.accumulate(np.maximum(late, free[:, None, :]), axis=1) + done
    begins = np.concatenate([free[:, None, :], ends[:, :-1]], axis=1)
    flat = (ranks, waves * workers)
    return begins.reshape(flat)[:, :tiles], ends.reshape(flat)[:, :tiles], ends[:, -1]
