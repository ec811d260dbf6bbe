"""A simulated run as a token: operator, sizes, ranks, schedule, data and whose turn it was, for `tilelink replay`.

A token may come from anybody. It is data: it names operators of the library, or of a file that the command line names, and
functions that their authors name; it is short, and so is what it unpacks to; and what it asks for has bounds.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import shlex
import zlib
from dataclasses import dataclass, fields, replace
from pathlib import Path

from tilelink import ops
from tilelink.errors import Loc, TilelinkError
from tilelink.explore.cases import Case, parse_ranks, parse_sizes, ranks_text, topology_of
from tilelink.explore.naming import operator_named
from tilelink.explore.placements import parse_placements, placement_text
from tilelink.explore.report_tables import tiles_of
from tilelink.ir import formula as F
from tilelink.ir.schedule import as_simulated
from tilelink.ir.topology import env_of
from tilelink.pipeline.operator import Operator
from tilelink.runtime.memory import DTYPES, largest, regions
from tilelink.tuning.records import known, made, taken, unknown

PREFIX = "run1-"
TOKEN, TEXT = 1 << 13, 1 << 16
"""Characters of a token and of what it unpacks to, at the most; those of runs have some hundreds."""
RANKS, CALLS, SIZE, TILES, BYTES = 64, 1000, 1_000_000, 1_000_000, 1 << 30
"""What a token may ask for: simulating that takes hours."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """`operator`: of `tilelink.ops`, or `:NAME`, of a file; `sizes`, `ranks`: as commands take them; `schedule`: one text for
    each placement; `data`: the seed of the inputs."""

    operator: str
    sizes: str
    ranks: str
    schedule: tuple[str, ...] = ()
    dtype: str = "bf16"
    data: int = 0
    calls: int = 1
    policy: str = "random-0"
    delayed_stores: bool = False

    @property
    def token(self) -> str:
        given = {f.name: v for f in fields(self) if (v := getattr(self, f.name)) != f.default}
        packed = zlib.compress(json.dumps(given, separators=(",", ":")).encode(), 9)
        return PREFIX + base64.urlsafe_b64encode(packed).decode().rstrip("=")

    @staticmethod
    def parse(token: str) -> Recipe:
        """
        Raises:
            TilelinkError: TL709, TL715.
        """
        if len(token) > TOKEN:
            raise _too_long(token, f"it has {len(token):,} characters")
        body = re.fullmatch(rf"{PREFIX}([\w-]+)", token, re.ASCII)
        unpacking = zlib.decompressobj()
        try:
            packed = base64.urlsafe_b64decode(body[1] + "=" * (-len(body[1]) % 4)) if body is not None else b""
            text = unpacking.decompress(packed, TEXT)
            if unpacking.unconsumed_tail:
                raise _too_long(token, f"it unpacks to more than {TEXT:,} characters")
            if not unpacking.eof or unpacking.unused_data:
                raise ValueError("it is cut short, or goes on behind its end")
            return taken(text, lambda record: made(Recipe, record))
        except (ValueError, binascii.Error, zlib.error) as error:
            raise TilelinkError(
                "TL709",
                "this is no token of a simulated run",
                loc=_shown(token),
                hint="copy all of what the failure printed behind `tilelink replay`",
            ) from error

    def case(self, file: Path | None = None) -> Case:
        """What was run.

        Args:
            file: that the operator is in, where it is none of `tilelink.ops`. Its Python runs.

        Raises:
            TilelinkError: TL714 another operator, TL716 more than a token may ask for; TL701 to TL713, what is wrong with one
                of its parts.
        """
        operator, ranks = self._operator(file), parse_ranks(self.ranks)
        count = topology_of(ranks).ranks
        _bounded("ranks", count, 1, RANKS)
        _bounded("calls", self.calls, 1, CALLS)
        _bounded("as the seed of its data", self.data, 0, 1 << 40)
        case = Case(operator, parse_sizes(self.sizes), ranks, self.dtype, self.data)
        _bounded("elements along an axis", max((v for _, v in case.sizes), default=0), 0, SIZE)
        shapes = [(case.local_shape(s, 0), DTYPES[s.dtype or self.dtype].itemsize) for s in operator.signature.inputs]
        given = self.calls * count * sum(math.prod(shape) * size for shape, size in shapes)
        _bounded("bytes of arguments", given, 0, BYTES)
        wiring, env = case.wiring(), env_of(dict(case.sizes), case.topology, 0)
        longest = max(F.evaluate(a.size, env) for t in wiring.tensors for a in t.axes)
        _bounded("elements along an axis", int(longest), 0, SIZE)  # a plan takes memory by them
        functions = known(operator.schedules, wiring)
        case = replace(case, operator=operator.schedule(parse_placements(self.schedule, "TOKEN", functions)))
        plan = case.unproven(case.topology)  # a proof takes memory by the tiles
        _bounded("tiles", self.calls * tiles_of(plan), 0, TILES)
        results = [largest(plan, b) * DTYPES[b.dtype].itemsize for b in plan.buffers if b.space == "result"]
        made = self.calls * count * sum(results) + count * sum(r.nbytes for r in regions(plan))
        _bounded("bytes of tensors", given + made, 0, BYTES)
        return case

    def _operator(self, file: Path | None) -> Operator:
        name, of_file = self.operator.removeprefix(":"), self.operator.startswith(":")
        if of_file and file is None:
            hint = "if you trust the file, name it: tilelink replay TOKEN --file FILE.py"
        elif not of_file and file is not None:
            hint = "leave --file out"
        elif not name.isidentifier() or (not of_file and name not in ops.__all__):
            hint = f"tilelink.ops has {', '.join(ops.__all__)}"
        else:
            return operator_named(f"{file}:{name}" if of_file else name)
        raise TilelinkError(
            "TL714",
            f"the run is of `{name[:100]}`, " + ("an operator of a file" if of_file else "not of a file's operator"),
            why="a token names an operator of tilelink.ops, or one of the file that the command line names: no other Python runs",
            hint=hint,
        )


def _shown(token: str) -> Loc:
    return Loc("TOKEN", 1, 0, text=token[:100])


def _too_long(token: str, why: str) -> TilelinkError:
    return TilelinkError(
        "TL715",
        "this is too long for a token of a simulated run",
        loc=_shown(token),
        why=why,
        hint="copy what the failure printed behind `tilelink replay`, and nothing else",
    )


def _bounded(what: str, asked: int, least: int, most: int) -> None:
    if not least <= asked <= most:
        said = f"{asked:,}" if abs(asked) < 1 << 64 else "far too many"
        raise TilelinkError(
            "TL716",
            f"the run asks for {said} {what}",
            why=f"a token may ask for {least:,} to {most:,}",
            hint="if you trust it, run it by its own flags: tilelink run OP --shape …",
        )


def recipe(case: Case, calls: int, policy: str, delayed_stores: bool) -> Recipe | None:
    """None where a schedule holds a function, or names one that no token may name."""
    texts = [placement_text(path, as_simulated(placement)) for path, placement in case.operator.schedules.entries]
    if None in texts:
        return None
    shipped = in_library(case.operator)
    if shipped is not None and unknown(case.operator.schedules, known(shipped.schedules, case.wiring())):
        return None
    return Recipe(
        operator=case.operator.name if shipped is not None else f":{case.operator.name}",
        sizes=",".join(f"{n}={v}" for n, v in case.sizes),
        ranks=ranks_text(case.ranks),
        schedule=tuple(t for t in texts if t is not None),
        dtype=case.dtype,
        data=case.seed,
        calls=calls,
        policy=policy,
        delayed_stores=delayed_stores,
    )


def in_library(operator: Operator) -> Operator | None:
    """The operator of `tilelink.ops` that this one is, however it is scheduled."""
    found = getattr(ops, operator.name, None)
    return found if isinstance(found, Operator) and found.loc == operator.loc else None


def again(case: Case, calls: int, policy: str, delayed_stores: bool) -> tuple[str, ...]:
    """How to simulate the same run once more, in sentences."""
    found = recipe(case, calls, policy, delayed_stores)
    if found is None:
        return ()
    file = "" if in_library(case.operator) is not None else f" --file {shlex.quote(case.operator.loc.file)}"
    return (f"the same run again: tilelink replay {found.token}{file}",)
