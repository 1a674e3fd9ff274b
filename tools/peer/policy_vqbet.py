"""VQ-BeT: cases, and what LeRobot and kata compute for them. `peer` needs LeRobot, `own` needs
kata.

A case is of one of the two phases. In the first, what is compared after a step are the codebooks
too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from numbers_of import fill, numbers, tensor
from sides import BATCH_SIZE, own_actions, own_features, peer_actions, peer_features
from torch import Tensor, nn
from torch.optim import Optimizer

ACT_STEPS = 6
STATE, CAMERA = "observation.state", "observation.images.top"
VQ = "vqbet.action_head.vqvae_model."
FIXED = ("pos_grid", ".attn.bias", "initted", "cluster_size", "embed_avg", "embed")

TINY: dict[str, Any] = {
    "n_obs_steps": 3,
    "n_action_pred_token": 2,
    "action_chunk_size": 3,
    "crop_shape": (40, 48),
    "pretrained_backbone_weights": None,
    "spatial_softmax_num_keypoints": 4,
    "vqvae_n_embed": 6,
    "vqvae_embedding_dim": 8,
    "vqvae_enc_hidden_dim": 12,
    "gpt_block_size": 16,
    "gpt_input_dim": 12,
    "gpt_output_dim": 10,
    "gpt_n_layer": 2,
    "gpt_n_head": 2,
    "gpt_hidden_dim": 16,
    "dropout": 0.0,
    "offset_loss_weight": 2.0,
    "n_vqvae_training_steps": 3,
}


@dataclass(frozen=True)
class Case:
    """Input shapes by key, the action's width, options, whether the codes are learnt already,
    and steps to train.
    """

    inputs: dict[str, tuple[int, ...]] = field(
        default_factory=lambda: {STATE: (5,), CAMERA: (3, 64, 64)}
    )
    action_dim: int = 3
    options: dict[str, Any] = field(default_factory=dict)
    base: dict[str, Any] = field(default_factory=lambda: TINY)
    discretized: bool = True
    steps: int = 0

    @property
    def config(self) -> dict[str, Any]:
        return {**self.base, **self.options}


PLAIN = {
    "crop_shape": None,
    "use_group_norm": True,
    "n_action_pred_token": 1,
    "bet_softmax_temperature": 1.5,
}
RATES = {"optimizer_vqvae_lr": 0.02, "optimizer_vqvae_weight_decay": 0.3}
LR, DECAY = 0.01, 0.1

GOLDEN: dict[str, Case] = {
    "codes": Case(discretized=False),
    "one_action_codes": Case(options={"action_chunk_size": 1}, discretized=False),
    "tiny": Case(),
    "sequential": Case(options={"sequentially_select": True}),
    "both_phases": Case(options=RATES, discretized=False, steps=5),
    "no_later_chunk": Case({CAMERA: (3, 40, 64), STATE: (5,)}, options=PLAIN),
}

CHECKPOINT = Case()
"""What a checkpoint is written of and acted from, both ways."""

DEFAULT = {
    "n_obs_steps": 5,
    "n_action_pred_token": 3,
    "pretrained_backbone_weights": None,
    "dropout": 0.0,
}
PUSHT = {"observation.image": (3, 96, 96), STATE: (2,)}
LIVE: dict[str, Case] = {
    **GOLDEN,
    "default_96x96_codes": Case(PUSHT, 2, base=DEFAULT, discretized=False),
    "default_96x96": Case(PUSHT, 2, base=DEFAULT),
}


def observation(case: Case, step: int) -> dict[str, Tensor]:
    return {
        key: tensor(f"{key} {step}", (BATCH_SIZE, *shape)) for key, shape in case.inputs.items()
    }


def batch(case: Case, config: Any) -> dict[str, Tensor]:
    """A training batch; all but the first sample reach over the episode's end, which neither
    side minds.
    """
    steps = [observation(case, step) for step in range(config.n_obs_steps)]
    actions = config.n_obs_steps + config.n_action_pred_token + config.action_chunk_size - 2
    return {
        **{key: torch.stack([step[key] for step in steps], 1) for key in case.inputs},
        "action": tensor("action", (BATCH_SIZE, actions, case.action_dim)),
        "action_is_pad": torch.arange(actions)[None]
        >= torch.tensor([actions, actions // 2, 1])[:, None],
    }


def noise(case: Case) -> Tensor:
    """Uniform numbers (B, chunks, 2) that choose the codes."""
    chunks = case.config["n_obs_steps"] + case.config["n_action_pred_token"] - 1
    return (tensor("noise", (BATCH_SIZE, chunks, 2)) + 1) / 2


PLACE = (0.3, 0.8)
"""The crop lies there, as a share of the way, rows first."""


@contextmanager
def choosing(uniform: Tensor, *, sequentially: bool = False) -> Iterator[None]:
    """Both sides choose codes by these numbers inside: LeRobot through `multinomial`, layer by
    layer or all at once, kata through `rand`.
    """
    calls = iter(range(1_000_000))

    def multinomial(share: Tensor, num_samples: int) -> Tensor:
        assert num_samples == 1
        level = uniform[..., next(calls) % 2] if sequentially else uniform
        return (share.cumsum(-1) <= level.flatten()[:, None]).sum(-1, keepdim=True)

    with (
        mock.patch("torch.multinomial", multinomial),
        mock.patch("torch.rand", return_value=uniform),
    ):
        yield


def steady() -> AbstractContextManager[None]:
    """Both sides act alike inside, on one robot."""
    return choosing(noise(CHECKPOINT)[:1])


def fill_codes(books: list[dict[str, Tensor]]) -> None:
    """Codebooks with entries as large as what they quantise, some of them used before and some
    not.
    """
    for number, book in enumerate(books):
        size = book["cluster_size"].shape[1]
        used = torch.arange(size) % 3 != 0
        count = 3 * torch.from_numpy(numbers(f"count {number}", (1, size))).abs() * used
        entries = 0.3 * tensor(f"entries {number}", tuple(book["embed"].shape))
        for name, value in (
            ("cluster_size", count),
            ("embed", entries),
            ("embed_avg", entries * count[..., None]),
        ):
            book[name].copy_(value)


WEIGHTLESS = "pool.nets.bias"
"""A softmax over pixels does not feel it: its gradient is rounding, which the weight of the
offsets makes large.
"""


def losses(step: Callable[[], Tensor], policy: nn.Module) -> dict[str, Tensor]:
    """The loss and every gradient but one."""
    loss = step()
    loss.backward()
    given = {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}
    return {
        "loss": loss.detach(),
        **{f"grad/{n}": g for n, g in given.items() if not n.endswith(WEIGHTLESS)},
    }


FINE = torch.tensor(False)
"""No step is skipped."""


def trained(
    case: Case,
    step: Callable[[], Tensor],
    policy: nn.Module,
    optimizer: Optimizer,
    after: Callable[[int], Any],
):
    """The losses of plain gradient steps with the policy's own rates and decays, and the
    parameters after them.
    """
    losses = []
    for number in range(case.steps):
        loss = step()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        after(number + 1)
        losses.append(loss.detach())
    ends = {f"grad/{name} after": p.detach() for name, p in policy.named_parameters()}
    return {"losses": torch.stack(losses), **ends}


def build_peer(case: Case) -> Any:
    """LeRobot's policy of a case, with the weights of the formula."""
    from lerobot.policies.vqbet.configuration_vqbet import VQBeTConfig
    from lerobot.policies.vqbet.modeling_vqbet import VQBeTPolicy

    config = VQBeTConfig(
        device="cpu",
        **peer_features(case.inputs, case.action_dim),
        **case.config,
    )
    policy = VQBeTPolicy(config)
    fill(policy, FIXED)
    vqvae = policy.vqbet.action_head.vqvae_model
    books = [dict(layer._codebook.named_buffers()) for layer in vqvae.vq_layer.layers]
    fill_codes(books)
    vqvae.discretized.fill_(case.discretized)
    vqvae.vq_layer.freeze_codebook.fill_(case.discretized)
    return policy


