"""What a validation found."""

from __future__ import annotations

from dataclasses import dataclass

from tilelink.errors import Loc, Note, TilelinkError


@dataclass(frozen=True, slots=True)
class Difference:
    """Between the emitted file and its plan. `line`: of the emitted file, 0 where no line is; `text`: what stands there; `loc`:
    the user's line. `does`: what the file does; `says`: what the plan says."""

    does: str
    says: str
    where: str
    line: int = 0
    text: str = ""
    loc: Loc | None = None

    def __str__(self) -> str:
        place = f"emitted line {self.line}: {self.text.strip()}\n  " if self.line else ""
        return f"{self.where}\n  {place}the file {self.does}\n  the plan says: {self.says}"


@dataclass(frozen=True, slots=True)
class Validation:
    """Whether an emitted file does what its lowered plan says, on simulated ranks, at some sizes.

    Attributes:
        name: of the operator.
        calls: how many were made, one after the other.
        compared: how often each kind of event of the file was found in the plan: tiles, awaits, signals, elements read and
            written, drains and fences.
        elided: by name, how often the file leaves out what the plan says, or does several things at once; each was checked.
        differences: all that were found; empty where the file does what the plan says.
        opaque: the user's line of a program with raw pointers: then nothing was compared.
    """

    name: str
    calls: int
    compared: tuple[tuple[str, int], ...] = ()
    elided: tuple[tuple[str, int], ...] = ()
    differences: tuple[Difference, ...] = ()
    opaque: Loc | None = None

    @property
    def ok(self) -> bool:
        """Whether everything was compared and nothing differs."""
        return not self.differences and self.opaque is None

    @property
    def error(self) -> TilelinkError | None:
        """The first difference as a diagnostic: TL615; of raw pointers TL616. None: there is none."""
        if self.opaque is not None:
            return TilelinkError(
                "TL616",
                f"the emitted file of `{self.name}` cannot be compared with its plan",
                loc=self.opaque,
                why="a program with raw pointers may touch any memory, and its plan does not say which",
                hint="use tiles, or rely on tests on simulated ranks, whose race detector sees raw accesses too",
            )
        if not self.differences:
            return None
        found = self.differences[0]
        notes = [Note(f"the plan says: {found.says}"), Note(f"seen on {found.where}")]
        if found.line:
            notes.append(Note(f"emitted line {found.line}: {found.text.strip()}"))
        if len(self.differences) > 1:
            notes.append(Note(f"{len(self.differences) - 1} more differences"))
        return TilelinkError(
            "TL615",
            f"the emitted file of `{self.name}` {found.does}",
            loc=found.loc,
            why="what was proved is the plan, and the file does something else: this is a defect of tilelink",
            hint="report it with the operator, its sizes and its schedule",
            notes=tuple(notes),
        )

    def __str__(self) -> str:
        if self.opaque is not None:
            return f"{self.name}: not compared, a program has raw pointers ({self.opaque})"
        done = ", ".join(f"{count:,} {what}" for what, count in self.compared)
        left = "".join(f"\n  {count:,} × {what}" for what, count in self.elided)
        said = "does what its plan says" if self.ok else f"differs from its plan in {len(self.differences)} places"
        shown = "".join(f"\n{d}" for d in self.differences[:5])
        return f"{self.name}: the emitted file {said}, in {self.calls} calls\n  compared: {done}{left}{shown}"
