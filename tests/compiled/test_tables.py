"""Positions and limits from tables of 64 bits compile where TMA takes coordinates of 32."""

from __future__ import annotations

import pytest
import torch

from tests.compiled.checking import emitted
from tests.compiled.compiling import texts
from tests.operators.test_positions import by_tables
from tilelink import sms


@pytest.mark.each_triton
def test_coordinates_have_32_bits() -> None:
    tensors = [torch.empty(4, 64, 128, dtype=torch.bfloat16), torch.empty(2, 128, 64, dtype=torch.bfloat16)]
    tables = [torch.empty(4, dtype=torch.int64) for _ in range(2)]
    plan, source = emitted(by_tables.schedule(chosen=sms(M=64, N=64, K=64)), [*tensors, *tables], "sm_90")
    (kernel,) = source.kernels
    assert "async_tma_copy_global_to_local" in texts(plan, source, kernel, "sm_90")["ttgir"]
