"""Training of a reward classifier on recordings, and its accuracy on episodes kept apart."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kata.data.dataset.dataset import Dataset, open_dataset
from kata.data.loader.reader import Reader
from kata.data.sampling.philox import draw_below
from kata.data.storage.buffers import free_memory
from kata.errors import CheckpointError, DataError, PolicyError
from kata.files import write_json
from kata.rl.batches import shifted_frames
from kata.rl.classifier.options import ClassifyRun
from kata.rl.classifier.saved import RewardClassifier, new_classifier
from kata.spec import REWARD, Feature, FeatureType
from kata.units import bytes_text, seconds_text

RESULT = "classify.json"
_READ = 256  # frames that are decoded at a time

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LabelledFrames:
    """Frames and whether each shows success.

    Attributes:
        frames: uint8 (N, H, W, 3) by camera.
        success: (N,).
        episode: (N,), of each frame.
    """

    frames: dict[str, NDArray[np.uint8]]
    success: NDArray[np.bool_]
    episode: NDArray[np.int64]


@dataclass(frozen=True)
class Accuracy:
    """The accuracy on episodes that were kept apart.

    Attributes:
        episodes: their number.
        frames: their number.
        right: share of frames whose answer is right.
        majority: share of the more frequent class, which a constant answer gets.
        missed: share of successes that were not seen.
        false: share of failures that were taken for success.
    """

    episodes: int
    frames: int
    right: float
    majority: float
    missed: float
    false: float


def train_classifier(run: ClassifyRun) -> Accuracy:
    """Train a classifier and save it, unless it is no better than a constant answer.

    Raises:
        KataError: what the user can correct.
    """
    folder = Path(run.output_dir).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckpointError(
            f"output_dir={folder}: exists already",
            rule="a new classifier gets its own folder",
            remedy="choose another --output_dir",
        )
    choice = run.dataset
    dataset = open_dataset(
        choice.repo_id or "recordings",
        root=choice.root,
        episodes=choice.episodes,
        exclude_episodes=choice.exclude_episodes,
        revision=choice.revision,
    )
    cameras = _cameras(run, dataset)
    labelled = _labelled(dataset, list(cameras))
    trained, kept = _split(labelled, run, dataset.repo_id)
    config = run.reward_model.with_cameras(cameras)
    classifier = new_classifier(config, run.seed)
    _learn(classifier, labelled, trained, run)
    found = accuracy_of(classifier, labelled, kept, run.threshold)
    if found.right <= found.majority:
        raise PolicyError(
            f"{found.right:.1%} of {found.frames} frames of {found.episodes} episodes kept apart "
            f"are told right; the more frequent class alone gives {found.majority:.1%}",
            rule="a classifier is better than a constant answer",
            remedy="more --steps, a larger --reward_model.learning_rate, or more recordings of "
            "both classes",
        )
    folder.mkdir(parents=True, exist_ok=True)
    classifier.save(folder)
    write_json(folder / RESULT, {"threshold": run.threshold, **dataclasses.asdict(found)})
    return found


def _cameras(run: ClassifyRun, dataset: Dataset) -> dict[str, Feature]:
    """Return the cameras to read, as the dataset has them."""
    has: dict[str, Feature] = {}
    for key, column in dataset.cameras.items():
        height, width, channels = column.shape
        has[key] = Feature(FeatureType.VISUAL, (channels, height, width))
    asked = run.reward_model.input_features or has
    wrong = [key for key, feature in asked.items() if has.get(key) != feature]
    if wrong or not has:
        shown = ", ".join(f"{key} {list(feature.shape)}" for key, feature in has.items())
        raise DataError(
            f"{dataset.repo_id}: no camera {wrong[0] if wrong else 'at all'} of that shape",
            rule=f"its cameras: {shown or 'none'}",
            remedy="correct --reward_model.input_features, or leave it out to take all",
        )
    return dict(asked)


def _labelled(dataset: Dataset, cameras: list[str]) -> LabelledFrames:
    """Read the frames whose success is known. next.reward is what the action after a frame earned,
    so it tells about the frame that follows.
    """
    if REWARD not in dataset.columns:
        raise DataError(
            f"{dataset.repo_id}: no {REWARD}",
            rule=f"{REWARD} above 0 marks the frames that show success",
            remedy="record with a reward that stays while the task is done "
            "(terminate_on_success=false in LeRobot)",
        )
    sizes = [int(np.prod(dataset.columns[key].shape)) for key in cameras]
    needed, free = dataset.num_frames * sum(sizes), free_memory()
    if needed > free:
        raise DataError(
            f"{dataset.repo_id}: {bytes_text(needed)} of frames, and {bytes_text(free)} of memory",
            rule="all frames fit into memory",
            remedy="fewer episodes (--dataset.episodes) or cameras (--reward_model.input_features)",
        )
    found, reward = dataset.episodes, dataset.column(REWARD).reshape(-1)
    rows: list[NDArray[np.int64]] = []
    labels: list[NDArray[np.bool_]] = []
    episodes: list[NDArray[np.int64]] = []
    for number, first, length in zip(found.index, found.start, found.length, strict=True):
        rows.append(np.arange(first + 1, first + length))
        labels.append(reward[first : first + length - 1] > 0)
        episodes.append(np.full(length - 1, number))
    every = np.concatenate(rows)
    frames = {key: np.empty((len(every), *dataset.columns[key].shape), np.uint8) for key in cameras}
    with Reader(dataset, {}, keys=cameras) as reader:
        for begin in range(0, len(every), _READ):
            part = reader.read(every[begin : begin + _READ])
            for key in cameras:
                frames[key][begin : begin + _READ] = part[key]
    return LabelledFrames(frames, np.concatenate(labels), np.concatenate(episodes))


def _split(
    labelled: LabelledFrames, run: ClassifyRun, name: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the frames to learn from and those of episodes kept apart. Both have both classes."""
    share = labelled.success.mean()
    if share in (0, 1):
        missing = "successes" if share == 0 else "failures"
        raise DataError(
            f"{name}: {REWARD} is {'never' if share == 0 else 'always'} above 0 in "
            f"{len(labelled.success)} frames",
            rule="frames of both classes: successes and failures",
            remedy=f"record {missing}, too, and go on for a while after success "
            "(terminate_on_success=false in LeRobot): the picture after an episode's last action "
            "is not in a dataset",
        )
    episodes = np.unique(labelled.episode)
    count = max(1, round(len(episodes) * run.held_out))
    order = np.argsort(draw_below(run.seed, 0, "rl held out", (len(episodes),), 2**32))
    apart = np.isin(labelled.episode, episodes[order[:count]])
    for rows, what in ((~apart, "learned from"), (apart, "kept apart")):
        classes = len(np.unique(labelled.success[rows]))
        if classes < 2:
            raise DataError(
                f"{name}: the {int(rows.sum())} frames {what} are of one class",
                rule="frames of both classes on both sides",
                remedy="more episodes of both classes, or another --held_out or --seed",
            )
    return np.flatnonzero(~apart), np.flatnonzero(apart)


