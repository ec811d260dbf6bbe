"""The process environment, as typed functions."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.selection import table
from tilelink.errors import TilelinkError
from tilelink.runtime import environment


def test_no_launcher_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert environment.local_rank() is None


def test_rank_as_torchrun_sets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert environment.local_rank() == 1
    monkeypatch.delenv("LOCAL_RANK")
    assert environment.local_rank() == 0


def test_a_rank_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(TilelinkError, match="TL400: RANK is 'first'"):
        environment.local_rank()


def test_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILELINK_BACKEND", raising=False)
    assert environment.backend() is None
    monkeypatch.setenv("TILELINK_BACKEND", "")
    assert environment.backend() is None
    monkeypatch.setenv("TILELINK_BACKEND", "nvshmem")
    assert environment.backend() == "nvshmem"


def test_unknown_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILELINK_BACKEND", "moon")
    with pytest.raises(TilelinkError) as caught:
        environment.backend()
    assert str(caught.value) == (
        "TL400: TILELINK_BACKEND is 'moon', which is no backend\n"
        "  why: operators run in one of four backends\n"
        "  do:  set it to one of simulated, peer, nvshmem, gloo, or unset it"
    )


def test_cache_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILELINK_CACHE", raising=False)
    assert environment.cache_root() is None
    monkeypatch.setenv("TILELINK_CACHE", "~/emitted")
    assert environment.cache_root() == Path.home() / "emitted"


@table("name, asked", [("TILELINK_DEBUG", environment.debug), ("TILELINK_SHARE_GPUS", environment.share_gpus)])
@table("value, on", [(None, False), ("", False), ("0", False), ("1", True), ("yes", True)])
def test_what_is_on_or_off(
    monkeypatch: pytest.MonkeyPatch, name: str, asked: Callable[[], bool], value: str | None, on: bool
) -> None:
    monkeypatch.delenv(name, raising=False)
    if value is not None:
        monkeypatch.setenv(name, value)
    assert asked() is on


def test_symmetric_memory_of_ranks_on_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", "0")
    environment.allow_shared_gpus()
    assert os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] == "1"


def test_multicast_is_off_whatever_the_user_set(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS", "NCCL_NVLS_ENABLE")
    for name in names:
        monkeypatch.setenv(name, "2")
    environment.disable_multicast()
    assert [os.environ[name] for name in names] == ["1", "1", "0"]
