"""Options that commands share, what they print, and how they end."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from tilelink.errors import TilelinkError

if TYPE_CHECKING:
    from rich.console import Console

    from tilelink.explore.cases import Case, Ranks
    from tilelink.runtime.session import Session

R = TypeVar("R", bound="Ranks")

Name = Annotated[str, typer.Argument(metavar="OP", help="An operator of tilelink.ops, or FILE.py:NAME.")]
Shape = Annotated[str, typer.Option(help="Global sizes: MxNxK, or by name M=512,N=512,K=512.", metavar="MxNxK")]
RankCount = Annotated[
    str,
    typer.Option("--ranks", help="Number of ranks; along axes: NODE=2,GPU=2.", metavar="N|AXIS=N,…"),
]
Schedule = Annotated[
    list[str] | None,
    typer.Option("--schedule", help="STEP=PLACEMENT(…), as 'gather=copy_engine(M=128, push=True)'. Repeatable."),
]
Dtype = Annotated[str, typer.Option(help="Of the inputs: bf16, f16 or f32.")]
_MACHINE = typer.Option("--machine", help="Predict on a machine, by its name or file.", metavar="NAME|FILE.toml")
MachineName = Annotated[str, _MACHINE]
MaybeMachine = Annotated[str | None, _MACHINE]
JSON_OPTION = "--json"
Json = Annotated[bool, typer.Option(JSON_OPTION, help="Print one JSON object, and nothing else.")]


class Answered(Exception):
    """What a command that takes `--json` has found, which ends it, by its `ok` with 0 or with `code`; of a `session`'s ranks the
    first one prints it."""

    def __init__(self, document: dict[str, Any], session: Session | None = None, *, code: int = 1) -> None:
        super().__init__()
        self.document, self.code = document if first(session) else None, 0 if document["ok"] else code


class Commands(TyperGroup):
    """Diagnostics are printed as they are rendered, and end the command with 1. With `--json` one object is all that comes to
    stdout; what others print there goes to stderr."""

    def invoke(self, ctx: Any) -> Any:
        given = [*ctx._protected_args, *ctx.args]
        as_json = JSON_OPTION in given
        with redirect_stdout(sys.stderr) if as_json else nullcontext():
            try:
                return super().invoke(ctx)
            except Answered as found:
                answer = found
            except TilelinkError as error:
                from tilelink.explore.documents import error_document

                print(error, *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
                answer = Answered({"ok": False, "error": error_document(error)})
        if as_json and answer.document is not None:
            from tilelink.explore.documents import finite

            print(json.dumps(finite({"command": given[0], **answer.document}), indent=1))
        raise typer.Exit(answer.code)


def console_of(quiet: bool = False) -> Console:
    """Wide enough for tables where nobody sees the edge."""
    from rich.console import Console

    return Console(quiet=quiet, width=None if sys.stdout.isatty() else 140, highlight=False)


def here(quiet: bool = False) -> tuple[Session | None, Console]:
    """The session of `torchrun`, if that has started this, and a console that is rank 0's alone."""
    from tilelink.runtime.session import current

    session = current()
    return session, console_of(quiet or not first(session))


def first(session: Session | None) -> bool:
    """Whether this process speaks for all ranks."""
    return session is None or session.backend.rank == 0


def ranks_of(session: Session | None, asked: R) -> R | int:
    """The ranks that there are, or the axes that they are to lie along."""
    return session.backend.ranks if session is not None and isinstance(asked, int) else asked


def case_of(
    op: str, shape: str, ranks: str, schedule: list[str] | None, dtype: str, session: Session | None = None
) -> Case:
    """`session`: of `torchrun`, whose number of ranks counts."""
    from tilelink.explore.cases import Case, names_of, parse_ranks, parse_sizes
    from tilelink.explore.naming import operator_named
    from tilelink.explore.placements import parse_placements

    asked = ranks_of(session, parse_ranks(ranks))
    operator = operator_named(op).schedule(parse_placements(schedule or []))
    return Case(operator, parse_sizes(shape, names_of(operator)), asked, dtype)


def head(console: Console, case: Case) -> None:
    console.print(case.operator.name, style="bold", end="  ")
    console.print(f"{case.operator.signature}  ({case})\n", markup=False)


def say(console: Console, what: str, text: str) -> None:
    console.print(f"{what:>14}  ", style="dim", end="")
    console.print(text, markup=False, soft_wrap=True)
