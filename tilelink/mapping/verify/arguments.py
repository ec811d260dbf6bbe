"""Rule 2, continued: an argument counts as there when a call begins, so no signal says when a program has written to it."""

from __future__ import annotations

from collections.abc import Mapping

from tilelink.errors import Note, TilelinkError
from tilelink.ir.formula import Sym
from tilelink.ir.plan import Plan
from tilelink.ir.program import At, IndexEntry, OfTile
from tilelink.mapping.verify.accesses import Access, reads, writes
from tilelink.mapping.verify.elided import launched_before, makers
from tilelink.mapping.verify.reach import Laid


def check_arguments(plan: Plan, laid: Mapping[str, Laid]) -> str:
    """Whoever else reads an argument that a program writes to is a kernel before or behind it on its stream.

    Raises:
        TilelinkError: TL609.
    """
    names = [t.name for t in plan.wiring.tensors if t.origin == "argument" and makers(plan, t.name)]
    if not names:
        return ""
    used = reads(plan, laid)
    for w in (w for w in writes(plan, laid) if w.tensor in names):
        for r in used:
            if r.tensor == w.tensor and not _kept(plan, w, r):
                raise _unordered(w, r)
    return f"; {', '.join(f'`{n}`' for n in names)} written where nobody else looks at the time"


def _kept(plan: Plan, w: Access, r: Access) -> bool:
    if w.remote or r.remote:
        return False
    if w.path == r.path:
        return _own(w, r)
    first, then = (s for s in plan.steps if s.path in (w.path, r.path))
    return launched_before(plan, first, then)


def _own(w: Access, r: Access) -> bool:
    """Each run of the program reads what it writes itself: what tells runs apart there stands in both indices."""
    runs = {g.var for g in w.laid.step.grid}
    written, read = ({v.axis: e for v, e in a.laid.index(a.param, a.index)} for a in (w, r))
    apart = [a for a, reach in w.axes.items() if isinstance(reach.key, int)]
    return bool(apart) and all(read[a] == written[a] and _tile(written[a]) in runs for a in apart)


def _tile(entry: IndexEntry) -> str | None:
    """The tile or position of a domain that an index is by itself."""
    if isinstance(entry, OfTile):
        return entry.var
    return str(entry.expr.formula) if isinstance(entry, At) and isinstance(entry.expr.formula, Sym) else None


def _unordered(w: Access, r: Access) -> TilelinkError:
    reader = "reads it at other tiles" if w.path == r.path else f"`{r.path}` reads it"
    return TilelinkError(
        "TL609",
        f"`{w.path}` writes to the argument `{w.tensor}`, and {reader}",
        loc=w.loc,
        why="an argument counts as there when a call begins, so no wait of it is one for what programs write to it",
        hint=f"let `{w.path}` make a tensor of its own, and read that",
        notes=(Note("read here", r.loc),),
    )
