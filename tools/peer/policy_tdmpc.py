"""TD-MPC: cases, and what LeRobot and kata compute for them. `peer` needs LeRobot, `own` needs
kata.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from numbers_of import fill, tensor
from sides import BATCH_SIZE, own_actions, own_features, peer_actions, peer_features, peer_gradients
from torch import Tensor

ACT_STEPS = 5
STATE, ENV, CAMERA = "observation.state", "observation.environment_state", "observation.image"
"""LeRobot wants the camera called so."""

TINY: dict[str, Any] = {
    "horizon": 4,
    "image_encoder_hidden_dim": 4,
    "state_encoder_hidden_dim": 12,
    "latent_dim": 10,
    "mlp_dim": 16,
    "cem_iterations": 2,
    "n_gaussian_samples": 20,
    "n_pi_samples": 5,
    "n_elites": 6,
    "q_ensemble_size": 5,
}


@dataclass(frozen=True)
class Case:
    """Input shapes by key, the action's width, and options."""

    inputs: dict[str, tuple[int, ...]] = field(
        default_factory=lambda: {STATE: (5,), CAMERA: (3, 44, 44)}
    )
    action_dim: int = 3
    options: dict[str, Any] = field(default_factory=dict)
    base: dict[str, Any] = field(default_factory=lambda: TINY)

    @property
    def config(self) -> dict[str, Any]:
        return {**self.base, **self.options}


GOLDEN: dict[str, Case] = {
    "tiny": Case(),
    "env_state": Case(
        {STATE: (5,), ENV: (7,)}, options={"n_action_repeats": 1, "n_action_steps": 3}
    ),
    "no_shift_two_judges": Case(
        {STATE: (5,), ENV: (7,), CAMERA: (3, 40, 40)},
        options={"max_random_shift_ratio": 0.0, "q_ensemble_size": 2, "n_action_repeats": 1},
    ),
    "no_plan": Case(
        {STATE: (5,), ENV: (7,)}, options={"use_mpc": False, "uncertainty_regularizer_coeff": 0.0}
    ),
    "no_doubt": Case({STATE: (5,), ENV: (7,)}, options={"uncertainty_regularizer_coeff": 0.0}),
}
CHECKPOINT = Case()
"""What a checkpoint is written of and acted from, both ways."""

LIVE: dict[str, Case] = {
    **GOLDEN,
    "default_84x84": Case({STATE: (4,), CAMERA: (3, 84, 84)}, 4, base={}),
}


def observation(case: Case, step: int) -> dict[str, Tensor]:
    return {
        key: tensor(f"{key} {step}", (BATCH_SIZE, *shape)) for key, shape in case.inputs.items()
    }


