"""`tilelink.program`: a tile program as users hold it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilelink.errors import TilelinkError
from tilelink.frontend.calls import call_program
from tilelink.frontend.callsite import call_site
from tilelink.frontend.capture import captured
from tilelink.frontend.grammar import parse_signature
from tilelink.frontend.outside import Outside
from tilelink.frontend.running import tracing
from tilelink.frontend.source import plain_function, read_source
from tilelink.ir.program import TileProgram
from tilelink.ir.schedule import Placement
from tilelink.ir.shape import Signature


class Program:
    """A tile program: a function with a signature. Called in an operator's body, it becomes a step of the operator.

    Attributes:
        name: what schedules call it.
        signature: shapes of its tensors.
        function: the function as written.
    """

    __slots__ = ("_captured", "_outside", "function", "name", "signature")

    def __init__(self, function: Callable[..., Any], signature: Signature, name: str) -> None:
        self.function = function
        self.signature = signature
        self.name = name
        self._captured: TileProgram | None = None
        self._outside = Outside(())

    @property
    def captured(self) -> TileProgram:
        """The program in the compiler's own form, read from its source at the first use, and when a number or a helper of its
        module, or of the function around it, is another one.

        Raises:
            TilelinkError: TL110 to TL164.
        """
        if self._captured is None or self._outside.changed():
            self._captured, found = captured(self.function, self.signature, self.name)
            self._outside = Outside(found)
        return self._captured

    def __call__(
        self,
        *tensors: Any,
        name: str | None = None,
        over: str | None = None,
        schedule: Placement | None = None,
        **keywords: Any,
    ) -> Any:
        """Adds a step to the operator that is being traced.

        Args:
            tensors: one for each input, then results that are to be written instead of new ones.
            name: of this use, if the operator uses the program twice.
            over: the axis of ranks that `R` is here, where the operator has several and the tensors do not tell.
            schedule: the placement that the step comes with, where sizes decide it; the operator's own goes before.
            keywords: constants, sizes that no tensor gives, results by name.

        Returns:
            The program's result, or a tuple of them.

        Raises:
            TilelinkError: TL201 to TL209, TL213.
        """
        program = self.captured
        if (run := tracing()) is not None:
            run.found += self._outside.found
        return call_program(program, tensors, keywords, name, over, schedule)

    def __repr__(self) -> str:
        return f"<tile program {self.name}: {self.signature}>"

    def _repr_markdown_(self) -> str:
        source = read_source(plain_function(self.function)).text
        return f"**{self.name}**: `{self.signature}`\n\n```python\n{source.rstrip()}\n```"


def program(
    signature: str, *, name: str | None = None, axes: str | None = None
) -> Callable[[Callable[..., Any]], Program]:
    """Makes a function a tile program.

    Args:
        signature: shapes of its tensors, such as `"M/R ... -> M ..."`; what follows `->` it writes.
        name: what schedules call it; the function's name by default.
        axes: what the signature calls the axis of ranks, if not `R`: a program speaks of one. An operator that has an axis
            of this name means it by that.

    Raises:
        TilelinkError: TL101 to TL105 at once; what is wrong with the function, at its first use.
    """
    loc = call_site()
    parsed = parse_signature(signature, loc, axes)
    if len(parsed.axes) > 1:
        raise TilelinkError(
            "TL105",
            f"a tile program that speaks of {' and '.join(parsed.axes)}",
            loc=loc,
            why="a step moves along one axis of ranks; those that differ along others do the same side by side",
            hint="write a program for each",
        )
    if name is not None and not name.isidentifier():
        raise TilelinkError(
            "TL114", f"a program called `{name}`", loc=loc, why="schedules name it", hint="use a Python name"
        )

    def decorate(function: Callable[..., Any]) -> Program:
        return Program(function, parsed, name or plain_function(function).__name__)

    return decorate
