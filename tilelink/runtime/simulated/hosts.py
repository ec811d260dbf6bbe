"""A rank's own program: a thread that runs only while the scheduler waits for it.

Workers and streams are greenlets of the scheduler's thread. A rank's program is the user's code, and torch keeps much of
what that does by thread: whether gradients are wanted, autocast, hooks on saved tensors, what autograd is in the middle of
(its engine runs the backward pass in the thread that asks for it), what `torch.compile` is about. On GPUs ranks are processes
and share none of it, so here they are threads.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from threading import Lock, Thread
from types import FrameType

import torch
from greenlet import GreenletExit


class Host:
    """Like a greenlet whose parent is the scheduler, in a thread of its own. Never do two threads run at once."""

    def __init__(self, body: Callable[[], None]) -> None:
        self.dead = False
        self._body = body
        self._thread = Thread(target=self._run, daemon=True)
        self._turn, self._back = Lock(), Lock()
        self._turn.acquire()
        self._back.acquire()
        self._running = False
        self._ending = False
        self._error: BaseException | None = None
        # What torch hands on to threads of its own.
        self._modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    @property
    def gr_frame(self) -> FrameType | None:
        """Where it has given way."""
        return None if self.dead or self._thread.ident is None else sys._current_frames().get(self._thread.ident)

    def switch(self) -> None:
        """Called by the scheduler: go on until it gives way or ends. An exception that ends it comes out here."""
        self._running = True
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._turn.release()
        self._await()

    def give_way(self) -> None:
        """Called in its own thread.

        Raises:
            GreenletExit: the run is over.
        """
        self._back.release()
        self._turn.acquire()
        if self._ending:
            raise GreenletExit

    def throw(self, kind: type[BaseException]) -> None:
        """Called by the scheduler: end it where it has given way, or where it is if the scheduler was interrupted."""
        assert kind is GreenletExit
        if self._thread.ident is None:
            self.dead = True
        if self.dead:
            return
        self._ending = True
        if self._running:
            # The scheduler was interrupted (Ctrl-C, a test's time limit) while this thread had its turn.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident or 0), ctypes.py_object(kind))
            self._await()
        if not self.dead:
            self.switch()

    def _await(self) -> None:
        self._back.acquire()
        self._running = False
        if self.dead:
            self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self) -> None:
        gradients, inference = self._modes
        with _HandedOver(self._end), torch.inference_mode(inference), torch.set_grad_enabled(gradients):
            self._body()

    def _end(self, error: BaseException | None) -> None:
        self._error = None if isinstance(error, GreenletExit) else error
        self.dead = True
        self._back.release()


class _HandedOver:
    """Gives what ends a block, if anything does, to somebody else who raises it."""

    def __init__(self, to: Callable[[BaseException | None], None]) -> None:
        self._to = to

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        self._to(error)
        return True
