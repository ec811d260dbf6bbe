"""When a wait with a time limit looks where: the memory of the host is across PCIe."""

import pytest
import torch

from tests.selection import table
from tests.simulated import emitted_watch
from tilelink.device import watch
from tilelink.errors import TilelinkError
from tilelink.ir.schedule import KernelOptions
from tilelink.runtime.simulated import SimulatedBackend, simulate

LIMIT = 6400


def look(
    waited: int, asked: int, *, stop: bool = False, alarm: bool = False, host: bool = True
) -> tuple[int, int, int]:
    """Before the look the alarm, after it when the host was asked last, and the alarm; `host`: its memory is there."""

    def main(backend: SimulatedBackend) -> tuple[int, int, int]:
        report = backend.shared_words(watch.WORDS, on_host=True)
        guard = backend.shared_words(watch.GUARD, on_host=False)
        given = backend.zeros(2, torch.int64)
        report[watch.STOP.value] = int(stop)
        guard.copy_(torch.tensor([LIMIT, int(alarm), 0, report.data_ptr() if host else 0]))
        given.copy_(torch.tensor([0, guard.data_ptr()]))
        args = {"watch": given, "times": torch.tensor([waited, asked]), "out": torch.full((2,), -1)}
        backend.main_stream().launch(emitted_watch.look, 1, args, KernelOptions(1, 1))
        backend.finish()
        before, last = args["out"].tolist()
        return before, last, int(guard[watch.ALARM.value])

    return simulate(main, 1)[0]


@table("waited, asked", [(0, 0), (99, 0), (199, 100), (6350, 6300)])
def test_between_two_questions_the_host_is_left_alone(waited: int, asked: int) -> None:
    """A 64th of the limit, 100 ns, has to pass between them; the address 0 would be a wild access."""
    assert look(waited, asked, host=False) == (0, asked, 0)
    assert look(waited, asked, stop=True) == (0, asked, 0)


@table("waited, asked", [(100, 0), (200, 100), (6400, 6300)])
def test_then_it_is_asked(waited: int, asked: int) -> None:
    assert look(waited, asked) == (0, waited, 0)
    assert look(waited, asked, stop=True) == (0, waited, 1)
    with pytest.raises(TilelinkError, match="TL50"):
        look(waited, asked, host=False)


def test_the_limit_and_the_alarm_need_no_host() -> None:
    assert look(6401, 6400, host=False) == (0, 6400, 1)
    assert look(50, 0, alarm=True, host=False) == (1, 0, 1)
