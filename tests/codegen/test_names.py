# pyright: reportArgumentType=false
"""Users' names may coincide with those of an emitted file: they are renamed there, or refused with their line."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest
import torch

import tilelink
from tests.codegen import hostile
from tests.operators.problems import Problem, assert_solves, each, split
from tests.selection import table
from tilelink import copy_engine, fused, sms
from tilelink.errors import TilelinkError
from tilelink.ir.kernel import OF_EVERY_FILE, OF_EVERY_FUNCTION, PLANNED
from tilelink.ir.schedule import Placement

RANKS = 2
ROLES = (*hostile.MODULE_ROLES, *hostile.SIZE_ROLES, *hostile.LOCAL_ROLES)


def module(path: Path, names: dict[str, str]) -> ModuleType:
    path.write_text(hostile.SOURCE.format(**names))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def plain(**names: str) -> dict[str, str]:
    """Every role under its own name, but for those given."""
    return {**{role: role for role in ROLES}, "language": "tl", **names}


def _allowed(role: str, name: str) -> bool:
    """What is not refused, and means no other thing in the language: tiled sizes begin with a capital."""
    if role in hostile.SIZE_ROLES:
        right = name[0].islower() if role == "s" else name[0].isupper()
        refused = name in ("t", "rank", "RANKS") or _is_symbol(name) or name.endswith(("_begin", "_end"))
        return right and not refused
    if name in hostile.PYTHON:
        return False
    if role in ("GLOBAL", "inner", "helper"):
        return name not in OF_EVERY_FILE | OF_EVERY_FUNCTION and not _is_symbol(name)
    return role in hostile.MODULE_ROLES or name not in ("tl", "RANKS")


def _is_symbol(name: str) -> bool:
    return PLANNED.fullmatch(name) is not None


def assignment(random: Random) -> dict[str, str]:
    """A name of an emitted file for every role, each used once; the roles that take few names choose first."""
    left = random.sample(hostile.NAMES, len(hostile.NAMES))
    names: dict[str, str] = {}
    for role in (*hostile.SIZE_ROLES, "GLOBAL", "inner", "helper", *ROLES):
        if role not in names:
            names[role] = next(n for n in left if _allowed(role, n))
            left.remove(names[role])
    return names


@dataclass(frozen=True)
class Case:
    """Both operators of a module, with the schedules that put most into one function."""

    ag_gemm: tilelink.Operator
    gemm_rs: tilelink.Operator


def case(made: ModuleType, names: dict[str, str], gather: Placement, scatter: Placement, reduce: Placement) -> Case:
    product = {names["M"]: 16, names["N"]: 16, names["K"]: 16}
    return Case(
        getattr(made, names["ag_gemm"]).schedule(
            {names["gather"]: gather, names["matmul"]: sms(order=("ring", "group 2"), **product)}
        ),
        getattr(made, names["gemm_rs"]).schedule(
            {names["scatter"]: scatter, names["matmul"]: sms(order="ring+1", **product), names["reduce"]: reduce}
        ),
    )


def placements(random: Random, names: dict[str, str]) -> tuple[Placement, Placement, Placement]:
    rows, tile = {names["M"]: 16}, {names["M"]: 16, names["N"]: 16}
    into = fused(names["matmul"])
    scatter = random.choice([into, sms(1, **rows), copy_engine(**rows)])
    deferred = fused(
        names["matmul"], deferred=None
    )  # where what moves the tiles takes them from memory, beside the matmul
    return (
        random.choice([sms(1, **rows), sms(1, push=True, own_kernel=True, **rows), copy_engine(**rows)]),
        scatter,
        random.choice([into, deferred, sms(1, **tile)]),
    )


def test_names_of_what_comes_behind_its_host(tmp_path: Path) -> None:
    """Flags and the function that draws work indices are named after the step."""
    names = plain(acc="reduce_work_indices", loaded="reduce_made", helper="reduce_behind", GLOBAL="taken", k="waited")
    moved = copy_engine(M=16)
    made = module(tmp_path / "deferred.py", names)
    assert_right(case(made, names, moved, moved, fused("matmul", deferred=True)))


def test_names_of_what_a_streams_wait_reports(tmp_path: Path) -> None:
    """The kernel by which streams wait takes the numbers of a place and of a flag, where waits have a time limit."""
    names = plain(shard="site", gathered="flag", partial="place")
    made, moved = module(tmp_path / "watched.py", names), copy_engine(M=16)
    assert_right(case(made, names, moved, moved, fused("matmul")), watchdog=60.0)


def assert_right(both: Case, **options: Any) -> None:
    """Both run, and the helper makes each product twice as large."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> list[torch.Tensor]:
        return [torch.randn(*shape, generator=generator) for _ in range(RANKS)]

    x, w = random(20, 24), random(24, 18)
    products = [2 * (torch.cat(x) @ mine) for mine in w]
    assert_solves(both.ag_gemm, [Problem(each(x, w), each(products))], races=False, **options)
    x, w = random(20, 12), random(12, 18)
    total = 2 * torch.stack([a @ b for a, b in zip(x, w, strict=True)]).sum(0)
    assert_solves(both.gemm_rs, [Problem(each(x, w), each(split(total, RANKS)))], races=False, **options)


@pytest.mark.parametrize("seed", range(20))
def test_any_name_runs(seed: int, tmp_path: Path) -> None:
    """Each seed has one of the names for each role: the operators run, and mean what they meant."""
    random = Random(seed)
    names = assignment(random)
    assert_right(case(module(tmp_path / "hostile.py", names), names, *placements(random, names)))


def test_the_names_are_those_of_emitted_files() -> None:
    """Else the list above goes out of date unseen: fixed names are in it."""
    assert {*OF_EVERY_FILE, *OF_EVERY_FUNCTION} - {"triton"} <= set(hostile.NAMES)


def _refused(names: dict[str, str], tmp_path: Path) -> str:
    whole = plain(**names)
    moved = sms(1, **{whole["M"]: 16})
    with pytest.raises(TilelinkError) as caught:
        assert_right(case(module(tmp_path / "refused.py", whole), whole, moved, moved, fused(whole["matmul"])))
    return str(caught.value)


REFUSED: list[tuple[dict[str, str], str]] = [
    ({"acc": "max"}, "TL114: `max` is assigned"),
    ({"rows": "int"}, "TL114: a parameter called `int`"),
    ({"k": "RANKS"}, "TL114: `RANKS` is assigned"),
    ({"helper": "max"}, "TL114: a helper called `max`"),
    ({"GLOBAL": "len"}, "TL114: a constant called `len`"),
    ({"helper": "worker"}, "TL319: a helper called `worker`"),
    ({"inner": "shmem"}, "TL319: a helper called `shmem`"),
    ({"GLOBAL": "i0"}, "TL319: a constant called `i0`"),
    ({"M": "RANKS"}, "TL319: a size called `RANKS`"),
    ({"s": "turned", "N": "T_begin"}, "TL319: a size called `T_begin`"),
]


@table("names, message", REFUSED, ids=lambda v: v if isinstance(v, str) else "")
def test_what_cannot_be_renamed_is_refused(names: dict[str, str], message: str, tmp_path: Path) -> None:
    text = _refused(names, tmp_path)
    assert text.startswith(message)
    assert "refused.py:" in text
    assert "\n  do:  " in text
