"""Planning by sampling: MPPI with the cross-entropy method, each environment for itself.

Hansen et al., "Temporal difference learning for model predictive control", arXiv 2203.04955,
section 3; values with the ensemble's disagreement subtracted as in arXiv 2310.16029, equation 4.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kata.policies.tdmpc.config import PICKED, Config
from kata.policies.tdmpc.world import WorldModel


class PlanSettings(NamedTuple):
    """actions: (B, horizon, A), one of the elites. mean: (B, horizon, A), where the next search
    starts.
    """

    actions: Tensor
    mean: Tensor


def plan(
    world: WorldModel, config: Config, z: Tensor, before: Tensor | None, noise: Tensor
) -> PlanSettings:
    """Search for actions of high value.

    Args:
        world: the model searched in.
        config: how widely and how long.
        z: latents (B, latent_dim).
        before: the mean of the plan before (B, horizon, A), or None.
        noise: (B, sum(config.plan_parts())), standard normal; those that choose become shares
            through the normal
            distribution.
    """
    size = len(z)
    width = config.action.shape[0]
    horizon = config.horizon
    own, rounds, last = noise.split(config.plan_parts(), 1)
    own = _policy_plans(world, config, z, own.reshape(size, config.n_pi_samples, horizon, width))
    mean = _warm_start(config, before) if before is not None else z.new_zeros(size, horizon, width)
    std = torch.full_like(mean, config.max_std)
    samples = config.n_gaussian_samples + config.n_pi_samples
    cuts = [config.n_gaussian_samples * horizon * width, samples * width, PICKED]
    z = z[:, None].expand(-1, samples, -1)
    elites, score = mean[:, None], z.new_ones(size, 1)
    for numbers_of_round in rounds.unflatten(1, (config.cem_iterations, -1)).unbind(1):
        spread, final, picks = numbers_of_round.split(cuts, 1)
        spread = spread.reshape(size, -1, horizon, width)
        actions = torch.cat(((mean[:, None] + std[:, None] * spread).clamp(-1, 1), own), 1)
        value = estimate(
            world, config, z, actions, final.reshape(size, samples, width), _shares(picks)
        )
        best = value.nan_to_num(0).topk(config.n_elites, 1)
        elites = actions.gather(1, best.indices[..., None, None].expand(-1, -1, horizon, width))
        score = (config.elite_weighting_temperature * (best.values - best.values[:, :1])).softmax(1)
        middle = (score[..., None, None] * elites).sum(1)
        variance = (score[..., None, None] * (elites - middle[:, None]).square()).sum(1)
        mean = config.gaussian_mean_momentum * mean + (1 - config.gaussian_mean_momentum) * middle
        std = variance.sqrt().clamp(config.min_std, config.max_std)
    chosen = (score.cumsum(1) <= _shares(last)).sum(1).clamp(max=config.n_elites - 1)
    return PlanSettings(elites[torch.arange(size, device=z.device), chosen].clamp(-1, 1), mean)


def estimate(
    world: WorldModel, config: Config, z: Tensor, actions: Tensor, noise: Tensor, picks: Tensor
) -> Tensor:
    """The value (B, N) of plans (B, N, horizon, A) from latents (B, N, latent_dim): discounted
    rewards, then the Q functions at the policy's action; disagreement of the Q functions counts
    against each step.

    noise: (B, N, A), standard normal, of the last action. picks: (B, 2) shares, which Q functions
        judge it.
    """
    value = torch.zeros_like(z[..., 0])
    weight = 1.0
    doubt = config.uncertainty_regularizer_coeff
    for action in actions.unbind(2):
        spread = _disagreement(world.q_values(z, action)) if doubt > 0 else 0.0
        z, reward = world.step(z, action)
        value = value + weight * (reward - doubt * spread)
        weight *= config.discount
    last = world.q_values(z, world.pi(z) + config.min_std * noise)
    spread = _disagreement(last) if doubt > 0 else 0.0
    return value + weight * (lowest_picked(last, picks) - doubt * spread)


def lowest_picked(values: Tensor, picks: Tensor) -> Tensor:
    """The lower value of the Q functions that shares (B, 2) in [0, 1) pick, with replacement: (B,
    T, ensemble) -> (B, T); an ensemble of at most two counts as a whole.
    """
    count = values.shape[-1]
    if count <= PICKED:
        return values.amin(-1)
    index = (picks * count).long().clamp(max=count - 1)
    return values.gather(-1, index[:, None].expand(-1, values.shape[1], -1)).amin(-1)


def _policy_plans(world: WorldModel, config: Config, z: Tensor, noise: Tensor) -> Tensor:
    """Return noisy rollouts of the learned policy, (B, N, horizon, A), for noise of that shape."""
    z, actions = z[:, None].expand(-1, config.n_pi_samples, -1), list[Tensor]()
    for shake in noise.unbind(2):
        actions.append(world.pi(z) + config.min_std * shake)
        z, _ = world.step(z, actions[-1])
    return torch.stack(actions, 2)


def _warm_start(config: Config, before: Tensor) -> Tensor:
    """The plan before, moved on by what has passed of it, with zeros for what it did not reach."""
    passed = min(config.executed, config.horizon) if config.shift_by_executed else 1
    return torch.cat((before[:, passed:], torch.zeros_like(before[:, :passed])), 1)


def _disagreement(values: Tensor) -> Tensor:
    return values.std(-1)


def _shares(normal: Tensor) -> Tensor:
    return torch.special.ndtr(normal)
