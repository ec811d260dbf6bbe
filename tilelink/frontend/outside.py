"""What functions find outside of themselves, in modules and closures, and whether it is still there.

What is made of a function is kept: a captured program, a plan. It is made again when a number that the function reads has
another value, or a name stands for something else.
"""

from __future__ import annotations

import dis
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from inspect import getattr_static
from itertools import islice
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, cast

GONE = object()
"""In place of what is not there."""
PLAIN = (bool, int, float, str, type(None))
SMALL = 1024
"""Bytes of an array of which a function may read numbers, not data."""

LEAVES, DEPTH = 256, 4
"""Of an object of the user's, how much is looked at, and how deep inside."""
_GROWING = (list, dict, set, tuple, frozenset, deque)
_HOLDERS = ("argparse", "collections", "types")
"""Libraries whose objects hold what users put into them."""
_LIBRARIES = frozenset({"tilelink", "torch", "triton", "numpy", *sys.stdlib_module_names}) - {"__main__"}


def alike(a: object, b: object) -> bool:
    """Whether two constants are one: `0.0` is neither `-0.0` nor `0`, and NaN is NaN."""
    return repr(a) == repr(b)


@dataclass(frozen=True, slots=True)
class Found:
    """Something that was found: an entry of a namespace, the contents of a cell, or an attribute. `shown`: what is in it, where
    that may change while it stays the same object. `whole`: all of it may be read."""

    of: object
    name: str
    value: object
    shown: tuple[object, ...] | None = None
    whole: bool = True

    @staticmethod
    def at(of: object, name: str, *, whole: bool = True) -> Found:
        value = _getter(of, name)()
        return Found(of, name, value, shown(value) if whole else None, whole)

    @property
    def still(self) -> bool:
        """Whether it is there and means the same."""
        now = _getter(self.of, self.name)()
        if self.shown is not None:
            return type(now) is type(self.value) and shown(now) == self.shown
        same_kind = isinstance(now, PLAIN) and type(now) is type(self.value)
        return now is self.value or (same_kind and alike(now, self.value))


def _getter(of: object, name: str) -> Callable[[], object]:
    """What gives the value that is there now, or `GONE`."""
    if isinstance(of, dict):
        return partial(cast("dict[str, object]", of).get, name, GONE)
    return partial(_contents, of) if isinstance(of, CellType) else partial(getattr, of, name, GONE)


