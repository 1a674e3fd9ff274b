"""A few recorded moments with what the policy would do, for the report."""

from __future__ import annotations

import logging

import numpy as np
import torch
from torch import Tensor

from kata.data.dataset.mixture import Data
from kata.data.loader.batches import BatchReader
from kata.data.loader.substitutes import read_alone
from kata.policies.base import Policy, evaluating
from kata.processors import Pipeline, planes_to_rgb
from kata.spec import ACTION, DATASET_INDEX, Batch, dim_pad_key, pad_key
from kata.train.input.feed import Feed
from kata.train.report import SampleView

_log = logging.getLogger(__name__)


@torch.no_grad()
def sample_views(
    policy: Policy, feed: Feed, reader: BatchReader, after: Pipeline, dataset: Data, count: int = 3
) -> list[SampleView]:
    """Predicted against recorded actions, in the dataset's units, a third into `count` episodes."""
    episodes = dataset.episodes
    chosen = np.unique(np.linspace(0, len(episodes.index) - 1, count).round().astype(np.int64))
    rows = episodes.start[chosen] + episodes.length[chosen] // 3
    errors = read_alone(reader, rows)
    for error in filter(
        None, errors
    ):  # everything is saved by now: it is no reason to have no report
        _log.warning("left out of the report: %s", error.what)
    rows = rows[[error is None for error in errors]]
    if not len(rows):
        return []
    raw = reader.read(rows)
    raw["position"] = np.arange(len(rows), dtype=np.int64)
    micros, draws = feed.ready(raw, 0)
    with evaluating(policy):
        chunks = [
            after(_beside(micro, policy.predict_chunk(micro, noise=drawn.get("noise")).float()))[
                ACTION
            ]
            for micro, drawn in zip(micros, draws, strict=True)
        ]
    predicted = torch.cat(chunks).numpy()
    pictures = raw | {
        key: planes_to_rgb(torch.from_numpy(raw[key]), c).numpy() for key, c in feed.colours.items()
    }
    names = dataset.columns[ACTION].names or ()
    start = feed.config.chunk_start()
    part = slice(start, start + predicted.shape[1])
    # Dimensions that the sample's dataset does not have are not shown.
    real = ~raw.get(dim_pad_key(ACTION), np.zeros((len(rows), predicted.shape[2]), dtype=bool))
    return [
        SampleView(
            title=_title(feed, raw, i),
            frames={key: _now(pictures[key][i], reader.windows.get(key)) for key in feed.cameras},
            recorded=raw[ACTION][i][part, real[i]],
            predicted=predicted[i][:, real[i]],
            action_names=[name for name, there in zip(names, real[i], strict=True) if there]
            if names
            else (),
            is_pad=raw[pad_key(ACTION)][i][part] if pad_key(ACTION) in raw else None,
        )
        for i in range(len(rows))
    ]


def _beside(micro: Batch, chunk_bta: Tensor) -> Batch:
    """Predicted actions with what tells whose they are."""
    return {ACTION: chunk_bta} | {key: micro[key] for key in (DATASET_INDEX,) if key in micro}


def _title(feed: Feed, raw: Batch, number: int) -> str:
    dataset = f"{feed.datasets[raw[DATASET_INDEX][number]]}, " if feed.datasets else ""
    where = f"episode {raw['episode_index'][number]}, frame {raw['frame_index'][number]}"
    return f"{dataset}{where}: {raw['task'][number]}"


def _now(frames: np.ndarray, window: tuple[int, ...] | None) -> np.ndarray:
    """The anchor's frame of a window, or the frame itself."""
    return frames if window is None else frames[window.index(0)]
