"""`tilelink.symmetric`: tensors of an operator that no program returns."""

from __future__ import annotations

from tilelink.errors import TilelinkError
from tilelink.frontend.binding import Seen
from tilelink.frontend.grammar import parse_owner, parse_shape
from tilelink.frontend.running import in_progress
from tilelink.frontend.symbolic import Record, SymbolicTensor
from tilelink.frontend.wording import count, meant
from tilelink.ir.shape import dims_of


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
    more = {} if like is None else {a.name: Seen.of(a.name, a.size, "`like`") for a in like.axes}
    more |= {name: Seen.of(name, size, f"`{name}={int(size)}`") for name, size in sizes.items()}
    dimensions = run.frame.dimensions.extended({n: s for n, s in more.items() if n not in ranks})
    known = [n for n in dimensions.seen if n not in ranks]
    for axis in parsed.axes:
        for name in dims_of(axis.size):
            if name not in dimensions.seen:
                hint = meant(name, known, f"pass it by name, `{name}=...`, or a tensor that has it, `like=`")
                why = f"known are {', '.join(f'`{n}`' for n in known)}"
                raise TilelinkError("TL205", f"the size `{name}` is not known", loc=loc, why=why, hint=hint)
        if axis.split is not None and axis.split not in ranks:
            why, hint = "a declared tensor is split over the ranks or not at all", f"write `{axis.size}`"
            raise TilelinkError("TL103", f"`{axis}` is split by a table", loc=loc, why=why, hint=hint)
    label = f'`symmetric("{shape}")`'
    axes = dimensions.allocate(parsed, {}, label)
    word = dtype or parsed.dtype or (like.dtype if like is not None else run.frame.dtype)
    term = None if owner is None else parse_owner(owner, loc)
    if term is not None and len(run.ranks.sizes) > 1:
        why = "the map gives one number, and a rank has one on each axis"
        message, hint = "an owner map where the ranks have several axes", "split the axes of the shape over them"
        raise TilelinkError("TL214", message, loc=loc, why=why, hint=hint)
    if term is not None and len(term.variables) > len(axes):
        why, message = (
            f"`{shape}` has {count(len(axes), 'axis', 'axes')}",
            f"the owner map has {len(term.variables)} variables",
        )
        hint = "write one variable for each axis, from the first on"
        raise TilelinkError("TL104", message, loc=loc, why=why, hint=hint)
    wish = f"symmetric_{sum(r.origin == 'declared' for r in run.records)}"
    return run.record(Record(axes, word, "declared", wish, wish, label, parsed.contract, term, loc))
