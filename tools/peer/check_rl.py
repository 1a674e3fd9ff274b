"""kata's reinforcement learning beside LeRobot: reward classifiers and exported journals.

python tools/peer/check_rl.py

Runs where LeRobot is installed, with kata's source on PYTHONPATH.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from lerobot.processor import PolicyProcessorPipeline
from lerobot.rewards.classifier.modeling_classifier import Classifier as TheirClassifier

from kata.rl.classifier.config import ClassifierConfig
from kata.rl.classifier.saved import load_classifier, new_classifier
from kata.spec import Feature, FeatureType

CAMERAS = ("observation.images.top", "observation.images.wrist")
PIPELINE = "classifier_preprocessor.json"


def report(passed: bool, text: str) -> bool:
    print(f"{'PASS' if passed else 'FAIL'} {text}", flush=True)
    return passed


def classifiers(folder: Path) -> list[bool]:
    """Each side answers from the other's files as the writer does; 128 x 128 is LeRobot's size."""
    size = Feature(FeatureType.VISUAL, (3, 128, 128))
    config = ClassifierConfig(device="cpu").with_cameras(dict.fromkeys(CAMERAS, size))
    mine = new_classifier(config, 0)
    for module in mine.model.modules():  # statistics as after training
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    mine.model.eval()
    (folder / "kata").mkdir()
    mine.save(folder / "kata")
    frames = {key: torch.randint(0, 256, (5, 128, 128, 3), dtype=torch.uint8) for key in CAMERAS}

    theirs = TheirClassifier.from_pretrained(folder / "kata")
    before = PolicyProcessorPipeline.from_pretrained(folder / "kata", config_filename=PIPELINE)
    floats = {key: value.permute(0, 3, 1, 2) / 255 for key, value in frames.items()}
    batch = before(floats)

    def answers() -> torch.Tensor:
        with torch.no_grad():
            return theirs.predict([batch[key] for key in CAMERAS]).logits

    with torch.no_grad():
        apart = float((mine.logits(frames) - answers()).abs().max())
    results = [report(apart <= 1e-5, f"reward classifier of kata asked by LeRobot: {apart:.1e}")]
    for param in theirs.parameters():
        param.data.mul_(1.1)
    theirs.save_pretrained(folder / "lerobot")
    before.save_pretrained(folder / "lerobot", config_filename=PIPELINE)
    again = load_classifier(folder / "lerobot", "cpu")
    with torch.no_grad():
        apart = float((again.logits(frames) - answers()).abs().max())
    return [*results, report(apart <= 1e-5, f"... of LeRobot asked by kata: {apart:.1e}")]


def main() -> int:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        results = classifiers(Path(name))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
