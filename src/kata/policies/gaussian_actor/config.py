"""Options of the Gaussian actor, with LeRobot's names and defaults. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar

from kata.config import Options, option
from kata.errors import PolicyError
from kata.optim.config import AdamConfig
from kata.policies.config import PolicyConfig
from kata.policies.observation_rules import shape_rules
from kata.policies.rules import Rule, refuse_broken_rules
from kata.spec import ENV_STATE, STATE, Draw, FeatureType, NormMode, Windows

CONVOLUTIONS = (7, 5, 3, 3)
"""Kernels of the image encoder; each has a stride of 2 and no padding."""

SMALLEST = 39
"""Pixels of a side that leave one pixel of the feature map."""

SAMPLE, MODE = "sample", "mode"
"""Ways to choose an action: draw it, or take the squashed mean."""

ACTIVATIONS = ("ELU", "GELU", "LeakyReLU", "Mish", "ReLU", "SiLU", "Tanh")


def _modes() -> dict[str, NormMode]:
    kinds = (FeatureType.STATE, FeatureType.ENV, FeatureType.ACTION)
    return {
        FeatureType.VISUAL.value: NormMode.MEAN_STD,
        **{kind.value: NormMode.MIN_MAX for kind in kinds},
    }


@dataclass(frozen=True, kw_only=True)
class LayersConfig(Options):
    """Layers of a network: linear, layer norm, SiLU."""

    hidden_dims: list[int] = option(lambda: [256, 256], "Width of each hidden layer.", least=1)
    activate_final: bool = option(True, "Norm and activation after the last hidden layer, too.")


@dataclass(frozen=True, kw_only=True)
class CriticLayersConfig(LayersConfig):
    """Layers of a critic."""

    final_activation: str | None = option(
        None,
        "Activation after the last hidden layer, by torch's name; null takes SiLU.",
        choices=ACTIVATIONS,
    )


@dataclass(frozen=True, kw_only=True)
class GaussianConfig(Options):
    """The Gaussian that actions are drawn from."""

    use_tanh_squash: bool = option(True, "Squash actions into (-1, 1); LeRobot reads no other.")
    std_min: float = option(1e-5, "Least spread of an action.", above=0)
    std_max: float = option(10.0, "Largest spread of an action.", above=0)
    init_final: float = option(
        0.05, "First weights of the last layers are uniform within this of zero.", above=0
    )


@dataclass(frozen=True, kw_only=True)
class TransportConfig(Options):
    """The connection of LeRobot's actor and learner. kata keeps these options for LeRobot."""

    learner_host: str = option("127.0.0.1", "Host of LeRobot's learner; kata does not use it.")
    learner_port: int = option(50051, "Port of LeRobot's learner; kata does not use it.")
    policy_parameters_push_frequency: int = option(
        4, "Seconds between weights that LeRobot's learner sends; kata does not use it."
    )
    queue_get_timeout: float = option(
        2, "Seconds that LeRobot's actor waits for weights; kata does not use it."
    )


@dataclass(frozen=True, kw_only=True)
class ConcurrencyConfig(Options):
    """The workers of LeRobot's actor and learner. kata keeps these options for LeRobot."""

    actor: str = option("threads", "Workers of LeRobot's actor; kata does not use it.")
    learner: str = option("threads", "Workers of LeRobot's learner; kata does not use it.")
    multiprocessing_context: str | None = option(
        "spawn", "Start method of LeRobot's processes; kata does not use it."
    )


