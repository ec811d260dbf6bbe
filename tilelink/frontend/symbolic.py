"""The tensors that an operator's body sees while it is traced: sizes and names, never data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from tilelink.errors import Loc, TilelinkError
from tilelink.frontend.source import call_site
from tilelink.ir.formula import Const, Formula, binary
from tilelink.ir.shape import ITEM_BYTES, Contract, MapTerm


def _arithmetic(op: str, compute: Callable[[int, int], int], *, swapped: bool = False) -> Any:
    """A method of `Extent`. (Any: `int` promises a plain int of it.)"""

    def method(self: Extent, other: object) -> Extent:
        if not isinstance(other, int):
            return NotImplemented
        a, b = (other, self) if swapped else (self, other)
        return Extent(compute(int(a), int(b)), binary(op, Extent.of(a).formula, Extent.of(b).formula))

    return method


class Extent(int):
    """A size: an int that knows how it follows from the sizes of the operator's arguments."""

    formula: Formula

    def __new__(cls, value: int, formula: Formula | None = None) -> Extent:
        made = super().__new__(cls, value)
        made.formula = Const(value) if formula is None else formula
        return made

    @staticmethod
    def of(value: int) -> Extent:
        """A size that may be a plain int: a constant."""
        return value if isinstance(value, Extent) else Extent(int(value))

    __add__ = _arithmetic("+", int.__add__)
    __radd__ = _arithmetic("+", int.__add__, swapped=True)
    __sub__ = _arithmetic("-", int.__sub__)
    __rsub__ = _arithmetic("-", int.__sub__, swapped=True)
    __mul__ = _arithmetic("*", int.__mul__)
    __rmul__ = _arithmetic("*", int.__mul__, swapped=True)
    __floordiv__ = _arithmetic("//", int.__floordiv__)
    __mod__ = _arithmetic("%", int.__mod__)


@dataclass(frozen=True, slots=True)
class LogicalAxis:
    """An axis of a tensor: its global size, and its `split`: an axis of ranks (`R`), a table, or None."""

    name: str
    size: Extent
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
    """A tensor of a trace. `wish`: the name it should have; `long`: the one it gets where `wish` is taken; `key`: what steps
    call it until all are known."""

    axes: tuple[LogicalAxis, ...]
    dtype: str
    origin: str
    wish: str
    long: str
    label: str
    contract: Contract | None = None
    owner_map: MapTerm | None = None
    loc: Loc | None = None
    uses: int = 0
    key: str = ""

    def __str__(self) -> str:
        return " ".join(str(a) for a in self.axes)


def _not_data(what: str) -> NoReturn:
    why = "an operator's body runs once, on sizes; it connects tile programs and never sees data"
    hint = "compute in a tile program, and call that here"
    raise TilelinkError("TL212", f"{what} of a symbolic tensor", loc=call_site(), why=why, hint=hint)


def _refusal(what: str) -> Callable[..., Any]:
    def method(*_: object) -> NoReturn:
        _not_data(what)

    return method


class SymbolicTensor:
    """A tensor while an operator is traced. Tile programs and operators take and give it."""

    __slots__ = ("_axes", "record")

    def __init__(self, record: Record, axes: tuple[LogicalAxis, ...] | None = None) -> None:
        self.record = record
        self._axes = record.axes if axes is None else axes

    @property
    def axes(self) -> tuple[LogicalAxis, ...]:
        """Names as this operator calls them, global sizes, and what each axis is split by: `R`, the name of a table, or None."""
        return tuple(replace(a, split=a.split.wish) if isinstance(a.split, Record) else a for a in self._axes)

    @property
    def shape(self) -> tuple[Extent, ...]:
        """Global sizes, one per axis."""
        return tuple(a.size for a in self.axes)

    @property
    def dtype(self) -> str:
        return self.record.dtype

    @property
    def itemsize(self) -> int:
        return ITEM_BYTES[self.dtype]

    def size(self, name: str) -> Extent:
        """The global size of the axis that this operator's signature calls `name`.

        Raises:
            TilelinkError: TL205 if it has no such axis.
        """
        for axis in self.axes:
            if axis.name == name:
                return axis.size
        why = f"its axes are {', '.join(f'`{a.name}`' for a in self.axes)}"
        message = f"{self.record.label} has no axis `{name}`"
        raise TilelinkError("TL205", message, loc=call_site(), why=why, hint="use one of them")

    def __repr__(self) -> str:
        sizes = ", ".join(f"{a.name}={int(b.size)}" for a, b in zip(self.axes, self.record.axes, strict=True))
        return f"<{self.record.label.replace('`', '')}: {self.record} {self.dtype}, {sizes}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        _not_data(f"`.{name}`")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What torch calls where one of its functions is given a symbolic tensor."""
        _not_data(f"torch's `{getattr(function, '__name__', function)}`")

    __bool__ = _refusal("the truth")
    __len__ = _refusal("the length")
    __iter__ = _refusal("the elements")
    __getitem__ = _refusal("an element")
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __matmul__ = __rmatmul__ = _refusal("arithmetic")
    __truediv__ = __rtruediv__ = __floordiv__ = __mod__ = __pow__ = __and__ = __or__ = __neg__ = __add__
    __lt__ = __le__ = __gt__ = __ge__ = _refusal("a comparison")
