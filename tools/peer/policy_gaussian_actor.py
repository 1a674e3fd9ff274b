"""The Gaussian actor and SAC: cases, and what LeRobot and kata compute for them. `peer` needs
LeRobot, `own` needs kata.

All but one are in float64, in which a wrong formula shows and Adam's signs of small gradients do
not. Both sides take the same normal numbers, dropout masks and drawn critics, in the order in which
they ask for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from numbers_of import tensor, weight
from torch import Tensor

BATCH_SIZE = 5
UPDATES = 2
KEPT = 0.9
STATE, ENV = "observation.state", "observation.environment_state"
TOP, WRIST = "observation.images.top", "observation.images.wrist"
LAYERS = {"hidden_dims": [16, 12]}
TINY: dict[str, Any] = {
    "image_encoder_hidden_dim": 4,
    "image_embedding_pooling_dim": 3,
    "latent_dim": 10,
}
PICTURE = (3, 44, 40)


@dataclass(frozen=True)
class Case:
    """Input shapes by key, the action's width, and options of policy and algorithm."""

    inputs: dict[str, tuple[int, ...]] = field(default_factory=lambda: {STATE: (5,)})
    action_dim: int = 3
    options: dict[str, Any] = field(default_factory=dict)
    algorithm: dict[str, Any] = field(default_factory=dict)
    has_dropout: bool = False
    dtype: torch.dtype = torch.float64

    @property
    def choices(self) -> int | None:
        return self.options.get("num_discrete_actions")

    @property
    def batches(self) -> int:
        return self.algorithm.get("utd_ratio", 1)


PICTURES = {TOP: PICTURE, WRIST: PICTURE, STATE: (5,)}
GRIPPER = {"num_discrete_actions": 3}
TRAINED = {"freeze_vision_encoder": False}
GOLDEN: dict[str, Case] = {
    "states": Case(),
    "states_gripper": Case({STATE: (5,), ENV: (4,)}, options=GRIPPER, algorithm={"utd_ratio": 2}),
    "pictures_frozen": Case(PICTURES, options=GRIPPER),
    "pictures_trained": Case(PICTURES, options={**GRIPPER, **TRAINED}, algorithm={"utd_ratio": 3}),
    "separate_encoders": Case(PICTURES, options={**GRIPPER, **TRAINED, "shared_encoder": False}),
    "dropout": Case(
        PICTURES, options={**GRIPPER, **TRAINED}, algorithm={"utd_ratio": 2}, has_dropout=True
    ),
    "some_critics": Case(
        options={"shared_encoder": False},
        algorithm={
            "num_critics": 4,
            "num_subsample_critics": 2,
            "utd_ratio": 2,
            "use_backup_entropy": False,
            "policy_update_freq": 2,
            "target_entropy": -1.0,
            "temperature_init": 0.1,
        },
    ),
    "fp32": Case(PICTURES, options={**GRIPPER, **TRAINED}, dtype=torch.float32),
}
CHECKPOINT = Case(PICTURES)
"""What a checkpoint is written of and acted from, both ways."""

LIVE = GOLDEN
TOLERANCES = {name: 1e-5 if case.dtype == torch.float32 else 1e-10 for name, case in LIVE.items()}
"""Largest differences that are allowed, by case; see `numbers_of.difference`."""


@contextmanager
def precision(case: Case) -> Iterator[None]:
    """New tensors have the case's dtype inside."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(case.dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@dataclass
class Numbers:
    """Random numbers by the order in which they are asked for; kata's `Draws`."""

    case: Case
    label: str
    asked: dict[str, int] = field(default_factory=dict)

    def _next(self, kind: str, shape: tuple[int, ...]) -> Tensor:
        self.asked[kind] = self.asked.get(kind, 0) + 1
        return tensor(f"{self.label} {kind} {self.asked[kind]}", shape).to(self.case.dtype)

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        return 1.7 * self._next("normal", shape)

    def dropout(self, values: Tensor) -> Tensor:
        if not self.case.has_dropout:
            return values
        kept = self._next("mask", tuple(values.shape)) < 2 * KEPT - 1
        return values * kept / KEPT

    def some_critics(self, count: int, of: int) -> Tensor:
        return self._next("critics", (of,)).argsort()[:count]

    @contextmanager
    def given(self) -> Iterator[None]:
        """LeRobot finds these numbers inside."""

        def normal(shape: Any, dtype: Any = None, device: Any = None) -> Tensor:
            return self.normal(tuple(shape))

        def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False):
            return self.dropout(x) if training and p > 0 else x

        def shuffled(count: int) -> Tensor:
            return self.some_critics(count, count)

        with (
            mock.patch("torch.distributions.multivariate_normal._standard_normal", normal),
            mock.patch("torch.nn.functional.dropout", dropout),
            mock.patch("torch.randperm", shuffled),
        ):
            yield