def _contents(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # nothing has been assigned
        return GONE


def shown(value: Any) -> tuple[object, ...] | None:
    """What is in a container, an array of numpy's or a tensor on the CPU of at most `SMALL` bytes, or an object of the user's.
    None: it is none of these, or more than one may ask for at each call."""
    if isinstance(value, PLAIN) or not _is_open(value):
        return None
    leaves = (*islice(_leaves(value, DEPTH), LEAVES + 1),)
    return None if len(leaves) > LEAVES else leaves


class _Same:
    """An object that is not looked into, and only equals itself; while this is kept nothing else has its place in memory."""

    __slots__ = ("of",)

    def __init__(self, of: object) -> None:
        self.of = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.of is self.of

    def __hash__(self) -> int:
        return id(self.of)


def _is_open(value: Any) -> bool:
    """Whether one looks inside."""
    kind: type[Any] = value.__class__
    if kind.__name__ in ("ndarray", "Tensor", "Parameter") and kind.__module__.partition(".")[0] in ("numpy", "torch"):
        return value.nbytes <= SMALL and str(getattr(value, "device", "cpu")) == "cpu"
    if isinstance(value, (FunctionType, type, ModuleType, CodeType, CellType)):
        return False
    return kind.__module__ in _HOLDERS or not _of_library(kind) or isinstance(value, _GROWING)


def _leaves(value: Any, depth: int) -> Iterator[object]:
    """The plain values in a value, each with where it is; of others that they are the same."""
    kind: type[Any] = value.__class__
    scalar = kind.__module__ == "numpy" and kind.__name__ != "ndarray"
    if isinstance(value, (*PLAIN, bytes, bytearray)) or kind.__module__ == "tilelink.ir.schedule":
        yield repr(value)
    elif not scalar and (not depth or not _is_open(value)):
        yield _Same(value)
    elif hasattr(value, "tolist"):
        yield repr(value.tolist())
    else:
        yield kind.__name__
        if isinstance(value, _GROWING) and not isinstance(value, dict):
            inside: list[tuple[object, object]] = [*enumerate(cast("Iterable[object]", value))]
        else:
            slots: Iterator[str] = (
                n for k in kind.__mro__ for n in getattr(k, "__slots__", ()) if not n.startswith("__")
            )
            inside = [(n, getattr(cast("object", value), n, GONE)) for n in slots]
            inside += cast("dict[str, object]", getattr(cast("object", value), "__dict__", {})).items()
            inside += cast("dict[object, object]", value).items() if isinstance(value, dict) else ()
        for name, one in inside:
            yield repr(name) if isinstance(name, PLAIN) else _Same(name)
            yield from _leaves(one, depth - 1)


class Outside:
    """What has been found, of which `changed` is asked at each call: it costs next to nothing where nothing was assigned."""

    __slots__ = ("_fixed", "_shown", "found")

    def __init__(self, found: Iterable[Found]) -> None:
        self.found = tuple({(id(f.of), f.name): f for f in sorted(found, key=lambda f: f.whole)}.values())
        self._settle()

    def _settle(self) -> None:
        self._fixed = tuple((_getter(f.of, f.name), f.value) for f in self.found if f.shown is None)
        self._shown = tuple(f for f in self.found if f.shown is not None)

    def changed(self) -> bool:
        """Whether something is not there any more, or is another one."""
        for now, value in self._fixed:
            if now() is not value:
                return self._look()
        return not all(f.still for f in self._shown)

    def _look(self) -> bool:
        """The same, by value: a number that was assigned again may be the old one."""
        if not all(f.still for f in self.found):
            return True
        self.found = tuple(Found.at(f.of, f.name, whole=f.whole) for f in self.found)
        self._settle()
        return False


def found_by(function: Callable[..., Any]) -> Iterator[Found]:
    """What a plain Python function reads when it runs, and what the functions do that it calls; those of libraries stay as
    they are. It goes by the names in its code, be the lines that have them run or not."""
    seen: set[tuple[int, int]] = set()
    ahead: list[object] = [function]
    while ahead:
        one = ahead.pop()
        if isinstance(one, partial):
            one = cast("partial[Any]", one).func
        own = getattr(one, "__self__", GONE)
        one = getattr(one, "__func__", one)
        if not isinstance(one, FunctionType) or (id(one), id(own)) in seen or _of_library(one):
            continue
        seen.add((id(one), id(own)))
        for found in _read(one, own):
            ahead.append(found.value)
            if found.still:  # methods are made when they are asked for, and so are some objects' attributes
                yield found


def _of_library(value: object) -> bool:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or ""
    return str(name).partition(".")[0] in _LIBRARIES


def _read(function: FunctionType, own: object) -> Iterator[Found]:
    """`own`: of a method, its object."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for code in codes(function.__code__):
        base: object = GONE
        lines = [*dis.get_instructions(code)]
        for line, then in zip(lines, [*lines[1:], lines[0]], strict=True):
            if line.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"):
                of = cells.get(line.argval) if "DEREF" in line.opname else function.__globals__
                found = None if of is None else _looked_at(of, line.argval, then)
            elif line.opname in _ATTRIBUTES and base is not GONE and _is_noted(base, line.argval):
                found = _looked_at(vars(base) if isinstance(base, ModuleType) else base, line.argval, then)
            elif code is function.__code__ and line.opname == "LOAD_FAST" and line.argval in code.co_varnames[:1]:
                base = own
                continue
            else:
                found = None
            base = GONE if found is None else found.value
            if found is not None and base is not GONE and not isinstance(base, ModuleType):
                yield found


def _looked_at(of: object, name: str, then: dis.Instruction) -> Found:
    """What is found there; all of it may be read, unless `then` reads an attribute that is noted itself."""
    found = Found.at(of, name, whole=False)
    noted = then.opname in _ATTRIBUTES and _is_noted(found.value, then.argval)
    return found if noted else Found.at(of, name)


def codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of functions inside it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from codes(inner)


_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")


def _is_noted(of: object, name: str) -> bool:
    """Whether it is an attribute of a user's module, class or object, and not computed."""
    kind = of if isinstance(of, (ModuleType, type)) else type(of)
    library = _of_library(kind) and getattr(kind, "__module__", "") not in _HOLDERS
    return not (library or isinstance(of, PLAIN) or isinstance(getattr_static(of, name, None), property))
