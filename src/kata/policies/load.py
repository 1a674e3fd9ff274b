"""Loading and saving of weights under LeRobot's names, through a policy's key map."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from kata.errors import PolicyError
from kata.policies.base import KeyMap, Policy
from kata.processors.pretrained import model_folder
from kata.processors.tensors import read_tensors, write_tensors
from kata.units import numbered

OLD_STATISTICS = ("normalize_inputs.", "normalize_targets.", "unnormalize_outputs.")
"""Prefixes under which LeRobot before 0.4 stored statistics among the weights."""

SHOWN = 5
"""Names that a message lists before it only counts."""


def load_weights(
    policy: Policy, file: Path, shard: Callable[[Tensor, Tensor], Tensor] | None = None
) -> None:
    """Fill a policy from a safetensors file with LeRobot's names. Other float dtypes are cast.

    Args:
        policy: receives the weights.
        file: a safetensors file.
        shard: returns this rank's shard of a full tensor, cut as the second tensor is cut (see
            `Engine.shard`). None keeps full tensors.

    Raises:
        CheckpointError: the file cannot be read.
        PolicyError: a tensor of the policy is absent or has another shape or kind, or the file
            holds a tensor that the key map does not explain.
    """
    _refuse_shards_alone(file)
    fill_weights(policy, read_tensors(file), str(file), shard)


def fill_weights(
    policy: Policy,
    found: Mapping[str, Tensor],
    source: str,
    shard: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> None:
    """Fill a policy from tensors with LeRobot's names; see `load_weights`.

    Args:
        policy: receives the weights.
        found: all tensors of a checkpoint.
        source: where they come from, for messages.
        shard: see `load_weights`.
    """
    _refuse_old_statistics(source, found)
    key_map, own = policy.key_map(), policy.state_dict()
    found = found if key_map.modern is None else key_map.modern(found)
    found = {key_map.current(name): tensor for name, tensor in found.items()}
    names = _stored_names(key_map, own, found)
    loaded = {name: found[stored] for name, stored in names if stored in found}
    accepted = {stored for _, stored in names}
    accepted.update(key_map.aliases, key_map.aliases.values())
    accepted.update(key_map.passthrough, key_map.constants)
    problems = {
        "missing": [key_map.to_lerobot(name) for name in own if name not in loaded],
        "unexpected": [name for name in found if name not in accepted],
        **_misfits(key_map, own, loaded),
    }
    shapes = {key_map.to_lerobot(name): tensor.shape for name, tensor in own.items()}
    shapes.update({name: tensor.shape for name, tensor in found.items()})
    _refuse(
        source,
        problems,
        shapes,
        rule=f"the weights of this {policy.config.type} policy: {len(own)} tensors, no more and "
        "no fewer",
        remedy="build the policy from the config.json beside the weights",
    )
    if shard is not None:
        loaded = {name: shard(tensor, own[name]) for name, tensor in loaded.items()}
    policy.load_state_dict(loaded)


def fill_from_model(
    wanted: Mapping[str, Tensor],
    name: str,
    model: str,
    *,
    remedy: str,
    current: Callable[[str], str] = str,
    unread: Collection[str] | None = None,
) -> None:
    """Fill a policy's tensors from the files of the model that the policy is built on.

    Args:
        wanted: tensors to fill, by their names in the model's files.
        name: a Hub name or a folder with safetensors files.
        model: what it is, such as 'a SmolVLM', for messages.
        remedy: what to do with a model that does not fit.
        current: turns the name of a tensor in a file into the one in `wanted`.
        unread: tensors of the files that nothing reads; any other that is not wanted is refused.
            None passes over them all.

    Raises:
        PolicyError: the model cannot be read, or lacks a tensor, or has one of another shape, or
            one that is unexpected.
    """
    folder = model_folder(name, model, ["*.json", "*.safetensors"])
    missing = dict.fromkeys(wanted)
    unexpected: list[str] = []
    misfits: list[str] = []
    shapes = {key: tensor.shape for key, tensor in wanted.items()}
    for file in sorted(folder.glob("*.safetensors")):
        for stored, tensor in read_tensors(file).items():
            key = current(stored)
            own = wanted.get(key)
            if own is None:
                unexpected.append(stored)
                shapes[stored] = tensor.shape
                continue
            missing.pop(key, None)
            if own.shape != tensor.shape:
                misfits.append(f"{stored} {tuple(tensor.shape)} for {tuple(own.shape)}")
                continue
            with torch.no_grad():
                own.copy_(tensor)
    passed_over = unexpected if unread is None else unread
    problems = {
        "missing": list(missing),
        "unexpected": [stored for stored in unexpected if stored not in passed_over],
        "of another shape": misfits,
    }
    rule = f"{model} with its {len(wanted)} tensors in safetensors files"
    _refuse(name, problems, shapes, rule=rule, remedy=remedy)


def _refuse(
    source: str,
    problems: Mapping[str, list[str]],
    shapes: Mapping[str, Sequence[int]],
    *,
    rule: str,
    remedy: str,
) -> None:
    """Raise PolicyError where a list of problems has an entry."""
    summaries = [_summary(kind, names) for kind, names in problems.items() if names]
    if summaries:
        message = f"{source}: " + "; ".join(summaries) + _table(problems, shapes)
        raise PolicyError(message, rule=rule, remedy=remedy)


def _refuse_shards_alone(file: Path) -> None:
    checkpoint = file.parent.parent
    if not file.exists() and (checkpoint / "sharded_state").is_dir():
        raise PolicyError(
            f"{file}: not there",
            rule="this checkpoint holds its weights in shards (checkpoint_format=dcp)",
            remedy=f"kata checkpoint convert {checkpoint} --to=both",
        )


def _refuse_old_statistics(source: str, found: Iterable[str]) -> None:
    if any(name.startswith(OLD_STATISTICS) for name in found):
        raise PolicyError(
            f"{source}: holds normalization statistics among the weights, as LeRobot before 0.4 "
            "wrote",
            rule="statistics are in the processor files beside the weights",
            remedy="convert it once with LeRobot 0.4 or newer: "
            "python -m lerobot.processor.migrate_policy_normalization --pretrained-path <its "
            "folder>",
        )


def _misfits(
    key_map: KeyMap, own: Mapping[str, Tensor], loaded: Mapping[str, Tensor]
) -> dict[str, list[str]]:
    """Return tensors that differ from the policy's in shape, or in being of floats."""
    shapes: list[str] = []
    kinds: list[str] = []
    for name, tensor in loaded.items():
        mine, stored = own[name], key_map.to_lerobot(name)
        if tensor.shape != mine.shape:
            shapes.append(f"{stored} {tuple(tensor.shape)} for {tuple(mine.shape)}")
        if tensor.is_floating_point() != mine.is_floating_point():
            kinds.append(f"{stored} {tensor.dtype} for {mine.dtype}")
    return {"of another shape": shapes, "of another kind": kinds}


