"""Loading and saving weights under LeRobot's names, through a policy's key map."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from torch import Tensor

from kata.errors import PolicyError
from kata.policies.base import KeyMap, Policy
from kata.processors.tensors import read_tensors, write_tensors

OLD_STATISTICS = ("normalize_inputs.", "normalize_targets.", "unnormalize_outputs.")
"""Where LeRobot kept statistics among the weights before 0.4."""

SHOWN = 5
"""Names that a message lists before it only counts."""


def load_weights(
    policy: Policy, file: Path, shard: Callable[[Tensor, Tensor], Tensor] | None = None
) -> None:
    """Fill a policy from a safetensors file with LeRobot's names; other float dtypes are cast.

    shard: what this rank holds of a whole tensor, where it holds the second one (see
        `Engine.shard`); null: all of it.

    Raises CheckpointError for a file that cannot be read, and PolicyError unless every tensor of
    the policy is in the file with its shape, and the file holds nothing else but what its key map
    passes over.
    """
    if not file.exists() and (file.parent.parent / "sharded_state").is_dir():
        raise PolicyError(
            f"{file}: not there",
            rule="this checkpoint holds its weights in shards (checkpoint_format=dcp)",
            remedy=f"kata checkpoint convert {file.parent.parent} --to=both",
        )
    found = read_tensors(file)
    if any(name.startswith(OLD_STATISTICS) for name in found):
        raise PolicyError(
            f"{file}: holds normalisation statistics among the weights, as LeRobot before 0.4 "
            "wrote",
            rule="statistics lie in the processor files beside the weights",
            remedy="convert it once with LeRobot 0.4 or newer: "
            "python -m lerobot.processor.migrate_policy_normalization --pretrained-path <its "
            "folder>",
        )
    key_map, own = policy.key_map(), policy.state_dict()
    loaded = {
        name: found[stored]
        for name, stored in _stored_names(key_map, own, found)
        if stored in found
    }
    used = {stored for _, stored in _stored_names(key_map, own, found)}
    accepted = (
        used | set(key_map.aliases) | set(key_map.aliases.values()) | set(key_map.passthrough)
    )
    accepted |= set(key_map.constants)
    problems = {
        "missing": [key_map.to_lerobot(name) for name in own if name not in loaded],
        "unexpected": [name for name in found if name not in accepted],
        "of another shape": [
            f"{key_map.to_lerobot(name)} {tuple(tensor.shape)} for {tuple(own[name].shape)}"
            for name, tensor in loaded.items()
            if tensor.shape != own[name].shape
        ],
        "of another kind": [
            f"{key_map.to_lerobot(name)} {tensor.dtype} for {own[name].dtype}"
            for name, tensor in loaded.items()
            if tensor.is_floating_point() != own[name].is_floating_point()
        ],
    }
    if any(problems.values()):
        raise PolicyError(
            f"{file}: "
            + "; ".join(_summary(kind, names) for kind, names in problems.items() if names),
            rule=f"the weights of this {policy.config.type} policy: {len(own)} tensors, no more "
            "and no fewer",
            remedy="build the policy from the config.json beside the weights",
        )
    policy.load_state_dict({n: t if shard is None else shard(t, own[n]) for n, t in loaded.items()})


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
    """(own name, the name under which the file holds it); a tied tensor may lie under any of its
    names.
    """
    names: list[tuple[str, str]] = []
    present = set(found)
    for name in own:
        other = key_map.to_lerobot(name)
        stored = other if other in present else key_map.aliases.get(other, other)
        names.append((name, stored))
    return names


def _summary(kind: str, names: list[str]) -> str:
    """'7 missing (a, b, c, ...)'."""
    more = ", ..." if len(names) > SHOWN else ""
    return f"{len(names)} {kind} ({', '.join(names[:SHOWN])}{more})"
