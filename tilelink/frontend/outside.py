"""What functions find outside of themselves, in modules and closures, and whether it is still there.

What is made of a function is kept: a captured program, a plan. It is made again when a number that the function reads has
another value, or a name stands for something else.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from inspect import getattr_static
from operator import attrgetter
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, cast

GONE = object()
"""In place of what is not there."""
PLAIN = (bool, int, float, str, type(None))
SMALL = 1024
"""Bytes of an array of which a function may read numbers, not data."""

_GROWING = (list, dict, set, tuple, frozenset)
_LIBRARIES = frozenset({"tilelink", "torch", "triton", "numpy", *sys.stdlib_module_names}) - {"__main__"}


def alike(a: object, b: object) -> bool:
    """Whether two constants are one: `0.0` is neither `-0.0` nor `0`, and NaN is NaN."""
    return repr(a) == repr(b)


@dataclass(frozen=True, slots=True)
class Found:
    """Something that was found: an entry of a namespace, the contents of a cell, or an attribute. `shown`: of a container of
    plain values or a small array, which may change and stay the same object."""

    of: object
    name: str
    value: object
    shown: str | None = None

    @staticmethod
    def at(of: object, name: str) -> Found:
        value = _now(of, name)
        return Found(of, name, value, _shown(value))

    @property
    def still(self) -> bool:
        """Whether it is there and means the same."""
        now = _now(self.of, self.name)
        if self.shown is not None:
            return type(now) is type(self.value) and _shown(now) == self.shown
        same_kind = isinstance(now, PLAIN) and type(now) is type(self.value)
        return now is self.value or (same_kind and alike(now, self.value))


def _now(of: object, name: str) -> object:
    if isinstance(of, dict):
        return cast("dict[str, object]", of).get(name, GONE)
    if isinstance(of, CellType):
        try:
            return of.cell_contents
        except ValueError:  # nothing has been assigned
            return GONE
    return getattr(of, name, GONE)


def _shown(value: Any) -> str | None:
    """What is in a container of plain values, and in an array of numpy's or a tensor on the CPU of at most `SMALL` bytes."""
    if type(value) in _GROWING:
        return repr(value) if _is_plain(value) else None
    kind = f"{type(value).__module__}.{type(value).__name__}"
    small = kind in ("numpy.ndarray", "torch.Tensor") and value.nbytes <= SMALL
    return repr(value.tolist()) if small and str(getattr(value, "device", "cpu")) == "cpu" else None


def _is_plain(value: object) -> bool:
    """Whether it is made of numbers, strings and placements alone."""
    if isinstance(value, _GROWING):
        inner = [*cast("Iterable[object]", value)]
        inner += cast("dict[object, object]", value).values() if isinstance(value, dict) else []
        return all(map(_is_plain, inner))
    return isinstance(value, PLAIN) or type(value).__module__ == "tilelink.ir.schedule"


class Outside:
    """What has been found, of which `changed` is asked at each call: it costs next to nothing where nothing was assigned."""

    __slots__ = ("_attributes", "_entries", "_shown", "found")

    def __init__(self, found: Iterable[Found]) -> None:
        self.found = tuple({(id(f.of), f.name): f for f in found}.values())
        self._settle()

    def _settle(self) -> None:
        entries: list[tuple[dict[str, object], str, object]] = []
        attributes: list[tuple[Callable[[object], object], object, object]] = []
        for f in self.found:
            kind = type(f.of)
            if f.shown is None and kind is dict:
                entries.append((cast("dict[str, object]", f.of), f.name, f.value))
            elif f.shown is None:
                name = "cell_contents" if kind is CellType else f.name
                attributes.append((attrgetter(name), f.of, f.value))
        self._entries, self._attributes = tuple(entries), tuple(attributes)
        self._shown = tuple(f for f in self.found if f.shown is not None)

    def changed(self) -> bool:
        """Whether something is not there any more, or is another one."""
        try:
            for space, name, value in self._entries:
                if space[name] is not value:
                    return self._look()
            for get, of, value in self._attributes:
                if get(of) is not value:
                    return self._look()
        except (KeyError, ValueError, AttributeError):
            return True
        return bool(self._shown) and not all(f.still for f in self._shown)

    def _look(self) -> bool:
        """The same, by value: a number that was assigned again may be the old one."""
        if not all(f.still for f in self.found):
            return True
        self.found = tuple(Found.at(f.of, f.name) for f in self.found)
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
        for line in dis.get_instructions(code):
            if line.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"):
                of = cells.get(line.argval) if "DEREF" in line.opname else function.__globals__
                found = None if of is None else Found.at(of, line.argval)
            elif line.opname in ("LOAD_ATTR", "LOAD_METHOD") and base is not GONE:
                found = _attribute(base, line.argval)
            elif code is function.__code__ and line.opname == "LOAD_FAST" and line.argval in code.co_varnames[:1]:
                base = own
                continue
            else:
                found = None
            base = GONE if found is None else found.value
            if found is not None and base is not GONE and not isinstance(base, ModuleType):
                yield found


def codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of functions inside it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from codes(inner)


def _attribute(of: object, name: str) -> Found | None:
    """An attribute of a user's module, class or object; None: it is computed, or a library's."""
    if _of_library(of if isinstance(of, (ModuleType, type)) else type(of)) or isinstance(of, PLAIN):
        return None
    if isinstance(getattr_static(of, name, None), property):
        return None
    space: object = vars(of) if isinstance(of, ModuleType) else of
    return Found.at(space, name)
