"""Tile programs whose names are bound again and again, as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

RANKS, SHAPE, TILE = 2, (6, 20), (4, 8)
HEADER = """import tilelink
import tilelink.language as tl

LIMIT = 3


@tilelink.program("R/R M N -> R M N")
def share(x, inbox):
    s, m, n = tl.tile_id(x)
    tl.tile_push_data(inbox, (s, m, n), tl.tile_load(x, (s, m, n)))
    tl.producer_tile_notify(inbox, (s, m, n))


@tilelink.operator("M N -> M N")
def one(x):
    return first(share(x))


@tilelink.operator("M N -> M N")
def two(x):
    inbox = share(x)
    return last(first(inbox), inbox)


"""
PROGRAM = """@tilelink.program("{signature}")
def {name}({parameters}, *, count: int = 2, scale: float = 3.0):
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
{body}
    tl.tile_store(out, (m, n), acc)
    tl.producer_tile_notify(out, (m, n))


"""
FIRST = ["tl.consumer_tile_wait(inbox)", "acc += tl.tile_load(inbox, (0, m, n))"]
LAST = [*FIRST, "tl.consumer_tile_wait(given, (m, n))", "acc += tl.tile_load(given, (m, n))"]


@dataclass(frozen=True)
class Text:
    """Two programs: what is made of a box with a slice per rank, and what is made of that and the box."""

    first: str
    last: str

    @staticmethod
    def of(first: Sequence[str], last: Sequence[str]) -> Text:
        def program(body: Sequence[str], **form: str) -> str:
            return PROGRAM.format(body="\n".join("    " + line for line in body), **form)

        one = program([*FIRST, *first], name="first", signature="R M N -> M N", parameters="inbox, out")
        form = {"name": "last", "signature": "M N, R M N -> M N", "parameters": "given, inbox, out"}
        return Text(one, program([*LAST, *last], **form))

    def scheduled(self, schedule: str) -> str:
        """A file whose `op` is `one`, the first program alone, or `two`, both of them: `one.schedule(…)`."""
        return f"{HEADER}{self.first}{self.last}op = {schedule}\n"
