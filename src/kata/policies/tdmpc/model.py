"""TD-MPC learned from recordings (arXiv 2310.16029).

It has a world model, values by expectiles, and a policy by advantages.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kata.nn.images import crop
from kata.policies.base import ActState, KeyMap, Loss, ParamGroup, Term
from kata.policies.base import Policy as BasePolicy
from kata.policies.tdmpc.config import PICKED, Config
from kata.policies.tdmpc.plan import lowest_picked, plan
from kata.policies.tdmpc.world import WorldModel
from kata.spec import ACTION, DONE, REWARD, Batch, pad_key

MOST_ADVANTAGE = 100.0
"""The largest weight that an exponentiated advantage may have."""


class Rollout(NamedTuple):
    """The model's predictions for recorded actions.

    Attributes:
        latents: (B, horizon + 1, D).
        rewards: (B, horizon).
        values: (B, horizon).
        q_values: (B, horizon, ensemble).
    """

    latents: Tensor
    rewards: Tensor
    q_values: Tensor
    values: Tensor


class Goals(NamedTuple):
    """Targets of the predictions, without gradient: latents (B, horizon, D), the others (B,
    horizon).
    """

    latents: Tensor
    q_values: Tensor
    values: Tensor
    advantage: Tensor


class Policy(BasePolicy):
    """TD-MPC with its losses, a target model that follows the trained one, and acting by
    planning.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        config.validate_features()
        self.config = self._options = config
        self.model = WorldModel(config)
        self.model_target = copy.deepcopy(self.model).requires_grad_(False)

    def forward(
        self,
        batch: Batch,
        *,
        picks: Tensor | None = None,
        shift: Tensor | None = None,
        **draws: Tensor,
    ) -> Loss:
        """Compute five sums over samples and steps; later steps weigh less.

        `q_value` and `v_value` are only measured.

        Args:
            batch: Observations (B, horizon + 1, ...), actions (B, horizon, A), rewards (B, horizon)
                or (B, horizon, 1).
            picks: (B, 2, 2) in [0, 1), the Q functions that judge; None draws it.
            shift: (B, horizon + 1, 2) in [0, 1), the places of frames in training as shares of the
                way, rows first; None draws it.
            draws: Ignored.
        """
        del draws
        config, action = self._options, batch[ACTION]
        reward = batch[REWARD].reshape(action.shape[:2]).float()
        if picks is None:
            picks = torch.rand(1, 2, PICKED, device=action.device).expand(len(action), -1, -1)
        # 1. Predictions of the trained model, and their targets.
        seen = self._observations(batch, shift)
        found = self._rollout(seen, action)
        acted = ~batch[pad_key(ACTION)]
        ends = torch.zeros_like(acted)
        if config.learn_from_ends:
            ends = batch[DONE].reshape(action.shape[:2]).bool()
        goal = self._goals(seen, action, (reward, ends), found, picks)
        # The observation after the last action of an episode is padded, and teaches nothing.
        seen_after = acted & ~batch[pad_key(next(iter(config.input_features)))][:, 1:]
        # 2. Weights: expectiles push V toward good actions, advantages make the policy copy them.
        rising = (goal.values > found.values).float()
        expectile = rising * config.expectile_weight + (1 - rising) * (1 - config.expectile_weight)
        weight = (goal.advantage * config.advantage_scaling).exp().clamp(max=MOST_ADVANTAGE)
        miss = (self.model.pi(found.latents[:, :-1].detach()) - action).square().sum(-1)
        decay = config.temporal_decay_coeff ** torch.arange(config.horizon, device=action.device)
        # 3. Summands (B, horizon), without the steps that padding has made up.
        parts = {
            "consistency_loss": decay
            * seen_after
            * (found.latents[:, 1:] - goal.latents).square().mean(-1),
            "reward_loss": decay * acted * (found.rewards - reward).square(),
            "q_value_loss": decay
            * (seen_after | (acted & ends))
            * (found.q_values - goal.q_values[..., None]).square().sum(-1),
            "v_value_loss": decay * acted * expectile * (goal.values - found.values).square(),
            "pi_loss": decay * acted * weight * miss,
            "q_value": found.q_values.mean(-1).detach(),
            "v_value": found.values.detach(),
        }
        scales = self._scales()
        sums = {name: part.sum(1) for name, part in parts.items()}
        terms = {name: Term(part.sum(), scales.get(name, 0.0)) for name, part in sums.items()}
        return Loss(terms, {name: part.detach() for name, part in sums.items()})

    def _scales(self) -> dict[str, float]:
        """Return the weights of the losses by name."""
        config = self._options
        return {
            "consistency_loss": config.consistency_coeff,
            "reward_loss": config.reward_coeff,
            **dict.fromkeys(("q_value_loss", "v_value_loss"), config.value_coeff),
            "pi_loss": config.pi_coeff,
        }

    def _observations(self, batch: Batch, shift: Tensor | None) -> dict[str, Tensor]:
        """Return the inputs, in training with each frame moved by a few pixels, edges repeated."""
        config = self._options
        seen: dict[str, Tensor] = {key: batch[key] for key in config.input_features}
        if not self.training or config.max_random_shift_ratio == 0:
            return seen
        for key in config.cameras:
            frames = seen[key].flatten(0, 1)
            rows, columns = (
                round(config.max_random_shift_ratio * side) for side in frames.shape[-2:]
            )
            # Cropping a padded frame at a random place moves it, and costs a larger copy.
            place = (
                torch.rand(len(frames), 2, device=frames.device)
                if shift is None
                else shift.flatten(0, 1)
            )
            wide = F.pad(frames, (columns, columns, rows, rows), "replicate")
            height, width = frames.shape[-2:]
            seen[key] = crop(wide, (height, width), place).unflatten(0, seen[key].shape[:2])
        return seen

    def _rollout(self, seen: dict[str, Tensor], action: Tensor) -> Rollout:
        """Predict latents, rewards and values, step by step from the first observation."""
        # A copy, since the backward pass would keep all frames for a view of the first ones.
        first = {key: value[:, 0].contiguous() for key, value in seen.items()}
        latents = [self.model.encode(first)]
        rewards: list[Tensor] = []
        for one in action.unbind(1):
            z, reward = self.model.step(latents[-1], one)
            latents.append(z)
            rewards.append(reward)
        z = torch.stack(latents, 1)
        before = z[:, :-1]
        q_values = self.model.q_values(before, action)
        return Rollout(z, torch.stack(rewards, 1), q_values, self.model.value(before))

    @torch.no_grad()
    def _goals(
        self,
        seen: dict[str, Tensor],
        action: Tensor,
        earned: tuple[Tensor, Tensor],
        found: Rollout,
        picks: Tensor,
    ) -> Goals:
        """Return latents and V by the target model, Q by the trained one's V, as FOWM's code does.

        earned: rewards, and marks of actions that end the task, (B, horizon).
        """
        reward, ends = earned
        later = {key: value[:, 1:] for key, value in seen.items()}
        latents = self.model_target.encode(later)
        q_values = reward + self._options.discount * ~ends * self.model.value(
            self.model.encode(later)
        )
        # Two draws of Q functions: V and the advantage would share their errors with one draw.
        judged = self.model_target.q_values(found.latents[:, :-1], action)
        values, again = (lowest_picked(judged, pick) for pick in picks.unbind(1))
        return Goals(latents, q_values, values, again - found.values)

    @torch.no_grad()
    def predict_chunk(
        self, batch: Batch, *, noise: Tensor | None = None, **draws: Tensor
    ) -> Tensor:
        """Return actions (B, horizon, A) planned from the first observation.

        Without planning they are (B, 1, A).

        Args:
            batch: Observations (B, T, ...).
            noise: (B, N) as config.act_draws() says, standard normal; None draws from torch's
                stream.
            draws: Ignored.
        """
        del draws
        return self._plan(
            {key: batch[key][:, 0] for key in self._options.input_features}, None, noise
        )[0]

    def _plan(
        self, seen: Batch, before: Tensor | None, noise: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return actions (B, T, A), and the memory that the next plan starts from."""
        config = self._options
        z = self.model.encode(seen)
        if not config.use_mpc:
            return self.model.pi(z)[:, None], {}
        if noise is None:
            noise = torch.randn(len(z), sum(config.plan_parts()), device=z.device)
        found = plan(self.model, config, z, before, noise)
        return found.actions, {"mean": found.mean}

    @torch.no_grad()
    def act(self, batch: Batch, state: ActState) -> tuple[Tensor, ActState]:
        """Return the next action of the queue; plan if the queue is empty."""
        config = self._options
        queue = state.queue
        memory = state.memory
        if queue is None or queue.shape[1] == 0:
            chunk, memory = self._plan(
                batch, memory.get("mean"), state.drawn(config.act_draws()).get("noise")
            )
            repeats = config.n_action_repeats
            queue = (
                chunk[:, :1].expand(-1, repeats, -1)
                if repeats > 1
                else chunk[:, : config.n_action_steps]
            )
        return queue[:, 0], ActState(queue[:, 1:], memory)

    def param_groups(self) -> list[ParamGroup]:
        """Return the trained model's parameters; the target follows without an optimizer."""
        return [ParamGroup("main", list(self.model.parameters()))]

    @torch.no_grad()
    def after_step(self, step: int, bad: Tensor) -> dict[str, Tensor]:
        """Let the target model follow, unless the step was bad."""
        # Multiplied instead of asked: a look at `bad` would make the host wait for the device.
        del step
        share = (1 - self._options.target_model_momentum) * ~bad
        for mine, trained in zip(
            self.model_target.parameters(), self.model.parameters(), strict=True
        ):
            mine.lerp_(trained, share)
        return {}

    def shard_units(self) -> list[nn.Module]:
        """Return the networks of both models."""
        return [*self.model.units(), *self.model_target.units()]

    def recompute_units(self) -> list[nn.Module]:
        """Return the trained model's networks."""
        return self.model.units()

    def key_map(self) -> KeyMap:
        """Return an adapter without changes: every name is LeRobot's."""
        return KeyMap()
