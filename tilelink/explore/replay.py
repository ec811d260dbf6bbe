"""A simulated run as a token: operator, sizes, ranks, schedule, data and whose turn it was, for `tilelink replay`."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from dataclasses import asdict, dataclass, fields
from typing import Any

from tilelink import ops
from tilelink.errors import Loc, TilelinkError
from tilelink.explore.cases import Case, ranks_text
from tilelink.explore.placements import placement_text
from tilelink.ir.schedule import as_simulated

PREFIX = "run1-"


@dataclass(frozen=True, slots=True)
class Recipe:
    """`operator`, `sizes`, `ranks`: as commands take them; `schedule`: one text for each placement; `data`: the seed of the
    inputs."""

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
            TilelinkError: TL709.
        """
        try:
            body = token.removeprefix(PREFIX)
            given: Any = json.loads(zlib.decompress(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))))
            made = Recipe(**{**given, "schedule": tuple(given.get("schedule", ()))})
            if not token.startswith(PREFIX) or not all(_fits(v, getattr(made, n)) for n, v in _MODEL.items()):
                raise ValueError(token)
        except (ValueError, TypeError, AttributeError, binascii.Error, zlib.error) as error:
            raise TilelinkError(
                "TL709",
                "this is no token of a simulated run",
                loc=Loc("TOKEN", 1, 0, text=token[:100]),
                hint="copy all of what the failure printed behind `tilelink replay`",
            ) from error
        return made


_MODEL = asdict(Recipe("", "", "", ("",)))


def _fits(model: Any, value: Any) -> bool:
    if isinstance(model, (tuple, list)):
        return all(isinstance(v, str) for v in value)
    return type(value) is type(model)


def recipe(case: Case, calls: int, policy: str, delayed_stores: bool) -> Recipe | None:
    """None where a schedule holds a function, which no token can name."""
    texts = [placement_text(path, as_simulated(placement)) for path, placement in case.operator.schedules.entries]
    if None in texts:
        return None
    name, file = case.operator.name, case.operator.loc.file
    known = getattr(ops, name, None)
    shipped = known is not None and known.loc == case.operator.loc
    return Recipe(
        operator=name if shipped else f"{file}:{name}",
        sizes=",".join(f"{n}={v}" for n, v in case.sizes),
        ranks=ranks_text(case.ranks),
        schedule=tuple(t for t in texts if t is not None),
        dtype=case.dtype,
        data=case.seed,
        calls=calls,
        policy=policy,
        delayed_stores=delayed_stores,
    )
