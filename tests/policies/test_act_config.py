from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from kata.config import decode, encode
from kata.errors import PolicyError
from kata.policies import config_class
from kata.policies.act.config import Config
from kata.policies.config import PolicyConfig
from kata.spec import Draw, Feature, FeatureType, NormMode

STATE = Feature(FeatureType.STATE, (5,))
CAMERA = Feature(FeatureType.VISUAL, (3, 64, 64))
ACTION = Feature(FeatureType.ACTION, (3,))


def config(inputs: dict[str, Feature] | None = None, **options: Any) -> Config:
    if inputs is None:
        inputs = {"observation.state": STATE, "observation.images.top": CAMERA}
    return Config(input_features=inputs, output_features={"action": ACTION}, **options)


def test_defaults_are_lerobots() -> None:
    made = Config()
    assert (made.chunk_size, made.n_action_steps, made.dim_model, made.dim_feedforward) == (
        100,
        100,
        512,
        3200,
    )
    assert (made.n_encoder_layers, made.n_decoder_layers, made.n_vae_encoder_layers) == (4, 1, 4)
    assert (made.kl_weight, made.dropout, made.latent_dim) == (10.0, 0.1, 32)
    assert made.pretrained_backbone_weights == "ResNet18_Weights.IMAGENET1K_V1"
    assert made.normalization_mapping == dict.fromkeys(
        ("VISUAL", "STATE", "ACTION"), NormMode.MEAN_STD
    )


def test_type_finds_the_config_and_the_config_its_type() -> None:
    assert config_class("act") is Config
    assert Config().type == "act"


def test_window_is_the_chunk_and_observations_have_none() -> None:
    assert config(chunk_size=3, n_action_steps=1).windows() == {"action": (0, 1, 2)}


def test_noise_is_drawn_for_the_vae_alone() -> None:
    assert config(latent_dim=7).draws() == {"noise": Draw("normal", (7,))}
    assert config(use_vae=False).draws() == {}


def test_loss_weights_count_unpadded_numbers_and_samples() -> None:
    pad = np.array([[False, False, False], [False, True, True]])
    made = config(chunk_size=3, n_action_steps=1)
    assert made.loss_weights(2, {"action_is_pad": pad}) == {"l1_loss": 4 * 3.0, "kld_loss": 2.0}
    assert made.loss_weights(2, {}) == {"l1_loss": 6 * 3.0, "kld_loss": 2.0}


def test_loss_weights_of_a_split_add_up() -> None:
    pad = np.random.default_rng(0).random((8, 100)) < 0.3
    whole = config().loss_weights(8, {"action_is_pad": pad})
    parts = [config().loss_weights(4, {"action_is_pad": half}) for half in (pad[:4], pad[4:])]
    assert whole == {name: parts[0][name] + parts[1][name] for name in whole}


def test_without_vae_there_is_no_kl_to_weigh() -> None:
    assert set(config(use_vae=False).loss_weights(2, {})) == {"l1_loss"}


def test_preset_is_adamw_with_the_rates_of_the_fields() -> None:
    preset = config(optimizer_lr=3e-5, optimizer_weight_decay=0.5).optimizer_preset()
    assert (preset.type, preset.lr, preset.weight_decay, preset.grad_clip_norm) == (
        "adamw",
        3e-5,
        0.5,
        10.0,
    )
    assert config().scheduler_preset() is None


@pytest.mark.parametrize(
    ("options", "value", "remedy"),
    [
        ({"n_obs_steps": 2}, "n_obs_steps=2", "leave out"),
        ({"chunk_size": 50}, "n_action_steps=100", "n_action_steps=50"),
        ({"temporal_ensemble_coeff": 0.01}, "n_action_steps=100", "n_action_steps=1"),
        ({"temporal_ensemble_coeff": float("nan"), "n_action_steps": 1}, "coeff=nan", "=1"),
        ({"vision_backbone": "resnet81"}, "resnet81", "did you mean"),
        ({"vision_backbone": "resnet50"}, "ResNet18_Weights", "ResNet50_Weights.IMAGENET1K_V1"),
        ({"pretrained_backbone_weights": "ResNet18_Weights.V7"}, "V7", "IMAGENET1K_V1"),
        ({"replace_final_stride_with_dilation": True}, "resnet18", "resnet50"),
        ({"n_heads": 7}, "n_heads=7", "dim_model"),
        ({"dim_model": 0}, "dim_model=0", "=512"),
        ({"n_decoder_layers": -1}, "n_decoder_layers=-1", "=1"),
        ({"dropout": 1.0}, "dropout=1.0", "0.1"),
        ({"feedforward_activation": "glu"}, "activation=glu", "gelu"),
        ({"kl_weight": float("inf")}, "kl_weight=inf", "10"),
    ],
)
def test_impossible_options_are_refused_with_value_rule_and_remedy(
    options: dict[str, Any], value: str, remedy: str
) -> None:
    with pytest.raises(PolicyError) as caught:
        Config(**options)
    assert value in caught.value.what
    assert caught.value.rule
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("inputs", "value"),
    [
        ({"observation.state": STATE}, "observation.state"),
        ({}, "none"),
        ({"observation.images.depth": Feature(FeatureType.VISUAL, (1, 64, 64))}, "(1, 64, 64)"),
        ({"observation.environment_state": Feature(FeatureType.ENV, (2, 3))}, "(2, 3)"),
    ],
)
def test_inputs_that_act_cannot_use_are_refused(inputs: dict[str, Feature], value: str) -> None:
    with pytest.raises(PolicyError) as caught:
        config(inputs).validate_features()
    assert value in caught.value.what
    assert caught.value.remedy


def test_a_dataset_without_actions_is_refused() -> None:
    with pytest.raises(PolicyError, match="'action' is a vector"):
        Config(input_features={"observation.images.top": CAMERA}).validate_features()


def test_the_width_must_suit_the_cameras_positions() -> None:
    with pytest.raises(PolicyError, match="dim_model=8"):
        config(dim_model=6, n_heads=2).validate_features()


@pytest.mark.parametrize("value", [0, 1, False, True])
def test_dilation_is_read_as_number_or_truth_value_and_written_back(value: int) -> None:
    raw = {"type": "act", "vision_backbone": "resnet50", "pretrained_backbone_weights": None}
    read = decode(PolicyConfig, {**raw, "replace_final_stride_with_dilation": value})
    assert encode(read)["replace_final_stride_with_dilation"] == value


def test_config_imports_no_torch() -> None:
    code = "import sys, kata.policies.act.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
