"""kata's reinforcement learning beside LeRobot: reward classifiers and exported journals.

python tools/peer/check_rl.py

Runs where LeRobot is installed, with kata's source on PYTHONPATH.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.processor import PolicyProcessorPipeline
from lerobot.rewards.classifier.modeling_classifier import Classifier as TheirClassifier
from lerobot.rl.buffer import ReplayBuffer

from kata.rl.classifier.config import ClassifierConfig
from kata.rl.classifier.saved import load_classifier, new_classifier
from kata.rl.episodes.episode import PlayedEpisode, Schema
from kata.rl.export import DatasetForm, write_dataset
from kata.spec import STATE, Feature, FeatureType

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


def journals(folder: Path) -> list[bool]:
    """LeRobot's buffer holds the transitions of an exported journal: observations, actions,
    rewards, ends, complementary info. The observation after an episode's last step is not in a
    dataset; LeRobot puts the last one that it knows there.
    """
    stream = np.random.default_rng(0)
    schema = Schema({CAMERAS[0]: (48, 48, 3), STATE: (3,)}, (CAMERAS[0],), 2)
    episodes: list[PlayedEpisode] = []
    for number, (steps, is_end) in enumerate(((5, True), (4, False), (6, True))):
        shape = (steps + 1, 48, 48, 3)
        seen = {
            CAMERAS[0]: stream.integers(0, 256, shape, np.uint8),
            STATE: stream.normal(size=(steps + 1, 3)).astype(np.float32),
        }
        action, reward, penalty = (stream.normal(size=(steps, 4)).astype(np.float32)[:, i] for i in
                                   ([0, 1], 2, 3))  # fmt: skip
        human = np.arange(steps) < 2
        episodes.append(PlayedEpisode(seen, action, reward, penalty, human, is_end, is_end, number))
    write_dataset(folder / "journal", episodes, DatasetForm(10, schema, "play"))
    dataset = LeRobotDataset("kata/journal", root=folder / "journal")
    buffer = ReplayBuffer.from_lerobot_dataset(
        dataset, device="cpu", state_keys=[CAMERAS[0], STATE], use_drq=False
    )
    apart, row = 0.0, 0
    for played in episodes:
        rows = slice(row, row + played.steps)
        row += played.steps
        pictures = torch.from_numpy(played.observations[CAMERAS[0]]).permute(0, 3, 1, 2) / 255
        states = torch.from_numpy(played.observations[STATE])
        done = torch.zeros(played.steps)
        done[-1] = float(played.terminated)
        wanted = {
            "pictures": (buffer.states[CAMERAS[0]][rows], pictures[:-1]),
            "states": (buffer.states[STATE][rows], states[:-1]),
            "next": (buffer.next_states[STATE][rows][:-1], states[1:-1]),
            "actions": (buffer.actions[rows], torch.from_numpy(played.action)),
            "rewards": (buffer.rewards[rows], torch.from_numpy(played.reward)),
            "dones": (buffer.dones[rows].float(), done),
        }
        told = {"discrete_penalty": played.penalty, "is_intervention": played.intervention}
        for name, values in told.items():
            kept = buffer.complementary_info[name][rows].flatten()
            wanted[name] = (kept, torch.from_numpy(values).float())
        for mine, theirs in wanted.values():
            apart = max(apart, float((mine - theirs).abs().max()))
    text = f"journal exported by kata in LeRobot's buffer: {row} transitions, {apart:.1e}"
    return [report(apart == 0 and len(dataset) == row, text)]


def main() -> int:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        results = [*classifiers(Path(name)), *journals(Path(name))]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
