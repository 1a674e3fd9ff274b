"""Config base classes of policies that read cameras, a state and a sentence, and predict a chunk.
Torch-free.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kata.config import encode, option
from kata.optim.config import AdamWConfig, CosineDecayWithWarmupConfig
from kata.policies.config import AdamPolicyConfig
from kata.policies.observation_rules import shape_rules, state_and_cameras_rules
from kata.policies.relative import RelativeConfig
from kata.policies.rtc import RtcConfig, delay_rules
from kata.policies.rules import Rule, refuse_broken_rules
from kata.spec import (
    ACTION,
    STATE,
    Draw,
    Feature,
    FeatureType,
    NormMode,
    Windows,
    dim_pad_key,
    pad_key,
)

EMPTY_CAMERA = "observation.images.empty_camera_"
"""Beginning of the names that LeRobot gives to empty cameras in config.json."""


def _modes() -> dict[str, NormMode]:
    vectors = {kind.value: NormMode.MEAN_STD for kind in (FeatureType.STATE, FeatureType.ACTION)}
    return {FeatureType.VISUAL.value: NormMode.IDENTITY, **vectors}


@dataclass(frozen=True, kw_only=True)
class ChunkConfig(AdamPolicyConfig):
    """Options that all policies share that read cameras and a state, and predict a chunk."""

    chunk_size: int = option(50, "Actions predicted at once.", least=1)
    n_action_steps: int = option(
        50, "Actions of a chunk that are executed before the next prediction.", least=1
    )
    normalization_mapping: dict[str, NormMode] = field(default_factory=_modes)
    max_state_dim: int = option(32, "Numbers that states are padded to.", least=1)
    max_action_dim: int = option(32, "Numbers that actions are padded to.", least=1)

    def accepts(self, key: str, available: Mapping[str, Feature]) -> bool:
        """Return True as `PolicyConfig.accepts` does, also if another camera is there instead, or
        for a vector of another width, which is padded.
        """
        have = available.get(key)
        if super().accepts(key, available):
            return True
        if have is None:
            return key in self.cameras and any(name in available for name in self.cameras)
        vectors = (FeatureType.STATE, FeatureType.ACTION)
        return key in (STATE, ACTION) and have.type in vectors and len(have.shape) == 1

    def windows(self) -> Windows:
        """Return offsets of the chunk of actions. Observations are read at the anchor."""
        return {ACTION: tuple(range(self.chunk_size))}

    def chunk_rules(self) -> Iterator[Rule]:
        """Yield rules on the numbers of steps."""
        yield (
            self.n_obs_steps != 1,
            f"policy.n_obs_steps={self.n_obs_steps}",
            f"{self.type} sees one observation step",
            "leave out --policy.n_obs_steps",
        )
        yield (
            self.n_action_steps > self.chunk_size,
            f"policy.n_action_steps={self.n_action_steps} with policy.chunk_size={self.chunk_size}",
            "no more actions are executed than a chunk holds",
            f"--policy.n_action_steps={self.chunk_size} or less",
        )

    def feature_rules(self) -> Iterator[Rule]:
        """Yield rules on inputs and outputs: cameras, a state, an action, none too wide."""
        yield from shape_rules(self, self.type)
        yield from state_and_cameras_rules(self, self.type)
        for name, key, most in (
            ("max_state_dim", STATE, self.max_state_dim),
            ("max_action_dim", ACTION, self.max_action_dim),
        ):
            feature = {**self.input_features, **self.output_features}[key]
            yield (
                feature.shape[0] > most,
                f"{key}: {feature.shape[0]} numbers with policy.{name}={most}",
                f"no more numbers than policy.{name}",
                f"--policy.{name}={feature.shape[0]}, where training starts without a checkpoint",
            )


@dataclass(frozen=True, kw_only=True)
class AdamWChunkConfig(ChunkConfig, RelativeConfig):
    """Options of policies of chunks that are trained with AdamW and a cosine schedule."""

    optimizer_lr: float = 1e-4
    optimizer_betas: tuple[float, float] = (0.9, 0.95)
    optimizer_weight_decay: float = 1e-10
    optimizer_grad_clip_norm: float = option(10.0, "Gradient norm of the preset.", least=0)
    scheduler_warmup_steps: int = option(1000, "Warm-up steps of the preset.", least=0)
    scheduler_decay_steps: int = option(
        30_000, "Step at which the preset reaches scheduler_decay_lr.", least=1
    )
    scheduler_decay_lr: float = option(2.5e-6, "Learning rate at the preset's end.", least=0)

    def optimizer_preset(self) -> AdamWConfig:
        """Return AdamW with the options of this config."""
        return AdamWConfig(
            lr=self.optimizer_lr,
            betas=self.optimizer_betas,
            eps=self.optimizer_eps,
            weight_decay=self.optimizer_weight_decay,
            grad_clip_norm=self.optimizer_grad_clip_norm,
        )

    def scheduler_preset(self) -> CosineDecayWithWarmupConfig:
        """Return a schedule with warm-up and cosine decay."""
        return CosineDecayWithWarmupConfig(
            num_warmup_steps=self.scheduler_warmup_steps,
            num_decay_steps=self.scheduler_decay_steps,
            peak_lr=self.optimizer_lr,
            decay_lr=self.scheduler_decay_lr,
        )

    @property
    def most_given(self) -> int:
        """Return the number of actions that a chunk in training begins with, at most."""
        return 0


@dataclass(frozen=True, kw_only=True)
class DenoisedConfig(AdamWChunkConfig):
    """Options of policies that denoise a chunk by flow matching."""

    masks_action_dims: ClassVar[bool] = True

    @property
    def trains_padded_steps(self) -> bool:
        """Return True if the loss counts steps behind the end of an episode, as real ones."""
        return False

    @property
    def trains_padded_dims(self) -> bool:
        """Return True if the loss counts the numbers that pad actions to `max_action_dim`."""
        return False

    def draws(self) -> dict[str, Draw]:
        """Return the noise of a chunk, and uniform numbers for the time and the given actions."""
        found = {**self.act_draws(), "time": Draw("uniform", (1,))}
        return {**found, "given": Draw("uniform", (1,))} if self.most_given else found

    def counted_draws(self) -> tuple[str, ...]:
        """Return the draw that decides how many actions a chunk begins with, if there is one."""
        return ("given",) if self.most_given else ()

    def given_actions(self, share: Any) -> Any:
        """Return how many actions chunks begin with, 0 to `most_given`, from uniform numbers."""
        return (share * (self.most_given + 1) // 1).clip(max=self.most_given)

    def act_draws(self) -> dict[str, Draw]:
        """Return the noise that a chunk is computed from."""
        return {"noise": Draw("normal", (self.chunk_size, self.max_action_dim))}

    def loss_weights(self, size: int, pads: Mapping[str, Any]) -> dict[str, float]:
        """Return the number of real action values of the global batch."""
        import numpy as np  # here, so that help need not import it

        pad, dim_pad = pads.get(pad_key(ACTION)), pads.get(dim_pad_key(ACTION))
        real = np.ones((size, self.chunk_size), bool)
        if pad is not None and not self.trains_padded_steps:
            real = ~pad
        if "given" in pads:
            real = real & (np.arange(self.chunk_size) >= self.given_actions(pads["given"]))
        steps = real.sum(1)
        width = self.max_action_dim if self.trains_padded_dims else self.action.shape[0]
        dims = np.full(size, width) if dim_pad is None else width - dim_pad.sum(1)
        return {"flow_matching_loss": float(max(int((steps * dims).sum()), 1))}


@dataclass(frozen=True, kw_only=True)
class TimedConfig(DenoisedConfig):
    """Options of policies whose embedding of time has geometric periods."""

    min_period: float = option(4e-3, "Shortest period of the embedding of time.", above=0)
    max_period: float = option(4.0, "Longest period of the embedding of time.", above=0)


@dataclass(frozen=True, kw_only=True)
class SampledTimesConfig(TimedConfig):
    """Options of policies whose training times have a Beta distribution."""

    time_sampling_beta_alpha: float = option(
        1.5, "First parameter of the Beta distribution of training times.", above=0
    )
    time_sampling_beta_beta: float = option(
        1.0, "Second parameter of the Beta distribution of training times.", above=0
    )
    time_sampling_scale: float = option(0.999, "Range of training times.", above=0)
    time_sampling_offset: float = option(0.001, "Smallest training time.", least=0)

    def time_rules(self) -> Iterator[Rule]:
        """Yield the rule on the range of training times."""
        yield (
            self.time_sampling_scale + self.time_sampling_offset > 1,
            f"policy.time_sampling_scale={self.time_sampling_scale} with "
            f"policy.time_sampling_offset={self.time_sampling_offset}",
            "times end at 1, the noise",
            f"--policy.time_sampling_scale={1 - self.time_sampling_offset} or less",
        )


@dataclass(frozen=True, kw_only=True)
class SentenceConfig(AdamWChunkConfig):
    """Options of policies that read a sentence, and cameras that may be absent."""

    empty_cameras: int = option(
        0, "Cameras that the policy knows and no dataset has; nothing of them is seen.", least=0
    )
    tokenizer_max_length: int = option(48, "Tokens of a task sentence.", least=1)
    cut_long_prompts: bool = option(
        False,
        "Cut task sentences that are longer than tokenizer_max_length, as LeRobot does; false "
        "refuses them before step 1.",
        is_own=True,
    )

    @property
    def cuts_prompts(self) -> bool:
        """Return `cut_long_prompts`."""
        return self.cut_long_prompts

    @classmethod
    def completed(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return a config.json without the empty cameras that LeRobot lists among the inputs."""
        found = dict(raw)
        inputs: Mapping[str, Any] = found.get("input_features") or {}
        kept = {k: v for k, v in inputs.items() if not k.startswith(EMPTY_CAMERA)}
        return {**found, "input_features": kept}


