"""Everything that is compiled here lies in a cache of its own, for as long as the tests run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An interpreted fence must not hide behind a cached kernel. 3.9 warns about a default of its own."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        environment.setenv("TRITON_DEFAULT_FP_FUSION", "1")
        yield
