"""Exports of fine-tuned policies, which hold all weights themselves."""

from __future__ import annotations

import json
from pathlib import Path

from kata.config import decode
from kata.errors import CheckpointError
from kata.files import write_json
from kata.finetune.base import BASE, MODEL, TRAINED, base_folder, read_reference
from kata.finetune.lora import merge_adapters
from kata.finetune.weights import load_policy, whole_weights
from kata.policies import build_policy
from kata.policies.config import CONFIG, PolicyConfig
from kata.policies.load import save_weights
from kata.processors.tensors import read_tensors, stored_dtypes, write_tensors
from kata.run import policy_folder, read_policy_config
from kata.run.peft import ADAPTER, ADAPTER_CONFIG, is_adapter

TRAIN_CONFIG = "train_config.json"


def make_whole(folder: Path, source: Path) -> None:
    """Put all weights into a copy of a checkpoint, and take its reference and adapter out.

    Args:
        folder: the copy.
        source: the checkpoint, for messages.

    Raises:
        CheckpointError: the base is not there, or is another one.
    """
    if not is_adapter(folder):
        write_tensors(folder / MODEL, whole_weights(source))
    else:
        config = decode(PolicyConfig, read_policy_config(folder, []), at="policy")
        policy = build_policy(config.without_downloads())
        load_policy(policy, source)
        merge_adapters(policy)
        base = read_reference(source)
        assert base is not None
        unused = base_folder(base, source) / MODEL
        save_weights(policy, folder / MODEL, passthrough_from=unused)
        _unmark(folder)
    for name in (TRAINED, BASE, ADAPTER, ADAPTER_CONFIG):
        (folder / name).unlink(missing_ok=True)


def write_in_dtypes_of(folder: Path, other: str) -> int:
    """Round the weights of a copy of a checkpoint to the precision that they have in another.

    LeRobot's files hold some tensors in bfloat16, where kata holds them in float32 so that a run
    continues exactly. Tensors that the other checkpoint lacks keep their precision.

    Args:
        folder: the copy, which holds all weights.
        other: a checkpoint or run by its folder, or a name on the Hub.

    Returns:
        The number of tensors that were rounded or widened.

    Raises:
        CheckpointError: one of the two has no file of all weights.
    """
    reference = policy_folder(other, option="dtypes_of") / MODEL
    if not reference.is_file():
        raise CheckpointError(
            f"dtypes_of={other}: holds no {MODEL}",
            rule="precisions are taken from a checkpoint that holds all weights",
            remedy="name another one",
        )
    if not (folder / MODEL).is_file():
        raise CheckpointError(
            f"dtypes_of={other} for an adapter",
            rule="an adapter keeps its precision; a file of all weights can be rounded",
            remedy="add --merge, or leave out --dtypes_of",
        )
    wanted = stored_dtypes(reference)
    tensors, changed = read_tensors(folder / MODEL), 0
    for name, tensor in tensors.items():
        dtype = wanted.get(name, tensor.dtype)
        if dtype != tensor.dtype and dtype.is_floating_point and tensor.is_floating_point():
            tensors[name] = tensor.to(dtype)
            changed += 1
    write_tensors(folder / MODEL, tensors)
    return changed


def as_raw_groot(folder: Path) -> None:
    """Turn a copy of a checkpoint of GR00T into a folder in NVIDIA's layout.

    Raises:
        CheckpointError: it is the checkpoint of another policy.
    """
    config = decode(PolicyConfig, read_policy_config(folder, []), at="policy")
    from kata.policies.groot.raw_folder import make_raw  # here, for no other policy needs it

    make_raw(folder, config)


def _unmark(folder: Path) -> None:
    """Take the mark of an adapter out of a folder's options."""
    plain = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    write_json(folder / CONFIG, {**plain, "use_peft": False})
    file = folder / TRAIN_CONFIG
    if file.is_file():
        plain = json.loads(file.read_text(encoding="utf-8"))
        plain = {**plain, "peft": None, "policy": {**plain["policy"], "use_peft": False}}
        write_json(file, plain)
