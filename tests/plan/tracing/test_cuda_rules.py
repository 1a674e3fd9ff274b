"""Attention takes the kernel that CUDA would take."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kata.plan.tracing.cuda_rules import cuda_rules
from kata.plan.tracing.recorder import StepRecorder


@pytest.mark.parametrize(
    ("dtype", "key_heads", "grouped", "kernel"),
    [
        (torch.float32, 4, False, "_scaled_dot_product_efficient_attention"),
        (torch.float32, 4, True, "_scaled_dot_product_efficient_attention"),
        (torch.float32, 2, True, "bmm"),
        (torch.bfloat16, 4, False, "_scaled_dot_product_flash_attention"),
    ],
)
def test_grouped_queries_matter_where_heads_share_keys(dtype, key_heads, grouped, kernel):
    with cuda_rules(), FakeTensorMode():
        query = torch.zeros(2, 4, 6, 8, dtype=dtype)
        key = torch.zeros(2, key_heads, 6, 8, dtype=dtype)
        with StepRecorder({}) as recorder:
            recorder.enter_phase("forward")
            torch.nn.functional.scaled_dot_product_attention(query, key, key, enable_gqa=grouped)
    assert kernel in [operation.name for operation in recorder.recording.operations]
