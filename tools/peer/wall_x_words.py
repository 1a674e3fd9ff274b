"""Wall-X with actions as words: the files of its tokenizers, and what LeRobot's network writes.

LeRobot 0.6.1 computes the loss of such a model and ends with an error where it acts; its network is
asked for the words here one by one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import tiny_fast
import tiny_qwen
import torch
from sides import files_folder
from torch import Tensor

COUNT = tiny_fast.COUNT + len(tiny_fast.PAIRS)
MARKS = tuple(f"<|action_token_{number}|>" for number in range(COUNT))
PROMPT_END = "<|im_start|>assistant\n"


def fast_folder() -> str:
    """Return the folder of the action tokenizer."""
    return str(tiny_fast.write(files_folder() / "fast"))


def tell_words(folder: Path, first: int) -> None:
    """Write into a tokenizer's options where LeRobot finds the words, `first` and those behind."""
    file = folder / "tokenizer_config.json"
    told = json.loads(file.read_text())
    told |= {"action_token_start_index": first, "action_token_vocab_size": COUNT}
    file.write_text(json.dumps(told))


@contextmanager
def known_tokenizer() -> Iterator[None]:
    """LeRobot reads the action tokenizer inside with a class that it has, and runs no other."""
    from lerobot.policies.molmoact2.molmoact2_hf_model import action_tokenizer
    from lerobot.policies.wall_x import modeling_wall_x

    known: Any = action_tokenizer.UniversalActionProcessor
    auto: Any = modeling_wall_x.AutoProcessor

    class Known:
        @staticmethod
        def from_pretrained(name: str, **options: Any) -> Any:
            if name == fast_folder():
                return known.from_pretrained_local(name)
            return auto.from_pretrained(name, **options)

    with mock.patch.object(modeling_wall_x, "AutoProcessor", Known):
        yield


def louder(policy: Any, names: dict[str, str]) -> None:
    """Scale the words' rows, so that a policy without training writes some of them."""
    first = len(tiny_qwen.SPECIAL) + 3
    state = policy.state_dict()
    seen: set[int] = set()
    for own, other in names.items():
        value = state[own]
        is_table = other.endswith(("embed_tokens.weight", "lm_head.weight"))
        if is_table and value.data_ptr() not in seen:
            seen.add(value.data_ptr())
            value[first : first + COUNT] *= 6.0


def peer_words(policy: Any, given: dict[str, Any], most: int) -> Tensor:
    """Return the likeliest words of LeRobot's network (B, most), sample by sample."""
    rows: list[list[int]] = []
    for i in range(len(given["observation.state"])):
        one = {
            key: value[i : i + 1] if isinstance(value, Tensor | list) else value
            for key, value in given.items()
        }
        rows.append(_written(policy, policy.preprocess_inputs(one), most))
    return torch.tensor(rows).float()


@torch.no_grad()
def own_words(policy: Any, given: dict[str, Any]) -> Tensor:
    """Return kata's words (B, max_decoding_steps)."""
    policy.runs_together = True  # so that no sample's end ends the others
    return torch.cat(list(policy.written_words(given, policy.action_words())), dim=1).float()


@torch.no_grad()
def _written(policy: Any, inputs: Any, most: int) -> list[int]:
    """Return the tokens that the network writes behind a prompt."""
    model, tokenizer = policy.model, policy.model.processor.tokenizer
    head = tokenizer.encode(PROMPT_END, add_special_tokens=False)
    whole: list[int] = inputs["input_ids"][0].tolist()
    at = next(i for i in range(len(whole)) if whole[i : i + len(head)] == head) + len(head)
    given, written = whole[:at], []
    kept = ("pixel_values", "image_grid_thw", "proprioception", "agent_pos_mask")
    for _ in range(most):
        ids = torch.tensor([given + written])
        scores = model.train_step_forward(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            moe_token_types=torch.zeros_like(ids, dtype=torch.bool),
            **{key: inputs[key] for key in kept},
        ).logits[0, -1]
        written.append(int(scores.argmax()))
    return written
