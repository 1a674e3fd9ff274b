from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision.models import resnet18

from kata.errors import PolicyError
from kata.policies import build_policy
from kata.policies.act.blocks import MultiHeadAttention, map_sinusoid
from kata.policies.act.config import Config
from kata.policies.act.model import Policy
from kata.spec import Feature, FeatureType

STATE = Feature(FeatureType.STATE, (5,))
CAMERA = Feature(FeatureType.VISUAL, (3, 32, 32))
SMALL: dict[str, Any] = {
    "dim_model": 16,
    "dim_feedforward": 24,
    "n_heads": 2,
    "chunk_size": 6,
    "n_action_steps": 3,
    "n_encoder_layers": 1,
    "n_vae_encoder_layers": 1,
    "latent_dim": 4,
    "dropout": 0.0,
    "pretrained_backbone_weights": None,
}


def small(inputs: dict[str, Feature] | None = None, **options: Any) -> Policy:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if inputs is None:
        inputs = {
            "observation.state": STATE,
            "observation.environment_state": Feature(FeatureType.ENV, (4,)),
        }
    outputs = {"action": Feature(FeatureType.ACTION, (2,))}
    return Policy(Config(input_features=inputs, output_features=outputs, **{**SMALL, **options}))


def batch_of(policy: Policy, size: int, seed: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {key: feature.shape for key, feature in policy.config.input_features.items()}
    shapes["action"] = (6, 2)
    batch = {key: torch.randn(size, *shape, generator=generator) for key, shape in shapes.items()}
    batch["action_is_pad"] = torch.arange(6)[None] >= torch.randint(
        1, 7, (size, 1), generator=generator
    )
    return batch


def test_default_size_has_the_published_number_of_parameters() -> None:
    inputs = {
        "observation.state": Feature(FeatureType.STATE, (14,)),
        "observation.images.top": Feature(FeatureType.VISUAL, (3, 480, 640)),
    }
    outputs = {"action": Feature(FeatureType.ACTION, (14,))}
    with torch.device("meta"):
        policy = build_policy(Config(input_features=inputs, output_features=outputs))
    assert sum(p.numel() for p in policy.parameters() if p.requires_grad) == 51_613_582
    assert len(policy.state_dict()) == 234
    groups = {group.name: sum(p.numel() for p in group.params) for group in policy.param_groups()}
    assert groups == {"main": 51_613_582 - 11_166_912, "backbone": 11_166_912}


def test_attention_equals_torchs() -> None:
    config = small().model.config
    own, torchs = MultiHeadAttention(config), torch.nn.MultiheadAttention(16, 2, batch_first=True)
    torch.nn.init.normal_(own.in_proj_bias)
    torchs.load_state_dict(own.state_dict())
    query, key, value = torch.randn(2, 5, 16), torch.randn(2, 7, 16), torch.randn(2, 7, 16)
    allowed = torch.arange(7)[None] < torch.tensor([[7], [4]])
    expected = torchs(query, key, value, key_padding_mask=~allowed, need_weights=False)[0]
    torch.testing.assert_close(own(query, key, value, allowed), expected)
    expected = torchs(query, query, query, need_weights=False)[0]
    torch.testing.assert_close(own(query, None, query), expected)


def test_dropout_falls_on_attention_too() -> None:
    attention = MultiHeadAttention(small(dropout=0.5).model.config)
    x = torch.randn(1, 8, 16)
    assert not torch.equal(attention(x, None, x), attention(x, None, x))
    attention.eval()
    assert torch.equal(attention(x, None, x), attention(x, None, x))


def test_map_positions_put_rows_before_columns() -> None:
    table = map_sinusoid(2, 3, 8, torch.device("cpu")).unflatten(0, (2, 3))
    assert table.shape == (2, 3, 8)
    assert torch.equal(table[0, 0, :4], table[0, 2, :4])
    assert torch.equal(table[0, 1, 4:], table[1, 1, 4:])
    torch.testing.assert_close(
        table[1, 2, 0::4], torch.sin(torch.tensor([2 * torch.pi] * 2)), atol=1e-5, rtol=0
    )


def test_sums_of_micro_batches_make_the_sum_of_the_batch() -> None:
    policy = small()
    batch, noise = batch_of(policy, 4), torch.randn(4, 4)
    whole = policy(batch, noise=noise).terms
    halves = [
        policy({k: v[part] for k, v in batch.items()}, noise=noise[part]).terms
        for part in (slice(0, 1), slice(1, 4))
    ]
    for name, term in whole.items():
        torch.testing.assert_close(halves[0][name].total + halves[1][name].total, term.total)


def test_padded_actions_change_neither_loss_nor_latent() -> None:
    policy = small()
    batch = batch_of(policy, 4)
    noise = torch.randn(4, 4)
    changed = {**batch, "action": batch["action"] + 100 * batch["action_is_pad"][..., None]}
    first, second = policy(batch, noise=noise).terms, policy(changed, noise=noise).terms
    for name in first:
        torch.testing.assert_close(first[name].total, second[name].total)


def test_a_batch_without_a_mask_is_unpadded() -> None:
    policy = small()
    batch, noise = batch_of(policy, 2), torch.randn(2, 4)
    batch["action_is_pad"] = torch.zeros(2, 6, dtype=torch.bool)
    masked = policy(batch, noise=noise).terms
    del batch["action_is_pad"]
    for name, term in policy(batch, noise=noise).terms.items():
        torch.testing.assert_close(term.total, masked[name].total)


def test_noise_left_out_is_drawn_from_torchs_generator() -> None:
    policy, batch = small(), batch_of(small(), 2)
    torch.manual_seed(3)
    drawn = policy(batch).terms["l1_loss"].total
    torch.manual_seed(3)
    given = policy(batch, noise=torch.randn(2, 4)).terms["l1_loss"].total
    assert torch.equal(drawn, given)


def test_eval_mode_has_no_kl_and_ignores_noise() -> None:
    policy = small(dropout=0.5).eval()
    batch = batch_of(policy, 2)
    first, second = (policy(batch, noise=torch.randn(2, 4)).terms for _ in range(2))
    assert set(first) == {"l1_loss"}
    assert torch.equal(first["l1_loss"].total, second["l1_loss"].total)


def test_policies_without_a_state_train_and_act() -> None:
    policy = small({"observation.images.top": CAMERA})
    batch = batch_of(policy, 2)
    sum(term.total for term in policy(batch).terms.values()).backward()
    assert all(p.grad is not None for p in policy.parameters())
    assert policy.predict_chunk(batch).shape == (2, 6, 2)


def test_every_trainable_parameter_has_a_gradient_and_one_group() -> None:
    policy = small(
        {"observation.state": STATE, "observation.images.top": CAMERA}, optimizer_lr_backbone=7e-6
    )
    sum(term.total for term in policy(batch_of(policy, 2)).terms.values()).backward()
    grouped = [p for group in policy.param_groups() for p in group.params]
    assert {id(p) for p in grouped} == {id(p) for p in policy.parameters() if p.grad is not None}
    assert len(grouped) == len(set(map(id, grouped))) == len(list(policy.parameters()))
    assert [group.lr for group in policy.param_groups()] == [None, 7e-6]


def test_shard_units_are_called() -> None:
    policy, called = small(), list[int]()
    for number, unit in enumerate(policy.shard_units()):
        unit.register_forward_hook(lambda *_, number=number: called.append(number))
    policy(batch_of(policy, 2))
    assert sorted(called) == list(range(len(policy.shard_units())))


def test_queue_gives_the_chunks_first_actions_then_predicts_anew() -> None:
    policy = small()
    batches = [batch_of(policy, 2, seed) for seed in range(4)]
    state, actions = policy.init_state(2), []
    for batch in batches:
        action, state = policy.act(batch, state)
        actions.append(action)
    expected = [
        *policy.predict_chunk(batches[0])[:, :3].unbind(1),
        policy.predict_chunk(batches[3])[:, 0],
    ]
    assert all(torch.equal(a, b) for a, b in zip(actions, expected, strict=True))


@pytest.mark.parametrize("coeff", [0.0, 0.3, -0.2])
def test_ensemble_is_the_weighted_mean_of_all_predictions_of_a_step(coeff: float) -> None:
    policy = small(temporal_ensemble_coeff=coeff, n_action_steps=1)
    batches = [batch_of(policy, 2, seed) for seed in range(15)]
    chunks = [policy.predict_chunk(batch) for batch in batches]
    state = policy.init_state(2)
    for now, batch in enumerate(batches):
        action, state = policy.act(batch, state)
        made = range(
            max(0, now - 5), now + 1
        )  # the calls whose chunk of 6 reaches this step, oldest first
        weights = torch.exp(-coeff * torch.arange(len(made)))
        predictions = torch.stack([chunks[call][:, now - call] for call in made])
        expected = (weights[:, None, None] * predictions).sum(0) / weights.sum()
        torch.testing.assert_close(action, expected)


def test_rollouts_share_no_state() -> None:
    policy = small(temporal_ensemble_coeff=0.1, n_action_steps=1)
    batch = batch_of(policy, 2)
    alone, _ = policy.act(batch, policy.init_state(2))
    _, other = policy.act(batch_of(policy, 2, seed=9), policy.init_state(2))
    policy.act(batch, other)
    assert torch.equal(policy.act(batch, policy.init_state(2))[0], alone)


def test_acting_uses_no_dropout_and_leaves_training_mode_alone() -> None:
    policy = small(dropout=0.5)
    batch = batch_of(policy, 2)
    assert torch.equal(policy.predict_chunk(batch), policy.predict_chunk(batch))
    assert all(module.training for module in policy.modules())


def test_frames_of_another_size_work_after_inference() -> None:
    policy = small({"observation.state": STATE, "observation.images.top": CAMERA})
    batch = batch_of(policy, 2)
    with torch.inference_mode():
        policy.predict_chunk(batch)
    policy(batch).terms["l1_loss"].total.backward()
    batch["observation.images.top"] = torch.randn(2, 3, 64, 96)
    policy(batch).terms["l1_loss"].total.backward()


def test_imagenet_weights_come_from_torch_hubs_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    (tmp_path / "hub/checkpoints").mkdir(parents=True)
    cached = resnet18().state_dict()
    torch.save(cached, tmp_path / "hub/checkpoints/resnet18-f37072fd.pth")
    inputs = {"observation.images.top": CAMERA}
    policy = small(inputs, pretrained_backbone_weights="ResNet18_Weights.IMAGENET1K_V1")
    own = policy.model.backbone.state_dict()
    assert own.keys() == {n for n in cached if not n.startswith("fc.") and "num_batches" not in n}
    assert all(torch.equal(own[name], cached[name]) for name in own)


def test_absent_imagenet_weights_are_refused_with_the_place_and_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("torch.hub.download_url_to_file", _offline)
    inputs = {"observation.images.top": CAMERA}
    name = "ResNet18_Weights.IMAGENET1K_V1"
    with pytest.raises(PolicyError) as caught:
        small(inputs, pretrained_backbone_weights=name)
    assert name in caught.value.what
    assert f"resnet18-f37072fd.pth in {tmp_path}/hub/checkpoints" in caught.value.rule
    assert "--policy.pretrained_backbone_weights=null" in caught.value.remedy
    config = dataclasses.replace(small(inputs).model.config, pretrained_backbone_weights=name)
    Policy(config.without_downloads())


def _offline(*_: object, **__: object) -> None:
    raise OSError("no network")


def test_bfloat16_activations_stay_bfloat16_in_the_backbone() -> None:
    policy = small({"observation.images.top": CAMERA})
    with torch.autocast("cpu", torch.bfloat16):
        assert policy.model.backbone(torch.randn(1, 3, 32, 32)).dtype == torch.bfloat16
        loss = policy(batch_of(policy, 2)).terms
    assert all(term.total.dtype == torch.float32 for term in loss.values())


def test_features_that_do_not_suit_are_refused_when_building() -> None:
    config = dataclasses.replace(small().model.config, input_features={"observation.state": STATE})
    with pytest.raises(PolicyError, match="at least one camera"):
        Policy(config)


def test_an_observation_is_needed_only_where_the_queue_is_empty() -> None:
    policy = small(n_action_steps=2).eval()
    batch = batch_of(policy, 2)
    state = policy.init_state(2)
    assert policy.needs_observation(state)
    first, state = policy.act(batch, state)
    assert not policy.needs_observation(state)
    second, state = policy.act({}, state)
    assert policy.needs_observation(state)
    assert torch.equal(torch.stack((first, second), 1), policy.predict_chunk(batch)[:, :2])
