"""The check that no task sentence is longer than the policy reads."""

from __future__ import annotations

from itertools import chain

import torch

from kata.data.dataset.mixture import Mixture
from kata.errors import DataError
from kata.policies.config import PolicyConfig
from kata.processors import EndWithNewline, Pipeline, StatePrompt, Tokenize
from kata.spec import STATE, TASK, Batch

NAMED = 3
"""Sentences that a message quotes."""


def check_prompts(policy: PolicyConfig, before: Pipeline, data: Mixture) -> list[str]:
    """Return a note on the sentences that are cut, where the policy's options allow it.

    A prompt that holds the state is measured with its longest numbers.

    Raises:
        DataError: some are longer than the policy reads, and no option says to cut them.
    """
    tokenize = next((step for step in before.steps if isinstance(step, Tokenize)), None)
    if tokenize is None:
        return []
    tasks = sorted(set(chain.from_iterable(data.episodes.tasks)))
    batch: Batch = {TASK: tasks}
    if policy.state is not None:
        batch[STATE] = torch.ones(len(tasks), *policy.state.shape)
    for step in before.steps:
        if isinstance(step, EndWithNewline | StatePrompt):
            batch = step(batch)
    lengths = map(tokenize.length, batch[TASK])
    long = {task: n for task, n in zip(tasks, lengths, strict=True) if n > tokenize.max_length}
    if not long:
        return []
    quoted = "; ".join(f"'{task}' has {n}" for task, n in list(long.items())[:NAMED])
    what = (
        f"{len(long)} of {len(tasks)} task sentences have more than {tokenize.max_length} tokens "
        f"({quoted}{'; …' if len(long) > NAMED else ''})"
    )
    if not policy.cuts_prompts:
        raise DataError(
            what,
            rule="the policy reads whole sentences unless options say to cut them",
            remedy=f"--policy.tokenizer_max_length={max(long.values())}, or "
            "--policy.cut_long_prompts=true",
        )
    return [f"{what}: their ends are cut off"]
