"""Options of TD-MPC, with LeRobot's names and defaults. Torch-free."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar

from kata.config import encode, option
from kata.optim.config import AdamConfig
from kata.policies.config import PolicyConfig
from kata.policies.observation_rules import shape_rules
from kata.policies.rules import Rule, refuse_broken_rules
from kata.spec import ACTION, DONE, ENV_STATE, REWARD, STATE, Draw, FeatureType, NormMode, Windows

CONVOLUTIONS = (7, 5, 3, 3)
"""Kernels of the image encoder; each halves the picture and pads nothing."""

SMALLEST = 39
"""Pixels that leave one of the feature map."""

PICKED = 2
"""Number of Q functions that are drawn from the ensemble; the lowest value counts (arXiv
2310.16029, appendix C).
"""


def _modes() -> dict[str, NormMode]:
    kept = (FeatureType.VISUAL, FeatureType.STATE, FeatureType.ENV)
    return {
        **{kind.value: NormMode.IDENTITY for kind in kept},
        FeatureType.ACTION.value: NormMode.MIN_MAX,
    }


@dataclass(frozen=True, kw_only=True)
class Config(PolicyConfig):
    """TD-MPC's options. Impossible values raise PolicyError at once.

    LeRobot's Q functions never see the last action of an episode; with learn_from_ends they do.
    """

    type_name: ClassVar[str] = "tdmpc"

    n_action_repeats: int = option(2, "Times that the first action of a plan is executed.", least=1)
    horizon: int = option(5, "Steps of a training sample and of a plan.", least=1)
    n_action_steps: int = option(
        1, "Actions of a plan that are executed; more than 1 needs n_action_repeats=1.", least=1
    )
    normalization_mapping: dict[str, NormMode] = field(default_factory=_modes)
    image_encoder_hidden_dim: int = option(32, "Channels of the image encoder.", least=1)
    state_encoder_hidden_dim: int = option(256, "Width of the state encoder.", least=1)
    latent_dim: int = option(50, "Size of the latent state.", least=1)
    q_ensemble_size: int = option(5, "Q functions in the ensemble.", least=1)
    mlp_dim: int = option(512, "Width of the world model's layers.", least=1)
    discount: float = option(0.9, "Discount of future rewards.", least=0, most=1)
    use_mpc: bool = option(True, "Act by planning; false takes the learnt policy's action.")
    cem_iterations: int = option(6, "Rounds of a plan's search.", least=1)
    max_std: float = option(2.0, "Largest standard deviation of the search.")
    min_std: float = option(0.05, "Smallest standard deviation of the search.", above=0)
    n_gaussian_samples: int = option(512, "Plans drawn in each round.", least=1)
    n_pi_samples: int = option(51, "Plans of the learnt policy in each round.", least=0)
    uncertainty_regularizer_coeff: float = option(
        1.0, "Weight of the Q functions' disagreement, which lowers a plan's value."
    )
    n_elites: int = option(50, "Best plans that the next round is drawn around.", least=1)
    elite_weighting_temperature: float = option(0.5, "Weight of a plan's value among the elites.")
    gaussian_mean_momentum: float = option(
        0.1, "Share of the last round's mean that is kept.", least=0, most=1
    )
    max_random_shift_ratio: float = option(
        0.0476,
        "Largest random shift of training frames, as a share of the picture.",
        least=0,
        below=1,
    )
    reward_coeff: float = option(0.5, "Weight of the reward loss.")
    expectile_weight: float = option(0.9, "Expectile of the value function.", least=0, most=1)
    value_coeff: float = option(0.1, "Weight of the value losses.")
    consistency_coeff: float = option(20.0, "Weight of the latent consistency loss.")
    advantage_scaling: float = option(
        3.0, "Factor of the advantage that weighs the policy's actions."
    )
    pi_coeff: float = option(0.5, "Weight of the policy loss.")
    temporal_decay_coeff: float = option(
        0.5, "Factor that later steps of a sample count with, per step.", least=0, most=1
    )
    target_model_momentum: float = option(
        0.995, "Share of the target model that an update keeps.", least=0, most=1
    )
    optimizer_lr: float = option(3e-4, "Learning rate of the preset, Adam.", least=0)
    shift_by_executed: bool = option(
        False,
        "Start a plan from the last one moved by as many steps as were executed; LeRobot moves it "
        "by one.",
        is_own=True,
    )
    learn_from_ends: bool = option(
        False,
        "Read next.done: an action that ends the task is worth its reward alone, as LeRobot never "
        "learns.",
        is_own=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_broken_rules(chain(self._mode_rules(), self._plan_rules()))

    def _mode_rules(self) -> Iterator[Rule]:
        """Yield rules on observation steps and on the scale of actions."""
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
        """Yield rules on the options of planning."""
        several = self.n_action_steps > 1
        yield (
            several and (self.n_action_repeats > 1 or not self.use_mpc),
            f"policy.n_action_steps={self.n_action_steps} with "
            f"policy.n_action_repeats={self.n_action_repeats} and "
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
        samples = self.n_gaussian_samples + self.n_pi_samples
        yield (
            self.n_elites > samples,
            f"policy.n_elites={self.n_elites}",
            f"at most n_gaussian_samples + n_pi_samples = {samples}: the elites are the best of "
            "them",
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
        """`horizon` actions with their rewards, and the observations before, between and after
        them.
        """
        steps = tuple(range(self.horizon))
        seen = dict.fromkeys(self.input_features, (*steps, self.horizon))
        return {**seen, ACTION: steps, REWARD: steps} | (
            {DONE: steps} if self.learn_from_ends else {}
        )

    def draws(self) -> dict[str, Draw]:
        """Return draws of Q functions (for V and for the advantage), and of the shift of each
        frame.
        """
        found = {"picks": Draw("uniform", (2, PICKED), shared=True)}
        if self.cameras and self.max_random_shift_ratio > 0:
            found["shift"] = Draw("uniform", (self.horizon + 1, 2))
        return found

    def plan_parts(self) -> list[int]:
        """Return the counts of random numbers of a plan: for policy rollouts, for all rounds, for
        the final choice.
        """
        width, samples = self.action.shape[0], self.n_gaussian_samples + self.n_pi_samples
        a_round = (self.n_gaussian_samples * self.horizon + samples) * width + PICKED
        return [self.n_pi_samples * self.horizon * width, self.cem_iterations * a_round, 1]

    def act_draws(self) -> dict[str, Draw]:
        """All that a plan takes, at once."""
        return {"noise": Draw("normal", (sum(self.plan_parts()),))} if self.use_mpc else {}

    def loss_weights(self, size: int, pads: Mapping[str, Any]) -> dict[str, float]:
        """Samples; sample steps for the policy's loss, which LeRobot alone takes the mean of over
        time. Padded steps count, as in LeRobot.
        """
        del pads
        sums = ("consistency_loss", "reward_loss", "q_value_loss", "v_value_loss")
        means = ("pi_loss", "q_value", "v_value")
        return {
            **dict.fromkeys(sums, float(size)),
            **dict.fromkeys(means, float(size * self.horizon)),
        }

    def validate_features(self) -> None:
        """Raise PolicyError unless there are an action vector and a state, an environment state
        or one camera.
        """
        refuse_broken_rules(chain(shape_rules(self, "TD-MPC"), self._input_rules()))

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
