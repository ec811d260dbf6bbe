"""What goes wrong when a plan runs: as many calls as slots come round, on every rank, with every signal an edge.

A finding is a circle of waits, a word that does not come out even, an element written twice or never, or two accesses
that no chain of signals orders. If there is none, every order of events that can happen gives the same values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import networkx as nx
import numpy as np

from tilelink.errors import Loc
from tilelink.ir.channel import Channel
from tilelink.ir.plan import Plan
from tilelink.mapping.exact.calls import Call, call_of
from tilelink.mapping.exact.events import Access, Event, Instance, Word
from tilelink.mapping.exact.room import without_room
from tilelink.mapping.exact.tiles import NotExact, Outside, Sizes

Node: TypeAlias = "int | tuple[int, Word]"
"""The number of an event, or (call, word)."""
Graph: TypeAlias = "nx.DiGraph[Node]"
FLAGS = ("entered", "ready", "left")
MOST_NODES = 60_000


@dataclass(frozen=True, slots=True)
class Moment:
    """An event of one call."""

    call: int
    event: Event


@dataclass(frozen=True, slots=True)
class Finding:
    """`kind`: plan | bounds | count | deadlock | twice | never | race | reuse. `first` should happen before `second`.

    `circle`: of a deadlock, the events that wait for one another. `harmless`: nobody looks at what is wrong.
    """

    kind: str
    text: str
    loc: Loc | None = None
    first: Moment | None = None
    second: Moment | None = None
    circle: tuple[Moment, ...] = ()
    harmless: bool = False


def examine(plan: Plan) -> Exact:
    """Play a plan through as many calls as it takes to come to every slot again.

    It is played as it is emitted; and, where own parts are read in place, once more with these moved like all others,
    since a plan has to be right either way.

    Raises:
        NotExact: data decides what happens, or the world is too large.
    """
    exact = Exact(plan, Sizes(plan), plan.schedule.slots + 1)
    exact.findings = tuple(exact.examine())
    if not exact.findings and (path := without_room(plan)) is not None:
        exact.findings = (Finding("deadlock", f"`{path}` finds no SM beside kernels", plan.step(path).step.loc),)
    if not exact.findings and plan.read_in_place:
        moved = replace(plan, steps=tuple(replace(s, in_place=()) for s in plan.steps))
        exact.findings = tuple(Exact(moved, Sizes(moved), plan.schedule.slots + 1).examine())
    return exact


def circle_of(plan: Plan) -> tuple[tuple[Moment, ...] | None, int]:
    """Events of one call that wait for one another, if there are any, with one worker per executor; and how many events
    were looked at. What is accessed may be data, as long as the signals are known.

    Raises:
        NotExact: data decides what happens, or the world is too large.
        Outside: an access or a word that does not exist.
    """
    sizes = Sizes(plan)
    try:
        call = call_of(sizes)
    except NotExact:
        call = call_of(sizes, outline=True)
        if call.unknown or any(g.kind == "table" for s in plan.steps for g in s.grid):
            raise
    exact = Exact(plan, sizes, 1, call)
    return exact.circle(), exact.events


@dataclass(slots=True, eq=False)
class Exact:
    """A plan with everything that happens in some calls, and what is wrong with that."""

    plan: Plan
    sizes: Sizes
    calls: int
    call: Call = field(default_factory=Call)
    findings: tuple[Finding, ...] = ()
    graph: Graph = field(default_factory=lambda: nx.DiGraph())
    known: dict[int, int] = field(default_factory=dict[int, int])

    @property
    def finding(self) -> Finding | None:
        """The first that does harm."""
        return next((f for f in self.findings if not f.harmless), None)

    @property
    def events(self) -> int:
        return len(self.call.events)

    def moment(self, node: int) -> Moment:
        return Moment(node // self.events, self.call.events[node % self.events])

    def node(self, moment: Moment) -> int:
        return moment.call * self.events + self.call.events.index(moment.event)

    # ------------------------------------------------------------------------------------------------------------- stages
    def examine(self) -> Iterator[Finding]:
        try:
            self.call = call_of(self.sizes)
        except Outside as outside:
            event = Event(outside.rank, outside.path, outside.path, "read", outside.loc, 0, outside.tile)
            yield Finding("bounds", str(outside), outside.loc, second=Moment(0, event))
            return
        for text, loc, harmless in self.call.faults:
            yield Finding("plan", text, loc, harmless=harmless)
        yield from _Counts(self.plan, self.sizes, self.call).findings()
        if self.events * self.calls > MOST_NODES:
            raise NotExact(f"{self.events * self.calls} events in {self.calls} calls")
        circle = self.circle()
        if circle is not None:
            yield Finding("deadlock", "signals wait for one another", circle[0].event.loc, circle=circle)
        if nx.is_directed_acyclic_graph(self.graph):
            self.reach()
            yield from _Memory(self).findings()
        # Last: where somebody relies on such a word, what goes wrong then tells more.
        yield from self._out_of_reach()

    def _out_of_reach(self) -> Iterator[Finding]:
        """Words of one GPU's scope lie where no other rank can raise them, whether anybody relies on that or not."""
        near = {channel.name for channel in self.plan.channels if channel.scope == "gpu"}
        for event in self.call.events:
            if any(word[0] in near and word[1] != event.rank for word in event.raises):
                text = f"`{event.path}` raises a word of another rank, where only that rank's GPU reaches it"
                yield Finding("plan", text, event.loc, second=Moment(0, event))
                return

    def circle(self) -> tuple[Moment, ...] | None:
        """Events that wait for one another. A worker that is alone takes its tiles in turn; any number then ends as well."""
        self.connect()
        alone = self.graph.copy()
        for c in range(self.calls):
            alone.add_edges_from((a + c * self.events, b + c * self.events) for a, b in self.call.taken)
        return self._circle(alone)

    def connect(self) -> None:
        """The graph of all calls."""
        n, call = self.events, self.call
        for c in range(self.calls):
            base = c * n
            self.graph.add_nodes_from(range(base, base + n))
            self.graph.add_edges_from((a + base, b + base) for a, b in call.order)
            if c:
                self.graph.add_edges_from(
                    (call.last[r] + base - n, call.first[r] + base) for r in range(self.sizes.ranks)
                )
            if call.enters:
                self._words(c)
        # A slot is used again in call c: its users have left call c - slots when they have entered the one after.
        for c in range(self.plan.schedule.slots - 1, self.calls):
            entered = c - self.plan.schedule.slots + 1
            for rank, taking in call.credits.items():
                for pe in range(self.sizes.ranks):
                    self.graph.add_edge((entered, ("entered", rank, pe)), taking + c * n)

    def _words(self, c: int) -> None:
        base = c * self.events
        scopes = {channel.name: channel.scope for channel in self.plan.channels}
        streams = {s.path for s in self.plan.steps if s.engine == "stream"}
        for at, event in enumerate(self.call.events):
            for word in event.raises:
                # Within a GPU nobody sees what another rank, or a copy engine, has done.
                if scopes.get(word[0], "sys") == "sys" or (event.rank == word[1] and event.path not in streams):
                    self.graph.add_edge(at + base, (c, word))
            for word in event.waits:
                self.graph.add_edge((c, word), at + base)

    def _circle(self, graph: Graph) -> tuple[Moment, ...] | None:
        circles = [found for found in nx.strongly_connected_components(graph) if len(found) > 1]
        if not circles:
            return None
        first = min(circles, key=lambda found: min(n for n in found if isinstance(n, int)))
        return self._told_apart(_shortest(graph.subgraph(first), self.events, self.call.events))

    def _told_apart(self, circle: list[int]) -> tuple[Moment, ...]:
        """Where the circle comes to a worker and where it leaves it."""
        moments = [self.moment(n) for n in circle]
        runs = [(m.call, m.event.rank, m.event.executor) for m in moments]
        k = len(runs)
        kept = [m for i, m in enumerate(moments) if runs[i] != runs[i - 1] or runs[i] != runs[(i + 1) % k]]
        signals = [m for m in kept if m.event.kind != "host"] or kept or moments
        start = next((i for i, m in enumerate(signals) if m.event.waits), 0)
        return tuple(signals[start:] + signals[:start])

    def reach(self) -> None:
        """For every event, as bits, the events that have happened before it."""
        before: dict[Node, int] = {}
        for node in nx.topological_sort(self.graph):
            mask = 0
            for p in self.graph.predecessors(node):
                mask |= before[p]
            if isinstance(node, int):
                self.known[node] = mask
                mask |= 1 << node
            before[node] = mask

    def ordered(self, first: int, second: int) -> bool:
        return bool(self.known[second] >> first & 1)


