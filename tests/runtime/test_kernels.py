"""Emitted text -> module: the cache, and its refusals."""

from __future__ import annotations

import inspect
import os
import py_compile
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import triton
from filelock import FileLock

from tests.selection import table
from tilelink.errors import TilelinkError
from tilelink.ir.kernel import KernelSource
from tilelink.runtime import kernels

TEXT = '''"""Emitted."""

import triton
import triton.language as tl


@triton.jit
def add_one(data, COUNT: tl.constexpr):
    lanes = tl.arange(0, COUNT)
    tl.store(data + lanes, tl.kernels.load(data + lanes) + 1)
'''

LOAD_WHEN_TOLD = """
import sys, time
from pathlib import Path
from tilelink.ir.kernel import KernelSource
from tilelink.runtime import kernels
text, go = Path(sys.argv[1]).read_text(), sys.argv[2]
print("ready", flush=True)
while not Path(go).exists():
    time.sleep(0.001)
module = kernels.load(KernelSource("many", text, (), ()))
print(module.value, module.__file__)
"""


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TILELINK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def plain() -> KernelSource:
    """A fresh one, since modules stay loaded."""
    return fresh("plain", "value = 1\n")


def fresh(name: str, text: str) -> KernelSource:
    return KernelSource(name, f"{text}# {uuid.uuid4()}\n", (), ())


def test_kernels_are_found_by_name_with_their_source(cache: Path) -> None:
    adder = fresh("adder", TEXT)
    module = kernels.load(adder)
    assert isinstance(module.add_one, triton.JITFunction)
    assert module.add_one.arg_names == ["data", "COUNT"]
    assert inspect.getsource(module.add_one.fn).startswith("@triton.jit\ndef add_one(")
    assert module.__file__ == str(cache / f"adder_{adder.digest}.py")
    assert (cache / f"adder_{adder.digest}.py").read_text() == adder.text


def test_one_text_is_one_module() -> None:
    adder = fresh("adder", TEXT)
    assert kernels.load(adder) is kernels.load(replace(adder))
    assert kernels.load(replace(adder, name="other")) is not kernels.load(adder)
    assert kernels.load(replace(adder, text=f"{adder.text}# another\n")) is not kernels.load(adder)


def test_the_cache_is_closed_to_others(cache: Path, plain: KernelSource) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o755)
    module = kernels.load(plain)
    assert cache.stat().st_mode & 0o777 == 0o700
    assert Path(str(module.__file__)).stat().st_mode & 0o777 == 0o600
    assert not list(cache.rglob("*.pyc"))


def test_a_lost_file_is_written_again(plain: KernelSource) -> None:
    path = Path(str(kernels.load(plain).__file__))
    path.unlink()
    forget(f"tilelink_emitted_plain_{plain.digest}")
    assert kernels.load(plain).value == 1
    assert path.read_text() == plain.text


def test_a_changed_file_is_refused(cache: Path, plain: KernelSource) -> None:
    path = Path(str(kernels.load(plain).__file__))
    path.write_text("value = 666\n")
    forget(f"tilelink_emitted_plain_{plain.digest}")
    with pytest.raises(TilelinkError) as caught:
        kernels.load(plain)
    assert str(caught.value) == (
        f"TL407: {path}, a file of the cache, has another text than the one that its name stands for\n"
        "  why: files there are written as a whole, for this user alone, and then left as they are: somebody else was here\n"
        "  do:  look at it, then remove it: it is made again"
    )
    assert f"tilelink_emitted_plain_{plain.digest}" not in sys.modules


def test_a_link_is_refused_not_followed(cache: Path, plain: KernelSource, tmp_path: Path) -> None:
    cache.mkdir(parents=True, mode=0o700)
    elsewhere = tmp_path / "elsewhere.py"
    elsewhere.write_text("value = 1\n")
    (cache / f"plain_{plain.digest}.py").symlink_to(elsewhere)
    with pytest.raises(TilelinkError, match=r"TL407.* is a link"):
        kernels.load(plain)


def test_a_pipe_is_refused_not_waited_for(cache: Path, plain: KernelSource) -> None:
    cache.mkdir(parents=True, mode=0o700)
    os.mkfifo(cache / f"plain_{plain.digest}.py", 0o600)
    with pytest.raises(TilelinkError, match=r"TL407.* is not a file of this user"):
        kernels.load(plain)


