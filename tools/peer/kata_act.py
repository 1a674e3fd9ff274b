"""What kata's ACT computes for a case, under the same result names as golden_act. Needs kata, not LeRobot."""

from __future__ import annotations

from typing import Any

import act_cases
import torch
from torch import Tensor

from kata.policies.act.config import Config
from kata.policies.act.model import Policy
from kata.spec import Feature, FeatureType


def feature(key: str, shape: tuple[int, ...]) -> Feature:
    kinds = {act_cases.STATE: FeatureType.STATE, act_cases.ENV: FeatureType.ENV}
    return Feature(kinds.get(key, FeatureType.VISUAL), shape)


def build(case: act_cases.Case, config: dict[str, Any]) -> Policy:
    """kata's policy with the weights of the formula, in training mode."""
    policy = Policy(
        Config(
            input_features={key: feature(key, shape) for key, shape in case.inputs.items()},
            output_features={"action": Feature(FeatureType.ACTION, (case.action_dim,))},
            **config,
        )
    )
    act_cases.fill(policy)
    return policy.train()


def losses(policy: Policy, batch: dict[str, Tensor], noise: Tensor | None) -> dict[str, Tensor]:
    """The loss and its terms as means over the batch."""
    pads = {"action_is_pad": batch["action_is_pad"].numpy()}
    counts = policy.config.loss_weights(act_cases.BATCH_SIZE, pads)
    terms = policy(batch, noise=noise).terms
    out = {name: term.total / counts[name] for name, term in terms.items()}
    out["loss"] = sum((terms[name].scale * mean for name, mean in out.items()), torch.zeros(()))
    return out


def run(case: act_cases.Case, config: dict[str, Any]) -> dict[str, Tensor]:
    """Everything kata computes for a case: results by name, gradients as `grad/<tensor>`."""
    policy = build(case, config)
    batch = act_cases.batch(case, policy.config.chunk_size)
    out = losses(policy, batch, act_cases.noise(policy.config.latent_dim))
    out["loss"].backward()
    out.update({f"grad/{n}": p.grad for n, p in policy.named_parameters() if p.grad is not None})
    policy.eval()
    with torch.no_grad():
        out["eval_loss"] = losses(policy, batch, None)["loss"]
    out["chunk"] = policy.predict_chunk(act_cases.observation(case, 0))
    state, actions = policy.init_state(act_cases.BATCH_SIZE), []
    for step in range(act_cases.ACT_STEPS):
        action, state = policy.act(act_cases.observation(case, step), state)
        actions.append(action)
    out["actions"] = torch.stack(actions)
    return {name: value.detach() for name, value in out.items()}


def difference(own: Tensor, peer: Tensor) -> float:
    """The largest difference, relative to the peer's largest number or to 0.1, whichever is larger."""
    if own.shape != peer.shape:
        return float("inf")
    apart = (own.double() - peer.double()).abs().max()
    return float(apart / peer.double().abs().max().clamp(min=0.1))
