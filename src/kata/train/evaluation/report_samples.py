"""A few recorded samples with what the policy would do, for the report."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Sized
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from kata.data.dataset.mixture import Mixture
from kata.data.loader.reader import Reader
from kata.data.loader.substitutes import read_alone
from kata.policies.base import Policy, evaluating
from kata.processors import Pipeline, planes_to_rgb
from kata.spec import ACTION, DATASET_INDEX, ORIGIN, Batch, dim_pad_key, pad_key
from kata.train.input.feed import Feed
from kata.train.report import SampleView

_log = logging.getLogger(__name__)

_SAY_EVERY_S = 5.0


class _OutOfTimeError(Exception):
    """Prediction was cut short."""


@dataclass(frozen=True)
class SampleBudget:
    """A time limit for report samples. is_over: called on the way; True ends them early. is_bound:
    False sets no limit.

    The clock is checked whenever a policy calls one of its units, thus many times per denoised
    chunk.
    """

    limit_s: float
    is_over: Callable[[], bool] = lambda: False
    is_bound: bool = True

    @contextmanager
    def watching(self, policy: Policy, count: int, done: Sized) -> Generator[None]:
        """End what is inside, without an error, when the time is over; say how far it is every
        few seconds.
        """
        began_s = said_s = time.monotonic()

        def look(module: nn.Module, inputs: object) -> None:
            nonlocal said_s
            del module, inputs
            now_s = time.monotonic()
            if now_s - began_s > self.limit_s or self.is_over():
                raise _OutOfTimeError
            if now_s - said_s > _SAY_EVERY_S:
                said_s = now_s
                taken = f"{now_s - began_s:.0f} s of at most {self.limit_s:g} s"
                _log.info("samples for the report: %d of %d, %s", len(done), count, taken)

        units = policy.shard_units() if self.is_bound else []
        hooks = [unit.register_forward_pre_hook(look) for unit in units]
        try:
            yield
        except _OutOfTimeError:
            _log.info("the report shows %d of %d samples: no time was left", len(done), count)
        finally:
            for hook in hooks:
                hook.remove()


@torch.no_grad()
def sample_views(
    policy: Policy,
    feed: Feed,
    reader: Reader,
    after: Pipeline,
    dataset: Mixture,
    budget: SampleBudget,
    count: int = 3,
) -> list[SampleView]:
    """Return predicted and recorded actions, in the dataset's units, a third into `count` episodes.

    Samples that `budget` has no time for are left out.
    """
    feed = replace(feed, micro_size=1)
    episodes = dataset.episodes
    chosen = np.unique(np.linspace(0, len(episodes.index) - 1, count).round().astype(np.int64))
    rows = episodes.start[chosen] + episodes.length[chosen] // 3
    errors = read_alone(reader, rows)
    # Everything is saved by now, so that a sample which cannot be read costs only its picture.
    for error in filter(None, errors):
        _log.warning("left out of the report: %s", error.what)
    rows = rows[[error is None for error in errors]]
    if not len(rows):
        return []
    raw = reader.read(rows)
    raw["position"] = np.arange(len(rows), dtype=np.int64)
    micros, _ = feed.ready(raw, 0)
    chunks: list[Tensor] = []
    with evaluating(policy), budget.watching(policy, len(rows), chunks):
        for micro, drawn in zip(micros, feed.act_draws(raw), strict=True):
            chunk = policy.predict_chunk(micro, **drawn).float()
            chunks.append(after(_beside(micro, chunk))[ACTION])
    if not chunks:
        return []
    predicted = torch.cat(chunks).numpy()
    pictures = raw | {
        key: planes_to_rgb(torch.from_numpy(raw[key]), c).numpy() for key, c in feed.colours.items()
    }
    action = feed.column(ACTION)
    start = feed.config.chunk_start()
    part = slice(start, start + predicted.shape[1])
    # Dimensions that the sample's dataset does not have are not shown.
    real = ~raw.get(dim_pad_key(ACTION), np.zeros((len(rows), predicted.shape[2]), dtype=bool))
    views: list[SampleView] = []
    for i in range(len(chunks)):
        frames = {key: _now(pictures[key][i], reader.windows.get(key)) for key in feed.cameras}
        views.append(
            SampleView(
                title=_title(feed, raw, i),
                frames=frames,
                recorded=raw[action][i][part, real[i]],
                predicted=predicted[i][:, real[i]],
                action_names=_action_names(dataset, action, raw, i),
                is_pad=raw[pad_key(action)][i][part] if pad_key(action) in raw else None,
            )
        )
    return views


def _beside(micro: Batch, chunk_bta: Tensor) -> Batch:
    """Predicted actions with what tells whose they are."""
    found = {key: micro[key] for key in (DATASET_INDEX, ORIGIN) if key in micro}
    return {ACTION: chunk_bta, **found}


def _title(feed: Feed, raw: Batch, number: int) -> str:
    dataset = f"{feed.datasets[raw[DATASET_INDEX][number]]}, " if feed.datasets else ""
    where = f"episode {raw['episode_index'][number]}, frame {raw['frame_index'][number]}"
    return f"{dataset}{where}: {raw['task'][number]}"


def _action_names(dataset: Mixture, action: str, raw: Batch, number: int) -> tuple[str, ...]:
    """Return what the sample's own dataset calls its dimensions."""
    part = 0 if dataset.is_single else int(raw[DATASET_INDEX][number])
    return dataset.parts[part].columns[action].names or ()


def _now(frames: np.ndarray, window: tuple[int, ...] | None) -> np.ndarray:
    """The anchor's frame of a window, or the frame itself."""
    return frames if window is None else frames[window.index(0)]
