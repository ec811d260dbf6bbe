"""What a race is: two accesses, and the edge that is missing between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tilelink.errors import Loc, Note, TilelinkError

Missing = Literal["signal", "release", "acquire", "scope", "count", "barrier", "proxy fence", "bulk store wait"]
"""What would have ordered the two accesses.

`signal`: nothing of the first program reached the second. `release`, `acquire`, `scope`: a signal did, but one of its two
ends is relaxed, or is for one GPU only. `count`: the second waited for fewer signals than there are. `barrier`: one thread
signalled before all threads had come. `proxy fence`, `bulk store wait`: what TMA wants after a wait, and before a signal.
"""

WHY: dict[Missing, str] = {
    "signal": "no signal that is sent after the first access is waited for before the second",
    "release": "the signal between the two is relaxed: what was written before it may arrive after it",
    "acquire": "the wait between the two is relaxed: what follows it may be read before it",
    "scope": "the signal between the two is ordered for one GPU only, and the accesses are on two",
    "count": "the wait between the two is satisfied before the signal that follows the first access",
    "barrier": "the signal is one thread's, and no barrier of the program's threads lies between it and the access",
    "proxy fence": "a bulk copy (TMA) may see memory as it was before the wait, unless a proxy fence lies in between",
    "bulk store wait": "a bulk store (TMA) goes on in the background: nothing has waited for its end",
}
HINT: dict[Missing, str] = {
    "signal": "notify after the first, and wait for that tile before the second",
    "release": 'signal with sem="release"',
    "acquire": 'wait with sem="acquire"',
    "scope": 'signal and wait with scope="sys"',
    "count": "wait for as many signals as are sent for the tiles that are read",
    "barrier": "put tl.debug_barrier() in front of the signal, as shmem.signal_op does",
    "proxy fence": "put shmem.async_load_fence() behind the wait",
    "bulk store wait": "put shmem.async_store_quiet() in front of the signal",
}


@dataclass(frozen=True, slots=True)
class Access:
    """One side of a race. `what`: `rows[64:128, 0:64]`; `line`: of the emitted file, 0 for a stream's copy.

    `loc`: the user's line that it comes from, or the emitted one where there is no user's.
    """

    rank: int
    agent: str
    kind: Literal["load", "store"]
    proxy: str
    what: str
    function: str
    file: str
    line: int
    loc: Loc | None

    def __str__(self) -> str:
        verb = {"load": "reads", "store": "writes"}[self.kind]
        how = {"bulk": " by a bulk copy", "atomics": " atomically"}.get(self.proxy, "")
        place = f" ({self.function}, emitted line {self.line})" if self.line else ""
        return f"rank {self.rank}, {self.agent} {verb} {self.what}{how}{place}"


@dataclass(frozen=True, slots=True)
class Race:
    """`earlier` came first in this run, and under another schedule need not. `context`: sentences about the signals of
    the one and the waits of the other."""

    earlier: Access
    later: Access
    missing: Missing
    context: tuple[str, ...] = ()


class RaceError(TilelinkError):
    """TL507. `race`: the same as data."""

    def __init__(self, race: Race) -> None:
        self.race = race
        earlier, later = race.earlier, race.later
        super().__init__(
            "TL507",
            f"a race: {later}",
            loc=later.loc,
            why=WHY[race.missing],
            hint=HINT[race.missing],
            notes=(
                Note(f"unordered with: {earlier}", earlier.loc),
                Note(f"the missing edge: {race.missing}"),
                *(Note(text) for text in race.context),
            ),
        )
