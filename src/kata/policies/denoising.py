"""What the configs of policies that make chunks of actions out of noise share. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kata.optim.config import DiffuserSchedulerConfig
from kata.policies.config import AdamPolicyConfig
from kata.policies.observation_rules import chunk_windows
from kata.policies.rules import Rule, choice_rules, size_rules
from kata.spec import ACTION, Draw, FeatureType, NormMode, Windows, pad_key

CHOICES: dict[str, tuple[str, ...]] = {
    "noise_scheduler_type": ("DDPM", "DDIM"),
    "prediction_type": ("epsilon", "sample"),
    "beta_schedule": ("squaredcos_cap_v2", "linear", "scaled_linear", "sigmoid"),
}


def _modes() -> dict[str, NormMode]:
    ranged = {kind.value: NormMode.MIN_MAX for kind in (FeatureType.STATE, FeatureType.ACTION)}
    return {FeatureType.VISUAL.value: NormMode.MEAN_STD, **ranged}


@dataclass(frozen=True, kw_only=True)
class DenoisingConfig(AdamPolicyConfig):
    """Chunks out of noise; the defaults of `horizon` and `n_action_steps` belong to each policy.

    Of `horizon` actions that are made together, counted from the first of n_obs_steps observations, n_action_steps are
    executed from the latest observation on. drop_n_last_frames of null is computed: frames so late that executed
    actions would lie beyond the episode are no anchors. num_inference_steps of null denoises in num_train_timesteps;
    few steps want noise_scheduler_type=DDIM.
    """

    n_obs_steps: int = 2
    horizon: int
    n_action_steps: int
    normalization_mapping: dict[str, NormMode] = field(default_factory=_modes)
    drop_n_last_frames: int | None = None
    noise_scheduler_type: str = "DDPM"
    num_train_timesteps: int = 100
    beta_schedule: str = "squaredcos_cap_v2"
    beta_start: float = 0.0001
    beta_end: float = 0.02
    prediction_type: str = "epsilon"
    clip_sample: bool = True
    clip_sample_range: float = 1.0
    num_inference_steps: int | None = None
    do_mask_loss_for_padding: bool = False
    scheduler_name: str = "cosine"
    scheduler_warmup_steps: int = 500

    def __post_init__(self) -> None:
        if self.drop_n_last_frames is None:
            late = max(0, self.horizon - self.n_action_steps - self.n_obs_steps + 1)
            object.__setattr__(self, "drop_n_last_frames", late)

    def denoising_rules(self) -> Iterator[Rule]:
        """Names that are known, sizes of at least one, and numbers of steps that fit each other."""
        yield from choice_rules(self, CHOICES)
        yield from size_rules(
            self, ("n_obs_steps", "horizon", "n_action_steps", "num_train_timesteps")
        )
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
        """Denoising steps of one chunk."""
        return self.num_inference_steps or self.num_train_timesteps

    def noise_process(self) -> dict[str, Any]:
        """The arguments of `kata.nn.denoising.NoiseProcess`."""
        return {
            "steps": self.num_train_timesteps,
            "schedule": self.beta_schedule,
            "beta_start": self.beta_start,
            "beta_end": self.beta_end,
            "predicts": self.prediction_type,
            "clip": self.clip_sample_range if self.clip_sample else None,
        }

    def windows(self) -> Windows:
        """n_obs_steps observations up to the anchor, and `horizon` actions from the first of them on."""
        return chunk_windows(self, self.horizon)

    def chunk_start(self) -> int:
        """The action of the anchor is the first that is executed."""
        return self.n_obs_steps - 1

    def noise_draws(self) -> dict[str, Draw]:
        """The noise of a chunk, and a uniform number that the noising step or time follows from."""
        return {
            "noise": Draw("normal", (self.horizon, self.action.shape[0])),
            "time": Draw("uniform", (1,)),
        }

    def act_draws(self) -> dict[str, Draw]:
        """What a chunk is made from; `later`, the noise of each DDPM step but the last, (B, steps - 1, horizon, A)."""
        noise = self.noise_draws()["noise"]
        fresh = self.inference_steps - 1 if self.noise_scheduler_type == "DDPM" else 0
        return {"noise": noise} | (
            {"later": Draw("normal", (fresh, *noise.shape))} if fresh else {}
        )

    def drop_last_frames(self) -> int:
        """drop_n_last_frames."""
        assert self.drop_n_last_frames is not None
        return self.drop_n_last_frames

    def numbers_learnt(self, size: int, pads: Mapping[str, Any]) -> float:
        """Action numbers of the global batch; without the padded ones where do_mask_loss_for_padding says so."""
        pad = pads.get(pad_key(ACTION)) if self.do_mask_loss_for_padding else None
        valid = size * self.horizon - (0 if pad is None else int(pad.sum()))
        return float(max(valid, 1) * self.action.shape[0])

    def scheduler_preset(self) -> DiffuserSchedulerConfig:
        """Warm-up, then cosine to zero."""
        return DiffuserSchedulerConfig(
            name=self.scheduler_name, num_warmup_steps=self.scheduler_warmup_steps
        )
