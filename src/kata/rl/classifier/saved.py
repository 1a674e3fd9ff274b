"""A reward classifier with its processors: made, saved, loaded, and asked for success.

<folder>/config.json, model.safetensors, classifier_preprocessor.*    as LeRobot has them
<folder>/encoder/                                                     the ResNet for transformers
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kata.errors import CheckpointError, PolicyError
from kata.policies.device import choose_device
from kata.processors import frames_to_float
from kata.processors.pipeline import Pipeline, load_pipeline
from kata.processors.steps import Normalize, ToDevice
from kata.processors.tensors import read_tensors, write_tensors
from kata.rl.classifier.config import ClassifierConfig, read_classifier_config
from kata.rl.classifier.encoder import ResNet, ResNetShape, fill_resnet, save_resnet
from kata.rl.classifier.model import Classifier
from kata.rl.episodes.episode import Schema
from kata.spec import IMAGENET_MEAN, IMAGENET_STD

MODEL = "model.safetensors"
ENCODER = "encoder"
PREPROCESSOR = "classifier_preprocessor"


@dataclass(frozen=True)
class RewardClassifier:
    """A classifier between its files and its answers. Training and acting prepare frames alike.

    Attributes:
        config: of the model.
        shape: of its encoder.
        model: the network.
        before: normalizes frames.
    """

    config: ClassifierConfig
    shape: ResNetShape
    model: Classifier
    before: Pipeline

    def logits(self, frames: Mapping[str, Tensor]) -> Tensor:
        """Return logits (B,) of success.

        Args:
            frames: uint8 (B, H, W, 3) by camera.
        """
        return self.model(self.before(frames_to_float(dict(frames), self.config.input_features)))

    @torch.no_grad()
    def probability(self, seen: Mapping[str, NDArray[Any]]) -> float:
        """Return the probability of success of one observation; cameras uint8 (H, W, 3)."""
        frames = {
            key: torch.from_numpy(np.ascontiguousarray(seen[key][None]))
            for key in self.config.input_features
        }
        return float(self.logits(frames).sigmoid())

    def save(self, folder: Path) -> None:
        """Write the files of a classifier into an existing folder."""
        save_resnet(self.model.encoder, self.shape, folder / ENCODER)
        config = self.config.with_encoder(str((folder / ENCODER).resolve()))
        config.save(folder)
        self.before.save(folder)
        write_tensors(folder / MODEL, self.model.state_dict())


def new_classifier(config: ClassifierConfig, seed: int) -> RewardClassifier:
    """Return a classifier with new weights, and those of its pretrained encoder if it has one.

    Raises:
        KataError: the encoder's folder cannot be read.
    """
    device = choose_device(config.device)
    torch.manual_seed(seed)
    shape = ResNetShape()
    if config.model_name is not None:
        shape = ResNetShape.read(Path(config.model_name).expanduser())
    encoder = ResNet(shape)
    if config.model_name is not None:
        fill_resnet(encoder, Path(config.model_name).expanduser())
    stats = {
        key: {"mean": np.array(IMAGENET_MEAN), "std": np.array(IMAGENET_STD)}
        for key in config.input_features
    }
    modes = dict(config.normalization_mapping)
    normalize = Normalize.from_stats(dict(config.input_features), modes, stats)
    before = Pipeline(PREPROCESSOR, (normalize, ToDevice(str(device))))
    return RewardClassifier(config, shape, Classifier(config, encoder).to(device), before)


def load_classifier(folder: Path, device: str | None = None) -> RewardClassifier:
    """Return a classifier of kata or of LeRobot, ready to be asked.

    Raises:
        CheckpointError: a file is absent, damaged, or of something else.
        PolicyError: the encoder is none that kata has.
    """
    config = read_classifier_config(folder)
    beside = folder / ENCODER
    named = beside if beside.is_dir() else Path(config.model_name or str(beside)).expanduser()
    shape = ResNetShape.read(named)
    found = read_tensors(folder / MODEL)
    place = choose_device(device)
    model = Classifier(config, ResNet(shape))
    own = model.state_dict()
    odd = [k for k, mine in own.items() if k not in found or found[k].shape != mine.shape]
    if odd or found.keys() - own.keys():
        which = odd[0] if odd else sorted(found.keys() - own.keys())[0]
        raise CheckpointError(
            f"{folder / MODEL}: {which} is absent, unknown or of another shape",
            rule=f"{len(own)} tensors, which follow from config.json and the encoder's",
            remedy="name the folder that LeRobot or kata wrote, as a whole",
        )
    model.load_state_dict(found)
    before = load_pipeline(folder, PREPROCESSOR, {ToDevice.registry_name: {"device": str(place)}})
    return RewardClassifier(config, shape, model.to(place).eval(), before)


def classifier_digest(folder: Path) -> str:
    """Return the hash of a classifier's weights."""
    try:
        return hashlib.sha256((folder / MODEL).read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise CheckpointError(
            f"{folder / MODEL}: cannot be read ({error})",
            rule="the folder of a reward classifier",
            remedy="kata rl classify --dataset.root=<recordings> --output_dir=<folder>",
        ) from error


@dataclass(frozen=True)
class SuccessJudge:
    """Tells success from pictures.

    Attributes:
        classifier: that looks.
        threshold: probability above which it is success.
    """

    classifier: RewardClassifier
    threshold: float

    def __call__(self, seen: Mapping[str, NDArray[Any]]) -> bool:
        """Return True if an observation shows success."""
        return self.classifier.probability(seen) > self.threshold


def open_judge(
    folder: str | None, threshold: float, schema: Schema, device: str | None
) -> SuccessJudge | None:
    """Return who tells success in a run, or None where no classifier does.

    Args:
        folder: of the classifier.
        threshold: see `SuccessJudge`.
        schema: of the run's episodes.
        device: of the run.

    Raises:
        CheckpointError: the folder holds no classifier.
        PolicyError: the run lacks a camera of it, or has it in another size.
    """
    if folder is None:
        return None
    classifier = load_classifier(Path(folder).expanduser(), device)
    for key, feature in classifier.config.input_features.items():
        channels, height, width = feature.shape
        if schema.observations.get(key) != (height, width, channels):
            shown = (
                f"{k} {schema.observations[k][0]}x{schema.observations[k][1]}"
                for k in schema.cameras
            )
            raise PolicyError(
                f"rl.classifier={folder}: sees {key} of {height}x{width} pixels; the run's "
                f"cameras: {', '.join(shown) or 'none'}",
                rule="the run has the cameras that the classifier was trained with",
                remedy="add the camera to --policy.input_features, or train the classifier with "
                "--reward_model.input_features of the run",
            )
    return SuccessJudge(classifier, threshold)
