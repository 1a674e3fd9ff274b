"""Options of TD-MPC, with LeRobot's names and defaults. Torch-free."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar

from kata.config import encode
from kata.optim.config import AdamConfig
from kata.policies.config import PolicyConfig, own
from kata.policies.observation_rules import shape_rules
from kata.policies.rules import Rule, refuse, size_rules
from kata.spec import ACTION, DONE, ENV_STATE, REWARD, STATE, Draw, FeatureType, NormMode, Windows

CONVOLUTIONS = (7, 5, 3, 3)
"""Kernels of the image encoder; each halves the picture and pads nothing."""

SMALLEST = 39
"""Pixels that leave one of the feature map."""

PICKED = 2
"""Of the ensemble's Q functions so many judge, and the lowest value counts (arXiv 2310.16029, appendix C)."""

SIZES = (
    *(
        "n_action_repeats",
        "horizon",
        "n_action_steps",
        "image_encoder_hidden_dim",
        "state_encoder_hidden_dim",
    ),
    *(
        "latent_dim",
        "q_ensemble_size",
        "mlp_dim",
        "cem_iterations",
        "n_gaussian_samples",
        "n_elites",
    ),
)
SHARES = (
    "discount",
    "gaussian_mean_momentum",
    "expectile_weight",
    "temporal_decay_coeff",
    "target_model_momentum",
)


def _modes() -> dict[str, NormMode]:
    kept = (FeatureType.VISUAL, FeatureType.STATE, FeatureType.ENV)
    return {
        **{kind.value: NormMode.IDENTITY for kind in kept},
        FeatureType.ACTION.value: NormMode.MIN_MAX,
    }


