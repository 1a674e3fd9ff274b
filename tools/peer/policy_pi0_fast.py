"""π0-FAST: cases, and what LeRobot and kata compute for them, action tokens included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from numbers_of import tensor
from pi_cases import (
    ACT_STEPS,
    BATCH_SIZE,
    BOTH,
    STATE,
    TOP,
    VOCABULARIES,
    WRIST,
    Case,
    Sides,
    batch,
    fast_folder,
    folder,
    observation,
    pi_weight,
    sentences,
    steady,
    tiny_peer,
)
from torch import Tensor

__all__ = ["CHECKPOINT", "GOLDEN", "LIVE", "build_own", "build_peer", "own", "peer", "steady"]

NAME = "pi0_fast"
ACTION_TOKENS, ACTION_MASK = "action.tokens", "action.token_mask"
SKIPPED = 8
SIDES = Sides(NAME, "PI0Fast")

TINY: dict[str, Any] = {
    "chunk_size": 4,
    "n_action_steps": 4,
    "max_state_dim": 7,
    "max_action_dim": 6,
    "image_resolution": (28, 28),
    "max_action_tokens": 40,
    "max_decoding_steps": 24,
    "fast_skip_tokens": SKIPPED,
    "validate_action_token_prefix": False,
}


@dataclass(frozen=True)
class FastCase(Case):
    """A case with the tokenizers of both kinds. `ends` lets sentences end early in acting."""

    ends: bool = False

    @property
    def config(self) -> dict[str, Any]:
        names = {
            "text_tokenizer_name": folder(VOCABULARIES[NAME]),
            "action_tokenizer_name": fast_folder(),
        }
        return {**TINY, **names, "tokenizer_max_length": self.max_length, **self.options}


GOLDEN: dict[str, Case] = {
    "default": FastCase(),
    "missing_camera": FastCase(absent=(WRIST,), options={"empty_cameras": 1}),
    "short_sentences": FastCase(words=(1, 2, 1)),
    "cut_actions": FastCase(options={"max_action_tokens": 24}),
    "early_end": FastCase(words=(12, 12, 12), ends=True),
    "one_camera": FastCase({STATE: (7,), TOP: (3, 28, 28)}, 6, {"max_action_tokens": 48}),
}

LIVE: dict[str, Case] = {
    **GOLDEN,
    "without_cache": FastCase(options={"use_kv_cache": False}),
    "recomputed": FastCase(options={"gradient_checkpointing": True}),
    "missing_first_camera": FastCase(dict(reversed(BOTH.items())), 1, absent=(TOP,)),
    "long_padding": FastCase(max_length=48, words=(30, 1, 48)),
    "long_chunks": FastCase(
        options={"chunk_size": 9, "n_action_steps": 9, "max_action_tokens": 64}
    ),
    "few_steps": FastCase(options={"max_decoding_steps": 3}),
}

CHECKPOINT = FastCase(max_length=60)
"""What a checkpoint is written of and acted from, both ways."""


def scaled(case: Case, policy: Any, names: dict[str, str]) -> None:
    """Scale the scores of action tokens, so that a random policy writes them, and of `|`."""
    assert isinstance(case, FastCase)
    for own, other in names.items():
        value = policy.state_dict()[own]
        value.copy_(pi_weight(other, tuple(value.shape)))
        if other.endswith("lm_head.weight"):
            first = VOCABULARIES[NAME] - SKIPPED - 86
            value[first:-SKIPPED] *= 4.0
            if case.ends:
                value[305] *= 9.0


def build_peer(case: Case) -> Any:
    """LeRobot's policy of a case."""
    policy = SIDES.build_peer(case)
    scaled(case, policy, {name: name for name in policy.state_dict()})
    return policy


def build_own(case: Case) -> Any:
    """kata's policy of a case."""
    policy = SIDES.build_own(case)
    key_map = policy.key_map()
    scaled(case, policy, {name: key_map.to_lerobot(name) for name in policy.state_dict()})
    return policy


def chunks(case: Case) -> Tensor:
    """Chunks that the action tokenizer knows."""
    return tensor("chunks", (BATCH_SIZE, case.config["chunk_size"], case.action_dim))


def step_options(case: Case) -> dict[str, Any]:
    """Options of the step that tokenizes actions."""
    return {
        "action_tokenizer_name": case.config["action_tokenizer_name"],
        "max_action_tokens": case.config["max_action_tokens"],
        "fast_skip_tokens": SKIPPED,
        "paligemma_tokenizer_name": case.config["text_tokenizer_name"],
    }


def peer(case: Case) -> dict[str, Tensor]:
    from lerobot.lerobot_types import TransitionKey
    from lerobot.processor import ActionTokenizerProcessorStep

    policy = build_peer(case)
    with tiny_peer(NAME):
        step = ActionTokenizerProcessorStep(**step_options(case))
    told = step({TransitionKey.ACTION: chunks(case), TransitionKey.COMPLEMENTARY_DATA: {}})
    told = told[TransitionKey.COMPLEMENTARY_DATA]
    policy.train()
    given = {**batch(case), **told}
    loss = policy.forward(given)[0]
    loss.backward()
    out = {"loss": loss.detach(), "tokens": told[ACTION_TOKENS] * told[ACTION_MASK]}
    for name, parameter in policy.named_parameters():
        out[f"grad/{name}"] = parameter.grad
    policy.eval()
    read = sentences(case)
    out["chunk"] = policy.predict_action_chunk({**observation(case, 0), **read})
    policy.reset()
    actions = [
        policy.select_action({**observation(case, step), **read}) for step in range(ACT_STEPS)
    ]
    return {**out, "actions": torch.stack(actions)}


def tokens(case: Case) -> dict[str, Tensor]:
    """kata's tokens of the chunks, with their mask."""
    from kata.processors import ActionTokens

    told = ActionTokens(**step_options(case))({"action": chunks(case)})
    return {key: told[key] for key in (ACTION_TOKENS, ACTION_MASK)}


def own(case: Case) -> dict[str, Tensor]:
    policy, told = build_own(case).train(), tokens(case)
    given = {**batch(case), **told}
    ((name, term),) = policy(given).terms.items()
    loss = term.total / policy.config.loss_counts(given)[name].sum()
    loss.backward()
    # LeRobot pads to the same length always.
    longest = case.config["max_action_tokens"]
    padded = torch.zeros(BATCH_SIZE, longest, dtype=torch.int64)
    padded[:, : told[ACTION_TOKENS].shape[1]] = told[ACTION_TOKENS]
    out = {"loss": loss.detach(), "tokens": padded}
    key_map = policy.key_map()
    for name, parameter in policy.named_parameters():
        out[f"grad/{key_map.to_lerobot(name)}"] = parameter.grad
    policy.eval()
    read = sentences(case)
    out["chunk"] = policy.predict_chunk({**observation(case, 0), **read})
    state, actions = policy.init_state(BATCH_SIZE), []
    for step in range(ACT_STEPS):
        action, state = policy.act({**observation(case, step), **read}, state)
        actions.append(action)
    return {**out, "actions": torch.stack(actions)}
