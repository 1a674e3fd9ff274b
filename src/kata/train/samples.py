"""A few recorded moments with what the policy would do, for the report."""

from __future__ import annotations

import numpy as np
import torch

from kata.adapt import Pipeline
from kata.data import Dataset, Reader
from kata.policies.base import Policy, evaluating
from kata.spec import ACTION, pad_key
from kata.train.feed import Feed
from kata.train.report import SampleView


@torch.no_grad()
def sample_views(
    policy: Policy, feed: Feed, reader: Reader, after: Pipeline, dataset: Dataset, count: int = 3
) -> list[SampleView]:
    """Predicted against recorded actions, in the dataset's units, a third into `count` episodes."""
    episodes = dataset.episodes
    chosen = np.unique(np.linspace(0, len(episodes.index) - 1, count).round().astype(np.int64))
    rows = episodes.start[chosen] + episodes.length[chosen] // 3
    raw = reader.read(rows)
    raw["position"] = np.arange(len(rows), dtype=np.int64)
    micros, draws, _, _ = feed.ready(raw)
    with evaluating(policy):
        chunks = [
            after({ACTION: policy.predict_chunk(micro, noise=drawn.get("noise")).float()})[ACTION]
            for micro, drawn in zip(micros, draws, strict=True)
        ]
    predicted = torch.cat(chunks).numpy()
    names = dataset.columns[ACTION].names or ()
    start = feed.config.chunk_start()
    part = slice(start, start + predicted.shape[1])
    return [
        SampleView(
            title=f"episode {raw['episode_index'][i]}, frame {raw['frame_index'][i]}: {raw['task'][i]}",
            frames={key: _latest(raw[key][i]) for key in feed.cameras},
            recorded=raw[ACTION][i][part],
            predicted=predicted[i],
            action_names=names,
            is_pad=raw[pad_key(ACTION)][i][part] if pad_key(ACTION) in raw else None,
        )
        for i in range(len(rows))
    ]


def _latest(frames: np.ndarray) -> np.ndarray:
    """The last frame of a window, or the frame itself."""
    return frames if frames.ndim == 3 else frames[-1]
