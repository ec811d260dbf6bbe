"""A case: an operator on concrete sizes, ranks and a dtype, with inputs and what they must give."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from inspect import Parameter
from typing import TYPE_CHECKING, Any, TypeAlias

from tilelink.cost import Machine
from tilelink.errors import Loc, TilelinkError
from tilelink.frontend import sizes_of
from tilelink.ir import formula as F
from tilelink.ir.plan import Plan
from tilelink.ir.schedule import LENGTH
from tilelink.ir.shape import RANK_AXIS, Axis, Contract, Dim, Shape, Size, evaluated
from tilelink.ir.topology import RankAxis, Topology, env_of
from tilelink.ir.verdict import Verdict
from tilelink.ir.wiring import Wiring
from tilelink.mapping.judge import judge
from tilelink.pipeline.arguments import Bound, bind_shapes, keywords_of
from tilelink.pipeline.compiled import Compiled, planned, unproven, wired
from tilelink.pipeline.operator import Operator
from tilelink.runtime.grid import grid_of
from tilelink.tuning.comparison import TOLERANCE

if TYPE_CHECKING:
    import torch

    from tilelink.validation import Validation


SHAPE_OPTION = "--shape"
RANKS_OPTION = "--ranks"
MOST_RANKS = 1024
"""That commands plan for."""


def parse_sizes(text: str, names: Sequence[str] = "MNK") -> tuple[tuple[str, int], ...]:
    """Global sizes from `512x1024x256`, which is M, N and K, or from `M=512,N=1024,T=8`.

    Args:
        text: as a user writes it.
        names: of the sizes that are wanted, for the hint.

    Raises:
        TilelinkError: TL702.
    """
    hint = _written(names)
    if re.fullmatch(r"\d+x\d+x\d+", text):
        found = tuple(zip("MNK", map(int, text.split("x")), strict=True))
    elif re.fullmatch(r"[A-Za-z]\w*=\d+(,[A-Za-z]\w*=\d+)*", text):
        found = tuple((name, int(size)) for name, size in (part.split("=") for part in text.split(",")))
    else:
        why = "sizes are global: those of all ranks together"
        raise unread("TL702", "a shape that does not read", SHAPE_OPTION, text, hint, why)
    for name, size in found:
        if size > LENGTH:
            why = f"the longest axis has {LENGTH:,} elements"
            raise unread("TL702", f"`{name}` is too large", SHAPE_OPTION, text, hint, why)
    twice = {name for name, _ in found if [n for n, _ in found].count(name) > 1}
    if twice:
        raise unread("TL702", f"`{min(twice)}` has two sizes", SHAPE_OPTION, text, "give each name once")
    return found


def unread(code: str, what: str, option: str, text: str, hint: str, why: str | None = None) -> TilelinkError:
    """Of the text of an option."""
    return TilelinkError(code, what, loc=Loc(option, 1, 0, text=text), why=why, hint=hint)


def _written(names: Sequence[str]) -> str:
    """How a shape of such sizes is written."""
    named = ",".join(f"{n}={64 if n[0].isupper() else 4}" for n in names)
    return f"write sizes by name, as {named}" + (", or MxNxK, as 64x64x64" if {*names} == {*"MNK"} else "")


Ranks: TypeAlias = "int | tuple[tuple[str, int], ...]"
"""How many ranks there are, or how many lie along each axis, the outermost first."""


def parse_ranks(text: str) -> Ranks:
    """A number of ranks, `4`, or how many along each axis, `NODE=2,GPU=2`.

    Raises:
        TilelinkError: TL713, it is neither; TL457, these are no axes.
    """
    if any(int(number) > MOST_RANKS for number in re.findall(r"\d+", text)):
        why = "a proof looks at all ranks, and takes minutes for thousands of them"
        hint = f"ask for at most {MOST_RANKS:,}"
        raise unread("TL713", "more ranks than can be planned for", RANKS_OPTION, text, hint, why)
    if re.fullmatch(r"[1-9]\d*", text):
        return int(text)
    pairs = re.findall(r"(\w+)=(\d+)", text)
    if not re.fullmatch(r"\w+=\d+(,\w+=\d+)*", text) or len(dict(pairs)) < len(pairs):
        hint = "write how many there are, as 4, or how many along each axis, as NODE=2,GPU=2"
        raise unread("TL713", "ranks that do not read", RANKS_OPTION, text, hint)
    return grid_of({name: int(size) for name, size in pairs}).axes


def ranks_text(ranks: Ranks) -> str:
    """What `parse_ranks` reads back."""
    return str(ranks) if isinstance(ranks, int) else ",".join(f"{name}={size}" for name, size in ranks)


def topology_of(ranks: Ranks) -> Topology:
    """So many simulated ranks."""
    if isinstance(ranks, int):
        return Topology(ranks)
    return Topology(math.prod(n for _, n in ranks), axes=tuple(RankAxis(name, n) for name, n in ranks))


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """`operator` with global `sizes` of its signature, and its constants, on `ranks`. Constants that are whole numbers and
    have a default may be among them, and those that are true or false, as 1 or 0.

    Inputs are normally distributed and depend on nothing but `seed`, input and rank; the first input of rank r is
    scaled by r + 1, so that a tile of the wrong rank is seen. Tables have any values that keep their contract; one that
    is not split is the same on every rank.

    Raises:
        TilelinkError: TL704, a size is missing or is no size of the operator, or its ranks have other axes; TL705, not a
            dtype of a case.
    """

    operator: Operator
    sizes: tuple[tuple[str, int], ...]
    ranks: Ranks
    dtype: str = "bf16"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in TOLERANCE:
            raise TilelinkError(
                "TL705",
                f"`{self.dtype}` is no dtype to run an operator in",
                why="inputs are made up from random real numbers",
                hint=f"use one of {', '.join(TOLERANCE)}",
            )
        own = self.operator.signature.axes
        if own not in ((RANK_AXIS,), tuple(a.name for a in self.topology.axes)):
            raise TilelinkError(
                "TL704",
                f"the ranks of `{self.operator.name}` lie along {' and '.join(own)}",
                loc=self.operator.loc,
                why=f"this asks for {self._said_ranks}",
                hint=f"say how many lie along each: {RANKS_OPTION} {','.join(f'{axis}=2' for axis in own)}",
            )
        wanted = names_of(self.operator)
        given = [name for name, _ in self.sizes]
        missing = [n for n in wanted if n not in given]
        # M, N and K come together from MxNxK, whatever the operator has of them.
        strange = [n for n in given if n not in wanted and n not in "MNK" and n not in self._named]
        if missing or strange:
            what = f"the size of `{missing[0]}` is missing" if missing else f"there is no size `{strange[0]}`"
            raise TilelinkError(
                "TL704",
                what,
                loc=self.operator.loc,
                why=f"the signature of `{self.operator.name}` is `{self.operator.signature}`",
                hint=f"give sizes by name: --shape {','.join(f'{n}=…' for n in wanted)}",
            )

    def __str__(self) -> str:
        sizes = " ".join(f"{n}={v}" for n, v in self.sizes if n in names_of(self.operator))
        return f"{sizes}, {self.dtype}, {self._said_ranks}"

    @property
    def _said_ranks(self) -> str:
        count, along = self.topology.ranks, "" if isinstance(self.ranks, int) else f" along {ranks_text(self.ranks)}"
        return f"{count} rank{'' if count == 1 else 's'}{along}"

    @property
    def topology(self) -> Topology:
        """Simulated ranks along the axes."""
        return topology_of(self.ranks)

    def topology_on(self, machine: Machine) -> Topology:
        """As many GPUs of a machine."""
        return replace(self.topology, backend="peer", device=machine.device())

    @property
    def _along(self) -> tuple[str, ...]:
        """The axes of ranks of the operator."""
        return self.operator.signature.axes

    # ---------------------------------------------------------------------------------------------------------- inputs
    @property
    def given(self) -> dict[str, Any]:
        """Sizes that shards leave open, and constants, by name: to be passed by keyword."""
        axes = [a for s in self.operator.signature.inputs for a in s.axes]
        split = {a.name for a in axes if a.split in self._along and not a.own_slice}
        return {n: v for n, v in self.sizes if n in split} | self._constants

    @property
    def _constants(self) -> dict[str, int]:
        usual = keywords_of(self.operator)
        return {n: bool(v) if type(usual[n]) is bool else v for n, v in self.sizes if n in self._named}

    @property
    def _named(self) -> list[str]:
        """Constants that may stand among the sizes."""
        usual = keywords_of(self.operator)
        return [n for n, value in usual.items() if value is Parameter.empty or type(value) in (int, bool)]

    def local_shape(self, shape: Shape, rank: int) -> tuple[int, ...]:
        """Elements per axis that rank `rank` holds of a tensor of the signature."""
        return tuple(len(self._held(a, rank)) for a in shape.axes if not a.own_slice)

    def arguments(self, rank: int, device: str = "cpu") -> list[torch.Tensor]:
        """One rank's inputs, on `device`.

        Raises:
            TilelinkError: TL706, an input is a table without a contract, whose values a case cannot make up.
        """
        return [self._argument(k, rank, device) for k in range(len(self.operator.signature.inputs))]

    def compiled(self, topology: Topology) -> Compiled:
        """Plan, verdict and source, made from shapes alone."""
        return self.operator.compiled(self.bound(topology))

    def unproven(self, topology: Topology) -> Plan:
        """The plan, whatever the proof would say of it."""
        return unproven(self.operator, self.bound(topology))

    def verdict(self, topology: Topology) -> Verdict:
        """Of the plan, whichever it is."""
        return judge(planned(self.operator, self.bound(topology)))

    def validation(self, topology: Topology) -> Validation:
        """Of the emitted file, on simulated ranks that are like those of the plan."""
        from tilelink.validation import validate

        made, ranks = self.compiled(topology), range(topology.ranks)
        arguments = [self.arguments(rank) for rank in ranks]
        return validate(self.operator.name, made.lowered, [made.on(rank) for rank in ranks], arguments)

    def bound(self, topology: Topology) -> Bound:
        """Sizes, dtypes and layouts of a call."""
        shapes = [self.local_shape(s, 0) for s in self.operator.signature.inputs]
        return bind_shapes(self.operator, shapes, self._dtypes, self.given, topology)

    @property
    def _dtypes(self) -> list[str]:
        """Of the inputs."""
        return [s.dtype or self.dtype for s in self.operator.signature.inputs]

    def _argument(self, k: int, rank: int, device: str) -> torch.Tensor:
        import torch

        from tilelink.explore.contents import table
        from tilelink.runtime.memory import DTYPES

        shape = self.operator.signature.inputs[k]
        local = self.local_shape(shape, rank)
        dtype = DTYPES[self._dtypes[k]]
        if shape.contract is None and not dtype.is_floating_point:
            raise TilelinkError(
                "TL706",
                f"input {k + 1} of `{self.operator.name}` is a table: `{shape}`",
                loc=self.operator.loc,
                why="nothing says which numbers may stand in it",
                hint="give it a contract (`offsets`, `permutation`, `<e`), or run the operator from Python, with your own tables",
            )
        if shape.contract is not None and not any(a.split in self._along for a in shape.axes):
            rank = 0
        generator = torch.Generator(device).manual_seed((self.seed * 64 + k) * 4096 + rank)
        if shape.contract is not None:
            return table(shape.contract, local, self._most(k, shape.contract), generator).to(dtype)
        values = torch.randn(local, generator=generator, device=device, dtype=torch.float32)
        return (values * (rank + 1 if k == 0 else 1)).to(dtype)

    def _most(self, k: int, contract: Contract) -> int:
        """What the values of input `k` stay below, or where its offsets end: with the axis that they split, or if that is
        said of none with the first one."""
        if contract.of is not None:
            return self.size(contract.of)
        wiring = self.wiring()
        split = [a.size for t in wiring.tensors for a in t.axes if a.split == wiring.arguments[k]]
        if not split:
            return self.size(self.operator.signature.inputs[0].axes[0].size)
        return int(F.evaluate(split[0], env_of(dict(self.sizes), self.topology, 0)))

    def wiring(self) -> Wiring:
        """Tensors and steps, made from sizes alone."""
        return wired(self.operator, self.bound(self.topology))

    def _held(self, axis: Axis, rank: int) -> range:
        size = self.size(axis.size)
        if axis.split not in self._along:
            return range(size)
        part, at = max(1, -(-size // self.topology.size(axis.split))), self.topology.at(rank, axis.split)
        return range(min(size, at * part), min(size, (at + 1) * part))

    def size(self, size: Size) -> int:
        """Of all ranks together."""
        return evaluated(size, lambda dim: self._of(dim.name))

    def _of(self, name: str) -> int:
        return self.topology.size(name) if name in self._along else dict(self.sizes)[name]

    # ------------------------------------------------------------------------------------------------------ the expected
    @property
    def tolerance(self) -> float:
        return TOLERANCE[self.dtype]

    @property
    def contraction(self) -> str | None:
        """The product that the signature states, as `torch.einsum` has it; None when it is no product of two tensors."""
        signature = self.operator.signature
        if len(signature.inputs) != 2 or len(signature.outputs) != 1:
            return None
        if any(s.rest is not None or s.contract is not None for s in signature.shapes):
            return None
        axes = [a for s in signature.shapes for a in s.axes]
        known = (None, *self._along)
        if any(not isinstance(a.size, Dim) or a.name in known or a.split not in known for a in axes):
            return None
        names = list(dict.fromkeys(a.name for a in axes))
        letters = {n: chr(ord("a") + i) for i, n in enumerate(names)}
        left, right, out = ("".join(letters[a.name] for a in s.axes) for s in signature.shapes)
        return f"{left},{right}->{out}" if set(out) <= set(left + right) else None

    def expected(self, rank: int, device: str = "cpu") -> torch.Tensor:
        """What rank `rank` must get: the signature's product of the global inputs, in fp32 by torch."""
        import torch

        equation = self.contraction
        assert equation is not None, "to be asked for first"
        whole = [self._whole(k, rank, device) for k in range(2)]
        result = torch.einsum(equation, whole[0], whole[1])
        for a, axis in enumerate(self.operator.signature.outputs[0].axes):
            held = self._held(axis, rank)
            result = result.narrow(a, held.start, len(held))
        return result

    def _whole(self, k: int, rank: int, device: str) -> torch.Tensor:
        """An input with the parts of the ranks along the axes that split it; along others, the rank's own."""
        import torch

        axes = self.operator.signature.inputs[k].axes
        split = [(a, axis.split) for a, axis in enumerate(axes) if axis.split in self._along]

        def joined(rank: int, left: list[tuple[int, str]]) -> torch.Tensor:
            if not left:
                return self._argument(k, rank, device).float()
            (a, over), *rest = left
            return torch.cat([joined(peer, rest) for peer in self.topology.line(rank, over)], a)

        return joined(rank, split)


def constants_of(operator: Operator) -> list[str]:
    """The constants that a call has to name."""
    return [name for name, default in keywords_of(operator).items() if default is Parameter.empty]


def numbers_of(operator: Operator) -> dict[str, int]:
    """The constants that a call may name and that are whole numbers, as `splits`, and what they are otherwise."""
    return {name: default for name, default in keywords_of(operator).items() if type(default) is int}


def names_of(operator: Operator) -> list[str]:
    """The sizes that an operator's inputs have, in the order in which they appear, and its constants."""
    return [*sizes_of(operator.signature), *constants_of(operator)]