def save_weights(
    policy: Policy,
    file: Path,
    *,
    state: dict[str, Tensor] | None = None,
    passthrough_from: Path | None = None,
) -> None:
    """Write a policy's weights under LeRobot's names; the file appears whole or not at all.

    Args:
        policy: gives the key map, and the weights where `state` is None.
        file: a safetensors file in a folder that exists.
        state: tensors by own name, such as those gathered from shards or averaged.
        passthrough_from: the LeRobot file from which tensors that this policy does not use are
            copied.
    """
    key_map = policy.key_map()
    tensors: dict[str, Tensor] = {}
    for name, tensor in (policy.state_dict() if state is None else state).items():
        other = key_map.to_lerobot(name)
        tensors[key_map.aliases.get(other, other)] = tensor
    if key_map.passthrough and passthrough_from is not None:
        source = read_tensors(passthrough_from)
        tensors.update({name: source[name] for name in key_map.passthrough if name in source})
    tensors.update({name: make() for name, make in key_map.constants.items()})
    write_tensors(file, tensors)


def _stored_names(
    key_map: KeyMap, own: Iterable[str], found: Iterable[str]
) -> list[tuple[str, str]]:
    """Return pairs (name in the policy, name in the file); tied tensors may have any of their
    names.
    """
    names: list[tuple[str, str]] = []
    present = set(found)
    for name in own:
        other = key_map.to_lerobot(name)
        second = key_map.aliases.get(other, key_map.stand_ins.get(other, other))
        stored = other if other in present else second
        names.append((name, stored))
    return names


def _table(problems: Mapping[str, list[str]], shapes: Mapping[str, Sequence[int]]) -> str:
    """Return a line for all tensors that do not fit; empty if the summary names them all.

    Names that differ only in a number share a line.
    """
    if all(len(names) <= SHOWN for names in problems.values()):
        return ""
    lines: list[str] = []
    for kind, names in problems.items():
        sized = [f"{name} {tuple(shapes[name])}" if name in shapes else name for name in names]
        lines += [f"{kind}: {line}" for line in numbered(sized)]
    return "\n    " + "\n    ".join(lines)


def _summary(kind: str, names: list[str]) -> str:
    """Return for example '7 missing (a, b, c, ...)'."""
    more = ", ..." if len(names) > SHOWN else ""
    return f"{len(names)} {kind} ({', '.join(names[:SHOWN])}{more})"
