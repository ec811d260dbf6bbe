"""Everything that is compiled here lies in a cache of its own, for as long as the tests run; all their processes share it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.compiled.compiling import unlinked


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An interpreted fence must not hide behind a cached kernel. 3.9 warns about a default of its own."""
    session = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        session = session.parent
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TRITON_CACHE_DIR", str(session / "triton"))
        environment.setenv("TRITON_DEFAULT_FP_FUSION", "1")
        yield


@pytest.fixture
def _unlinked(monkeypatch: pytest.MonkeyPatch) -> None:
    unlinked(monkeypatch)