@contextmanager
def steady() -> Iterator[None]:
    """LeRobot acts with the mode inside, as kata does unless it is asked for samples."""

    def none(shape: Any, dtype: Any = None, device: Any = None) -> Tensor:
        return torch.zeros(tuple(shape))

    with mock.patch("torch.distributions.multivariate_normal._standard_normal", none):
        yield


def observation(case: Case, label: str) -> dict[str, Tensor]:
    return {
        key: tensor(f"{label} {key}", (BATCH_SIZE, *shape)).to(case.dtype)
        for key, shape in case.inputs.items()
    }


def batch(case: Case, number: int) -> dict[str, Any]:
    """A batch as LeRobot's buffer gives it."""
    label = f"batch {number}"
    action = tensor(f"{label} action", (BATCH_SIZE, case.action_dim))
    if case.choices:
        uniform = (tensor(f"{label} choice", (BATCH_SIZE, 1)) + 1) / 2
        action = torch.cat((action, (uniform * case.choices).floor()), 1)
    return {
        "state": observation(case, f"{label} before"),
        "next_state": observation(case, f"{label} after"),
        "action": action.to(case.dtype),
        "reward": tensor(f"{label} reward", (BATCH_SIZE,)).to(case.dtype),
        "done": (tensor(f"{label} done", (BATCH_SIZE,)) > 0.3).to(case.dtype),
        "truncated": torch.zeros(BATCH_SIZE),
        "complementary_info": {
            "discrete_penalty": 0.1 * tensor(f"{label} penalty", (BATCH_SIZE,)).to(case.dtype)
        },
    }


def canonical(name: str, *, is_shared: bool) -> str | None:
    """One name of each tensor, kata's; None for a second name of the same."""
    of_actor = ("actor.encoder.", "encoder_actor.")
    for prefix in of_actor:
        if name.startswith(prefix):
            return None if is_shared else "encoder_actor." + name.removeprefix(prefix)
    return None if ".encoder." in name else name


def filled(modules: dict[str, torch.nn.Module], *, is_shared: bool) -> None:
    """Give every tensor the weight that follows from its name."""
    for prefix, module in modules.items():
        for name, value in module.state_dict().items():
            known = canonical(prefix + name, is_shared=is_shared)
            if known is not None:
                value.copy_(weight(known, tuple(value.shape)))


def updated(case: Case, algorithm: Any, named: dict[str, Tensor], update: Any) -> dict[str, Tensor]:
    """Losses of all updates, the gradients of the last one, and the weights after it."""
    out: dict[str, Tensor] = {}
    names = {id(value): name for name, value in named.items()}

    def keeping(network: str, step: Any) -> Any:
        def stepped() -> None:
            for group in algorithm.optimizers[network].param_groups:
                for param in group["params"]:
                    if param.grad is not None:
                        out[f"grad/{network} {names[id(param)]}"] = param.grad.clone()
            step()

        return stepped

    for network, optimizer in algorithm.optimizers.items():
        optimizer.step = keeping(network, optimizer.step)
    for number in range(UPDATES):
        batches = [batch(case, number * case.batches + k) for k in range(case.batches)]
        for name, value in update(batches, Numbers(case, f"update {number}")).items():
            out[f"{name} {number}"] = torch.as_tensor(value)
    for name, value in named.items():
        out[f"grad/{name} after"] = value.detach().clone()
    return out


def build_peer(case: Case) -> Any:
    """LeRobot's policy of a case, with the weights of the formula."""
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.gaussian_actor.configuration_gaussian_actor import (
        ActorNetworkConfig,
        CriticNetworkConfig,
        GaussianActorConfig,
    )
    from lerobot.policies.gaussian_actor.modeling_gaussian_actor import GaussianActorPolicy

    kinds = {STATE: FeatureType.STATE, ENV: FeatureType.ENV}
    config = GaussianActorConfig(
        device="cpu",
        input_features={
            k: PolicyFeature(kinds.get(k, FeatureType.VISUAL), shape)
            for k, shape in case.inputs.items()
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (case.action_dim,))},
        actor_network_kwargs=ActorNetworkConfig(**LAYERS),
        discrete_critic_network_kwargs=CriticNetworkConfig(**LAYERS, final_activation="Tanh"),
        **TINY,
        **case.options,
    )
    with precision(case):
        policy = GaussianActorPolicy(config)
        filled({"": policy}, is_shared=config.shared_encoder)
    return policy.train(case.has_dropout)


