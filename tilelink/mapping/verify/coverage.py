"""Rule 3, coverage: whatever is read, or returned, is written, and nothing is written twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilelink.errors import Note, TilelinkError
from tilelink.ir.plan import Plan
from tilelink.ir.program import Loop, Store
from tilelink.ir.wiring import Step, TensorDecl
from tilelink.mapping.verify.geometry import World
from tilelink.mapping.verify.reach import Laid
from tilelink.mapping.verify.sweep import Boxes, Cells, TooMany, depends
from tilelink.mapping.verify.touches import Touch, own_axes, read, written
from tilelink.mapping.verify.turns import Array, Undecided


def check_coverage(plan: Plan, world: World, laid: Mapping[str, Laid], trust: list[str]) -> str:
    """One sweep over the elements of each tensor: what is read, or returned, is written once, by whichever program; of an
    argument nothing is written twice. What data decides has to be declared (`once`, `partial`, a split by a table): `trust`
    gets what is then assumed.

    Raises:
        TilelinkError: TL604; TL614 where data decides and nothing is declared; TL606 where it cannot be worked out.
    """
    made, used = written(plan, laid), read(plan, laid)
    done: list[str] = []
    said: list[str] = []
    for tensor in plan.wiring.tensors:
        writes = [w for w in made if w.tensor == tensor.name]
        reads = [r for r in used if r.tensor == tensor.name]
        if not writes and (tensor.origin == "argument" or not (reads or tensor.name in plan.wiring.results)):
            continue
        found = _Tensor(plan, world, tensor, writes, reads)
        try:
            found.check()
        except TooMany:
            raise found.unproven("there are too many tiles to look at each") from None
        done.append(tensor.name)
        said += found.said
        trust += found.assumed
    text = f"each element written once: {', '.join(f'`{n}`' for n in done)}" if done else "nothing is written, or read"
    return "; ".join([text, *dict.fromkeys(said)])


@dataclass(slots=True)
class _Tensor:
    plan: Plan
    world: World
    tensor: TensorDecl
    writes: list[Touch]
    reads: list[Touch]
    said: list[str] = field(default_factory=list[str])
    assumed: list[str] = field(default_factory=list[str])

    @property
    def result(self) -> bool:
        return self.tensor.name in self.plan.wiring.results

    @property
    def makers(self) -> tuple[Step, ...]:
        """The steps that have the tensor as an output."""
        return self.plan.wiring.producers(self.tensor.name)

    def check(self) -> None:
        self._check_registers()
        sure = [w for w in self.writes if not w.undecided]
        open_ = [w for w in self.writes if w.undecided]
        places = [self.plan.topology.size(a) for a in own_axes(self.plan, self.tensor)]
        extents = (*places, *(self.world.number(a.size) for a in self.tensor.axes))
        cells = Cells.of(extents, self.world.ranks, [_boxes(t) for t in (*self.writes, *self.reads)])
        if 0 in cells.shape:
            return
        times = cells.count([_boxes(w) for w in sure])
        if bool((times > 1).any()):
            raise self._twice(cells, times > 1, sure)
        perhaps = [cells.count([_boxes(w)]) > 0 for w in open_]
        for table in dict.fromkeys(w.table for w in self.writes if w.table is not None):
            self._assume(f"what `{table}` places is complete and disjoint (`offsets`)")
        declared = self._declared()
        if open_ and declared is None:
            self._check_undeclared(cells, perhaps, open_)
        if self.tensor.origin != "argument":
            self._check_gaps(cells, times, perhaps, declared)

    def _assume(self, what: str) -> None:
        self.assumed.append(f"assumed for `{self.tensor.name}`: {what}")
        self.said.append(self.assumed[-1])

    # ------------------------------------------------------------------------------------------------ what data decides
    def _declared(self) -> str | None:
        """What the programs that write the tensor say of it: `once`, `partial`, or nothing."""
        words = {
            s.step.program.param(b.param).shape.written
            for s in self.plan.steps
            for b in s.step.bindings
            if b.tensor == self.tensor.name
        }
        found = next((w for w in ("partial", "once") if w in words), None)
        if found == "once":
            self._assume("what data writes is complete and disjoint (`once`)")
        elif found == "partial":
            self._assume(
                "what data writes is disjoint, what it leaves out is undefined, and data reads only what was written (`partial`)"
            )
        return found

    def _check_undeclared(self, cells: Cells, perhaps: Sequence[Array], writes: Sequence[Touch]) -> None:
        """Data may decide about elements that nobody reads."""
        needed = self._needed(cells)
        for where, w in zip(perhaps, writes, strict=True):
            if bool((where & needed).any()):
                raise self._by_data(w, w.undecided)

    def _needed(self, cells: Cells) -> Array:
        """What is read, or returned."""
        one = (1,) * len(cells.shape)
        if self.result:
            return np.ones(one, dtype=np.bool_)
        if not self.reads:
            return np.zeros(one, dtype=np.bool_)
        return cells.count([_boxes(r) for r in self.reads]) > 0

    # ----------------------------------------------------------------------------------------------------------- the gaps
    def _check_gaps(self, cells: Cells, times: Array, perhaps: Sequence[Array], declared: str | None) -> None:
        gaps = times == 0
        if not gaps.any():
            return
        never = gaps
        for where in perhaps:
            never = never & ~where
        idle = any(bool(w.laid.idle(w.site).any()) for w in self.writes)
        if declared == "partial" and never.any() and not idle:
            # Data may leave out some of it, and not what is never written whatever it says; but on ranks without any tile.
            declared = None
        if self.result and declared == "partial":
            self._check_signature()
        elif self.result and never.any():
            raise self._never(cells, never, None)
        for r in self.reads:
            met = cells.count([_boxes(r)]) > 0
            if (r.undecided or r.table is not None) and declared == "partial":
                continue  # data reads only what was written
            if (met & never).any():
                raise self._never(cells, met & never, r)
            if declared == "partial" and (met & gaps).any():
                raise self._reads_all(r)
        if never.any():
            self.said.append(f"`{self.tensor.name}` only where it is read")

    def _check_signature(self) -> None:
        """A result that may be left unwritten in part says so where callers look."""
        signature = self.plan.wiring.signature
        at = self.plan.wiring.results.index(self.tensor.name)
        if signature.outputs[at].written != "partial":
            raise TilelinkError(
                "TL614",
                f"result `{self.tensor.name}` of `{self.plan.wiring.name}` may be left unwritten in part",
                loc=self.plan.wiring.loc,
                why=f"the program that makes it declares it `partial`, and `{signature.outputs[at]}` does not",
                hint=f"write `{signature.outputs[at]} partial` in the operator's signature",
            )

    def _check_registers(self) -> None:
        """What a movement leaves on its own rank must be taken from registers by everyone who reads it."""
        for w in self.writes:
            if w.laid.step.skip_own and not w.laid.step.push:
                raise self._nothing_moved(w)
            if not w.laid.keeps_own:
                continue
            for r in self.reads:
                if self.tensor.name not in r.laid.step.forwarded:
                    raise TilelinkError(
                        "TL604",
                        f"this rank's own tiles of `{r.param}` are never written, and `{r.path}` reads them",
                        loc=r.loc,
                        why=f"`{w.path}` hands them over in registers, which only programs fused with it can see",
                        hint=f"fuse `{r.path}` as well, or none of the readers",
                    )

    # ----------------------------------------------------------------------------------------------------- diagnostics
    def _nothing_moved(self, w: Touch) -> TilelinkError:
        return TilelinkError(
            "TL604",
            f"`{w.path}` pulls, and is to leave out what stays on its rank",
            loc=w.loc,
            why="whatever a rank pulls ends on that rank: all of it would be left out",
            hint=f"let `{w.path}` push, or fuse none of the programs that read `{self.tensor.name}`",
        )

    def _place(self, cells: Cells, where: Array) -> tuple[int | None, str]:
        """A rank and the elements of the first cell of some, as a person says it."""
        full = np.broadcast_to(where, cells.shape)
        cell = [int(c) for c in np.unravel_index(int(np.argmax(full)), cells.shape)]
        spans = [_stretch(cells, full, cell, k) for k in range(len(cell))]
        own = own_axes(self.plan, self.tensor)
        rank = None
        if own:
            at = {a: first for a, (first, _) in zip(own, spans, strict=False)}
            rank = next(
                r for r in range(self.world.ranks) if all(int(self.world.at(a)[r, 0]) == v for a, v in at.items())
            )
        parts: list[str] = []
        for axis, (first, last), size in zip(
            self.tensor.axes, spans[len(own) :], cells.extents[len(own) :], strict=True
        ):
            if (first, last) != (0, size):
                parts.append(f"positions {first} to {last} of axis `{axis.name}`")
        return rank, " and ".join(parts) or "all elements"

    def _twice(self, cells: Cells, where: Array, writes: Sequence[Touch]) -> TilelinkError:
        for w in writes:
            alone = cells.count([_boxes(w)])
            if (alone > 1).any() and (repeated := self._repeated(w)) is not None:
                return repeated
        _, at = self._place(cells, where)
        hit = [w for w in writes if (where & (cells.count([_boxes(w)]) > 0)).any()] or list(writes)
        return TilelinkError(
            "TL604",
            f"`{self.tensor.name}` is written more than once: {at}",
            loc=hit[0].loc,
            why="the tiles of a tensor's writers, over all ranks, must not overlap",
            hint="let the writers differ in one coordinate, for example this rank's own on an axis R",
            notes=tuple(Note("written here too", w.loc) for w in hit[1:]),
        )

    def _repeated(self, w: Touch) -> TilelinkError | None:
        """A store whose index leaves out what it is repeated for: an axis of the tiles, or a loop."""
        step = w.laid.step
        on = {k for place in w.places for x in place for k in depends(x)}
        turns = {k for x in w.taken for k in depends(x)} - on
        k = min(turns, default=None)
        if k is None:
            return None
        loops = w.site.loops
        times = max(x.shape[k] for x in w.taken)
        if k <= len(step.grid):
            what, of = f"once for each tile along `{step.grid[k - 1].dim}`", f"the tile of `{step.grid[k - 1].dim}`"
            why = "tiles run on different workers, so nobody knows whose value stays"
        elif k <= len(step.grid) + len(loops):
            what, of = "once in each turn of the loop around it", "the loop's variable"
            why = "each element is written once, by one store"
        else:
            return None
        return TilelinkError(
            "TL604",
            f"`{w.param}` is stored {times} times, {what}",
            loc=w.loc,
            why=why,
            hint=f"index `{w.param}` by {of}, or store under a test of it",
        )

    def _never(self, cells: Cells, where: Array, reader: Touch | None) -> TilelinkError:
        name = self.tensor.name
        who = "and it is a result" if reader is None else f"and `{reader.path}` reads it"
        notes = (Note("read here", reader.loc),) if reader is not None else ()
        if not self.writes:
            maker = self.makers[0] if self.makers else None
            whose = f", output of `{maker.path}`," if maker is not None else ""
            return TilelinkError(
                "TL604",
                f"`{name}`{whose} is never written, {who}",
                loc=maker.program.loc if maker is not None else self.tensor.loc or self.plan.wiring.loc,
                why="no store, push or pull of it stands in a program; a notify alone moves nothing",
                hint="write `tl.tile_store(...)`, `tl.tile_push_data(...)` or `tl.tile_pull_data(...)` for every tile",
                notes=notes,
            )
        rank, at = self._place(cells, where)
        around = list(dict.fromkeys(c for w in self.writes for c in _conditions(w)))
        why = f"the tiles of {self._writers()} do not reach there" + (f", on rank {rank}" if rank is not None else "")
        if around:
            why += f"; the store stands in {', '.join(around)}"
        hint = "store every tile" if reader is None else "store every tile that is read"
        return TilelinkError(
            "TL604",
            f"{at} of `{name}` are never written, {who}",
            loc=self.writes[0].loc,
            why=why,
            hint=hint,
            notes=notes,
        )

    def _by_data(self, w: Touch, by: Sequence[Undecided]) -> TilelinkError:
        who = "it is a result" if self.result else f"`{self.reads[0].path}` reads it"
        return TilelinkError(
            "TL614",
            f"whether all of `{w.param}` is written is for data to say: {by[0].what}",
            loc=w.loc,
            why=f"{who}, and what is not written is undefined",
            hint=f"store in any case, with `tl.where` for the value; or declare behind the shape of `{w.param}` in the program's "
            "signature `once`, each element is written by exactly one store, or `partial`, some are left undefined",
            notes=tuple(Note(u.what, u.loc) for u in by if u.loc != w.loc),
        )

    def _reads_all(self, r: Touch) -> TilelinkError:
        return TilelinkError(
            "TL614",
            f"`{r.path}` reads all of `{r.param}`, which is declared `partial`",
            loc=r.loc,
            why="what was not written is undefined, and nothing says that this was written",
            hint="read what data says was written, by a limit of `tl.tiles`, an index or a test; or declare it `once`",
        )

    def _writers(self) -> str:
        return ", ".join(dict.fromkeys(f"`{w.path}`" for w in self.writes))

    def unproven(self, what: str) -> TilelinkError:
        return TilelinkError(
            "TL606",
            f"it cannot be shown that `{self.tensor.name}` is written exactly once",
            loc=next((w.loc for w in self.writes), self.plan.wiring.loc),
            why=what,
            hint="write it with one program, tile by tile",
        )


def _stretch(cells: Cells, where: Array, cell: Sequence[int], k: int) -> tuple[int, int]:
    """From which element to which, along a place, everything is as in a cell."""
    line = where[(*cell[:k], slice(None), *cell[k + 1 :])]
    last = cell[k] + int(np.argmin(np.append(line[cell[k] :], False)))
    return int(cells.edges[k][cell[k]]), int(cells.edges[k][last])


def _boxes(t: Touch) -> Boxes:
    return Boxes(t.places, t.taken)


def _conditions(w: Touch) -> Iterator[str]:
    """What stands around a store, and says when it is executed."""
    if w.laid.step.into is not None:
        yield f"a program that runs for the tiles of `{w.laid.step.into}`, into which it is fused"
    for test, branch in w.site.tests:
        yield f"`if {test}`" if branch else f"the `else` of `if {test}`"
    for loop in w.site.loops:
        if isinstance(loop, Loop):
            yield f"`{loop.header}`"
        elif loop.limited:
            yield "a `tl.tiles` with limits"
    if isinstance(w.site.op, Store) and w.site.op.mask is not None:
        yield f"the mask `{w.site.op.mask}`"


__all__ = ["check_coverage"]
