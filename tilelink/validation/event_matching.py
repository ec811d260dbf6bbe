"""One tile: what the emitted file did, beside what the lowered plan says of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import numpy as np

from tilelink.errors import Loc
from tilelink.ir.lowered import Lowered, Tiles
from tilelink.runtime.simulated.agents import NUMBER
from tilelink.validation.events import Event, Said
from tilelink.validation.expanding import Expansion

Array: TypeAlias = Any
Thing = TypeVar("Thing")
Key = TypeVar("Key")
Flag: TypeAlias = "tuple[str, int]"
NEVER = -1
"""Before everything."""
KNOWN = "an await that the worker has made before in the call"
MERGED = "signals of one flag made as one"
WORDS = "an await of words that say themselves that they have come (LL protocol)"
UNSAID = "a signal that such flags carry (LL protocol)"
COUNTED = "a signal that the last of the counted tiles makes for all"
EMPTY = "an await of a flag that nobody signals"
EARLY = "a read of what the mainloop step has made, before the awaits of what others make"
DATA = "an op that data decides about, left out"


@dataclass(frozen=True, slots=True)
class Found:
    """A difference, before it is known whose: what the file does, what the plan says, at which event or op."""

    does: str
    says: str
    event: Event | None = None
    loc: Loc | None = None


@dataclass(slots=True)
class Facts:
    """Of one call on one rank. `ranks`: what the plan says of each; `epoch`: the number of the call; `rung`: the flags whose
    doorbells streams wait for."""

    ranks: Sequence[Expansion]
    rank: int
    epoch: int
    rung: frozenset[Flag]

    @property
    def lowered(self) -> Lowered:
        return self.ranks[0].lowered

    def said(self, loop: Tiles) -> list[list[Said]]:
        """By position, what the plan says that this rank does."""
        return self.ranks[self.rank].tiles(loop)

    def complete(self, rank: int, flags: str, index: int) -> int:
        """What a rank's flag has counted up to when this call has signalled it."""
        return ((self.epoch - 1) // self.lowered.slots + 1) * self.ranks[rank].arrivals(flags, index)

    def turn(self, slots: int) -> int:
        """Which slot of so many is the call's."""
        return (self.epoch - 1) % slots


@dataclass(slots=True)
class Tally:
    """What all comparisons found."""

    compared: Counter[str] = field(default_factory=Counter[str])
    elided: Counter[str] = field(default_factory=Counter[str])


@dataclass(slots=True)
class Match:
    """`known`: the flags that this worker has awaited in the call; grows. `made`: of a deferred epilogue, the buffers that its
    mainloop step has made the tile in: it may be read as soon as that is known."""

    facts: Facts
    tally: Tally
    said: list[Said]
    events: list[Event]
    known: set[Flag]
    made: frozenset[str] = frozenset()
    found: list[Found] = field(default_factory=list[Found])
    times: dict[int, tuple[int, int]] = field(default_factory=dict[int, "tuple[int, int]"])
    """By op, when it was done, at the earliest and at the latest; none of an op that was left out."""

    def run(self) -> list[Found]:
        self._awaits()
        self._signals()
        for kind in ("read", "write"):
            self._accesses(kind)
        if not self.found:
            self._order()
        return self.found

    # ------------------------------------------------------------------------------------------------------------ awaits
    def _awaits(self) -> None:
        made = grouped(self._of("await"), lambda e: (e.name, e.index))
        asked: Counter[Flag] = Counter()
        for s in (s for s in self.said if s.kind == "await"):
            flag, flags = (s.name, s.index), self.facts.lowered.flag(s.name)
            events = made[flag][asked[flag] :]
            if events:
                self._await(s, events[0])
                if not s.data:
                    # Of those that data decides about it is not known for which of them this one is.
                    self.times[s.at] = events[0].at, events[0].at
                self.tally.compared["awaits"] += 1
            elif flag in self.known or asked[flag]:
                self.tally.elided[KNOWN] += 1
            elif flags.style == "data":
                self.tally.elided[WORDS] += 1
            elif flags.arrivals is not None and not self.facts.ranks[self.facts.rank].arrivals(*flag):
                self.tally.elided[EMPTY] += 1
            elif s.data:
                self.tally.elided[DATA] += 1
            else:
                self._differs(f"does not await {_flag(*flag)}", "it is awaited here", None, s)
            asked[flag] += 1
        for flag, events in made.items():
            if events and not asked[flag]:
                self._differs(f"awaits {_flag(*flag)}", "nothing here awaits it", events[0])
            self.known |= {flag} if events else set()

    def _await(self, s: Said, e: Event) -> None:
        flags, facts = self.facts.lowered.flag(s.name), self.facts
        if e.rank != facts.rank:
            self._differs(f"awaits a flag of rank {e.rank}", "a rank awaits its own flags", e, s)
        self._slot(e, facts.lowered.slots, s)
        if (e.how == "doorbell") != (s.doorbell or flags.style == "doorbell"):
            self._differs("awaits a doorbell" if e.how == "doorbell" else "awaits a count", "it is the other", e, s)
        elif e.how != "doorbell":
            expected = facts.epoch - s.back
            if flags.style == "count":
                expected = facts.complete(facts.rank, s.name, s.index)
            if e.value != expected:
                self._differs(f"awaits {_flag(s.name, s.index)} until it is {e.value}", f"it comes to {expected}", e, s)
        if not e.ordered or (flags.scope == "sys" and not e.wide):
            self._differs(f"awaits {_flag(s.name, s.index)} {_order(e, 'acquire')}", f"scope {flags.scope}", e, s)

    # ----------------------------------------------------------------------------------------------------------- signals
    def _signals(self) -> None:
        signals = grouped(self._of("signal"), lambda e: e.how == "doorbell" and self._style(e.name) != "doorbell")
        made, rung = (grouped(signals[rings], lambda e: (e.name, e.index, e.rank)) for rings in (False, True))
        counts = grouped(self._of("count"), lambda e: (e.name, e.index))
        wanted = grouped((s for s in self.said if s.kind == "signal"), lambda s: (s.name, s.index, s.rank))
        for key, said in wanted.items():
            if self._style(key[0]) == "data":
                self.tally.elided[UNSAID] += len(said)
            elif said[0].amount is None:
                self._counted(said, counts.pop(key[:2], []), made.pop(key, []))
            else:
                self._signalled(said, made.pop(key, []), rung.pop(key, []))
        for e in (e for events in (*made.values(), *rung.values()) for e in events):
            what = "rings the doorbell of" if e.how == "doorbell" else "signals"
            self._differs(f"{what} {_flag(e.name, e.index)} of rank {e.rank}", "nothing here signals it", e)
        for (name, index), events in counts.items():
            self._differs(f"counts a tile of {_flag(name, index)}", "nothing here is counted", events[0])

    def _signalled(self, said: list[Said], made: list[Event], rung: list[Event]) -> None:
        s, flags, facts = said[0], self.facts.lowered.flag(said[0].name), self.facts
        whose = f"{_flag(s.name, s.index)} of rank {s.rank}"
        if not made:
            if s.data:
                self.tally.elided[DATA] += len(said)
            else:
                self._differs(f"does not signal {whose}", "it is signalled here", None, s)
            return
        for e in made:
            self._sent(s, e)
        if flags.style == "epoch":
            for e in made:
                if e.value != facts.epoch:
                    self._differs(f"sets {whose} to {e.value}", f"it is set to {facts.epoch}", e, s)
        else:
            amount, added = sum(x.amount or 0 for x in said), sum(e.value - e.before for e in made)
            if amount != added:
                self._differs(f"adds {added} to {whose}", f"{amount} is added", made[0], s)
        self.tally.compared["signals"] += len(said)
        self.tally.elided[MERGED] += len(said) - len(made)
        for x in said:
            self.times[x.at] = made[0].at, made[-1].at
        asked = s.rank == facts.rank and (s.name, s.index) in facts.rung and flags.style == "count"
        rings = asked and made[-1].value == facts.complete(s.rank, s.name, s.index)
        if rings != bool(rung) or len(rung) > 1:
            said_so = "whoever completes the flag rings it, once" if asked else "no stream waits for its doorbell"
            self._differs(
                f"{'rings' if rung else 'does not ring'} the doorbell of {whose}", said_so, (rung or made)[0], s
            )

    def _counted(self, said: list[Said], counts: list[Event], made: list[Event]) -> None:
        s, facts = said[0], self.facts
        if len(counts) != len(said):
            self._differs(
                f"counts a tile of {_flag(s.name, s.index)} {len(counts)} times", f"it counts {len(said)}", None, s
            )
            return
        self.tally.elided[COUNTED] += len(said) - len(made)
        self.tally.compared["tiles counted"] += len(said)
        for x, e in zip(said, counts, strict=True):
            self.times[x.at] = e.at, e.at
        for e in made:
            self._sent(s, e)
            amount = facts.ranks[s.rank].arrivals(s.name, s.index)
            if e.value - e.before != amount:
                self._differs(f"adds {e.value - e.before} for all tiles", f"{amount} is added", e, s)

    def _sent(self, s: Said, e: Event) -> None:
        flags = self.facts.lowered.flag(s.name)
        self._slot(e, self.facts.lowered.slots, s)
        if not e.ordered or (flags.scope == "sys" and not e.wide):
            self._differs(f"signals {_flag(s.name, s.index)} {_order(e, 'release')}", f"scope {flags.scope}", e, s)

    # ---------------------------------------------------------------------------------------------------------- accesses
    def _accesses(self, kind: str) -> None:
        said = grouped((s for s in self.said if s.kind == kind), lambda s: (s.name, s.rank))
        made = grouped(self._of(kind), lambda e: (e.name, e.rank))
        for name, rank in {**said, **made}:
            self._buffer(kind, said[name, rank], made[name, rank])

    def _buffer(self, kind: str, said: list[Said], made: list[Event]) -> None:
        """All of the accesses of one buffer on one rank."""
        size = 1 + max(int(x.index.max()) for x in (*said, *made) if len(x.index))
        often, first, last = _times(made, size)
        must, may = np.zeros(size, np.int64), np.zeros(size, np.bool_)
        for s in said:
            if s.data:
                may[s.index] = True
            else:
                must[s.index] += 1
        for e in made:
            self._element(kind, e, said)
        self.tally.compared[f"elements {'read' if kind == 'read' else 'written'}"] += int((must > 0).sum())
        missing = (must > 0) & (often == 0)
        if missing.any():
            s = next(s for s in said if not s.data and missing[s.index].any())
            at = _places(s.index[missing[s.index]], s)
            self._differs(f"does not {kind} {at} of {_whose(s, self.facts.rank)}", f"it {kind}s {_box(s)}", None, s)
        beyond = (often > 0) & (must == 0) & ~may
        if beyond.any():
            e = next(e for e in made if beyond[e.index].any())
            box = ", ".join(dict.fromkeys(map(_box, said))) or "nothing"
            where = _places(e.index[beyond[e.index]], said[0] if said else None)
            self._differs(f"{kind}s {where} of `{e.name}` on rank {e.rank}", f"it {kind}s {box}", e)
        twice = (often > must) & (must > 0) & ~may
        if kind == "write" and twice.any() and not missing.any():
            e = next(e for e in made if twice[e.index].any())
            self._differs(f"writes an element of `{e.name}` on rank {e.rank} twice", "it is written once", e)
        for s in said:
            self._by_data(kind, s, often)
            there = s.index[often[s.index] > 0] if s.data else s.index
            if not len(there) or missing.any():
                continue
            earlier = np.concatenate([x.index for x in said if x.at < s.at] or [there[:0]])
            later = np.concatenate([x.index for x in said if x.at > s.at] or [there[:0]])
            again, once_more = np.isin(there, earlier), np.isin(there, later)
            lows = np.where(again, last[there], first[there])
            highs = np.where(once_more, first[there], last[there])
            if s.data:
                # Of what several ops may have touched it is not known which one did.
                lows, highs = lows[~again], highs[~once_more]
            self.times[s.at] = int(lows.min(initial=1 << 62)), int(highs.max(initial=NEVER))

    def _by_data(self, kind: str, s: Said, often: Array) -> None:
        """Of what data decides, positions along axes that it does not decide about are all there, where any are."""
        there = s.index[often[s.index] > 0]
        # A mask, or where a loop begins and ends, may leave out anything.
        placed = all(d.table or d.index for d in s.data)
        if not s.data or not len(there) or not placed:
            return
        for axis, (lo, hi) in enumerate(s.edges):
            stride = int(np.prod(s.extents[axis + 1 :]))
            got = np.unique(there // stride % s.extents[axis])
            if (lo, hi) != (0, s.extents[axis]) and len(got) != hi - lo:
                self._differs(
                    f"{kind}s {len(got)} positions along axis {axis} of `{s.name}`", f"{lo}:{hi}, all of them", None, s
                )

    def _element(self, kind: str, e: Event, said: list[Said]) -> None:
        if not said:
            return
        buffer, style = self.facts.lowered.buffer(e.name), self._style(e.name)
        if e.slot is not None:
            self._slot(e, buffer.slots, said[0])
        if kind == "read" and style == "data":
            if e.how != "flags":
                self._differs(f"reads flags of `{e.name}` that may not have come", "it awaits them", e, said[0])
            elif e.value != self.facts.epoch & NUMBER:
                self._differs(f"awaits flags of call {e.value}", f"this is call {self.facts.epoch}", e, said[0])

    # ------------------------------------------------------------------------------------------------------------- order
    def _order(self) -> None:
        """Awaits come before what they guard, what a signal announces before it, and awaits and signals keep their order."""
        awaited, touched, signalled = (NEVER, None), (NEVER, None), (NEVER, None)
        for s in self.said:
            if s.at not in self.times:
                continue
            begin, end = self.times[s.at]
            if s.kind == "await":
                if begin < signalled[0]:
                    self._turned(s, signalled[1])
                awaited = max(awaited, (end, s), key=lambda x: x[0])
                continue
            if s.kind == "read" and s.name in self.made:
                early = max((self.times[x.at][1] for x in self._work() if x.at < s.at), default=NEVER)
                if early <= begin < awaited[0]:
                    self.tally.elided[EARLY] += 1
                    begin = awaited[0]
            if begin < awaited[0]:
                self._turned(s, awaited[1])
            if s.kind == "signal":
                if begin < touched[0]:
                    self._turned(s, touched[1])
                signalled = max(signalled, (end, s), key=lambda x: x[0])
            else:
                touched = max(touched, (end, s), key=lambda x: x[0])

    def _work(self) -> Iterable[Said]:
        """The awaits of a mainloop step's tile."""
        return (s for s in self.said if s.kind == "await" and s.name.startswith("made.") and s.at in self.times)

    def _turned(self, late: Said, early: Said | None) -> None:
        assert early is not None
        at = self.times[late.at][0]
        event = next((e for e in self.events if e.at == at), None)
        self._differs(f"{_done(late)} before it {_done(early)}", "the other way round", event, late)

    # ----------------------------------------------------------------------------------------------------------- helpers
    def _of(self, kind: str) -> Iterable[Event]:
        return (e for e in self.events if e.kind == kind)

    def _style(self, name: str) -> str:
        return next((f.style for f in self.facts.lowered.flags if f.name == name), "")

    def _slot(self, e: Event, slots: int, s: Said) -> None:
        if e.slot is not None and e.slot != self.facts.turn(slots):
            self._differs(f"uses slot {e.slot} of `{e.name}`", f"it is the turn of slot {self.facts.turn(slots)}", e, s)

    def _differs(self, does: str, says: str, event: Event | None, s: Said | None = None) -> None:
        self.found.append(Found(does, says, event, s.loc if s is not None else None))


def grouped(found: Iterable[Thing], by: Callable[[Thing], Key]) -> defaultdict[Key, list[Thing]]:
    """In the order in which they come."""
    out: defaultdict[Key, list[Thing]] = defaultdict(list)
    for one in found:
        out[by(one)].append(one)
    return out


def _times(made: list[Event], size: int) -> tuple[Array, Array, Array]:
    """By element: how often, when first, when last."""
    often, first, last = np.zeros(size, np.int64), np.full(size, 1 << 62), np.full(size, NEVER)
    for e in made:
        once = np.unique(e.index)
        often[once] += 1
        first[once] = np.minimum(first[once], e.at)
        last[once] = np.maximum(last[once], e.at)
    return often, first, last


def _flag(name: str, index: int) -> str:
    return f"flag {index} of `{name}`"


def _order(e: Event, what: str) -> str:
    return f"without {what}" if not e.ordered else "for one GPU only"


def _whose(s: Said, rank: int) -> str:
    return f"`{s.name}`" if s.rank == rank else f"`{s.name}` on rank {s.rank}"


def _box(s: Said) -> str:
    return f"`{s.name}`[{', '.join(f'{lo}:{hi}' for lo, hi in s.edges)}]"


def _places(index: Array, s: Said | None) -> str:
    """Where elements lie, as the smallest box around them."""
    if s is None:
        return f"elements {int(index.min())} to {int(index.max())}"
    at = np.unravel_index(index, s.extents) if int(index.max()) < int(np.prod(s.extents)) else None
    if at is None:
        return "elements behind the end"
    return f"[{', '.join(f'{int(a.min())}:{int(a.max()) + 1}' for a in at)}]"


def _done(s: Said) -> str:
    if s.kind in ("read", "write"):
        return f"{s.kind}s {_box(s)}"
    return f"{s.kind}s {_flag(s.name, s.index)}"
