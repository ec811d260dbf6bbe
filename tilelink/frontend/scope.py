"""What a name of a user's function refers to outside of it: Triton's language, a primitive, a constant, a helper."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import Signature, signature
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

from tilelink import language
from tilelink.frontend.outside import GONE, Found

TRITON_MODULE = "triton.language"
VOCABULARY: Mapping[str, Signature] = {n: signature(getattr(language, n)) for n in language.__all__ if n != "Tensor"}
"""The words that tilelink adds to the language, and how each is called."""
BUILTINS = frozenset({"min", "max", "int", "float", "bool", "range"})
"""Builtins that mean the same in Triton."""


@dataclass(frozen=True, slots=True)
class Language:
    """Triton's language or something in it; `path` is spelled from `tl`. `known`: it exists as far as can be seen."""

    path: str
    known: bool = True

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Primitive:
    """A word that tilelink adds to the language."""

    name: str


@dataclass(frozen=True, slots=True)
class Number:
    """A constant of the module; `name` is how the program says it."""

    name: str
    value: bool | int | float | str


@dataclass(frozen=True, slots=True)
class Jitted:
    """A `@triton.jit` function: anything with a Python function in `.fn` that Triton made."""

    object: Any

    @property
    def function(self) -> FunctionType:
        return self.object.fn

    @property
    def name(self) -> str:
        return self.function.__name__


@dataclass(frozen=True, slots=True)
class Builtin:
    name: str


@dataclass(frozen=True, slots=True)
class Opaque:
    """Any other object."""

    object: Any


Reference: TypeAlias = Language | Primitive | Number | Jitted | Builtin | Opaque


class Scope:
    """The names around a function: its closure, its module, Python's builtins. `found`: what was looked up, but for the
    language itself."""

    def __init__(self, fn: FunctionType) -> None:
        self.found: list[Found] = []
        self._globals = fn.__globals__
        self._cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))

    @property
    def names(self) -> tuple[str, ...]:
        return (*self._cells, *self._globals)

    def look_up(self, node: ast.expr, locals_: frozenset[str]) -> Reference | None:
        """What `name` or `module.attribute...` refers to; None for a name of the function itself or an unknown one."""
        if isinstance(node, ast.Name):
            return None if node.id in locals_ else self._name(node.id)
        if not isinstance(node, ast.Attribute):
            return None
        base = self.look_up(node.value, locals_)
        if isinstance(base, Language):
            if base.path == "tl" and node.attr in VOCABULARY:
                return Primitive(node.attr)
            if base.path == "triton":
                return Language("tl" if node.attr == "language" else f"triton.{node.attr}")
            return Language(f"{base.path}.{node.attr}", _exists(base.path, node.attr))
        if isinstance(base, Opaque) and isinstance(base.object, (ModuleType, type)):
            space = vars(base.object) if isinstance(base.object, ModuleType) else base.object
            return self._noted(Found.at(space, node.attr), ast.unparse(node).replace(".", "_"))
        return None

    def _noted(self, found: Found, name: str) -> Reference | None:
        """What has been found, which is called `name` in a file."""
        if found.value is GONE:
            return None
        reference = self._classify(name, found.value)
        if not isinstance(reference, (Language, Primitive)) and not isinstance(found.value, ModuleType):
            self.found.append(found)
        return reference

    def _name(self, name: str) -> Reference | None:
        for space in (self._cells.get(name), self._globals):
            if space is not None and (found := self._noted(Found.at(space, name), name)) is not None:
                return found
        if name in BUILTINS:
            return Builtin(name)
        return Opaque(getattr(builtins, name)) if hasattr(builtins, name) else None

    def _classify(self, name: str, found: Any) -> Reference:
        if isinstance(found, ModuleType):
            return _module(found)
        if _module_of(found) == language.__name__ and getattr(found, "__name__", None) in VOCABULARY:
            return Primitive(found.__name__)
        if spelled := _in_triton(found):
            return Language(spelled)
        if type(found).__name__ == "constexpr" and type(found).__module__.startswith("triton."):
            found = found.value
        for kind in (bool, int, float):
            if isinstance(found, kind):
                return Number(name, kind(found))
        if isinstance(found, str):
            return Number(name, str.__str__(found))
        function = getattr(found, "fn", None)
        if isinstance(function, FunctionType) and (
            hasattr(found, "src") or type(found).__module__.startswith("triton.")
        ):
            return Jitted(found)
        if any(found is getattr(builtins, b) for b in BUILTINS):
            return Builtin(found.__name__)
        return Opaque(found)


def _module(module: ModuleType) -> Reference:
    name = module.__name__
    if name in (language.__name__, TRITON_MODULE):
        return Language("tl")
    if name.startswith(TRITON_MODULE + "."):
        return Language("tl" + name.removeprefix(TRITON_MODULE))
    return Language("triton") if name == "triton" else Opaque(module)


def _module_of(found: object) -> str:
    return str(getattr(found, "__module__", ""))


def _triton() -> ModuleType | None:
    """`triton.language` if something has imported it; the compiler half does not."""
    return sys.modules.get(TRITON_MODULE)


def _in_triton(found: object) -> str | None:
    """How something imported from Triton's language is spelled: `from triton.language import float32`."""
    module = _triton()
    if module is None or not (_module_of(found) + type(found).__module__).count("triton.language"):
        return None
    # On simulated ranks the module has other functions under the same names for a while.
    named = getattr(found, "__name__", "")
    return next((f"tl.{name}" for name, value in vars(module).items() if value is found or name == named), None)


def _exists(path: str, attribute: str) -> bool:
    """Whether Triton's language has the attribute. Where Triton is not loaded, all that has no tile in its name may be its."""
    here: Any = _triton()
    for step in path.split(".")[1:]:
        here = getattr(here, step, None)
    return "tile" not in attribute if here is None else hasattr(here, attribute)


def language_names() -> tuple[str, ...]:
    """What `tl.` offers, for suggestions."""
    module = _triton()
    return tuple(sorted(n for n in vars(module) if not n.startswith("_"))) if module else ()