@dataclass(frozen=True, kw_only=True)
class Config(PolicyConfig):
    """TD-MPC's options. Impossible values raise PolicyError at once.

    Training looks at `horizon` actions with their rewards and the observations around them. Acting plans as many
    actions: the first is executed n_action_repeats times, or n_action_steps of them once. use_mpc=false takes the
    action of the learnt policy instead of a plan. shift_by_executed starts a plan from the last one moved by as many
    steps as were executed since; LeRobot moves it by one. learn_from_ends reads next.done: an action that ends the task
    is worth its reward alone. LeRobot's Q functions never see the last action of an episode.
    """

    type_name: ClassVar[str] = "tdmpc"

    n_action_repeats: int = 2
    horizon: int = 5
    n_action_steps: int = 1
    normalization_mapping: dict[str, NormMode] = field(default_factory=_modes)
    image_encoder_hidden_dim: int = 32
    state_encoder_hidden_dim: int = 256
    latent_dim: int = 50
    q_ensemble_size: int = 5
    mlp_dim: int = 512
    discount: float = 0.9
    use_mpc: bool = True
    cem_iterations: int = 6
    max_std: float = 2.0
    min_std: float = 0.05
    n_gaussian_samples: int = 512
    n_pi_samples: int = 51
    uncertainty_regularizer_coeff: float = 1.0
    n_elites: int = 50
    elite_weighting_temperature: float = 0.5
    gaussian_mean_momentum: float = 0.1
    max_random_shift_ratio: float = 0.0476
    reward_coeff: float = 0.5
    expectile_weight: float = 0.9
    value_coeff: float = 0.1
    consistency_coeff: float = 20.0
    advantage_scaling: float = 3.0
    pi_coeff: float = 0.5
    temporal_decay_coeff: float = 0.5
    target_model_momentum: float = 0.995
    optimizer_lr: float = 3e-4
    shift_by_executed: bool = own(False)
    learn_from_ends: bool = own(False)

    def __post_init__(self) -> None:
        refuse(chain(size_rules(self, SIZES), self._share_rules(), self._plan_rules()))

    def _share_rules(self) -> Iterator[Rule]:
        """Shares and modes."""
        for name in SHARES:
            share: float = getattr(self, name)
            yield (
                not 0 <= share <= 1,
                f"policy.{name}={share}",
                "a share from 0 to 1",
                f"--policy.{name}=0.9",
            )
        ratio = self.max_random_shift_ratio
        yield (
            not 0 <= ratio < 1,
            f"policy.max_random_shift_ratio={ratio}",
            "a share of the picture from 0 up to below 1",
            "--policy.max_random_shift_ratio=0 for no shift",
        )
        yield (
            self.n_obs_steps != 1,
            f"policy.n_obs_steps={self.n_obs_steps}",
            "TD-MPC acts from the latest observation alone",
            "--policy.n_obs_steps=1",
        )
        mode = self.normalization_mapping.get(FeatureType.ACTION.value)
        yield (
            mode is not NormMode.MIN_MAX,
            f"policy.normalization_mapping: ACTION {mode.value if mode else 'absent'}",
            "MIN_MAX: plans are searched for in [-1, 1]",
            "leave ACTION at MIN_MAX",
        )

    def _plan_rules(self) -> Iterator[Rule]:
        """What planning needs."""
        several = self.n_action_steps > 1
        yield (
            several and (self.n_action_repeats > 1 or not self.use_mpc),
            f"policy.n_action_steps={self.n_action_steps} with policy.n_action_repeats={self.n_action_repeats} and "
            f"policy.use_mpc={str(self.use_mpc).lower()}",
            "several steps come from a plan, each executed once",
            "--policy.n_action_repeats=1 --policy.use_mpc=true, or --policy.n_action_steps=1",
        )
        yield (
            self.n_action_steps > self.horizon,
            f"policy.n_action_steps={self.n_action_steps} with policy.horizon={self.horizon}",
            "at most horizon: what is executed was planned",
            f"--policy.n_action_steps={self.horizon}",
        )
        yield (
            self.n_pi_samples < 0,
            f"policy.n_pi_samples={self.n_pi_samples}",
            "at least 0",
            "--policy.n_pi_samples=0 for plans without the policy's own",
        )
        samples = self.n_gaussian_samples + self.n_pi_samples
        yield (
            self.n_elites > samples,
            f"policy.n_elites={self.n_elites}",
            f"at most n_gaussian_samples + n_pi_samples = {samples}: the elites are the best of them",
            f"--policy.n_elites={max(1, samples // 10)}",
        )
        yield (
            self.q_ensemble_size == 1 and self.uncertainty_regularizer_coeff > 0,
            "policy.q_ensemble_size=1",
            "at least 2: one Q function cannot disagree with itself",
            "--policy.q_ensemble_size=5, or --policy.uncertainty_regularizer_coeff=0",
        )
        yield (
            not 0 < self.min_std <= self.max_std,
            f"policy.min_std={self.min_std} with policy.max_std={self.max_std}",
            "0 < min_std <= max_std",
            "--policy.min_std=0.05 --policy.max_std=2",
        )

    @property
    def executed(self) -> int:
        """Steps for which one plan serves."""
        return max(self.n_action_repeats, self.n_action_steps)

    def windows(self) -> Windows:
        """`horizon` actions with their rewards, and the observations before, between and after them."""
        steps = tuple(range(self.horizon))
        seen = dict.fromkeys(self.input_features, (*steps, self.horizon))
        return {**seen, ACTION: steps, REWARD: steps} | (
            {DONE: steps} if self.learn_from_ends else {}
        )

    def draws(self) -> dict[str, Draw]:
        """Which Q functions judge, once for V and once for the advantage, and where each frame is shifted to."""
        found = {"picks": Draw("uniform", (2, PICKED), shared=True)}
        if self.cameras and self.max_random_shift_ratio > 0:
            found["shift"] = Draw("uniform", (self.horizon + 1, 2))
        return found

    def plan_parts(self) -> list[int]:
        """How many numbers a plan takes for the policy's own plans, for all rounds, and for the choice at the end."""
        width, samples = self.action.shape[0], self.n_gaussian_samples + self.n_pi_samples
        a_round = (self.n_gaussian_samples * self.horizon + samples) * width + PICKED
        return [self.n_pi_samples * self.horizon * width, self.cem_iterations * a_round, 1]

    def act_draws(self) -> dict[str, Draw]:
        """All that a plan takes, at once."""
        return {"noise": Draw("normal", (sum(self.plan_parts()),))} if self.use_mpc else {}

    def loss_weights(self, size: int, pads: Mapping[str, Any]) -> dict[str, float]:
        """Samples; sample steps for the policy's loss, which LeRobot alone takes the mean of over time. Padded steps
        count, as in LeRobot.
        """
        del pads
        sums = ("consistency_loss", "reward_loss", "q_value_loss", "v_value_loss")
        means = ("pi_loss", "q_value", "v_value")
        return {
            **dict.fromkeys(sums, float(size)),
            **dict.fromkeys(means, float(size * self.horizon)),
        }

    def validate_features(self) -> None:
        """Raise PolicyError unless there are an action vector and a state, an environment state or one camera."""
        refuse(chain(shape_rules(self, "TD-MPC"), self._input_rules()))

    def _input_rules(self) -> Iterator[Rule]:
        cameras = list(self.cameras)
        yield (
            not cameras and self.state is None and self.env_state is None,
            f"inputs of TD-MPC: {', '.join(self.input_features) or 'none'}",
            f"one camera, '{STATE}' or '{ENV_STATE}'",
            "choose a dataset with one, or keep one among the policy's inputs",
        )
        kept = {
            key: encode(feature)
            for key, feature in self.input_features.items()
            if key not in cameras[1:]
        }
        yield (
            len(cameras) > 1,
            f"cameras: {', '.join(cameras)}",
            "TD-MPC takes one camera, as in LeRobot",
            f"--policy.input_features='{json.dumps(kept)}'",
        )
        for key, feature in self.cameras.items():
            yield (
                min(feature.shape[1:]) < SMALLEST,
                f"{key}: {feature.shape[1]}x{feature.shape[2]} pixels",
                f"at least {SMALLEST} either way: the encoder's convolutions leave nothing of less",
                "record larger frames, or leave this camera out",
            )

    def optimizer_preset(self) -> AdamConfig:
        """Adam at a constant rate."""
        return AdamConfig(lr=self.optimizer_lr)
