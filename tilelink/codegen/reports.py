"""What emitted kernels look after beside their work: the places that can make a report, by number."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilelink.errors import Loc
from tilelink.ir.kernel import Checks, Site


@dataclass(slots=True)
class Reports:
    """The sites of one emitted file, in the order in which they are met."""

    checks: Checks = field(default_factory=Checks)
    sites: list[Site] = field(default_factory=list[Site])

    def number(self, site: Site) -> int:
        if site not in self.sites:
            self.sites.append(site)
        return self.sites.index(site)

    def described(self) -> list[str]:
        """The head of an emitted file says what the numbers mean."""
        if not self.sites:
            return []
        rows = ["", "Reports (`watch_at`) name these places by number:", ""]
        return [*rows, *(f"    {n}  {_text(site)}" for n, site in enumerate(self.sites))]


_WORDS = {
    "channel": "{path} waits for {of}",
    "words": "{path} waits for the words of {of}",
    "ready": "{path} waits until {of} is staged",
    "entered": "{path} waits until the peers have entered the call",
    "left": "{path} waits until the peers have left the call",
    "made": "{of} waits for a tile of {path}",
    "below": "{path}: {of} in range",
    "holds": "{path}: {of}",
}


def _text(site: Site) -> str:
    said = _WORDS[site.kind].format(path=site.path, of=site.of)
    return f"{said} ({short(site.loc)})" if site.loc is not None else said


def short(loc: Loc) -> str:
    """File and line, without the folder."""
    return f"{loc.file.rsplit('/', 1)[-1]}:{loc.line}"
