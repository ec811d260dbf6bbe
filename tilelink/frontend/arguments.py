"""What is checked of everything that is passed to a program or an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from inspect import Parameter, signature
from typing import Any, NoReturn

from tilelink.errors import Loc, TilelinkError
from tilelink.frontend.binding import Given, sizes_of
from tilelink.frontend.callsite import call_site
from tilelink.frontend.symbolic import Record, SymbolicTensor
from tilelink.frontend.wording import count, nearest
from tilelink.ir.shape import Signature


def record_of(user: str, param: str, tensor: object, loc: Loc | None) -> Record:
    if isinstance(tensor, SymbolicTensor):
        return tensor.record
    raise TilelinkError(
        "TL202",
        f"`{param}` of `{user}` is an object of type `{type(tensor).__name__}`",
        loc=loc,
        why="in an operator's body tile programs connect its arguments, results of programs, and `tilelink.symmetric`",
        hint="pass one of those",
    )


def check_dtype(given: Given, user: str, loc: Loc | None) -> None:
    wanted, have = given.shape.dtype, given.record.dtype
    if wanted is not None and wanted != have:
        raise TilelinkError(
            "TL206",
            f"{given.record.label} is {have}; `{given.param}` of `{user}` is {wanted}",
            loc=loc,
            why=f"the signature says `{given.shape}`",
            hint="pass a tensor of that type, or change the signature",
        )


def outside(name: str, loc: Loc | None) -> TilelinkError:
    return TilelinkError(
        "TL201",
        f"`{name}` was called outside an operator",
        loc=loc,
        why="a tile program is one part of an operator: it runs when the operator does",
        hint="call it in a function decorated with `@tilelink.operator(...)`, and call that",
    )


def wrong_count(user: str, given: int, wanted: int, what: str, loc: Loc | None) -> NoReturn:
    why = f"its signature is {what}"
    message = f"`{user}` takes {count(wanted, 'tensor')}, not {given}"
    raise TilelinkError("TL202", message, loc=loc, why=why, hint="pass one tensor for each input")


def check_keywords(
    user: str, fn: Callable[..., Any], read: Signature, given: Iterable[str], *more: str, loc: Loc | None = None
) -> None:
    """Keywords of an operator's call are sizes of its inputs and its constants, and none of these is missing.

    Args:
        user: the operator's name.
        fn: its body.
        read: its signature.
        given: the keywords.
        more: others that this call takes.
        loc: the call; None: wherever this is called from.

    Raises:
        TilelinkError: TL209, on the call.
    """
    parameters = signature(fn).parameters.values()
    constants = {p.name: p for p in parameters if p.kind is Parameter.KEYWORD_ONLY}
    any_name = any(p.kind is Parameter.VAR_KEYWORD for p in parameters)
    known, passed = [*constants, *sizes_of(read), *more], [*given]
    for key in passed:
        if key not in known and not any_name:
            why = "keywords are the constants of an operator, and sizes of its inputs"
            raise unknown_keyword(user, key, known, why, loc or call_site())
    for name, parameter in constants.items():
        if name not in passed and parameter.default is Parameter.empty:
            hint = f"pass `{name}=`, or give it a default where `{user}` is defined"
            message = f"`{user}` needs `{name}=`"
            raise TilelinkError("TL209", message, loc=loc or call_site(), why="it has no default", hint=hint)


def unknown_keyword(user: str, key: str, known: Sequence[str], why: str, loc: Loc | None) -> TilelinkError:
    close = nearest(key, known)
    hint = f"did you mean `{close}=`?" if close else f"it takes {', '.join(f'`{k}=`' for k in known) or 'none'}"
    return TilelinkError("TL209", f"`{user}` has no `{key}=`", loc=loc, why=why, hint=hint)
