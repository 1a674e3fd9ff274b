"""BART's encoder: equal to torch's layer, positions after two rows, dropout in training alone."""

import torch
from torch import nn

from kata.nn.florence.bart import OFFSET, BartEncoder, BartLayer
from kata.nn.florence.sizes import BartSizes

SIZES = BartSizes(
    width=12, layers=2, heads=3, mlp=20, vocabulary=30, positions=9, pad=1, scales=False,
    activation="gelu", dropout=0.3, attention_dropout=0.1, activation_dropout=0.2, std=0.02,
)  # fmt: skip


def test_a_layer_is_torchs_with_norms_last():
    torch.manual_seed(0)
    own = BartLayer(SIZES).eval()
    other = nn.TransformerEncoderLayer(12, 3, 20, activation="gelu", batch_first=True).eval()
    attention = own.self_attn
    maps = (attention.q_proj, attention.k_proj, attention.v_proj)
    other.load_state_dict(
        {
            "self_attn.in_proj_weight": torch.cat([part.weight for part in maps]),
            "self_attn.in_proj_bias": torch.cat([part.bias for part in maps]),
            "self_attn.out_proj.weight": attention.out_proj.weight,
            "self_attn.out_proj.bias": attention.out_proj.bias,
            "linear1.weight": own.fc1.weight,
            "linear1.bias": own.fc1.bias,
            "linear2.weight": own.fc2.weight,
            "linear2.bias": own.fc2.bias,
            "norm1.weight": own.self_attn_layer_norm.weight,
            "norm1.bias": own.self_attn_layer_norm.bias,
            "norm2.weight": own.final_layer_norm.weight,
            "norm2.bias": own.final_layer_norm.bias,
        }
    )
    x = torch.randn(2, 5, 12)
    torch.testing.assert_close(own(x), other(x))


def test_positions_begin_after_two_rows_and_padding_has_no_gradient():
    torch.manual_seed(0)
    encoder = BartEncoder(SIZES).eval()
    # Weighted, since outputs of a layer norm have a sum that nothing changes.
    weights = torch.arange(float(SIZES.width))
    (encoder(encoder.words(torch.tensor([[5, 6, 1, 1]]))) * weights).sum().backward()
    reached = encoder.embed_positions.weight.grad.abs().amax(1) > 0
    assert reached.nonzero().flatten().tolist() == [OFFSET + i for i in range(4)]
    assert encoder.embed_tokens.weight.grad[1].abs().max() == 0


def test_dropout_is_for_training():
    torch.manual_seed(0)
    encoder, x = BartEncoder(SIZES), torch.randn(1, 4, 12)
    assert not torch.equal(encoder(x), encoder(x))
    encoder.eval()
    assert torch.equal(encoder(x), encoder(x))