def _shortest(graph: Graph, n: int, events: list[Event]) -> list[int]:
    """Every node lies on a circle; take one through a wait that crosses between workers as seldom as can be."""
    numbers = [node for node in graph if isinstance(node, int)]
    waits = [node for node in numbers if events[node % n].waits] or numbers
    start = min(waits, key=lambda node: (node // n, events[node % n].position, events[node % n].rank, node))
    best: list[Any] = []
    for before in graph.predecessors(start):
        path = nx.dijkstra_path(graph, start, before, weight=lambda a, b, _: 0 if isinstance(b, int) else 1)
        if not best or sum(not isinstance(p, int) for p in path) < sum(not isinstance(p, int) for p in best):
            best = path
    return [node for node in best if isinstance(node, int)]


# ------------------------------------------------------------------------------------------------------------------ words
@dataclass(slots=True)
class _Counts:
    """Every word comes out even: it is raised as often as its target says."""

    plan: Plan
    sizes: Sizes
    call: Call
    raised: dict[Word, list[Event]] = field(default_factory=dict[Word, list[Event]])
    waited: dict[Word, list[Event]] = field(default_factory=dict[Word, list[Event]])

    def findings(self) -> Iterator[Finding]:
        for event in self.call.events:
            for word in event.raises:
                self.raised.setdefault(word, []).append(event)
            for word in event.waits:
                self.waited.setdefault(word, []).append(event)
        used = [w for w in (*self.raised, *self.waited) if w[0] in FLAGS]
        if not self.call.enters and (used or self.plan.channels):
            yield Finding("plan", "no kernel enters the call: the epoch stands still", self.plan.wiring.loc)
        for word, events in self.waited.items():
            if word[0] in FLAGS and word not in self.raised:
                yield self._count(f"`{word[0]}` of rank {word[2]} is never raised", events)
        for channel in self.plan.channels:
            for rank in range(self.sizes.ranks):
                yield from self._channel(channel, rank)

    def _channel(self, channel: Channel, rank: int) -> Iterator[Finding]:
        for number in range(self.sizes.words(channel, rank)):
            word = channel.name, rank, number
            raised, waited = self.raised.get(word, []), self.waited.get(word, [])
            due = self._due(channel, rank, number)
            engines = {"stream" if self.plan.step(e.path).engine == "stream" else "workers" for e in raised}
            if engines - {channel.writers}:
                yield self._count(f"word {number} is not written by {channel.writers} alone", waited, raised)
            if channel.writers == "stream":
                if len(raised) > 1 or (waited and not raised):
                    yield self._count(f"word {number} is set {len(raised)} times", waited, raised)
                elif len(raised) != due and (raised or not self._brought(channel)):
                    # A stream says which call it is in, whatever the target.
                    yield self._count(f"word {number} is set {len(raised)} times, not {due}", [], raised)
                continue
            if len(raised) != due:
                text = f"word {number} of `{channel.tensor}` on rank {rank} is raised {len(raised)} times and {due} are due"
                yield self._count(text, waited, raised)
            yield from self._bells(channel, word, waited, due)
            for event in waited:
                if event.peer is not None and any(r.rank != event.peer for r in raised):
                    yield self._count(f"rank {event.peer} is named, and others raise the word", [], [event])

    def _brought(self, channel: Channel) -> bool:
        """Whether a rank's own part is read where the rank has brought it along: then it is neither moved nor announced."""
        return channel.tensor in self.plan.read_in_place

    def _bells(self, channel: Channel, word: Word, waited: list[Event], due: int) -> Iterator[Finding]:
        heard = [e for e in waited if e.bell]
        due = due if self._rings(channel, word[1], word[2]) else 0
        listened = any(e.bell for w, events in self.waited.items() if w[0] == channel.name for e in events)
        if len(heard) > 1 or (heard and not due):
            yield self._count(f"the bell of word {word[2]} is waited for {len(heard)} times", heard)
        elif listened and due and not heard:
            yield self._count(f"the bell of word {word[2]} is left ringing", self.raised.get(word, []), harm=True)

    def _indices(self, channel: Channel, rank: int, number: int) -> dict[str, int]:
        indices: dict[str, int] = {}
        for k in reversed(range(len(channel.axes))):
            count = self.sizes.value(channel.axes[k].count, rank)
            indices[f"c{k}"], number = number % count, number // count
        return indices

    def _rings(self, channel: Channel, rank: int, number: int) -> bool:
        indices = self._indices(channel, rank, number)
        return channel.rings is None or bool(self.sizes.at(channel.rings, rank, **indices))

    def _due(self, channel: Channel, rank: int, number: int) -> int:
        indices = self._indices(channel, rank, number)
        try:
            if channel.guard is not None and not self.sizes.at(channel.guard, rank, **indices):
                return 0
            return self.sizes.at(channel.target, rank, **indices)
        except KeyError:
            return -1  # it names something that nobody knows

    def _count(
        self, text: str, waited: list[Event], raised: list[Event] | None = None, *, harm: bool = False
    ) -> Finding:
        place = next(iter((*waited, *(raised or ()))), None)
        second = Moment(0, waited[0]) if waited else None
        first = Moment(0, raised[-1]) if raised else None
        loc = place.loc if place is not None else self.plan.wiring.loc
        return Finding("count", text, loc, first, second, harmless=not waited and not harm)


# ----------------------------------------------------------------------------------------------------------------- memory
@dataclass(slots=True)
class _Memory:
    """Who wrote each element in each call, and whether whoever touches it knows."""

    exact: Exact
    writers: dict[tuple[Instance, int], Any] = field(default_factory=dict[tuple[Instance, int], Any])

    def findings(self) -> Iterator[Finding]:
        yield from self._write()
        yield from self._read()
        yield from self._reuse()
        yield from self._words()
        yield from self._hearing()

    def _array(self, instance: Instance, flat: bool, call: int) -> Any:
        """The events that wrote each element in a call; -1: none."""
        key = instance, call
        if key not in self.writers:
            extents = self.exact.sizes.extents(instance)
            self.writers[key] = np.full(extents, -1, dtype=np.int64)
        found = self.writers[key]
        return found.reshape(-1) if flat else found

    def _of(self, access: Access, call: int) -> Any:
        extents = self.exact.sizes.extents(access.instance)
        flat = len(access.box) == 1 and len(extents) != 1
        return self._array(access.instance, flat, call)[tuple(slice(b, e) for b, e in access.box)]

    def _write(self) -> Iterator[Finding]:
        for c in range(self.exact.calls):
            for at, event in enumerate(self.exact.call.events):
                for access in event.writes:
                    place = self._of(access, c)
                    if c == 0 and (place >= 0).any():
                        other = int(place.max())
                        yield self._finding("twice", access, other, at, "is written twice")
                    place[...] = at + c * self.exact.events

    def _read(self) -> Iterator[Finding]:
        for at, event in enumerate(self.exact.call.events):
            for access in event.reads:
                for writer in np.unique(self._of(access, 0)).tolist():
                    if writer < 0:
                        yield self._finding("never", access, None, at, "is read and never written")
                    elif writer != at and not self.exact.ordered(writer, at):
                        yield self._finding(
                            "race", access, writer, at, "is read and nothing makes sure that it is there"
                        )

    def _reuse(self) -> Iterator[Finding]:
        """The next writer of a slot comes after everyone who used it."""
        for at, event in enumerate(self.exact.call.events):
            for access in (*event.reads, *event.writes):
                later = self._next_use(access.instance)
                if later is None:
                    continue
                for writer in np.unique(self._of(access, later)).tolist():
                    if writer >= 0 and not self.exact.ordered(at, writer):
                        text = f"is written again in call {later} and nothing makes sure that it is no longer used"
                        yield self._finding("reuse", access, at, writer, text)

    def _next_use(self, instance: Instance) -> int | None:
        """The call in which the memory of call 0 is used again; None: never."""
        name = instance[0].removesuffix("@stage")
        buffer = self.exact.plan.buffer(name)
        if buffer.space == "result":
            return None
        if buffer.space == "argument" and name == instance[0]:
            return 1
        slots = self.exact.plan.schedule.slots
        if buffer.slots >= slots:
            return slots
        # The copies of a buffer are counted within the slots: if they do not divide them, two calls in a row meet.
        return buffer.slots if slots % buffer.slots == 0 else 1

    def _hearing(self) -> Iterator[Finding]:
        """Where no credit is taken, every rank hears from every rank in each call, so that the next may be of any size."""
        plan, call = self.exact.plan, self.exact.call
        shared = any(b.shared for b in plan.buffers)
        if not shared or any(c.implied_by is None for c in plan.credits):
            return
        for rank, last in enumerate(call.last):
            for peer, first in enumerate(call.first):
                if not self.exact.ordered(first, last):
                    begin, end = self.exact.moment(first), self.exact.moment(last)
                    text = f"rank {rank} hears nothing from rank {peer} in a call, and no credit is taken"
                    yield Finding("reuse", text, plan.wiring.loc, begin, end)

    def _words(self) -> Iterator[Finding]:
        """A word is raised for a later call only behind its waits, or behind all that raise it for theirs."""
        raised: dict[Word, list[int]] = {}
        waited: dict[Word, list[int]] = {}
        for at, event in enumerate(self.exact.call.events):
            for word in event.raises:
                raised.setdefault(word, []).append(at)
            for word in event.waits:
                waited.setdefault(word, []).append(at)
        slots, n = self.exact.plan.schedule.slots, self.exact.events
        for word, waits in waited.items():
            later = 1 if word[0] in FLAGS else slots
            for x in raised.get(word, []):
                again = x + later * n
                if all(self.exact.ordered(r, again) for r in raised[word]):
                    continue
                for w in waits:
                    if not self.exact.ordered(w, again):
                        first, second = self.exact.moment(w), self.exact.moment(again)
                        text = f"a word of `{word[0]}` is raised for call {later} while it is still waited for"
                        yield Finding("reuse", text, first.event.loc, first, second)

    def _finding(self, kind: str, access: Access, first: int | None, second: int, what: str) -> Finding:
        name, rank = access.instance
        end = self.exact.moment(second)
        begin = self.exact.moment(first) if first is not None else None
        return Finding(kind, f"`{name}` of rank {rank} {what}", end.event.loc, begin, end)
