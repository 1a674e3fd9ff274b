"""A LeRobot checkpoint of mixed precision through kata and back: `python
tools/peer/check_precision.py`.

LeRobot builds parts of SmolVLA in the precision that its vision-language model's config names, and
its files hold them so. kata reads them into float32, and an export takes the file's precisions.
Runs where LeRobot is installed, with kata's source on PYTHONPATH.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import policy_smolvla
import tiny_smolvlm
import torch
from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy
from safetensors.torch import load_file
from sides import peer_features

from kata.config import decode
from kata.finetune.export import write_in_dtypes_of
from kata.policies import build_policy
from kata.policies.config import PolicyConfig
from kata.policies.load import load_weights, save_weights
from kata.run import read_policy_config

FILE = "model.safetensors"


def report(passed: bool, text: str) -> bool:
    print(f"{'PASS' if passed else 'FAIL'} precision of smolvla: {text}", flush=True)
    return passed


def half_precise_model(folder: Path) -> Path:
    """Write a SmolVLM whose config names bfloat16 for both of its parts."""
    tiny_smolvlm.write(folder)
    config = json.loads((folder / "config.json").read_text())
    for part in ("text_config", "vision_config"):
        config[part]["dtype"] = "bfloat16"
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def lerobots(model: Path) -> Any:
    case = policy_smolvla.CHECKPOINT
    features = peer_features(case.inputs, case.action_dim)
    torch.manual_seed(0)
    return SmolVLAPolicy(
        SmolVLAConfig(device="cpu", vlm_model_name=str(model), **features, **case.config)
    )


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Return True for equal names, dtypes and bits."""
    if one.keys() != other.keys():
        return False
    for name, tensor in one.items():
        if tensor.dtype != other[name].dtype or not torch.equal(tensor, other[name]):
            return False
    return True


def main() -> int:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lerobots(half_precise_model(folder / "vlm")).save_pretrained(folder / "theirs")
        theirs = load_file(folder / "theirs" / FILE)
        counts = Counter(str(tensor.dtype) for tensor in theirs.values())
        results = [report(len(counts) == 2, f"LeRobot's file holds {dict(counts)}")]
        # kata reads it, and writes float32 beside a run.
        config = decode(PolicyConfig, read_policy_config(folder / "theirs", []), at="policy")
        policy = build_policy(config)
        load_weights(policy, folder / "theirs" / FILE)
        shutil.copytree(folder / "theirs", folder / "ours")
        save_weights(policy, folder / "ours" / FILE)
        exact = SmolVLAPolicy.from_pretrained(folder / "ours", strict=True)
        # The export has LeRobot's bits, and LeRobot holds the same weights from either.
        write_in_dtypes_of(folder / "ours", str(folder / "theirs"))
        results.append(report(same(load_file(folder / "ours" / FILE), theirs), "bits come back"))
        rounded = SmolVLAPolicy.from_pretrained(folder / "ours", strict=True)
        equal = same(exact.state_dict(), rounded.state_dict())
        results.append(report(equal, "LeRobot holds the same weights from both of kata's files"))
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
