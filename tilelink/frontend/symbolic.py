"""The tensors that an operator's body sees while it is traced: sizes and names, never data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn, SupportsIndex

from tilelink.errors import Loc, TilelinkError
from tilelink.frontend.callsite import call_site
from tilelink.ir.formula import Const, Formula, binary
from tilelink.ir.shape import ITEM_BYTES, Contract, MapTerm


class Extent(int):
    """A size: an int that knows how it follows from the sizes of the operator's arguments."""

    formula: Formula

    def __new__(cls, value: int, formula: Formula | None = None) -> Extent:
        made = super().__new__(cls, value)
        made.formula = Const(value) if formula is None else formula
        return made

    def _with(self, op: str, other: object, value: int, *, swapped: bool = False) -> Extent:
        theirs = formula_of(other)
        return Extent(value, binary(op, theirs, self.formula) if swapped else binary(op, self.formula, theirs))

    # Wider than int's, which only promise an int.
    def __add__(self, other: object) -> Extent:
        return self._with("+", other, int(self) + int(other)) if isinstance(other, int) else NotImplemented

    def __radd__(self, other: int) -> Extent:
        return self._with("+", other, int(other) + int(self), swapped=True)

    def __sub__(self, other: object) -> Extent:
        return self._with("-", other, int(self) - int(other)) if isinstance(other, int) else NotImplemented

    def __rsub__(self, other: int) -> Extent:
        return self._with("-", other, int(other) - int(self), swapped=True)

    def __mul__(self, other: object) -> Extent:
        return self._with("*", other, int(self) * int(other)) if isinstance(other, int) else NotImplemented

    def __rmul__(self, other: int) -> Extent:
        return self._with("*", other, int(other) * int(self), swapped=True)

    def __floordiv__(self, other: object) -> Extent:
        return self._with("//", other, int(self) // int(other)) if isinstance(other, int) else NotImplemented

    def __mod__(self, other: object) -> Extent:
        return self._with("%", other, int(self) % int(other)) if isinstance(other, int) else NotImplemented


def formula_of(value: object) -> Formula:
    """How a size follows from the operator's sizes; a plain int is a constant."""
    if isinstance(value, Extent):
        return value.formula
    assert isinstance(value, int)
    return Const(int(value))


@dataclass(frozen=True, slots=True)
class LogicalAxis:
    """An axis of a tensor: global size as a formula and as the number of this trace. `split`: an axis of ranks (`R`), a
    table, or None."""

    name: str
    size: Formula
    extent: int
    split: str | Record | None
    unit: bool

    @property
    def over(self) -> str | None:
        """The axis of ranks over which it is split. (Tables are records here.)"""
        return self.split if isinstance(self.split, str) else None

    @property
    def own_slice(self) -> bool:
        return self.over is not None and self.name == self.over

    def __str__(self) -> str:
        split = self.split if isinstance(self.split, str) or self.split is None else self.split.wish
        return f"{self.name}/{split}" if split else self.name


@dataclass(eq=False, slots=True)
class Record:
    """A tensor of a trace. `wish`: the name it should have; `long`: the one it gets where `wish` is taken."""

    axes: tuple[LogicalAxis, ...]
    dtype: str
    origin: str
    wish: str
    long: str
    label: str
    contract: Contract | None = None
    owner_map: MapTerm | None = None
    loc: Loc | None = None
    uses: int = field(default=0)

    def __str__(self) -> str:
        return " ".join(str(a) for a in self.axes)


@dataclass(frozen=True, slots=True)
class SymbolicAxis:
    """`name` as this operator calls it; `size` is global; `split` is `R`, the name of a table, or None."""

    name: str
    size: Extent
    split: str | None


def _not_data(what: str) -> NoReturn:
    raise TilelinkError(
        "TL212",
        f"{what} of a symbolic tensor",
        loc=call_site(),
        why="an operator's body runs once, on sizes; it connects tile programs and never sees data",
        hint="compute in a tile program, and call that here",
    )


class SymbolicTensor:
    """A tensor while an operator is traced. Tile programs and operators take and give it."""

    __slots__ = ("_names", "_sizes", "record")

    def __init__(
        self, record: Record, names: tuple[str, ...] | None = None, sizes: tuple[Extent, ...] | None = None
    ) -> None:
        self.record = record
        self._names = tuple(a.name for a in record.axes) if names is None else names
        self._sizes = tuple(Extent(a.extent, a.size) for a in record.axes) if sizes is None else sizes

    @property
    def axes(self) -> tuple[SymbolicAxis, ...]:
        return tuple(
            SymbolicAxis(n, s, a.split.wish if isinstance(a.split, Record) else a.split)
            for n, s, a in zip(self._names, self._sizes, self.record.axes, strict=True)
        )

    @property
    def shape(self) -> tuple[Extent, ...]:
        """Global sizes, one per axis."""
        return tuple(a.size for a in self.axes)

    @property
    def dtype(self) -> str:
        return self.record.dtype

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return ITEM_BYTES[self.dtype]

    def size(self, name: str) -> Extent:
        """The global size of the axis that this operator's signature calls `name`.

        Raises:
            TilelinkError: TL205 if it has no such axis.
        """
        for axis in self.axes:
            if axis.name == name:
                return axis.size
        known = ", ".join(f"`{n}`" for n in self._names)
        raise TilelinkError(
            "TL205",
            f"{self.record.label} has no axis `{name}`",
            loc=call_site(),
            why=f"its axes are {known}",
            hint="use one of them",
        )

    def __repr__(self) -> str:
        sizes = ", ".join(f"{n}={a.extent}" for n, a in zip(self._names, self.record.axes, strict=True))
        return f"<{self.record.label.replace('`', '')}: {self.record} {self.dtype}, {sizes}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        _not_data(f"`.{name}`")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What torch calls where one of its functions is given a symbolic tensor."""
        _not_data(f"torch's `{getattr(function, '__name__', function)}`")

    def __bool__(self) -> bool:
        _not_data("the truth")

    def __len__(self) -> int:
        _not_data("the length")

    def __iter__(self) -> Any:
        _not_data("the elements")

    def __getitem__(self, index: SupportsIndex | slice | object) -> Any:
        _not_data("an element")

    def __add__(self, other: object) -> Any:
        _not_data("arithmetic")

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __matmul__ = __rmatmul__ = __add__
    __floordiv__ = __mod__ = __pow__ = __and__ = __or__ = __add__

    def __neg__(self) -> Any:
        _not_data("arithmetic")

    def __lt__(self, other: object) -> Any:
        _not_data("a comparison")

    __le__ = __gt__ = __ge__ = __lt__
