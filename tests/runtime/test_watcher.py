"""The thread beside a rank, with processes that really die and a store that is really asked, but no GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.runtime.guards import Bench, reporting
from tilelink.device.watch import STOP
from tilelink.errors import TilelinkError
from tilelink.runtime.watchdog import STATUS, Process, ended, this_process

ROOT = Path(__file__).parents[2]


def test_a_report_is_told_and_heard() -> None:
    bench = Bench(2)
    reporting(bench.guards[0])
    for watcher in bench.watchers:
        watcher.look()
    assert "rank 0 gave up waiting" in str(bench.guards[0].error())
    heard = bench.guards[1].error()
    assert heard is not None
    assert heard.code == "TL471"
    assert heard.message.startswith("rank 0 reports: rank 0 gave up waiting")


def test_kernels_of_a_rank_that_hears_of_an_error_end_and_streams_are_released() -> None:
    bench = Bench(2)
    reporting(bench.guards[0])
    for watcher in bench.watchers * 2:
        watcher.look()
    assert [int(g.memory[STOP.value]) for g in bench.guards] == [0, 1]
    assert min(bench.released) >= 1


def test_a_program_that_takes_the_error_lives() -> None:
    bench = Bench(1, seconds=0.05)
    reporting(bench.guards[0])
    bench.watchers[0].look()
    with pytest.raises(TilelinkError, match="TL470"):
        bench.guards[0].check()
    bench.guards[0].check()  # once
    bench.watchers[0].patience = 0.0
    for _ in range(3):
        bench.watchers[0].look()
    assert bench.left == []


def test_a_program_that_does_not_is_ended() -> None:
    bench = Bench(1)
    bench.watchers[0].patience = 0.05
    reporting(bench.guards[0])
    bench.watchers[0].look()
    assert bench.left == []
    time.sleep(0.06)
    bench.watchers[0].look()
    assert bench.left == [STATUS]


def test_starting_afresh_forgets_what_was_told() -> None:
    bench = Bench(2)
    reporting(bench.guards[0])
    for _ in range(2):
        for watcher in bench.watchers:
            watcher.look()
    for guard in bench.guards:
        with pytest.raises(TilelinkError):
            guard.check()
    for watcher in bench.watchers:
        watcher.reset()
    for guard in bench.guards:
        guard.reset()
    for watcher in bench.watchers:
        watcher.look()
    assert [g.failed for g in bench.guards] == [False, False]
    reporting(bench.guards[1])
    for watcher in reversed(bench.watchers):
        watcher.look()
    assert bench.guards[0].failed


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=-1)


def known(child: subprocess.Popen[bytes]) -> Process:
    me = this_process()
    started = Path(f"/proc/{child.pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    return Process(me.space, child.pid, started)


def test_processes() -> None:
    child = sleeper()
    process = known(child)
    assert ended(this_process()) is False
    assert ended(process) is False
    assert ended(Process(process.space, process.pid, "1")) is True  # another one with its number
    assert ended(Process("elsewhere", process.pid, process.started)) is None
    child.kill()
    time.sleep(0.1)
    assert ended(process) is True  # nobody has waited for it yet
    child.wait()
    assert ended(process) is True


@pytest.mark.parametrize("said", [False, True])
def test_a_rank_that_has_ended(said: bool) -> None:
    """Without a flag nobody can go on; one that has left by itself is only missed by the next call."""
    bench = Bench(2)
    bench.watchers[0].patience = 0.01
    child = sleeper()
    bench.watchers[0].peers[1] = known(child)
    bench.watchers[0].look()
    assert not bench.guards[0].failed
    if said:
        bench.board.set("tilelink/watchdog/left/1", "")
    child.kill()
    child.wait()
    bench.watchers[0].look()
    assert bench.guards[0].failed is not said
    found = bench.guards[0].missing if said else bench.guards[0].error()
    assert str(found).startswith(f"TL472: rank 1 (process {child.pid}) has ended")
    assert ("without a word" in str(found)) is not said
    time.sleep(0.02)
    bench.watchers[0].look()
    assert set(bench.left) == (set() if said else {STATUS})


def test_without_a_board_nobody_is_ended_for_a_missing_rank() -> None:
    """Whoever kept the store may have left by itself."""
    bench = Bench(2)
    child = sleeper()
    bench.watchers[0].peers[1] = known(child)
    bench.watchers[0].board = None
    child.kill()
    child.wait()
    bench.watchers[0].look()
    assert not bench.guards[0].failed
    assert "TL472" in str(bench.guards[0].missing)


RANKS = """
    import os, sys, time
    import torch.distributed as dist
    from tests.runtime.guards import StandIn
    from tilelink.runtime.watchdog import Guard
    from tilelink.runtime.watchdog import this_process
    from tilelink.runtime.watchdog import StoreWatcher

    # What the ranks import takes longer than what they do: they are forked, and this process says how each has ended.
    children = list[int]()
    for rank in range(3):
        child = os.fork()
        if not child:
            break
        children.append(child)
    else:
        for child in children:
            print(child, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        sys.exit()
    os.dup2(os.open(str(rank), os.O_WRONLY | os.O_CREAT), 2)
    store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=3)
    everybody = [None] * 3
    dist.all_gather_object(everybody, this_process())
    guard = Guard(StandIn(rank, 3), 1.0)
    others = {r: p for r, p in enumerate(everybody) if r != rank}
    StoreWatcher(guard, 3, others, dist.PrefixStore("watch", store.clone()), lambda: None).start()
    print("ready", rank, os.getpid(), flush=True)
    for _ in range(300):
        time.sleep(0.1)
        if rank == 0:  # the others never ask
            guard.check()
"""


def test_a_killed_rank_takes_the_others_with_it(tmp_path: Path) -> None:
    """Three processes; one is killed. The others end with a message: by the error, or by their watchers."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # pyright: ignore[reportPrivateImportUsage]
    command = [sys.executable, "-c", textwrap.dedent(RANKS), str(store.port)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ranks = subprocess.Popen(command, stdout=-1, text=True, env=env, cwd=tmp_path, start_new_session=True)
    try:
        assert ranks.stdout is not None
        ready = [ranks.stdout.readline().split() for _ in range(3)]
        assert [(word, rank) for word, rank, _ in sorted(ready)] == [("ready", str(rank)) for rank in range(3)]
        pids = [int(pid) for _, _, pid in sorted(ready)]
        began = time.monotonic()
        os.kill(pids[1], signal.SIGKILL)
        ended, _ = ranks.communicate(timeout=20)
        assert time.monotonic() - began < 15
        assert ended == "".join(f"{pid} {s}\n" for pid, s in zip(pids, (STATUS, -signal.SIGKILL, STATUS), strict=True))
        for rank in (0, 2):
            said = (tmp_path / str(rank)).read_text()
            assert f"TL472: rank 1 (process {pids[1]}) has ended without a word" in said
    finally:
        with suppress(ProcessLookupError):
            os.killpg(ranks.pid, signal.SIGKILL)
