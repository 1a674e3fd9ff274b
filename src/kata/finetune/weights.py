"""Weights of fine-tuned policies: an adapter, or the trained part beside a reference to its base.

adapter_model.safetensors   an adapter, with adapter_config.json, as peft and LeRobot write it
trained.safetensors         the trained part under LeRobot's names
base.json                   path and digest of the base, beside either
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from kata.errors import CheckpointError, PolicyError
from kata.files import write_json
from kata.finetune.base import (
    MODEL,
    TRAINED,
    base_folder,
    read_reference,
    write_reference,
)
from kata.finetune.lora import adapt, adapted, full_names, lerobot_name, peft_library, stored_name
from kata.policies.base import Policy, Reference
from kata.policies.load import fill_weights, load_weights, save_weights
from kata.processors.tensors import read_tensors, write_tensors
from kata.run.peft import ADAPTER, ADAPTER_CONFIG, PeftConfig, adapter_options, is_adapter

Shard = Callable[[Tensor, Tensor], Tensor]
"""Returns this rank's shard of a full tensor, cut as the second tensor is cut."""


def load_policy(policy: Policy, folder: Path) -> None:
    """Fill a new policy from a checkpoint of any kind; that of an adapter gets adapters.

    Raises:
        CheckpointError: a file or the base is absent or damaged.
        PolicyError: the weights do not fit the policy.
    """
    base = read_reference(folder)
    if base is None:
        load_weights(policy, folder / MODEL)
    elif is_adapter(folder):
        below = base_folder(base, folder)
        if is_adapter(below):
            raise PolicyError(
                f"{folder}: its base {below} is an adapter itself",
                rule="an adapter adds to whole weights",
                remedy=f"kata checkpoint export {below} --merge=true --out=<folder>",
            )
        load_policy(policy, below)
        adapt(policy, adapter_options(folder))
        trained = [name for name, p in policy.named_parameters() if p.requires_grad]
        _fill(policy, folder, trained)
    else:
        fill_weights(policy, whole_weights(folder), str(folder))


def whole_weights(folder: Path) -> dict[str, Tensor]:
    """Return all weights of a checkpoint without adapters, under LeRobot's names."""
    base = read_reference(folder)
    if base is None:
        return read_tensors(folder / MODEL)
    return {**whole_weights(base_folder(base, folder)), **read_tensors(folder / TRAINED)}


def load_trained(policy: Policy, folder: Path, shard: Shard) -> None:
    """Fill what is trained of a policy that holds the weights of its base already.

    Args:
        policy: has a reference to its base.
        folder: a checkpoint of the same run.
        shard: returns this rank's shard of a full tensor.

    Raises:
        CheckpointError: a file is absent or damaged, or the checkpoint has another base.
    """
    assert policy.reference is not None
    base = read_reference(folder)
    if base is not None and base.sha256 not in ("", policy.reference.sha256):
        raise CheckpointError(
            f"{folder}: was trained on other weights than those in {policy.reference.path}",
            rule=f"its base has the SHA-256 {base.sha256[:12]}…",
            remedy="put the weights back that it was trained on",
        )
    kept = policy.reference.names
    _fill(policy, folder, [name for name in policy.state_dict() if name not in kept], shard)


def save_trained(
    policy: Policy, folder: Path, tensors: Mapping[str, Tensor], peft: PeftConfig | None
) -> None:
    """Write what is trained of a policy beside a reference to its base.

    Args:
        policy: gives names and the reference.
        folder: a folder that exists.
        tensors: the trained tensors by the policy's names.
        peft: options of the adapters; None if there are none.
    """
    assert policy.reference is not None
    if peft is None:
        save_weights(policy, folder / TRAINED, state=dict(tensors))
    else:
        write_tensors(
            folder / ADAPTER, {stored_name(policy, name): t for name, t in tensors.items()}
        )
        _write_adapter_config(policy, folder, peft, policy.reference)
    write_reference(folder, policy.reference)


def save_whole(policy: Policy, file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write all weights of a policy without adapters, of which some are those of its base.

    Args:
        policy: gives names and the reference.
        file: a safetensors file in a folder that exists.
        tensors: the trained tensors by the policy's names.
    """
    assert policy.reference is not None
    aliases = policy.key_map().aliases
    whole = whole_weights(base_folder(policy.reference, file.parent))
    for name, tensor in tensors.items():
        stored = policy.key_map().to_lerobot(name)
        whole[stored if stored in whole else aliases.get(stored, stored)] = tensor
    write_tensors(file, whole)


def weights_file(folder: Path) -> Path:
    """Return the file of weights in a checkpoint's folder."""
    files = [folder / each for each in (ADAPTER, TRAINED, MODEL) if (folder / each).is_file()]
    return files[0] if files else folder / (ADAPTER if is_adapter(folder) else MODEL)


def _fill(policy: Policy, folder: Path, names: list[str], shard: Shard | None = None) -> None:
    """Fill some tensors of a policy from the one file of weights in a folder.

    A whole file may hold others too; an adapter and a trained part may not.
    """
    file = weights_file(folder)
    found = read_tensors(file)
    is_peft = file.name == ADAPTER
    key_map, own = policy.key_map(), policy.state_dict()
    stored = {
        name: stored_name(policy, name) if is_peft else key_map.to_lerobot(name) for name in names
    }
    absent = [name for name in stored.values() if name not in found]
    extra = sorted(set(found) - set(stored.values())) if file.name != MODEL else []
    misfits = [
        f"{stored[name]} {tuple(found[stored[name]].shape)} for {tuple(own[name].shape)}"
        for name in names
        if stored[name] in found and found[stored[name]].shape != own[name].shape
    ]
    lines = [*(f"missing: {each}" for each in absent), *(f"unexpected: {each}" for each in extra)]
    lines += [f"of another shape: {each}" for each in misfits]
    if lines:
        raise PolicyError(
            f"{file}: {len(lines)} tensors do not fit:\n    " + "\n    ".join(lines),
            rule=f"the {len(names)} trained tensors of this {policy.config.type} policy"
            + (", with the base that the adapter was trained on" if is_peft else ""),
            remedy="give the adapter with its own base"
            if is_peft
            else "give a checkpoint of the same run",
        )
    loaded = {name: found[stored[name]] for name in names}
    if shard is not None:
        loaded = {name: shard(tensor, own[name]) for name, tensor in loaded.items()}
    policy.load_state_dict(loaded, strict=False)


def _write_adapter_config(
    policy: Policy, folder: Path, peft: PeftConfig, reference: Reference
) -> None:
    """Write adapter_config.json as peft does, with every target by its whole name."""
    config = peft_library().LoraConfig(
        r=peft.r,
        lora_alpha=peft.alpha,
        target_modules=[lerobot_name(policy, name) for name in adapted(policy)],
        modules_to_save=[lerobot_name(policy, name) for name in full_names(policy, peft)] or None,
        base_model_name_or_path=reference.path,
        revision=reference.revision,
        inference_mode=True,
    )
    plain: dict[str, Any] = {}
    for name, value in sorted(config.to_dict().items()):
        plain[name] = sorted(value) if isinstance(value, set) else value
    write_json(folder / ADAPTER_CONFIG, plain)