def _learn(
    classifier: RewardClassifier,
    labelled: LabelledFrames,
    rows: NDArray[np.int64],
    run: ClassifyRun,
) -> None:
    """Train all but a pretrained encoder; half of each batch shows success."""
    config, model = classifier.config, classifier.model
    model.train()
    if config.model_name is not None:
        model.encoder.requires_grad_(False).eval()
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        params, lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
    )
    success = labelled.success[rows]
    classes = (rows[success], rows[~success])
    began_s = time.perf_counter()
    for step in range(run.steps):
        picked = _picked(classes, step, run)
        frames = _moved(labelled.frames, picked, step, run)
        target = torch.from_numpy(labelled.success[picked].astype(np.float32))
        logits = classifier.logits(frames)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, target.to(logits.device))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(params, config.grad_clip_norm)
        optimizer.step()
        if (step + 1) % run.log_freq == 0:
            right = float(((logits > 0).cpu() == target.bool()).float().mean())
            spent = seconds_text(time.perf_counter() - began_s)
            _log.info(
                "step %d/%d  loss %.4g  right %.0f%%  %s",
                step + 1,
                run.steps,
                float(loss.detach()),
                100 * right,
                spent,
            )
    model.eval()


def _picked(
    classes: tuple[NDArray[np.int64], NDArray[np.int64]], step: int, run: ClassifyRun
) -> NDArray[np.int64]:
    sizes = (run.batch_size // 2, run.batch_size - run.batch_size // 2)
    found: list[NDArray[np.int64]] = []
    for number, (rows, size) in enumerate(zip(classes, sizes, strict=True)):
        found.append(rows[draw_below(run.seed, step, f"rl class {number}", (size,), len(rows))])
    return np.concatenate(found)


def _moved(
    frames: Mapping[str, NDArray[np.uint8]], rows: NDArray[np.int64], step: int, run: ClassifyRun
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, values in frames.items():
        shift, purpose = run.random_shift, f"rl class shift {key}"
        moves = draw_below(run.seed, step, purpose, (len(rows), 2), 2 * shift + 1) - shift
        found[key] = torch.from_numpy(shifted_frames(values, rows, moves))
    return found


@torch.no_grad()
def accuracy_of(
    classifier: RewardClassifier,
    labelled: LabelledFrames,
    rows: NDArray[np.int64],
    threshold: float,
) -> Accuracy:
    """Return how many of these frames a classifier tells right."""
    told: list[NDArray[np.bool_]] = []
    for begin in range(0, len(rows), _READ):
        part = rows[begin : begin + _READ]
        frames = {key: torch.from_numpy(values[part]) for key, values in labelled.frames.items()}
        told.append((classifier.logits(frames).sigmoid() > threshold).cpu().numpy())
    said, truth = np.concatenate(told), labelled.success[rows]
    share = float(truth.mean())
    return Accuracy(
        episodes=len(np.unique(labelled.episode[rows])),
        frames=len(rows),
        right=float((said == truth).mean()),
        majority=max(share, 1 - share),
        missed=float((~said[truth]).mean()),
        false=float(said[~truth].mean()),
    )
