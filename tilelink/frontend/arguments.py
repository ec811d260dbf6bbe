"""What is checked of every tensor that is passed to a program or an operator."""

from __future__ import annotations

from typing import NoReturn

from tilelink.errors import Loc, TilelinkError
from tilelink.frontend.binding import Given
from tilelink.frontend.symbolic import Record, SymbolicTensor
from tilelink.frontend.wording import count


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
