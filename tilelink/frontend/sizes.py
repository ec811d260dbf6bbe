"""Global sizes from what one rank can see of the arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import NoReturn

from tilelink.errors import Loc, TilelinkError
from tilelink.frontend.wording import count, meant
from tilelink.ir.formula import BITS
from tilelink.ir.shape import Axis, Dim, Shape, Signature, dims_of, evaluated, solved


@dataclass(slots=True)
class _Sizes:
    """What is known so far: size and where it comes from. `ranks`, `rank`: along each axis of ranks."""

    ranks: Mapping[str, int]
    rank: Mapping[str, int] | None
    loc: Loc | None
    known: dict[str, tuple[int, str]]

    def unify(self, name: str, value: int, by: str) -> None:
        old = self.known.setdefault(name, (value, by))
        if old[0] != value:
            self.contradiction(name, old, (value, by))

    def contradiction(self, name: str, a: tuple[int, str], b: tuple[int, str]) -> NoReturn:
        message, why = f"`{name}` is {a[0]} and {b[0]}", f"it is {a[0]} by {a[1]}, and {b[0]} by {b[1]}"
        raise TilelinkError("TL204", message, loc=self.loc, why=why, hint="pass tensors that agree")


def bind_sizes(
    signature: Signature,
    shapes: Sequence[Sequence[int]],
    axes: Mapping[str, int],
    given: Mapping[str, int] | None = None,
    *,
    loc: Loc | None = None,
    at: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """The global size of every dimension of an operator's inputs, from this rank's local shapes.

    An axis split over the ranks has as many times the local rows as there are ranks along it, unless `given` says otherwise
    (uneven shards). Axes behind `...` are `_0`, `_1`, ...

    Args:
        signature: the operator's.
        shapes: this rank's local shape of every input.
        axes: how many ranks along each axis.
        given: global sizes passed by name.
        loc: the call.
        at: the coordinates on them of the rank whose shapes they are; None: of one rank or another.

    Raises:
        TilelinkError: TL202 (number of tensors), TL203 (number of axes), TL204 (contradictions), TL205 (names).
    """
    if len(shapes) != len(signature.inputs):
        message = f"{count(len(shapes), 'tensor')} for {count(len(signature.inputs), 'input')}"
        why, hint = f"the signature is `{signature}`", "pass one for each input"
        raise TilelinkError("TL202", message, loc=loc, why=why, hint=hint)
    sizes = _Sizes(axes, at, loc, {name: (size, "the number of ranks") for name, size in axes.items()})
    for name, value in (given or {}).items():
        _take(sizes, signature, name, value)
    found: list[tuple[Axis, int, str]] = []
    for number, (shape, local) in enumerate(zip(signature.inputs, shapes, strict=True)):
        label = f"tensor {number + 1}, `{shape}`"
        found += ((axis, value, label) for axis, value in _axes(sizes, shape, tuple(local), label))
    for plain in (True, False):  # sizes that are computed follow from others
        for axis, value, label in found:
            if isinstance(axis.size, Dim) == plain:
                (_plain if plain else _compound)(sizes, axis, value, label)
    return {n: v for n, (v, _) in sizes.known.items() if n not in axes}


def _take(sizes: _Sizes, signature: Signature, name: str, value: int) -> None:
    known = signature.dims
    if name not in known:
        hint = meant(name, known, f"its sizes are {', '.join(known)}", "`{}=`")
        why = f"the signature is `{signature}`"
        raise TilelinkError("TL205", f"there is no size `{name}`", loc=sizes.loc, why=why, hint=hint)
    try:
        # What torch.compile traces stays open: to look at its number would bind the graph to it.
        size = value if hasattr(value, "node") else index(value)
    except TypeError:
        size = -1
    if not 0 <= size < BITS:
        why = "a size is a number of elements, of all ranks together"
        hint = f"pass a whole number of at most {BITS - 1}"
        raise TilelinkError("TL205", f"`{name}={value!r}` is no size", loc=sizes.loc, why=why, hint=hint)
    sizes.known[name] = (size, f"`{name}={size}`")


def _axes(sizes: _Sizes, shape: Shape, local: tuple[int, ...], label: str) -> Iterator[tuple[Axis, int]]:
    """The axes of a tensor that was passed, each with its length."""
    if _lacks_slice(shape, local):
        # The slice itself was passed, without axes of one element.
        rest = None if shape.rest is None else shape.rest - sum(a.own_slice for a in shape.axes[: shape.rest])
        shape = Shape(tuple(a for a in shape.axes if not a.own_slice), rest, shape.dtype)
    spare = len(local) - len(shape.axes)
    if spare < 0 or (spare and shape.rest is None):
        message = f"{label} has {count(len(local), 'axis', 'axes')}"
        wanted = ("at least " if shape.rest is not None else "") + count(len(shape.axes), "axis", "axes")
        why = f"its shape here is {local}; the signature says `{shape}`"
        raise TilelinkError("TL203", message, loc=sizes.loc, why=why, hint=f"pass a tensor of {wanted}")
    return zip(shape.spread(len(local)), local, strict=True)


def slices_in(shape: Shape, local: tuple[int, ...]) -> tuple[int, ...]:
    """Which axes of a tensor that was passed are those of its rank's slice: they have one element, and memory has none."""
    if len(local) < len(shape.axes) or _lacks_slice(shape, local):
        return ()
    return tuple(k for k, a in enumerate(shape.spread(len(local))) if a.own_slice)


def _lacks_slice(shape: Shape, local: tuple[int, ...]) -> bool:
    """Whether a rank's slice was passed without axes of one element. With `...` the number of axes does not tell; the slice's
    own axis has one element, at its place."""
    own = [k for k, a in enumerate(shape.spread(len(local))) if a.own_slice]
    shorter = bool(own) and len(local) == len(shape.axes) - len(own)
    if shorter or not own or shape.rest is None:
        return shorter
    return own[0] >= len(local) or local[own[0]] != 1


def _plain(sizes: _Sizes, axis: Axis, value: int, label: str) -> None:
    name = axis.name
    if name in sizes.ranks:
        wanted = 1 if axis.split == name else sizes.ranks[name]
        if value != wanted:
            by = "the number of ranks" if wanted != 1 else "the signature"
            sizes.contradiction(str(axis), (wanted, by), (value, label))
        return
    ranks = sizes.ranks.get(axis.split or "")
    if ranks is None or axis.split is None:
        sizes.unify(name, value, label)
        return
    new = ranks * value, f"{label}, {value} on each of {ranks} ranks"
    old = total, _ = sizes.known.setdefault(name, new)
    if old is new:
        return
    # A rank may hold ceil of the elements, the last ranks what is left.
    part = -(-total // ranks)
    whose = range(ranks) if sizes.rank is None else (sizes.rank[axis.split],)
    if value not in [max(0, min(total, (r + 1) * part) - min(total, r * part)) for r in whose]:
        sizes.contradiction(name, old, new)


def _compound(sizes: _Sizes, axis: Axis, value: int, label: str) -> None:
    size, total = axis.size, value * sizes.ranks.get(axis.split or "", 1)
    if found := solved(size, total):
        sizes.known.setdefault(found[0].name, (found[1], label))
    if all(d in sizes.known for d in dims_of(size)):
        wanted = evaluated(size, lambda dim: sizes.known[dim.name][0])
        if wanted != total:
            sizes.contradiction(axis.name, (wanted, "the other sizes"), (total, label))
