"""Image augmentation on the device: a few random transforms per sample and camera.

The random numbers are keyed by position. All samples that drew the same transform go through it
together, each with its parameters, without a loop over samples if torch allows. The transforms,
names and ranges are LeRobot's; any other class of torchvision.transforms.v2 works sample by sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision.transforms import v2

from kata.errors import ConfigError, did_you_mean
from kata.processors.augment import color, sensor
from kata.processors.augment.ranges import Uniform


class AugmentationClass(Protocol):
    """An augmentation that takes all samples together."""

    uniforms: int

    def __call__(self, frames: Tensor, u: Uniform) -> Tensor:
        """Augmented frames."""
        ...


KINDS: dict[str, type[AugmentationClass]] = {
    kind.__name__: kind
    for kind in (
        *(color.Identity, color.ColorJitter, color.SharpnessJitter, color.RandomAffine),
        *(color.GammaCorrection, color.PlanckianJitter, sensor.GaussianNoise, sensor.MotionBlur),
        *(
            sensor.JPEGCompression,
            sensor.GaussianPatchBrightness,
            sensor.RandomShadow,
            sensor.CoarseDropout,
        ),
    )
}
"""Transforms by LeRobot's and torchvision's names."""


class Augmentation(NamedTuple):
    """A transform: `apply(frames (n, T, C, H, W) in [0, 1], u (n, uniforms))` returns frames."""

    uniforms: int
    apply: Callable[[Tensor, Uniform], Tensor]


@dataclass(frozen=True)
class Augment:
    """A random choice of `count` transforms per sample, by weight, without replacement.

    Attributes:
        parts: (weight, transform) in the order in which they are applied.
        count: transforms per sample.
        random_order: apply them in random order instead.
    """

    parts: tuple[tuple[float, Augmentation], ...]
    count: int
    random_order: bool

    @property
    def uniforms(self) -> int:
        """Return the number of random numbers per sample: the choice, then each transform's."""
        return len(self.parts) + sum(part.uniforms for _, part in self.parts)

    def __call__(self, frames: Tensor, u: Uniform) -> Tensor:
        """Return augmented frames (B, C, H, W) or (B, T, C, H, W); all T frames share one draw.

        Args:
            frames: float in [0, 1].
            u: (B, uniforms), uniform in (0, 1).
        """
        whole = frames if frames.ndim == 5 else frames.unsqueeze(1)
        whole = whole.clone()
        chosen = self._chosen(u[:, : len(self.parts)])
        starts = np.cumsum([len(self.parts), *(part.uniforms for _, part in self.parts)])
        for slot in range(chosen.shape[1]):
            for number, (_, part) in enumerate(self.parts):
                rows = np.flatnonzero(chosen[:, slot] == number)
                if rows.size:
                    mine = u[rows, starts[number] : starts[number + 1]]
                    places = torch.from_numpy(rows).to(whole.device, non_blocking=True)
                    whole[places] = part.apply(whole[places], mine)
        return whole if frames.ndim == 5 else whole.squeeze(1)

    def _chosen(self, u: Uniform) -> NDArray[np.int64]:
        """Return the numbers of the transforms that each sample drew, (B, count).

        The largest u^(1/weight) win, which equals drawing one after the other without replacement
        (Efraimidis and Spirakis 2006).
        """
        weights = np.array([weight for weight, _ in self.parts], dtype=np.float64)
        keys = np.log(u.astype(np.float64)) / weights
        drawn = np.argsort(-keys, axis=1, kind="stable")[:, : self.count]
        return drawn if self.random_order else np.sort(drawn, axis=1)


def build_augment(transforms: Mapping[str, Any], *, count: int, random_order: bool) -> Augment:
    """The augmentation of these transforms: name -> object with `weight`, `type` and `kwargs`.

    Raises: ConfigError for an unknown type (with the nearest) or arguments that it does not take.
    """
    parts = tuple(
        (tf.weight, _build(name, tf.type, tf.kwargs))
        for name, tf in transforms.items()
        if tf.weight > 0
    )
    return Augment(parts, min(count, len(parts)), random_order)


def _build(name: str, kind: str, kwargs: Mapping[str, Any]) -> Augmentation:
    option = f"dataset.image_transforms.tfs.{name}"
    if kind == "ColorJitter" and len(kwargs) > 1:
        maker: Any = v2.ColorJitter  # several at once are applied in a separate random order
    else:
        maker = KINDS.get(kind) or v2.__dict__.get(kind)
    if not isinstance(maker, type):
        known = sorted({*KINDS, *(n for n, c in v2.__dict__.items() if isinstance(c, type))})
        raise ConfigError(
            f"{option}.type={kind}: no such transform",
            rule=f"one of {', '.join(sorted(KINDS))}, or a class of torchvision.transforms.v2",
            remedy=did_you_mean(kind, known),
        )
    try:
        made: Any = maker(**kwargs)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{option}.kwargs={dict(kwargs)}: {str(error).splitlines()[0]}",
            rule=f"arguments that {kind} takes",
            remedy="see docs/augmentation.md for each transform's arguments",
        ) from error
    if kind in KINDS and maker is KINDS[kind]:
        return Augmentation(made.uniforms, made)
    return Augmentation(2, _one_by_one(made))


def _one_by_one(transform: Any) -> Callable[[Tensor, Uniform], Tensor]:
    """Apply a torchvision transform per sample, with torch's generator seeded for each."""

    def apply(frames: Tensor, u: Uniform) -> Tensor:
        before = torch.get_rng_state()
        done: list[Tensor] = []
        for one, (high, low) in zip(frames, u, strict=True):
            torch.manual_seed((int(high * 2**24) << 24) | int(low * 2**24))
            done.append(transform(one))
        torch.set_rng_state(before)
        result = torch.stack(done)
        if result.shape != frames.shape:
            raise ConfigError(
                f"dataset.image_transforms: {type(transform).__name__} turns {tuple(frames.shape)} "
                "into "
                f"{tuple(result.shape)}",
                rule="a transform keeps the size of the frames",
                remedy="resize in the policy's own options",
            )
        return result.clamp(0.0, 1.0)

    return apply