def test_a_file_of_another_user_is_refused(cache: Path, plain: KernelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels.load(plain)
    forget(f"tilelink_emitted_plain_{plain.digest}")
    fstat = os.fstat
    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", lambda fd: SimpleNamespace(st_mode=fstat(fd).st_mode, st_uid=os.getuid() + 1))
        with pytest.raises(TilelinkError, match=r"TL407.* is not a file of this user"):
            kernels.load(plain)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_cache_that_others_can_write_is_refused(cache: Path, plain: KernelSource, mode: int) -> None:
    cache.mkdir(parents=True)
    cache.chmod(mode)
    (cache / f"plain_{plain.digest}.py").write_text("value = 1\n")
    with pytest.raises(TilelinkError, match=r"TL402.* can be written by other users"):
        kernels.load(plain)
    assert cache.stat().st_mode & 0o7777 == mode


def test_a_cache_in_a_directory_of_everybody_is_refused(cache: Path, plain: KernelSource) -> None:
    cache.parent.mkdir()
    cache.parent.chmod(0o777)
    with pytest.raises(TilelinkError, match=r"TL402.* can be written by every user"):
        kernels.load(plain)
    cache.parent.chmod(0o1777)  # as /tmp: nobody can take away what is another's
    assert kernels.load(plain).value == 1


def test_stale_bytecode_is_not_run(cache: Path, plain: KernelSource) -> None:
    path = Path(str(kernels.load(plain).__file__))
    forget(f"tilelink_emitted_plain_{plain.digest}")
    path.write_text("value = 2\n")
    py_compile.compile(str(path))
    path.write_text(plain.text)
    os.utime(path, (0, 0))
    assert kernels.load(plain).value == 1


def test_a_module_that_fails_is_not_kept() -> None:
    failing = fresh("plain", "value = 1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        kernels.load(failing)
    assert f"tilelink_emitted_plain_{failing.digest}" not in sys.modules


@table("name", ["../up", ""])
def test_names_stay_in_the_cache(name: str, plain: KernelSource) -> None:
    with pytest.raises(TilelinkError, match="TL401"):
        kernels.load(replace(plain, name=name))


def test_a_cache_of_another_user_is_refused(cache: Path, plain: KernelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir(parents=True)
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    with pytest.raises(TilelinkError, match="TL402"):
        kernels.load(plain)


def test_a_cache_that_is_a_link_is_refused(cache: Path, plain: KernelSource, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    cache.parent.mkdir()
    cache.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TilelinkError, match="TL402"):
        kernels.load(plain)


def test_a_cache_that_cannot_be_written(cache: Path, plain: KernelSource) -> None:
    cache.parent.write_text("a file where the directory should be")
    with pytest.raises(TilelinkError, match="TL403") as caught:
        kernels.load(plain)
    assert "TILELINK_CACHE" in str(caught.value)


def test_four_processes_load_at_once(cache: Path, tmp_path: Path) -> None:
    filler = "".join(f"# line {line}\n" for line in range(20_000))
    text, emitted, go = f"{filler}value = 42\n", tmp_path / "emitted.txt", tmp_path / "go"
    emitted.write_text(text)
    arguments = [sys.executable, "-c", LOAD_WHEN_TOLD, str(emitted), str(go)]
    processes = [subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    go.touch()
    path = cache / f"many_{KernelSource('many', text, (), ()).digest}.py"
    for process in processes:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert output == f"42 {path}\n"
    assert path.read_text() == text
    assert {entry.suffix for entry in cache.iterdir()} <= {".py", ".lock"}


def test_a_held_lock_does_not_stop_readers(cache: Path, plain: KernelSource) -> None:
    kernels.load(plain)
    forget(f"tilelink_emitted_plain_{plain.digest}")
    with FileLock(cache / f"plain_{plain.digest}.lock"):
        begin = time.monotonic()
        assert kernels.load(plain).value == 1
    assert time.monotonic() - begin < 10


def test_more_workers_than_can_be_resident(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "resident_workers", lambda compiled: 132)
    compiled = SimpleNamespace(name="matmul")
    kernels.require_resident(compiled, 132)
    with pytest.raises(TilelinkError) as caught:
        kernels.require_resident(compiled, 133)
    assert str(caught.value) == (
        "TL405: kernel matmul needs 133 workers at once, and this device runs 132\n"
        "  why: a worker that waits for one that has not started waits for ever\n"
        "  do:  ask for fewer SMs, or for smaller tiles, fewer stages or fewer warps"
    )


def forget(module_name: str) -> None:
    """As a new process would: the file stays, the module is gone."""
    del sys.modules[module_name]
