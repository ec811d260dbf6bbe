"""Library functions by name: what `tilelink.library("torch.mm")` stands for."""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

from tilelink.errors import Loc, TilelinkError


def function_of(named: str | Callable[..., Any]) -> Callable[..., Any]:
    """The function itself. Raises TL408, there is none of this name."""
    return _found(named) if isinstance(named, str) else named


@functools.lru_cache(maxsize=256)
def _found(name: str) -> Callable[..., Any]:
    """The attribute that the last word of the name is of what the words before it name: a module, or what is in one."""
    (holder, _, own), cause = name.rpartition("."), None
    try:
        found = getattr(pkgutil.resolve_name(holder), own)
    except (ModuleNotFoundError, AttributeError, ValueError) as error:
        found, cause = None, error
    if callable(found):
        return found
    raise TilelinkError(
        "TL408",
        f"there is no function `{name}`",
        why="a library function is named by its module and its own name, or passed itself",
        hint='write for example tilelink.library("torch.mm", M="M/R")',
    ) from cause


def explained(
    function: Callable[..., Any], constants: Mapping[str, Any], name: str, path: str, loc: Loc
) -> Callable[..., Any]:
    """The function with these constants, whose refusals become TL409 with the shapes that it was given. `name`, `path`, `loc`:
    what it is called, and the step that it computes."""

    def call(*inputs: Any, **out: Any) -> Any:
        try:
            return function(*inputs, **out, **constants)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            given = [*map(_said, inputs), *(f"{k}={_said(v)}" for k, v in {**out, **constants}.items())]
            takes = "the program's inputs in their order" + (", and `out=`" if out else "")
            raise TilelinkError(
                "TL409",
                f"`{name}` does not compute a tile of `{path}`: {str(error).splitlines()[0] if str(error) else type(error)}",
                loc=loc,
                why=f"it is called as {name}({', '.join(given)})",
                hint=f"name a function that takes {takes}",
            ) from error

    return call


def _said(value: Any) -> str:
    import torch  # here: who only asks for a function by its name does without it

    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return f"[{', '.join(map(_said, value))}]" if isinstance(value, (list, tuple)) else repr(value)
