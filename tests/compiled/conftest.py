"""Everything that is compiled here lies in a cache of its own, for as long as the tests run; all their processes share it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from triton import knobs


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
    """Compilation ends with PTX: a name that nothing defines is the linker's affair."""

    def stop_before_assembling(*args: Any) -> tuple[str, str] | None:
        if not args:
            return "unlinked", "unlinked"
        args[1]["cubin"] = lambda source, metadata: b""
        return None

    monkeypatch.setattr(knobs.runtime, "add_stages_inspection_hook", stop_before_assembling)