def batch(case: Case, config: Any) -> dict[str, Tensor]:
    """A training batch; all but the first sample reach over the episode's end."""
    horizon = config.horizon
    lengths = torch.tensor([horizon + 1, horizon // 2, 1])[:, None]
    steps = [observation(case, step) for step in range(horizon + 1)]
    seen = torch.arange(horizon + 1)[None] >= lengths
    return {
        **{key: torch.stack([step[key] for step in steps], 1) for key in case.inputs},
        **{f"{key}_is_pad": seen for key in case.inputs},
        "action": tensor("action", (BATCH_SIZE, horizon, case.action_dim)),
        "action_is_pad": seen[:, :-1],
        "next.reward": 2 * tensor("reward", (BATCH_SIZE, horizon)),
        "next.reward_is_pad": seen[:, :-1],
        "index": torch.arange(BATCH_SIZE),
    }


PICKS = ((0.1, 0.7), (0.5, 0.95))
"""Shares of the ensemble: which Q functions judge, for V and for the advantage."""


def shift(config: Any) -> Tensor:
    """Return where frames are shifted to, (B, horizon + 1, 2), as shares of the way, rows first."""
    return (tensor("shift", (BATCH_SIZE, config.horizon + 1, 2)) + 1) / 2


@dataclass
class PlanNoise:
    """The numbers of one plan after the other, in the order in which kata and in that in which
    LeRobot takes them.
    """

    case: Case
    config: Any
    size: int = BATCH_SIZE
    plans: int = 0
    waiting: list[Tensor] = field(default_factory=list)

    def flat(self) -> Tensor:
        """Return what kata takes at once, (B, N).

        Which Q functions judge is the same in all rows, as in LeRobot.
        """
        c, width = self.config, self.case.action_dim
        samples = c.n_gaussian_samples + c.n_pi_samples
        self.plans += 1
        label = f"plan {self.plans}"
        parts = [tensor(f"{label} own", (self.size, c.n_pi_samples * c.horizon * width))]
        for number in range(c.cem_iterations):
            parts.append(
                tensor(
                    f"{label} {number}",
                    (self.size, (c.n_gaussian_samples * c.horizon + samples) * width),
                )
            )
            parts.append(tensor(f"{label} picks {number}", (1, 2)).expand(self.size, -1))
        return 1.7 * torch.cat([*parts, tensor(f"{label} last", (self.size, 1))], 1)

    def next(self) -> Tensor:
        """Return what LeRobot takes at its next call."""
        if not self.waiting:
            self.waiting = list(self._in_turn(self.flat()))
        return self.waiting.pop(0)

    def _in_turn(self, flat: Tensor) -> Iterator[Tensor]:
        c, width, at = self.config, self.case.action_dim, 0

        def take(*shape: int) -> Tensor:
            nonlocal at
            count = int(np.prod(shape))
            part = flat[:, at : at + count].reshape(self.size, *shape)
            at += count
            return part

        yield from take(c.n_pi_samples, c.horizon, width).permute(2, 1, 0, 3)
        for _ in range(c.cem_iterations):
            yield take(c.n_gaussian_samples, c.horizon, width).permute(2, 1, 0, 3)
            yield take(c.n_gaussian_samples + c.n_pi_samples, width).transpose(0, 1)
            picks = take(2)[0]
            if c.q_ensemble_size > 2:
                yield (torch.special.ndtr(picks) * c.q_ensemble_size).long()
        yield torch.special.ndtr(take(1))

    @contextmanager
    def given(self) -> Iterator[None]:
        """LeRobot's calls, and kata's of a batch of numbers at once, find these numbers inside."""

        def multinomial(share: Tensor, num_samples: int) -> Tensor:
            assert num_samples == 1
            return (share.cumsum(-1) <= self.next()).sum(-1, keepdim=True)

        def same(*given: Any, **options: Any) -> Tensor:
            of_kata = len(given) == 2 and "size" not in options  # LeRobot's are (horizon, N, B, A)
            return self.flat() if of_kata else self.next()

        with ExitStack() as patches:
            for name in ("randn", "randn_like", "randint"):
                patches.enter_context(mock.patch(f"torch.{name}", same))
            patches.enter_context(mock.patch("torch.multinomial", multinomial))
            yield


def steady() -> AbstractContextManager[None]:
    """Both sides act alike inside, on one robot."""
    return PlanNoise(CHECKPOINT, SimpleNamespace(**CHECKPOINT.config), size=1).given()


def results(policy: torch.nn.Module, loss: Tensor) -> dict[str, Tensor]:
    loss.backward()
    return {"loss": loss.detach(), **peer_gradients(policy)}


def target(policy: torch.nn.Module) -> dict[str, Tensor]:
    named = policy.named_parameters()
    return {
        f"grad/{n} after": p.detach().clone() for n, p in named if n.startswith("model_target.")
    }


def build_peer(case: Case) -> Any:
    """LeRobot's policy of a case, with the weights of the formula."""
    from lerobot.policies.tdmpc.configuration_tdmpc import TDMPCConfig
    from lerobot.policies.tdmpc.modeling_tdmpc import TDMPCPolicy

    config = TDMPCConfig(
        device="cpu",
        **peer_features(case.inputs, case.action_dim),
        **case.config,
    )
    policy = TDMPCPolicy(config)
    fill(policy)
    return policy


def peer(case: Case) -> dict[str, Tensor]:
    policy = build_peer(case)
    config = policy.config
    picks = iter(PICKS)

    def choice(count: int, size: int) -> Any:
        return (np.array(next(picks)) * count).astype(int)

    def pixels(low: int, high: int, size: tuple[int, ...], **options: Any) -> Tensor:
        return (shift(config).transpose(0, 1).flip(-1).reshape(size) * high).floor()

    policy.train()
    with mock.patch("numpy.random.choice", choice), mock.patch("torch.randint", pixels):
        loss, said = policy.forward(batch(case, config))
    out = {
        **results(policy, loss),
        **{n: torch.tensor(said[n]) for n in said if n.endswith("_loss") and n != "sum_loss"},
    }
    policy.update()
    out |= target(policy)
    policy.eval()
    with PlanNoise(case, config).given():
        policy.reset()
        policy._queues.update({key: [value] for key, value in observation(case, 0).items()})
        out["chunk"] = policy.predict_action_chunk(observation(case, 0)).transpose(0, 1)
        policy.reset()
        out["actions"] = peer_actions(policy, functools.partial(observation, case), ACT_STEPS)
    return out


def build_own(case: Case) -> Any:
    """kata's policy of a case, with the weights of the formula."""
    from kata.policies.tdmpc.config import Config
    from kata.policies.tdmpc.model import Policy

    config = Config(
        **own_features(case.inputs, case.action_dim),
        **case.config,
    )
    policy = Policy(config)
    fill(policy)
    return policy


def own(case: Case) -> dict[str, Tensor]:
    policy = build_own(case)
    config = policy.config
    policy.train()
    terms = policy(
        batch(case, config),
        picks=torch.tensor(PICKS).expand(BATCH_SIZE, -1, -1),
        shift=shift(config),
    ).terms
    counts = config.loss_weights(BATCH_SIZE, {})
    means = {name: term.total / counts[name] for name, term in terms.items()}
    out = results(
        policy, torch.stack([terms[name].scale * mean for name, mean in means.items()]).sum()
    )
    called = {"q_value_loss": "Q_value_loss", "v_value_loss": "V_value_loss"}
    out |= {
        called.get(name, name): mean.detach()
        for name, mean in means.items()
        if name.endswith("_loss")
    }
    policy.after_step(1, torch.tensor(False))
    out |= target(policy)
    policy.eval()
    with PlanNoise(case, config).given():
        out["chunk"] = policy.predict_chunk(
            {key: value[:, None] for key, value in observation(case, 0).items()}
        )
        actions = own_actions(policy, functools.partial(observation, case), ACT_STEPS)
    return {**out, "actions": actions}