@dataclass(frozen=True, kw_only=True)
class VlaConfig(SentenceConfig):
    """Options that vision-language-action policies share."""

    rtc_config: RtcConfig | None = option(
        None, "Real-time chunking in acting: each chunk continues the one before it."
    )

    continues_chunks: ClassVar[bool] = False
    """True if a chunk can continue another."""

    def refuse_delay(self, delay: int) -> None:
        """Raise PolicyError unless chunks last while others are predicted for `delay` steps."""
        is_continued = self.rtc_config is not None and self.rtc_config.enabled
        relative = (
            self.use_relative_actions and is_continued,
            "policy.rtc_config with policy.use_relative_actions=true",
            "what is left over of a chunk is relative to an older state than the next chunk",
            "--policy.rtc_config.enabled=false",
        )
        rules = delay_rules(
            delay,
            chunk=self.chunk_size,
            every=self.n_action_steps,
            rtc=self.rtc_config,
            trained=self.most_given,
        )
        refuse_broken_rules([relative, *rules])

    def told_of_delay(self, delay: int) -> dict[str, Any]:
        """Return steps of a prediction and between two, and the options of real-time chunking."""
        return {
            "inference_delay": delay,
            "n_action_steps": self.n_action_steps,
            "rtc_config": encode(self.rtc_config),
        }

    def chunk_rules(self) -> Iterator[Rule]:
        """Yield rules on the numbers of steps, and on real-time chunking."""
        yield from super().chunk_rules()
        yield (
            self.rtc_config is not None and self.rtc_config.enabled and not self.continues_chunks,
            "policy.rtc_config",
            f"{self.type} has no real-time chunking: nothing guides its tokens",
            "--policy.rtc_config=null",
        )


@dataclass(frozen=True, kw_only=True)
class FlowVlaConfig(VlaConfig, TimedConfig):
    """Options of vision-language-action policies whose denoised chunks may continue another."""

    continues_chunks: ClassVar[bool] = True