def peer(case: Case) -> dict[str, Tensor]:
    from lerobot.policies.gaussian_actor.configuration_gaussian_actor import CriticNetworkConfig
    from lerobot.rl.algorithms.sac import SACAlgorithm, SACAlgorithmConfig

    policy = build_peer(case)
    config = SACAlgorithmConfig.from_policy_config(policy.config)
    config.critic_network_kwargs = CriticNetworkConfig(**LAYERS)
    for name, value in case.algorithm.items():
        setattr(config, name, value)
    is_shared = policy.config.shared_encoder
    with precision(case):
        algorithm = SACAlgorithm(policy, config)
        nets = {
            "critic_ensemble.": algorithm.critic_ensemble,
            "critic_target.": algorithm.critic_target,
        }
        if case.choices:
            nets["discrete_critic_target."] = algorithm.discrete_critic_target
        filled(nets, is_shared=is_shared)
        algorithm.make_optimizers_and_scheduler()
        named = {"log_alpha": algorithm.log_alpha}
        for prefix, net in {"": policy, **nets}.items():
            for name, value in net.named_parameters(remove_duplicate=False):
                known = canonical(prefix + name, is_shared=is_shared)
                if known is not None:
                    named[known] = value

        def update(batches: list[Any], numbers: Numbers) -> dict[str, Any]:
            with numbers.given():
                return algorithm.update(iter(batches)).losses

        out = updated(case, algorithm, named, update)
        policy.eval()
        with Numbers(case, "act").given():
            out["sample"] = policy.select_action(observation(case, "act"))
        with steady():
            out["mode"] = policy.select_action(observation(case, "act"))
    return out


def build_own(case: Case, **more: Any) -> Any:
    """kata's policy of a case, with the weights of the formula."""
    from kata.policies.gaussian_actor.config import Config, CriticLayersConfig, LayersConfig
    from kata.policies.gaussian_actor.model import Policy
    from kata.spec import Feature, FeatureType

    kinds = {STATE: FeatureType.STATE, ENV: FeatureType.ENV}
    config = Config(
        device="cpu",
        input_features={
            k: Feature(kinds.get(k, FeatureType.VISUAL), shape) for k, shape in case.inputs.items()
        },
        output_features={"action": Feature(FeatureType.ACTION, (case.action_dim,))},
        actor_network_kwargs=LayersConfig(**LAYERS),
        discrete_critic_network_kwargs=CriticLayersConfig(**LAYERS, final_activation="Tanh"),
        **TINY,
        **case.options,
        **more,
    )
    with precision(case):
        policy = Policy(config)
        filled({"": policy}, is_shared=config.shared_encoder)
    return policy


def own(case: Case) -> dict[str, Tensor]:
    from kata.policies.gaussian_actor.config import CriticLayersConfig
    from kata.rl.sac.algorithm import Sac, Transitions
    from kata.rl.sac.config import SacConfig

    policy = build_own(case)
    layers = CriticLayersConfig(**LAYERS)
    config = SacConfig(critic_network_kwargs=layers, discrete_penalty="not_last", **case.algorithm)
    is_shared = policy.config.shared_encoder
    with precision(case):
        algorithm = Sac(policy, config)
        nets: dict[str, Any] = {
            "critic_ensemble.": algorithm.critics,
            "critic_target.": algorithm.targets,
        }
        if case.choices:
            nets["discrete_critic_target."] = algorithm.discrete_target
        filled(nets, is_shared=is_shared)
        named: dict[str, Tensor] = {"log_alpha": algorithm.log_alpha}
        for prefix, net in {"": policy, **nets}.items():
            named.update({prefix + name: value for name, value in net.named_parameters()})

        def update(batches: list[Any], numbers: Numbers) -> dict[str, Any]:
            given = [
                Transitions(
                    b["state"], b["action"], b["reward"], b["done"], b["next_state"],
                    b["complementary_info"]["discrete_penalty"], torch.zeros_like(b["reward"]),
                )
                for b in batches
            ]  # fmt: skip
            found = algorithm.update(given, numbers)
            return {name: value for name, value in found.items() if name.startswith("loss_")}

        out = updated(case, algorithm, named, update)
        numbers, state = Numbers(case, "act"), policy.sampling_state()
        state.source = lambda name, wanted: numbers.normal((BATCH_SIZE, *wanted.shape))
        out["sample"] = policy.act(observation(case, "act"), state)[0]
        out["mode"] = policy.act(observation(case, "act"), policy.init_state(BATCH_SIZE))[0]
    return out
