"""Graphs that a test has compiled are not there for the next one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def compilers_start_afresh() -> Iterator[None]:
    yield
    torch._dynamo.reset()
