"""One simulated machine: what all its agents share, and the bookkeeping of everything they do to one another."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import CodeType

import torch

from tilelink import cost
from tilelink.errors import TilelinkError, whole_line
from tilelink.ir.topology import Device, Topology
from tilelink.runtime.simulated.agents import Agent, Argument, Launch, Target, Wait, named
from tilelink.runtime.simulated.frames import chain, innermost
from tilelink.runtime.simulated.memory import MemoryMap, Region, WildAccess, block_of
from tilelink.runtime.simulated.numbered import NUMBER, Arrivals, addresses, contents
from tilelink.runtime.simulated.observing import Atomic, Block, Observer, Scatter, Span
from tilelink.runtime.simulated.records import Record, Recorder, What
from tilelink.runtime.simulated.scheduler import Scheduler
from tilelink.runtime.simulated.storebuffer import StoreBuffer
from tilelink.runtime.simulated.words import WORD, WordClocks

SMALL_COPY = 64 * WORD


class Machine:
    """`ranks` devices, their memory, and the schedule of this run."""

    def __init__(
        self,
        ranks: int,
        device: Device,
        scheduler: Scheduler,
        costs: cost.Machine,
        recorder: Recorder | None,
        observer: Observer | None,
        stores: StoreBuffer | None = None,
        nodes: int = 1,
    ) -> None:
        self.ranks = ranks
        self.per_node = -(-ranks // nodes)
        self.topology = Topology(ranks=ranks, world="simulated", device=device)
        self.scheduler = scheduler
        scheduler.let_time_pass = self.let_time_pass
        self.costs = costs
        self.recorder = recorder
        self.observer = observer
        self.stores = stores
        self.memory = MemoryMap()
        self.words = WordClocks()
        self.arrivals = Arrivals()
        self._looked_at: set[tuple[int, int]] = set()
        """Bounds of the words that somebody sleeps for."""
        self.codes: set[CodeType] = set()
        """Code of every Triton function that has run, by which their frames are known."""
        self.names: dict[int, dict[tuple[int, int], Argument]] = {}
        """By rank: every argument that a kernel has had, as names for what streams access."""
        self.limit: int | None = None
        """Nanoseconds that a wait with a time limit may take."""
        self.passed = 0
        """Nanoseconds that have passed while everybody waited. Clocks show them; nothing else knows."""
        self.gave_up = False
        """Whether a wait has ended by its limit."""
        if observer is not None:
            observer.attached(self)

    # --------------------------------------------------------------------------------------------------------- accesses
    def between(self, members: tuple[int, ...]) -> str:
        """How these ranks reach one another: by loads and stores inside a node, else by puts over a network."""
        return "peer" if len({m // self.per_node for m in members}) == 1 else "network"

    def reach(self, agent: Agent, block: Block, what: str) -> Region:
        """The memory of a rectangle that lies in one piece of it, such as a descriptor's tile."""
        region = self.memory.holding(block, agent.rank)
        if region is None:
            raise self._wild_access(self.memory.wild(block, agent.rank), block.itemsize, what)
        return region

    def reach_all(self, agent: Agent, scatter: Scatter, what: str) -> Region:
        """The memory of the lowest address, all of them checked."""
        try:
            return self.memory.check(scatter, agent.rank)
        except WildAccess as wild:
            raise self._wild_access(wild, scatter.itemsize, what) from None

    def charge(self, agent: Agent, region: Region, nbytes: int) -> None:
        """Let an access take its time."""
        agent.clock += self.costs.accessed(nbytes, region.home is not None and region.home != agent.rank)

    # ------------------------------------------------------------------------------------------------------------ words
    def poll(self, address: int, region: Region, size: int) -> None:
        """The running agent is about to read a word that others write; sleep if it would see the same again."""
        scheduler = self.scheduler
        agent = scheduler.running()
        if agent.looking:
            return
        if agent.polled == (address, region.word(address, size)):
            scheduler.park(Wait(address, lambda: self._awaited(agent, address, region, size)))
        else:
            scheduler.moves += 1
            scheduler.switch()
        agent.polled = (address, region.word(address, size))

    def look(self, span: Span) -> None:
        """The running agent is about to load words that others store; sleep if it would see the same again."""
        agent, scheduler, key = self.scheduler.running(), self.scheduler, span.bounds
        region = self.reach_all(agent, Scatter(addresses(span), span.itemsize), "reads")
        if agent.polled == (key[0], contents(span, region).tobytes()):
            if self.stores is not None:
                self.stores.arrive(agent)
            self._looked_at.add(key)
            scheduler.park(Wait(key, lambda: self._expected(agent, span, region)))
        else:
            scheduler.moves += 1
            scheduler.switch()
        agent.polled = (key[0], contents(span, region).tobytes())
        agent.clock = max(agent.clock, self.arrivals.latest(span, region))

    def looked(self, span: Span) -> None:
        """The running agent has seen all of these words come: what it has looked at before that counts for nothing."""
        if self.observer is not None:
            self.observer.look(self.scheduler.running(), span)

    def _expected(self, agent: Agent, span: Span, region: Region) -> str:
        """The first of the words that an agent looks at in vain."""
        assert agent.target is not None
        words, condition = contents(span, region), agent.target.condition
        missing = next(k for k, word in enumerate(words.tolist()) if not condition(word))
        name, number = self.name_of(agent, int(addresses(span)[missing])), (int(words[missing]) >> 32) & NUMBER
        return f"{name} is of call {number}, waits until it is {agent.target.text}"

    def stored(self, span: Span, region: Region) -> None:
        """The running agent has stored a block of words: whoever looks at some of them may go on."""
        agent = self.scheduler.running()
        self.arrivals.write(span, region, agent.clock + self.costs.flight(region.home != agent.rank))
        low, high = span.bounds
        for key in [k for k in self._looked_at if k[0] < high and low < k[1]]:
            self._looked_at.remove(key)
            self.scheduler.wake(key)

    def begin_wait(self, target: Target) -> None:
        """A wait function has begun: the condition of `target` will be polled on its word."""
        agent = self.scheduler.running()
        agent.polled = None
        agent.target = target
        self.record("wait", agent.clock, detail=f"{self.name_of(agent, target.address)} {target.text}")

    def end_wait(self) -> None:
        agent = self.scheduler.running()
        target = agent.target
        assert target is not None
        if self.limit is not None:
            region = self.memory.find(target.address, target.address + WORD)
            self.gave_up |= region is not None and not target.condition(region.word(target.address))
        self.moved(agent)
        agent.clock = max(agent.clock, self.words.satisfied(target.address, target.condition))
        agent.target = None
        if self.observer is not None:
            self.observer.waited(agent, target)
        self.record("resume", agent.clock, detail=f"{self.name_of(agent, target.address)} {target.text}")

    def written(self, address: int, region: Region, before: int, size: int, *, joins: bool, signal: bool) -> None:
        """The running agent has written a word. `joins`: it has also acquired what earlier writers released."""
        agent = self.scheduler.running()
        self.moved(agent)
        if joins:
            agent.clock = max(agent.clock, self.words.latest(address))
        seen = agent.clock + self.costs.flight(region.home != agent.rank)
        after = region.word(address, size)
        self.words.write(address, before, after, seen)
        if signal and self.recorder is not None:
            self.record("signal", agent.clock, detail=f"{self.name_of(agent, address)} = {after}")
        self.scheduler.wake(address)

    def moved(self, agent: Agent) -> None:
        """The agent has done something that is not a repeated poll."""
        if agent.looking:
            return
        if agent.polled is not None:
            if agent.target is None:
                # The end of a spin loop outside the wait functions: which value ended it is not known.
                agent.clock = max(agent.clock, self.words.latest(agent.polled[0]))
            agent.polled = None
        self.scheduler.moves += 1

    def let_time_pass(self, waiting: list[Agent]) -> bool:
        """Everybody waits: let the clocks go beyond every limit, if some wait has one."""
        if self.limit is None or not any(agent.target is not None for agent in waiting):
            return False
        self.passed += self.limit + 1
        return True

    def name_of(self, agent: Agent, address: int) -> str:
        """`words[3]`, or `words[3] of rank 2`, or what else the address can be called."""
        return self.span_name(agent, Block(address, (), (), 1))

    def span_name(self, agent: Agent, span: Block) -> str:
        """`rows[64:128, 0:64] of rank 2`."""
        region = self.memory.find(*span.bounds)
        home = region.home if region is not None else agent.rank
        # A peer's memory goes by the name of one's own at the same place.
        mine = next((p for p in region.peers if p.home == agent.rank), region) if region is not None else None
        shift = mine.start - region.start if region is not None and mine is not None else 0
        own = Block(span.address + shift, span.shape, span.strides, span.itemsize)
        there = self.names.get(agent.rank if home is None else home, {})
        name = agent.launch.name_of(own) if agent.launch is not None else None
        name = name or named(there.values(), span)
        if name is None:
            name = hex(span.address) if region is None else f"{region.name}+{span.address - region.start}"
        return name if home in (None, agent.rank) else f"{name} of rank {home}"

    def _awaited(self, agent: Agent, address: int, region: Region, size: int) -> str:
        name, value = self.name_of(agent, address), region.word(address, size)
        return f"{name} is {value}" + (f", waits until it is {agent.target.text}" if agent.target is not None else "")

    # ---------------------------------------------------------------------------------------------------------- copies
    def small_words(self, start: int, end: int) -> dict[int, int]:
        """Address and value of the words that a small copy may write: totals that somebody waits for."""
        region = self.memory.find(start, end)
        if region is None or end - start > SMALL_COPY:
            return {}
        return {at: region.word(at) for at in range(start, end - WORD + 1, WORD)}

    def copied(self, start: int, end: int, before: dict[int, int]) -> None:
        """A stream has written these bytes, over the words `before`."""
        agent = self.scheduler.running()
        region = self.memory.find(start, end)
        if region is not None:
            seen = agent.clock + self.costs.flight(region.home != agent.rank)
            for address, value in before.items():
                self.words.write(address, value, region.word(address), seen)
        self.scheduler.wake_range(start, end)

    # ------------------------------------------------------------------------------------------------------- observation
    def mark(self, agent: Agent) -> object:
        """What `agent` has done so far, in the observer's terms."""
        return None if self.observer is None else self.observer.mark(agent)

    def after(self, agent: Agent, marks: Iterable[object]) -> None:
        if self.observer is not None:
            self.observer.after(agent, marks)

    def opened(self, *tensors: torch.Tensor) -> None:
        """Kernels or copies are about to access these tensors."""
        if self.observer is not None:
            for tensor in tensors:
                storage = tensor.untyped_storage()
                if storage.nbytes():
                    self.observer.opened(storage.data_ptr(), storage.data_ptr() + storage.nbytes(), storage)

    def launched(self, agent: Agent, launch: Launch) -> None:
        """Remember what the arguments of a kernel of this rank are called."""
        self.names.setdefault(agent.rank, {}).update({(a.start, a.end): a for a in launch.arguments})

    def observe_copy(self, agent: Agent, target: torch.Tensor, source: torch.Tensor) -> None:
        """A stream is about to copy. One word is a signal: who acquires it sees what the stream did before."""
        if self.observer is None or not target.numel():
            return
        self.opened(target, source)
        to = block_of(target)
        self.observer.load(agent, block_of(source), "threads")
        if to.nbytes == WORD and target.dtype == torch.int64:
            before, after = (int(t.view(-1)) for t in (target, source))
            self._observe_word(agent, to.address, before, after, acquire=False, exchange=False)
        else:
            self.observer.store(agent, to, "threads")

    def observe_reads(self, agent: Agent, *tensors: torch.Tensor) -> None:
        """A stream is about to read these, by a library."""
        if self.observer is not None:
            for tensor in (t for t in tensors if t.numel()):
                self.opened(tensor)
                self.observer.load(agent, block_of(tensor), "threads")

    def observe_write(self, agent: Agent, tensor: torch.Tensor) -> None:
        """A stream is about to write this, by a library."""
        if self.observer is not None and tensor.numel():
            self.opened(tensor)
            self.observer.store(agent, block_of(tensor), "threads")

    def observe_bell(self, agent: Agent, bell: torch.Tensor) -> None:
        """A stream has seen a bell at 1 and set it back to 0."""
        if self.observer is not None:
            self.opened(bell)
            self._observe_word(agent, bell.data_ptr(), 1, 0, acquire=True, exchange=True)

    def _observe_word(
        self, agent: Agent, address: int, before: int, after: int, *, acquire: bool, exchange: bool
    ) -> None:
        assert self.observer is not None
        made = Atomic(address, WORD, before, after, acquire, True, "system", writes=True, exchange=exchange)
        self.observer.atomic(agent, made)

    def place(self, agent: Agent) -> tuple[str, int]:
        """The innermost function of the kernel's own file that the running agent is in, and its line."""
        if agent.launch is None:
            return "", 0
        found = innermost(sys._getframe(1), self.codes, agent.launch.file)
        return found if found is not None else (agent.launch.kernel, 0)

    # ------------------------------------------------------------------------------------------------------ diagnostics
    def diagnostic(self, code: str, message: str, *, why: str | None = None, hint: str | None = None) -> TilelinkError:
        """An error at the line of the emitted file that is running."""
        agent = self.scheduler.running()
        steps = chain(sys._getframe(1), self.codes)
        file = agent.launch.file if agent.launch is not None else ""
        place = next((s for s in steps if s.file == file), None)
        loc = whole_line(place.file, place.line) if place is not None else None
        return TilelinkError(code, f"{agent}: {message}", loc=loc, why=why, hint=hint)

    def refusal(self, what: str, hint: str) -> TilelinkError:
        return self.diagnostic("TL503", f"{what} cannot be simulated", hint=hint)

    def _wild_access(self, wild: WildAccess, itemsize: int, what: str) -> TilelinkError:
        address, region = wild.address, wild.region
        if region is not None:
            where = f"in {region.name} of ranks {sorted(region.users)}"
        else:
            near = self.memory.nearest(address)
            where = "which is no memory at all" if near is None else _beside(near, address)
        return self.diagnostic(
            "TL502",
            f"{what} {itemsize} bytes at {address:#x}, {where}",
            why="a kernel may touch the arenas, and the tensors passed to it",
            hint="look at the offsets and masks of the access, and at the arguments of the launch",
        )

    # ---------------------------------------------------------------------------------------------------------- records
    def record(
        self, what: What, time: float, *, until: float | None = None, kernel: str = "", detail: str = ""
    ) -> None:
        if self.recorder is None:
            return
        agent = self.scheduler.running()
        function, line = self.place(agent)
        self.recorder.records.append(
            Record(
                step=len(self.recorder.records),
                time=time,
                until=time if until is None else until,
                rank=agent.rank,
                stream=-1 if agent.stream is None else agent.stream,
                worker=agent.worker,
                kernel=agent.launch.kernel if agent.launch is not None else kernel,
                function=function,
                what=what,
                line=line,
                detail=detail,
            )
        )


def _beside(region: Region, address: int) -> str:
    whose = "" if region.home is None else f" of rank {region.home}"
    if address < region.start:
        return f"{region.start - address} bytes before {region.name}{whose}"
    return f"{address - region.end} bytes after the end of {region.name}{whose}"
