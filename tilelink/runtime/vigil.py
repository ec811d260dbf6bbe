"""What a session does about hangs and, in debug mode, about calls that do not fit together: before and after each call.

Off, it does nothing. See `runtime.guard` for what kernels report, `runtime.peer.watcher` for what happens meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilelink.errors import TilelinkError
from tilelink.ir.kernel import Checks
from tilelink.runtime.agreeing import Stated, compare_meetings, compare_stated
from tilelink.runtime.guard import Guard
from tilelink.runtime.refusals import reported
from tilelink.runtime.world import Watcher, World

_AFRESH = "starts afresh"
_CALLS = "calls an operator"
AGREED_KEPT = 16384
"""Kinds of calls that ranks remember to have agreed on. All forget them in the same call, since all agree on the same ones."""


class Vigil:
    """One rank's part.

    Args:
        world: whose ranks call together.
        watchdog: seconds that a wait of a kernel may take; None: for ever.
        debug: whether calls are compared between the ranks, checked on the device, and waited for.
        bells: gives the words that streams of this rank wait for.
        forget: collective; drops all memory that calls have left in some state.
        unprepare: drops what is kept for calls of known kinds.
    """

    def __init__(
        self,
        world: World,
        watchdog: float | None,
        debug: bool,
        bells: Callable[[], list[torch.Tensor]],
        forget: Callable[[], None],
        unprepare: Callable[[], None],
    ) -> None:
        self.watchdog = watchdog
        self.debug = debug
        self.guard = Guard(world, watchdog) if watchdog is not None or debug else None
        self._world = world
        self._forget = forget
        self._unprepare = unprepare
        self._agreed: set[object] = set()
        self._watcher: Watcher | None = None
        if self.guard is not None and watchdog is not None:
            self._watcher = world.watch_over(self.guard, bells)

    @property
    def checks(self) -> Checks:
        """What kernels look after beside their work."""
        return Checks(self.watchdog is not None, self.debug)

    def stop(self) -> None:
        """Watch no longer."""
        if self._watcher is not None:
            self._watcher.stop()

    def begin(self) -> None:
        """Before a call: raise what was found in an earlier one. Once that has been raised, start afresh: collective.

        Raises:
            TilelinkError: those of `Guard.check` and `Guard.require_all`.
        """
        if self.guard is None or self.guard.calm:
            return
        self.guard.check()
        self.guard.require_all()
        if self.guard.failed:
            self._start_afresh(self.guard)

    def compare(self, operator: object, call: Stated | TilelinkError) -> None:
        """All ranks make the same call: looked at before the first of its kind, and in debug mode before each.

        A kind is what all ranks state alike, so all of them meet here or none does. What only one rank may have, such as
        the alignment of its arguments, makes no other kind.

        Args:
            operator: whose call it is.
            call: which, or why this rank cannot make it: only in debug mode the others hear of that.

        Raises:
            TilelinkError: TL452, TL459 they do not, TL471 another rank cannot; `call` itself.
        """
        if isinstance(call, TilelinkError):
            if self.debug and not self._world.capturing():
                self.agree(_CALLS, call.message)
            raise call
        kind = operator, call.shared
        if kind in self._agreed and (not self.debug or self._world.capturing()):
            return
        said = self.agree(_CALLS, call)
        wrong = next((rank for rank, each in enumerate(said) if not isinstance(each, Stated)), None)
        if wrong is not None:
            raise reported(wrong, said[wrong])
        compare_stated(said)
        if len(self._agreed) >= AGREED_KEPT:
            # What is kept differs from rank to rank, and no rank may come here without the others.
            self._unprepare()
            self._agreed.clear()
        self._agreed.add(kind)

    def end(self) -> None:
        """After a call: raise what has been found by now; in debug mode wait for the call, so that it raises its own.

        Raises:
            TilelinkError: those of `Guard.check`, in debug mode on every rank.
        """
        if self.guard is None:
            return
        if not self.debug or self._world.capturing():
            if not self.guard.calm:
                self.guard.check()
            return
        self._world.drain()
        found = self.guard.error()
        said = self.agree("has made its call", None if found is None else (found.code, found.message))
        wrong = next((rank for rank, each in enumerate(said) if each is not None), None)
        if wrong is None:
            return
        error = reported(wrong, said[wrong][1])
        if all(each is None or each[0] == "TL473" for each in said):
            # Every kernel has run to its end and every rank knows: nothing has to be undone.
            self.guard.reset()
            raise found or error
        self.guard.stop(error)
        self.guard.check()

    def check(self) -> None:
        """Raise what has been found by now.

        Raises:
            TilelinkError: those of `Guard.check`.
        """
        if self.guard is not None:
            self.guard.check()

    def agree(self, what: str, value: Any) -> list[Any]:
        """`world.agree`, where some rank may start afresh meanwhile.

        Args:
            what: the rank does, as others are to hear of it.
            value: of this rank.

        Raises:
            TilelinkError: TL471, it does; TL452, it does something else.
        """
        said = self._world.agree((what, value))
        does = [_does(each) for each in said]
        failed = next((rank for rank, each in enumerate(does) if each == _AFRESH), None)
        if self.guard is not None and failed is not None:
            self.guard.stop(reported(failed, said[failed][1]))
            self.guard.check()
        compare_meetings(does)
        return [each for _, each in said]

    def _start_afresh(self, guard: Guard) -> None:
        """Collective, after an error that every rank has seen: words and slots are as before the first call."""
        error = guard.error()
        mine = _AFRESH, error.message if error is not None else ""
        # A rank that was about to allocate learns of the error by this, and comes again.
        while not all(_does(said) == _AFRESH for said in self._world.agree(mine)):
            pass
        if self._watcher is not None:
            self._watcher.reset()
        self._world.barrier()
        self._forget()
        guard.reset()


def _does(said: Any) -> str:
    """What a rank says that it does; the user's own programs may meet in other ways."""
    known = isinstance(said, tuple) and len(said) == 2 and isinstance(said[0], str)  # pyright: ignore[reportUnknownArgumentType]
    return said[0] if known else "does something else"  # pyright: ignore[reportUnknownVariableType]
