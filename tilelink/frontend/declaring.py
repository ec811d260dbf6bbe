"""`tilelink.symmetric`: tensors of an operator that no program returns."""

from __future__ import annotations

from tilelink.errors import Loc, TilelinkError
from tilelink.frontend.binding import Dimensions, Seen
from tilelink.frontend.grammar import parse_shape
from tilelink.frontend.owners import parse_owner
from tilelink.frontend.running import in_progress
from tilelink.frontend.symbolic import Record, SymbolicTensor, formula_of
from tilelink.frontend.wording import count, nearest
from tilelink.ir.shape import Axis, dims_of


def symmetric(
    shape: str,
    *,
    like: SymbolicTensor | None = None,
    owner: str | None = None,
    dtype: str | None = None,
    **sizes: int,
) -> SymbolicTensor:
    """Declares a tensor that no program returns: an inbox, a ring's buffer. Only inside an operator's body.

    Args:
        shape: its axes, such as `"R M/R N"`; names are sizes of `like`, then of the operator.
        like: a tensor to take sizes and dtype from.
        owner: which rank holds what, such as `"m -> m // 2048 % R"`, instead of what the shape says.
        dtype: a dtype word; by default `like`'s, else that of the operator's first input without one in its signature.
        sizes: sizes by name.

    Raises:
        TilelinkError: TL101 to TL104, TL205, TL211, TL214 an owner map where the ranks have several axes.
    """
    run, loc = in_progress("`tilelink.symmetric`", "it declares a tensor of the operator that is being traced")
    ranks = tuple(run.frame.dimensions.ranks.names)
    parsed = parse_shape(shape, loc, ranks)
    if parsed.rest is not None:
        why = "a declared tensor has no other tensor to take them from"
        raise TilelinkError("TL205", f"`...` in `{shape}`", loc=loc, why=why, hint="write all axes")
    more = {} if like is None else {a.name: Seen(a.size.formula, int(a.size), None, False, "`like`") for a in like.axes}
    more |= {n: Seen(formula_of(v), int(v), None, False, f"`{n}={int(v)}`") for n, v in sizes.items()}
    dimensions = run.frame.dimensions.extended({n: s for n, s in more.items() if n not in ranks})
    for axis in parsed.axes:
        _check_axis(axis, dimensions, loc)
    label = f'`symmetric("{shape}")`'
    axes = dimensions.allocate(parsed, {}, label)
    word = dtype or parsed.dtype or (like.dtype if like is not None else run.frame.dtype)
    term = None if owner is None else parse_owner(owner, loc)
    if term is not None and len(run.ranks.sizes) > 1:
        why = "the map gives one number, and a rank has one on each axis"
        hint = "split the axes of the shape over them"
        message = "an owner map where the ranks have several axes"
        raise TilelinkError("TL214", message, loc=loc, why=why, hint=hint)
    if term is not None and len(term.variables) > len(axes):
        why = f"`{shape}` has {count(len(axes), 'axis', 'axes')}"
        message = f"the owner map has {len(term.variables)} variables"
        raise TilelinkError(
            "TL104", message, loc=loc, why=why, hint="write one variable for each axis, from the first on"
        )
    wish = f"symmetric_{sum(r.origin == 'declared' for r in run.records)}"
    return run.record(Record(axes, word, "declared", wish, wish, label, parsed.contract, term, loc))


def _check_axis(axis: Axis, dimensions: Dimensions, loc: Loc | None) -> None:
    known = [n for n in dimensions.seen if n not in dimensions.ranks.names]
    for name in dims_of(axis.size):
        if name not in dimensions.seen:
            close = nearest(name, known)
            hint = f"pass it by name, `{name}=...`, or a tensor that has it, `like=`"
            why = f"known are {', '.join(f'`{n}`' for n in known)}"
            message = f"the size `{name}` is not known"
            raise TilelinkError("TL205", message, loc=loc, why=why, hint=f"did you mean `{close}`?" if close else hint)
    if axis.split is not None and axis.split not in dimensions.ranks.names:
        why = "a declared tensor is split over the ranks or not at all"
        raise TilelinkError("TL103", f"`{axis}` is split by a table", loc=loc, why=why, hint=f"write `{axis.size}`")
