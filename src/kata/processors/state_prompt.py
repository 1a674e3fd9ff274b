"""The step that writes the state into the prompt of π0.5 and π0-FAST."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from kata.errors import DataError
from kata.processors.steps import STEPS, Step
from kata.spec import STATE, TASK, Batch

EDGES = np.linspace(-1, 1, 257)[:-1]
"""Lower edges of the 256 bins. Numbers below the first are written as -1."""


@dataclass(frozen=True)
class StatePrompt(Step):
    """A step that puts the bins of the normalized state behind each task sentence.

    The prompt is `Task: <sentence>, State: <bins>;`, a newline and `Action: `. Underscores and
    newlines of the sentence become spaces. Reading the state lets the host wait for the device.

    Attributes:
        max_state_dim: a field of LeRobot's that has no effect.
        task_key: key of the sentences.
    """

    registry_name: ClassVar[str] = "pi05_prepare_state_tokenizer_processor_step"
    ending: ClassVar[str] = ";\nAction: "

    max_state_dim: int = 32
    task_key: str = TASK

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with prompts as its sentences; DataError without state or sentences."""
        tasks = batch.get(self.task_key)
        if isinstance(tasks, str):
            tasks = [tasks]
        if STATE not in batch or not tasks or not all(isinstance(task, str) for task in tasks):
            raise DataError(
                f"{self.task_key}: {tasks}, {STATE}: {'given' if STATE in batch else 'absent'}",
                rule="this policy reads a task sentence and the state in one prompt",
                remedy="give each sample its task and its state",
            )
        states = batch[STATE].detach().float().cpu().numpy()
        bins = np.digitize(states.reshape(len(tasks), -1, states.shape[-1])[:, -1], EDGES) - 1
        prompts: list[str] = []
        for task, row in zip(tasks, bins.tolist(), strict=True):
            clean = task.strip().replace("_", " ").replace("\n", " ")
            prompts.append(f"Task: {clean}, State: {' '.join(map(str, row))}{self.ending}")
        return {**batch, self.task_key: prompts}

    def config(self) -> dict[str, Any]:
        """Return no options, as LeRobot writes the step."""
        return {}


class FastStatePrompt(StatePrompt):
    """The step of π0-FAST, whose prompt ends with the newline."""

    registry_name: ClassVar[str] = "pi0_fast_prepare_state_tokenizer_processor_step"
    ending: ClassVar[str] = ";\n"


for step in (StatePrompt, FastStatePrompt):
    STEPS[step.registry_name] = step