def peer(case: Case) -> dict[str, Tensor]:
    policy = build_peer(case)
    config, vqvae = policy.config, policy.vqbet.action_head.vqvae_model
    books = [dict(layer._codebook.named_buffers()) for layer in vqvae.vq_layer.layers]
    given, uniform = batch(case, config), noise(case)

    def place(image: Tensor, size: tuple[int, int]) -> tuple[int, int, int, int]:
        top, left = (
            int(share * (whole - part + 1))
            for share, whole, part in zip(PLACE, image.shape[-2:], size, strict=True)
        )
        return top, left, *size

    with ExitStack() as patches:
        patches.enter_context(
            mock.patch("torchvision.transforms.RandomCrop.get_params", staticmethod(place))
        )
        patches.enter_context(choosing(uniform, sequentially=config.sequentially_select))
        policy.train()
        if case.steps:
            optimizer = torch.optim.SGD(policy.get_optim_params(), lr=LR, weight_decay=DECAY)
            return trained(
                case, lambda: policy.forward(dict(given))[0], policy, optimizer, lambda _: None
            )
        out = losses(lambda: policy.forward(dict(given))[0], policy)
        if not case.discretized:
            return out | numbered(books)
        policy.eval()
        with torch.no_grad():
            out["eval_loss"] = policy.forward(dict(given))[0]
        policy.reset()
        actions = peer_actions(policy, functools.partial(observation, case), ACT_STEPS)
    return {**out, "actions": actions}


