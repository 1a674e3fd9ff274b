"""Config base class of diffusion and flow-matching policies. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kata.config import REQUIRED, option
from kata.optim.config import DiffuserSchedulerConfig
from kata.policies.config import AdamPolicyConfig
from kata.policies.observation_rules import chunk_windows
from kata.policies.relative import RelativeConfig
from kata.policies.rules import Rule
from kata.spec import ACTION, Draw, FeatureType, NormMode, Windows, pad_key


def _modes() -> dict[str, NormMode]:
    ranged = {kind.value: NormMode.MIN_MAX for kind in (FeatureType.STATE, FeatureType.ACTION)}
    return {FeatureType.VISUAL.value: NormMode.MEAN_STD, **ranged}


@dataclass(frozen=True, kw_only=True)
class DenoisingConfig(AdamPolicyConfig, RelativeConfig):
    """A config of policies that predict chunks from noise.

    Each policy sets its own defaults of `horizon` and `n_action_steps`.
    """

    n_obs_steps: int = 2
    horizon: int = option(
        REQUIRED, "Actions predicted at once, counted from the first observation step.", least=1
    )
    n_action_steps: int = option(
        REQUIRED,
        "Actions executed before the next prediction, from the latest observation on.",
        least=1,
    )
    normalization_mapping: dict[str, NormMode] = field(default_factory=_modes)
    drop_n_last_frames: int | None = option(
        None,
        "Frames at the end of an episode that are not trained on. null leaves out those whose "
        "executed "
        "actions would lie beyond the episode.",
        least=0,
    )
    noise_scheduler_type: str = option(
        "DDPM", "Sampler; DDIM needs few inference steps.", choices=("DDPM", "DDIM")
    )
    num_train_timesteps: int = option(100, "Noise levels in training.", least=1)
    beta_schedule: str = option(
        "squaredcos_cap_v2",
        "Course of the noise over the levels.",
        choices=("squaredcos_cap_v2", "linear", "scaled_linear", "sigmoid"),
    )
    beta_start: float = option(0.0001, "Noise variance of the first level.")
    beta_end: float = option(0.02, "Noise variance of the last level.")
    prediction_type: str = option(
        "epsilon",
        "What the network predicts: the noise or the actions.",
        choices=("epsilon", "sample"),
    )
    clip_sample: bool = option(True, "Clip the actions at each denoising step.")
    clip_sample_range: float = option(1.0, "Largest magnitude that clip_sample leaves.")
    num_inference_steps: int | None = option(
        None, "Denoising steps of one prediction; null takes num_train_timesteps."
    )
    do_mask_loss_for_padding: bool = option(
        False, "Leave actions beyond the end of an episode out of the loss."
    )
    scheduler_name: str = option(
        "cosine", "Learning-rate schedule of the preset, by diffusers' name."
    )
    scheduler_warmup_steps: int = option(500, "Warm-up steps of the preset.", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.drop_n_last_frames is None:
            late = max(0, self.horizon - self.n_action_steps - self.n_obs_steps + 1)
            object.__setattr__(self, "drop_n_last_frames", late)

    def denoising_rules(self) -> Iterator[Rule]:
        """Yield rules on numbers of steps."""
        most = self.horizon - self.n_obs_steps + 1
        yield (
            self.n_action_steps > most,
            f"policy.n_action_steps={self.n_action_steps} with policy.horizon={self.horizon}",
            f"at most horizon - n_obs_steps + 1 = {most}: what is executed was predicted",
            f"--policy.n_action_steps={max(1, most)}",
        )
        steps = self.num_inference_steps
        yield (
            steps is not None and not 1 <= steps <= self.num_train_timesteps,
            f"policy.num_inference_steps={steps}",
            f"between 1 and num_train_timesteps={self.num_train_timesteps}",
            "for example --policy.num_inference_steps=10 with --policy.noise_scheduler_type=DDIM",
        )

    @property
    def inference_steps(self) -> int:
        """Return the number of denoising steps per chunk."""
        return self.num_inference_steps or self.num_train_timesteps

    def noise_process(self) -> dict[str, Any]:
        """Return the arguments of `kata.nn.denoising.NoiseProcess`."""
        return {
            "steps": self.num_train_timesteps,
            "schedule": self.beta_schedule,
            "beta_start": self.beta_start,
            "beta_end": self.beta_end,
            "predicts": self.prediction_type,
            "clip": self.clip_sample_range if self.clip_sample else None,
        }

    def windows(self) -> Windows:
        """Return offsets of the last n_obs_steps observations, and of `horizon` actions from the
        first of them on.
        """
        return chunk_windows(self, self.horizon)

    def chunk_start(self) -> int:
        """Return the index of the anchor's action, which is executed first."""
        return self.n_obs_steps - 1

    def noise_draws(self) -> dict[str, Draw]:
        """Return the noise of a chunk, and a uniform number that determines the noise level or
        time.
        """
        return {
            "noise": Draw("normal", (self.horizon, self.action.shape[0])),
            "time": Draw("uniform", (1,)),
        }

    def act_draws(self) -> dict[str, Draw]:
        """Return the initial noise of a chunk, and for DDPM `later`, (B, steps - 1, horizon, A).

        `later` is the noise of each denoising step except the last.
        """
        noise = self.noise_draws()["noise"]
        fresh = self.inference_steps - 1 if self.noise_scheduler_type == "DDPM" else 0
        return {"noise": noise} | (
            {"later": Draw("normal", (fresh, *noise.shape))} if fresh else {}
        )

    def drop_last_frames(self) -> int:
        """Return `drop_n_last_frames`."""
        assert self.drop_n_last_frames is not None
        return self.drop_n_last_frames

    def numbers_learnt(self, size: int, pads: Mapping[str, Any]) -> float:
        """Return how many action values of the global batch enter the loss.

        Padded values are left out if `do_mask_loss_for_padding` is set.
        """
        pad = pads.get(pad_key(ACTION)) if self.do_mask_loss_for_padding else None
        valid = size * self.horizon - (0 if pad is None else int(pad.sum()))
        return float(max(valid, 1) * self.action.shape[0])

    def scheduler_preset(self) -> DiffuserSchedulerConfig:
        """Return a schedule with warm-up and cosine decay to zero."""
        return DiffuserSchedulerConfig(
            name=self.scheduler_name, num_warmup_steps=self.scheduler_warmup_steps
        )
