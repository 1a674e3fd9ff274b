"""Masks that are added to scores give the numbers of bool masks."""

import pytest
import torch

from kata.nn.attention import (
    KeysValues,
    attend,
    prefix_then_causal,
    score_bias,
    seen_then_causal,
)


def parts(*, kv_heads: int, dtype=torch.float32, length: int = 11):
    torch.manual_seed(3)
    query = torch.randn(2, 4, 3, 8, dtype=dtype)
    given = KeysValues(*(torch.randn(2, kv_heads, length, 8, dtype=dtype) for _ in range(2)))
    valid = torch.ones(2, length - 3, dtype=torch.bool)
    valid[1, 5:] = False
    return query, given, valid


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bias_gives_the_numbers_of_its_mask(kv_heads, dtype):
    query, given, valid = parts(kv_heads=kv_heads, dtype=dtype)
    mask = seen_then_causal(valid, 3)
    bias = score_bias(mask, dtype, heads=4 if kv_heads == 1 else 1)
    assert torch.equal(attend(query, given, bias), attend(query, given, mask))


def test_a_mask_for_all_queries_serves_any_number_of_heads():
    query, given, valid = parts(kv_heads=1)
    mask = torch.nn.functional.pad(valid, (0, 3), value=True)[:, None, None]
    bias = score_bias(mask, torch.float32, heads=4)
    assert bias.shape == mask.shape
    assert torch.equal(attend(query, given, bias), attend(query, given, mask))


def test_rows_begin_where_the_fused_kernel_wants_them():
    bias = score_bias(torch.ones(2, 1, 3, 11, dtype=torch.bool), torch.float32)
    assert bias.shape == (2, 1, 3, 11)
    assert bias.stride(-1) == 1
    assert [step % 8 for step in bias.stride()[:-1]] == [0, 0, 0]


def test_autocast_decides_the_type():
    mask = torch.ones(1, 1, 2, 5, dtype=torch.bool)
    with torch.autocast("cpu", torch.bfloat16):
        assert score_bias(mask, torch.float32).dtype == torch.bfloat16
    assert score_bias(mask, torch.float32).dtype == torch.float32


def test_a_bias_of_another_type_is_cast():
    query, given, valid = parts(kv_heads=2, dtype=torch.bfloat16)
    mask = seen_then_causal(valid, 3)
    found = attend(query, given, score_bias(mask, torch.float32))
    assert torch.equal(found, attend(query, given, mask))


def test_a_prefix_sees_itself_alone_and_what_follows_sees_all_before_it():
    valid = torch.tensor([[True, True, False]])
    assert prefix_then_causal(valid, 2)[0, 0].int().tolist() == [
        [1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 0, 1, 1],
    ]
