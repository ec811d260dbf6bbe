"""The verdict on a lowered plan: every question in turn, and the diagnostic of the first that finds something."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tilelink.errors import Note, TilelinkError
from tilelink.ir.formula import Beyond
from tilelink.ir.lowered import Await, Check, Lowered, Read, Signal, Write
from tilelink.ir.verdict import REPORT, Counterexample, Proof, Verdict
from tilelink.proof.bounds import outside, untaken
from tilelink.proof.calls import unfinished, unfree
from tilelink.proof.cells import TooMany
from tilelink.proof.counts import miscounted
from tilelink.proof.coverage import accesses, uncovered
from tilelink.proof.cycles import crowded, stuck
from tilelink.proof.order import unordered
from tilelink.proof.runs import Found
from tilelink.proof.table import Table


@dataclass(frozen=True, slots=True)
class Question:
    """`kind`: of the counterexample (`tilelink.ir.verdict.Counterexample`). `code`, `why`, `hint`: of what it finds, if that does
    not have its own."""

    rule: str
    ask: Callable[[Table], Iterator[Found]]
    kind: str
    code: str
    why: str
    hint: str = REPORT


QUESTIONS = (
    Question("bounds", outside, "bounds", "TL611", "a rank reads and stores what there is in a memory, and no further"),
    Question(
        "coverage",
        uncovered,
        "twice",
        "TL604",
        "each element that is read, or returned, is written by exactly one store",
    ),
    Question(
        "orders",
        untaken,
        "plan",
        "TL604",
        "an order names every tile of the domain once",
        "let each position be another tile",
    ),
    Question(
        "counts",
        miscounted,
        "count",
        "TL607",
        "a flag is complete when it was signalled as often as producer tiles notify it: a wait ends then, and not before",
        "notify once per tile, behind the loop",
    ),
    Question(
        "deadlock",
        stuck,
        "deadlock",
        "TL605",
        "a worker takes its tiles in order, so whoever waits for a later tile of a worker that waits for him waits forever",
        'use order=("ring+1", …), or give the steps workers of their own',
    ),
    Question(
        "waits",
        unordered,
        "race",
        "TL609",
        "no flag that the writer signals behind the write is awaited before the read, and nothing else orders the two",
        "name the tile and the rank as the producer does; if they do agree, please report the schedule",
    ),
    Question(
        "frame of a call",
        unfinished,
        "plan",
        "TL609",
        "a call begins when all ranks are told, and ends when all is over",
    ),
    Question(
        "calls",
        unfree,
        "reuse",
        "TL610",
        "who has been heard in a call has left the one before; nobody else has left it for sure",
    ),
    Question("residency", crowded, "plan", "TL613", "a worker stays until what it waits for has come"),
)


def check(lowered: Lowered) -> Verdict:
    """What is shown of a lowered plan, or the diagnostic TL604 to TL614 of what is not, with an interleaving; or TL617."""
    try:
        return _check(lowered)
    except Beyond as beyond:
        error = TilelinkError(
            "TL617",
            f"`{beyond.formula}` is beyond 32 bits" + (f", in {beyond.said}" if beyond.said else ""),
            loc=beyond.loc or lowered.loc,
            why="a kernel's integers have 32 bits and go round: it would get another number than the proof",
            hint="keep sums and products of positions and sizes below 2147483648, by `//` or `%` of what they are made of",
        )
        return Verdict(False, (), error)


def _check(lowered: Lowered) -> Verdict:
    proofs: list[Proof] = []
    started = time.perf_counter()
    table = Table.of(lowered)
    for question in QUESTIONS:
        try:
            found = next(question.ask(table), None)
        except TooMany:
            what = f"it cannot be shown that {question.rule} of `{lowered.name}` are right"
            why = "there are too many tiles to look at each"
            found = Found(what, code="TL606", why=why, hint="use larger tiles", loc=lowered.loc)
        if found is not None:
            error = refused(lowered, question, found)
            shown = _counterexample(table, question, found)
            return Verdict(False, tuple(proofs), error, shown, _assumed(table))
        now = time.perf_counter()
        proofs.append(Proof(question.rule, _shown(table, question.rule), (now - started) * 1e3))
        started = now
    return Verdict(True, tuple(proofs), assumed=_assumed(table))


def refused(lowered: Lowered, question: Question, found: Found) -> TilelinkError:
    """The diagnostic of what a question has found."""
    locs = [loc for loc in (*(r.loc for r in found.rows), found.loc, lowered.loc) if loc is not None]
    notes = [Note(_ROLES[type(r.op)], r.loc) for r in found.rows[1:] if r.loc is not None and r.loc != locs[0]]
    return TilelinkError(
        found.code or question.code,
        found.what,
        loc=locs[0] if locs else None,
        why=found.why or question.why,
        hint=found.hint or question.hint,
        notes=(*dict.fromkeys(notes), *found.notes),
    )


_ROLES = {
    Check: "checked here",
    Read: "read here",
    Write: "written here",
    Await: "waited for here",
    Signal: "signalled here",
}
"""What a row does, as a note says it."""


# ------------------------------------------------------------------------------------------------------ interleavings
def _counterexample(table: Table, question: Question, found: Found) -> Counterexample | None:
    """The steps of what is wrong, on the ranks where it is."""
    steps = tuple(m.instant(table) for m in found.moments if m is not None)
    if not steps:
        return None
    sizes = ", ".join(f"{k}={v}" for k, v in table.lowered.sizes)
    size = f"{table.ranks} rank{'s' if table.ranks > 1 else ''}{' and ' if sizes else ''}{sizes}"
    edges = tuple((k, (k + 1) % len(steps)) for k in range(len(steps))) if question.kind == "deadlock" else ()
    missing = (1, 0) if question.kind == "race" and len(steps) > 1 else None
    return Counterexample(question.kind, size, found.what, steps, edges, missing)


# ------------------------------------------------------------------------------------------------- what is shown, assumed
def _shown(table: Table, rule: str) -> str:
    """What a rule has shown, in numbers."""
    kinds = {k: sum(isinstance(r.op, k) for r in table.rows) for k in (Read, Write, Await)}
    names = [f"`{b.name}`" for b, rows in accesses(table) if any(isinstance(r.op, Write) for r in rows)]
    tables = f"{table.ranks} rank{'s' if table.ranks > 1 else ''}"
    texts = {
        "bounds": f"{kinds[Read]} reads, {kinds[Write]} writes and {kinds[Await]} waits inside what there is, on {tables}",
        "coverage": f"each element written once: {', '.join(names)}" if names else "nothing is written",
        "orders": f"each of {sum(len(e.loops) for e in table.lowered.executors)} loops takes its tiles once",
        "counts": f"{len(table.lowered.flags)} kinds of flags come out even",
        "deadlock": "no executor waits for itself, with one worker each",
        "waits": "each read comes behind the writes of what it reads, with any number of workers",
        "frame of a call": "all ranks are told of its begin before anything else, and it ends when all is over",
        "calls": f"{table.lowered.slots} slots: nobody writes what a call before may still use",
        "residency": f"workers and streams find room on {table.lowered.sms} SMs",
    }
    return texts[rule]


def _assumed(table: Table) -> tuple[str, ...]:
    """What is taken on trust of data, a sentence each."""
    said: list[str] = []
    for buffer, rows in accesses(table):
        writes = [r for r in rows if isinstance(r.op, Write)]
        for name in dict.fromkeys(d.table for w in writes for d in w.data if d.table is not None):
            said.append(f"assumed for `{buffer.name}`: what `{name}` places is complete and disjoint (`offsets`)")
        if buffer.written is not None:
            said.append(f"assumed for `{buffer.name}`: {PROMISES[buffer.written]}")
        for path in dict.fromkeys(r.loop.path for r in rows for d in r.data if d.index):
            said.append(f"assumed for `{buffer.name}`: the positions that `{path}` works out lie inside it, or are -1")
    return tuple(dict.fromkeys(said))


PROMISES = {
    "once": "what data writes is complete and disjoint (`once`)",
    "partial": "what data writes is disjoint, what it leaves out is undefined, and data reads only what was written (`partial`)",
}
"""What a program's signature says of what data decides."""
