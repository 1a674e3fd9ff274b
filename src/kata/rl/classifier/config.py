"""Options of a reward classifier, with LeRobot's names and files. Torch-free."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from kata.config import DEVICE, Options, decode, encode, option
from kata.errors import CheckpointError, PolicyError
from kata.files import write_json
from kata.policies.rules import Rule, refuse_broken_rules
from kata.spec import Feature, FeatureType, NormMode

KIND = "reward_classifier"
CONFIG = "config.json"
FOR_LEROBOT = {
    "output_features": {},
    "pretrained_path": None,
    "pretrained_revision": None,
    "push_to_hub": False,
    "repo_id": None,
    "license": None,
    "tags": None,
    "private": None,
}
"""Fields of LeRobot's config.json that say nothing here."""


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig(Options):
    """Options of a reward classifier. Impossible values raise PolicyError at once."""

    at: ClassVar[str] = "reward_model."
    refused_with = PolicyError

    input_features: dict[str, Feature] = option(
        dict, "Cameras by key, {key: {type: VISUAL, shape: [3, H, W]}}; empty takes all."
    )
    device: str | None = option(None, "Device; null takes the best one here.", form=DEVICE)
    name: str = option(KIND, "LeRobot's name of this kind.", choices=(KIND,))
    num_classes: int = option(2, "Classes: failure and success.", least=2, most=2)
    hidden_dim: int = option(256, "Width of the classifying layers.", least=1)
    latent_dim: int = option(256, "Width of each encoded camera.", least=1)
    image_embedding_pooling_dim: int = option(
        8, "Weighted sums over each channel of the feature map.", least=1
    )
    dropout_rate: float = option(0.1, "Share of numbers that dropout zeroes.", least=0, below=1)
    model_name: str | None = option(
        None,
        "Folder of a pretrained ResNet in the format of transformers (config.json, "
        "model.safetensors); null begins with a small one of random weights.",
        is_common=True,
    )
    model_type: str = option("cnn", "Kind of the encoder.", choices=("cnn",))
    num_cameras: int = option(2, "Cameras; training sets it to those that are read.", least=1)
    learning_rate: float = option(1e-4, "Learning rate.", above=0, is_common=True)
    weight_decay: float = option(0.01, "Weight decay of AdamW.", least=0)
    grad_clip_norm: float = option(1.0, "Largest norm of the gradient.", above=0)
    normalization_mapping: dict[str, NormMode] = option(
        lambda: {FeatureType.VISUAL.value: NormMode.MEAN_STD},
        "Normalization by kind of feature, such as {VISUAL: MEAN_STD}.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_broken_rules(self._option_rules())

    def _option_rules(self) -> Iterator[Rule]:
        for key, feature in self.input_features.items():
            yield (
                feature.type is not FeatureType.VISUAL,
                f"reward_model.input_features: {key} of the type {feature.type.value}",
                "a reward classifier reads cameras alone",
                "leave it out",
            )

    def with_cameras(self, cameras: Mapping[str, Feature]) -> ClassifierConfig:
        """Return the config for these cameras."""
        return replace(self, input_features=dict(cameras), num_cameras=len(cameras))

    def with_encoder(self, folder: str) -> ClassifierConfig:
        """Return the config with the folder of its encoder, in which LeRobot looks for it."""
        return replace(self, model_name=folder)

    def save(self, folder: Path) -> None:
        """Write config.json as LeRobot reads it."""
        write_json(folder / CONFIG, {"type": KIND, **encode(self), **FOR_LEROBOT})


def read_classifier_config(folder: Path) -> ClassifierConfig:
    """Return the config of a classifier's folder, LeRobot's or kata's.

    Raises:
        CheckpointError: there is none, or it is of something else.
        PolicyError: kata does not have what it asks for.
    """
    path = folder / CONFIG
    try:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        kind = raw.pop("type")
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise _no_classifier(path, f"cannot be read ({error})") from error
    if kind != KIND:
        raise _no_classifier(path, f"of the type {kind}")
    known = {name: value for name, value in raw.items() if name not in FOR_LEROBOT}
    return decode(ClassifierConfig, known)


def _no_classifier(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"{path}: {what}",
        rule="the folder of a reward classifier",
        remedy="kata rl classify --dataset.root=<recordings> --output_dir=<folder>",
    )
