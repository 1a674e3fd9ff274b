"""Pipelines of steps, saved as LeRobot's processor JSON and safetensors files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kata.errors import CheckpointError, did_you_mean
from kata.processors.steps import STEPS, Artifact, Step
from kata.processors.tensors import read_tensors, write_tensors
from kata.spec import Batch

PREPROCESSOR, POSTPROCESSOR = "policy_preprocessor", "policy_postprocessor"


@dataclass(frozen=True)
class Pipeline:
    """A list of steps applied in order; the same object serves training and acting."""

    name: str
    steps: tuple[Step, ...]

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch after every step."""
        for step in self.steps:
            batch = step(batch)
        return batch

    def replaced(self, **by_name: Step) -> Pipeline:
        """Return a copy in which the steps of these registry names are replaced."""
        return Pipeline(self.name, tuple(by_name.get(s.registry_name, s) for s in self.steps))

    @property
    def artifact_bytes(self) -> int:
        """Return the bytes of the steps' folders, such as tokenizers', in a checkpoint."""
        sizes: dict[str, int] = {}
        for step in self.steps:
            for artifact in step.artifacts().values():
                sizes[artifact.name] = sum(map(len, artifact.files.values()))
        return sum(sizes.values())

    def save(self, folder: Path, *, with_artifacts: bool = True) -> None:
        """Write `<name>.json`, the state files and the steps' folders into an existing folder.

        Args:
            folder: a `pretrained_model` folder.
            with_artifacts: False leaves out folders such as tokenizers', which may be large.
        """
        listed: list[dict[str, Any]] = []
        stem = re.sub(r"[^a-z0-9]", "_", self.name.lower())
        for i, step in enumerate(step for step in self.steps if step.is_saved):
            entry: dict[str, Any] = {"registry_name": step.registry_name, "config": step.config()}
            state = step.state()
            if state:
                entry["state_file"] = f"{stem}_step_{i}_{step.registry_name}.safetensors"
                write_tensors(folder / entry["state_file"], state)
            kept = step.artifacts() if with_artifacts else {}
            for option, artifact in kept.items():
                _write_artifact(folder / artifact.name, artifact)
                entry.setdefault("artifacts", {})[option] = artifact.name
            listed.append(entry)
        text = json.dumps({"name": self.name, "steps": listed}, indent=2)
        (folder / f"{self.name}.json").write_text(text, encoding="utf-8")


def _write_artifact(folder: Path, artifact: Artifact) -> None:
    folder.mkdir(exist_ok=True)  # two steps may share a tokenizer
    for name, content in artifact.files.items():
        (folder / name).write_bytes(content)


def load_pipeline(
    folder: Path, name: str, overrides: Mapping[str, Mapping[str, Any]] | None = None
) -> Pipeline:
    """Return the pipeline called `name` of a checkpoint folder, LeRobot's or kata's.

    Args:
        folder: a `pretrained_model` folder.
        name: PREPROCESSOR or POSTPROCESSOR.
        overrides: registry name -> options laid over the file's.

    Raises: CheckpointError for absent or damaged files, unknown steps, or an override of no step.
    """
    listed = _read_steps(folder / f"{name}.json")
    wanted = dict(overrides or {})
    steps = [
        _build(folder, entry, wanted.pop(str(entry.get("registry_name")), {})) for entry in listed
    ]
    if wanted:
        raise CheckpointError(
            f"{name}: no step {', '.join(wanted)} to override",
            rule=f"its steps: {', '.join(s.registry_name for s in steps)}",
            remedy="drop the override",
        )
    return Pipeline(name, tuple(steps))


def _read_steps(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise CheckpointError(
            f"{path}: no such file",
            rule="a checkpoint holds policy_preprocessor.json and policy_postprocessor.json",
            remedy="checkpoints older than LeRobot 0.4 must be migrated with LeRobot's "
            "migrate_policy_normalization script",
        )
    try:
        return json.loads(path.read_text(encoding="utf-8"))["steps"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path}: damaged ({error})",
            rule="a JSON object with a list of steps",
            remedy="copy it again",
        ) from error


def _build(folder: Path, entry: Mapping[str, Any], over: Mapping[str, Any]) -> Step:
    name = str(entry.get("registry_name", entry.get("class")))
    if name not in STEPS:
        raise CheckpointError(
            f"{folder}: unknown processing step {name}",
            rule=f"steps that kata knows: {', '.join(sorted(STEPS))}",
            remedy=did_you_mean(name, STEPS),
        )
    state = {}
    if "state_file" in entry:
        state = read_tensors(_inside(folder, name, str(entry["state_file"])))
    try:
        # Newer files name options whose value is a folder beside them, such as a tokenizer's.
        places: dict[str, Any] = dict(entry.get("artifacts") or {})
        found = {option: str(_inside(folder, name, str(at))) for option, at in places.items()}
        return STEPS[name].build({**entry.get("config", {}), **found, **over}, state)
    except (TypeError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"{folder}: step {name} has options that do not fit ({error})",
            rule="the options that LeRobot 0.6 writes",
            remedy="write the checkpoint again with a current version",
        ) from error


def _inside(folder: Path, name: str, place: str) -> Path:
    """Return the file or folder of a step, which lies directly in the checkpoint."""
    found = folder / place
    if found.parent.resolve() != folder.resolve():
        raise CheckpointError(
            f"{name}: {place} lies outside {folder}",
            rule="a name in the same folder",
            remedy="do not use this checkpoint",
        )
    return found


def build_pipelines(steps: Sequence[Step], inverse: Sequence[Step]) -> tuple[Pipeline, Pipeline]:
    """Return the two pipelines of a checkpoint: before the policy, and after it."""
    return Pipeline(PREPROCESSOR, tuple(steps)), Pipeline(POSTPROCESSOR, tuple(inverse))
