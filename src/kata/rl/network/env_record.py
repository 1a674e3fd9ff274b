"""The record of an environment: what an actor's and its learner's have in common by nature.
Torch-free.

Options of a display or a device may differ, so they are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kata.eval.envs.registry import EnvSpec, Facts
from kata.rl.episodes.episode import Schema, rounded_bounds

NAMES = "action_names"


def env_record(spec: EnvSpec, facts: Facts, schema: Schema) -> dict[str, Any]:
    """Return the record of an environment as JSON values.

    Args:
        spec: the environment.
        facts: that it declares.
        schema: of the episodes that are played in it.
    """
    return {
        "id": spec.id,
        "fps": facts.fps,
        NAMES: list(facts.action_names),
        "least actions": rounded_bounds(schema.low),
        "largest actions": rounded_bounds(schema.high),
        "discrete choices": schema.choices,
        "observations": {key: list(shape) for key, shape in schema.observations.items()},
    }


def env_differences(mine: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return a phrase for each difference between the learner's record and an actor's.

    Names of actions are compared where both environments have some.
    """
    found: list[str] = []
    for key, wanted in mine.items():
        given = other.get(key)
        if given == wanted or (key == NAMES and not (given and wanted)):
            continue
        found.append(f"{key} {_text(given)} (the learner's: {_text(wanted)})")
    return found


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)[:200]