@dataclass(frozen=True, kw_only=True)
class Config(PolicyConfig):
    """Options of the Gaussian actor. Impossible values raise PolicyError at once."""

    type_name: ClassVar[str] = "gaussian_actor"
    beside: ClassVar[dict[str, str]] = {}

    normalization_mapping: dict[str, NormMode] = field(default_factory=_modes)
    dataset_stats: dict[str, dict[str, list[float]]] | None = option(
        None,
        "Statistics by feature, {observation.state: {min: [...], max: [...]}}. What is absent "
        "comes from the environment's bounds, else from demonstrations.",
    )
    storage_device: str = option(
        "cpu", "Device of LeRobot's buffers; kata's are in host memory.", choices=("cpu",)
    )
    vision_encoder_name: str | None = option(
        None, "Pretrained image encoder of LeRobot; kata has the built-in one alone (null)."
    )
    freeze_vision_encoder: bool = option(
        True, "Do not train the image encoder. A random encoder that is frozen learns little."
    )
    image_encoder_hidden_dim: int = option(32, "Channels of the image encoder.", least=1)
    shared_encoder: bool = option(True, "One encoder for actor and critics, which critics train.")
    num_discrete_actions: int | None = option(
        None, "Choices of a discrete last action, such as a gripper's 3; null for none.", least=2
    )
    image_embedding_pooling_dim: int = option(
        8, "Weighted sums over each channel of the feature map.", least=1
    )
    state_encoder_hidden_dim: int = option(256, "Not used, as in LeRobot.", least=1)
    latent_dim: int = option(256, "Width of each encoded input.", least=1)
    online_steps: int = option(
        1_000_000, "Steps in the environment after which training ends.", least=1, may_change=True
    )
    online_buffer_capacity: int = option(
        100_000, "Observations that the buffer of own episodes holds.", least=2
    )
    offline_buffer_capacity: int = option(
        100_000, "Observations that the buffer of demonstrations and takeovers holds.", least=2
    )
    async_prefetch: bool = option(
        False, "LeRobot's prefetching, which changes nothing there either.", choices=(False,)
    )
    online_step_before_learning: int = option(
        100, "Steps in the environment before the first update.", least=1
    )
    actor_learner_config: TransportConfig = option(TransportConfig, "")
    concurrency: ConcurrencyConfig = option(ConcurrencyConfig, "")
    actor_network_kwargs: LayersConfig = option(LayersConfig, "")
    policy_kwargs: GaussianConfig = option(GaussianConfig, "")
    discrete_critic_network_kwargs: CriticLayersConfig = option(CriticLayersConfig, "")
    act_by: str = option(
        MODE,
        "Act with the mode of the distribution, or with a sample as LeRobot does.",
        choices=(MODE, SAMPLE),
        is_own=True,
        may_change=True,
    )
    actor_std: str = option(
        "variance",
        "Meaning of the spread: the variance of an action before squashing (LeRobot), or its "
        "standard deviation (HIL-SERL).",
        choices=("variance", "std"),
        is_own=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_broken_rules(self._option_rules())

    @property
    def most_entropy(self) -> float:
        """Return a bound of the entropy of continuous actions in [-1, 1], in nats.

        It is that of the widest Gaussian, which squashing only lowers, and of even actions.
        """
        spread = self.policy_kwargs.std_max
        variance = spread**2 if self.actor_std == "std" else spread
        gaussian = 0.5 * math.log(2 * math.pi * math.e * variance)
        return self.action.shape[0] * min(gaussian, math.log(2))

    def _option_rules(self) -> Iterator[Rule]:
        spread = self.policy_kwargs
        yield (
            self.n_obs_steps != 1,
            f"policy.n_obs_steps={self.n_obs_steps}",
            "the Gaussian actor acts from the latest observation alone",
            "--policy.n_obs_steps=1",
        )
        yield (
            spread.std_min > spread.std_max,
            f"policy.policy_kwargs.std_min={spread.std_min} with std_max={spread.std_max}",
            "std_min <= std_max",
            "--policy.policy_kwargs.std_min=1e-5 --policy.policy_kwargs.std_max=10",
        )
        yield (
            not spread.use_tanh_squash,
            "policy.policy_kwargs.use_tanh_squash=false",
            "actions are always squashed, in LeRobot, too",
            "leave it out",
        )
        yield (
            self.vision_encoder_name is not None,
            f"policy.vision_encoder_name={self.vision_encoder_name}",
            "kata has no pretrained image encoder for this policy",
            "--policy.vision_encoder_name=null --policy.freeze_vision_encoder=false",
        )

    @property
    def action_size(self) -> int:
        """Return the numbers of an action, the discrete one included."""
        return self.action.shape[0] + (self.num_discrete_actions is not None)

    def windows(self) -> Windows:
        """Return no windows: the policy acts from one observation."""
        return {}

    def act_draws(self) -> dict[str, Draw]:
        """Return the noise of an action; nothing while the mode is taken."""
        wanted = Draw("normal", (self.action.shape[0],))
        return {"noise": wanted} if self.act_by == SAMPLE else {}

    def loss_weights(self, size: int, pads: Mapping[str, Any]) -> dict[str, float]:
        """Raise PolicyError: there is no loss over recordings."""
        del size, pads
        raise _by_acting()

    def validate_steps(self, steps: int) -> None:
        """Raise PolicyError: `kata train` learns from recordings alone."""
        del steps
        raise _by_acting()

    def validate_features(self) -> None:
        """Raise PolicyError unless there are an action vector, and a camera or a state."""
        refuse_broken_rules(chain(shape_rules(self, "the Gaussian actor"), self._input_rules()))

    def _input_rules(self) -> Iterator[Rule]:
        yield (
            not self.cameras and self.state is None and self.env_state is None,
            f"inputs of the Gaussian actor: {', '.join(self.input_features) or 'none'}",
            f"a camera, '{STATE}' or '{ENV_STATE}'",
            "keep one of them among the policy's inputs",
        )
        sizes = {key: feature.shape for key, feature in self.cameras.items()}
        yield (
            len(set(sizes.values())) > 1,
            "cameras: " + ", ".join(f"{k} {shape[1]}x{shape[2]}" for k, shape in sizes.items()),
            "cameras of one size: one encoder reads all of them",
            "keep cameras of one size among the policy's inputs (--policy.input_features)",
        )
        for key, feature in self.cameras.items():
            yield (
                min(feature.shape[1:]) < SMALLEST,
                f"{key}: {feature.shape[1]}x{feature.shape[2]} pixels",
                f"at least {SMALLEST} either way: the encoder's convolutions leave nothing of less",
                "record larger frames, or leave this camera out",
            )

    def optimizer_preset(self) -> AdamConfig:
        """Return Adam at LeRobot's constant rate; `kata rl` has a rate per network."""
        return AdamConfig(lr=3e-4)


def _by_acting() -> PolicyError:
    return PolicyError(
        "policy.type=gaussian_actor with `kata train`",
        rule="this policy learns by acting; `kata train` learns from recordings alone",
        remedy="kata rl train --env.type=<name> [--dataset.root=<demonstrations>]",
    )
