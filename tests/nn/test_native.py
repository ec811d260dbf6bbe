"""Compiled steps of autograd, where they cannot be compiled: `style_ranks.py` has them where they can."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from tilelink.nn import native


def test_without_a_compiler_steps_run_in_python(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TILELINK_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\necho no headers >&2\nexit 1\n")
    broken.chmod(0o700)
    monkeypatch.setattr(logging.getLogger("tilelink"), "propagate", True)
    for compiler, said in (("/nowhere/c++", "there is no /nowhere/c++"), (str(broken), "no headers")):
        monkeypatch.setenv("CXX", compiler)
        assert native.steps.__wrapped__() is None
        assert said in caplog.text