def numbered(books: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Copies of the buffers of all codebooks, by name and the number of the book."""
    found: dict[str, Tensor] = {}
    for n, book in enumerate(books):
        for name, buffer in book.items():
            found[f"{name} {n}"] = buffer.clone()
    return found


def build_own(case: Case) -> Any:
    """kata's policy of a case, with the weights of the formula."""
    from kata.policies.vqbet.config import Config
    from kata.policies.vqbet.model import Policy

    config = Config(
        **own_features(case.inputs, case.action_dim),
        **case.config,
    )
    policy = Policy(config)
    fill(policy, FIXED)
    vqvae = policy.vqbet.action_head.vqvae_model
    books = [dict(book.named_buffers()) for book in vqvae.vq_layer.books()]
    fill_codes(books)
    if case.discretized:
        vqvae.fix_codes()
    return policy


def own(case: Case) -> dict[str, Tensor]:
    from kata.optim.build import build_optimizer
    from kata.optim.config import SGDConfig

    policy = build_own(case)
    config, vqvae = policy.config, policy.vqbet.action_head.vqvae_model
    books = [dict(book.named_buffers()) for book in vqvae.vq_layer.books()]
    given, uniform = batch(case, config), noise(case)
    counts = config.loss_weights(BATCH_SIZE, {"action_is_pad": given["action_is_pad"].numpy()})
    crop = torch.tensor(PLACE).expand(BATCH_SIZE, 1, 2)

    def loss() -> Tensor:
        terms = policy(given, noise=uniform, crop=crop).terms
        return torch.stack(
            [term.scale * term.total / counts[name] for name, term in terms.items()]
        ).sum()

    policy.train()
    if case.steps:
        optimizer = build_optimizer(policy.param_groups(), SGDConfig(lr=LR, weight_decay=DECAY))
        return trained(case, loss, policy, optimizer, lambda step: policy.after_step(step, FINE))
    out = losses(loss, policy)
    if not case.discretized:
        policy.after_step(1, FINE)
        initted = {f"initted {n}": torch.ones(1) for n in range(len(books))}
        return out | numbered(books) | initted
    policy.eval()
    with torch.no_grad():
        out["eval_loss"] = loss()
    with choosing(uniform):
        actions = own_actions(policy, functools.partial(observation, case), ACT_STEPS)
    return {**out, "actions": actions}
