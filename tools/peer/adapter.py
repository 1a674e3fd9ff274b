"""An adapter through LeRobot and kata: `adapter.py own|peer|again FOLDER`, in this order.

own (kata's environment) writes a base of a tiny SmolVLA, an adapter, and the chunk that kata
predicts. peer (LeRobot's, with peft) loads that adapter and compares; it writes an adapter of its
own. again (kata's) loads LeRobot's adapter and compares. Each prints the largest difference.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

MOST = 1e-5
"""Largest difference of a chunk in float32."""

STATE, TOP = "observation.state", "observation.images.top"
TOKENS, MASK = "observation.language.tokens", "observation.language.attention_mask"
TINY: dict[str, Any] = {
    "chunk_size": 5,
    "n_action_steps": 3,
    "max_state_dim": 7,
    "max_action_dim": 6,
    "resize_imgs_with_padding": (64, 64),
    "num_vlm_layers": 4,
    "num_steps": 4,
}


def batch() -> dict[str, Tensor]:
    stream = torch.Generator().manual_seed(0)
    return {
        STATE: torch.randn(2, 5, generator=stream),
        TOP: torch.rand(2, 3, 40, 64, generator=stream),
        TOKENS: torch.randint(8, 200, (2, 6), generator=stream),
        MASK: torch.ones(2, 6, dtype=torch.bool),
    }


def noise() -> Tensor:
    return torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(1))


def shake(module: torch.nn.Module) -> None:
    """Give adapters numbers that matter: a new one adds nothing."""
    stream = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in sorted(module.named_parameters()):
            if ".lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=stream))


def own(folder: Path) -> None:
    import tiny_smolvlm

    from kata.finetune.base import reference_to
    from kata.finetune.lora import adapt
    from kata.finetune.weights import save_trained
    from kata.policies import build_policy, config_class
    from kata.policies.load import save_weights
    from kata.run.peft import PeftConfig
    from kata.spec import Feature, FeatureType

    camera, state = Feature(FeatureType.VISUAL, (3, 40, 64)), Feature(FeatureType.STATE, (5,))
    config = config_class("smolvla")(
        input_features={STATE: state, TOP: camera},
        output_features={"action": Feature(FeatureType.ACTION, (4,))},
        vlm_model_name=str(tiny_smolvlm.write(folder / "vlm")),
        **TINY,
    )
    torch.manual_seed(0)
    policy = build_policy(config)
    (folder / "base").mkdir()
    config.save(folder / "base")
    save_weights(policy, folder / "base" / "model.safetensors")
    options = PeftConfig(r=4, full_training_modules=["action_out_proj"])
    adapt(policy, options)
    shake(policy)
    with torch.no_grad():
        policy.action_out_proj.weight.mul_(1.5)
    trained = {n: p for n, p in policy.named_parameters() if p.requires_grad}
    policy.reference = reference_to(str(folder / "base"), None)
    (folder / "kata").mkdir()
    vars(config)["use_peft"] = True
    config.save(folder / "kata")
    save_trained(policy, folder / "kata", trained, options)
    chunk = policy.eval().predict_chunk(batch(), noise=noise())
    save_file({"chunk": chunk.contiguous()}, folder / "kata.safetensors")


def peer(folder: Path) -> None:
    import os

    os.environ["HF_HUB_OFFLINE"] = "1"
    from lerobot.configs.policies import PreTrainedConfig
    from lerobot.policies.factory import get_policy_class
    from peft import PeftConfig, PeftModel

    kind = get_policy_class("smolvla")

    def loaded(path: Path) -> Any:
        config = PreTrainedConfig.from_pretrained(path)
        config.device = "cpu"
        assert config.use_peft
        found = PeftConfig.from_pretrained(path)
        base = kind.from_pretrained(found.base_model_name_or_path, config=config, strict=True)
        return PeftModel.from_pretrained(base, path, config=found, is_trainable=True).eval()

    def chunk_of(policy: Any) -> Tensor:
        policy.reset()
        with torch.no_grad():
            return policy.predict_action_chunk(batch(), noise=noise())

    told(
        "kata's adapter in LeRobot", chunk_of(loaded(folder / "kata")), folder / "kata.safetensors"
    )
    config = PreTrainedConfig.from_pretrained(folder / "base")
    config.device, config.pretrained_path = "cpu", folder / "base"
    policy = kind.from_pretrained(folder / "base", config=config).wrap_with_peft(
        peft_cli_overrides={"r": 4, "full_training_modules": ["state_proj"]}
    )
    shake(policy)
    policy.save_pretrained(folder / "lerobot")
    policy.config.save_pretrained(folder / "lerobot")
    save_file({"chunk": chunk_of(policy.eval()).contiguous()}, folder / "lerobot.safetensors")


def again(folder: Path) -> None:
    from kata.config import decode
    from kata.finetune.weights import load_policy
    from kata.policies import build_policy
    from kata.policies.config import PolicyConfig
    from kata.run import read_policy_config

    raw = read_policy_config(folder / "lerobot", [])
    policy = build_policy(decode(PolicyConfig, raw, at="policy"))
    load_policy(policy, folder / "lerobot")
    chunk = policy.eval().predict_chunk(batch(), noise=noise())
    told("LeRobot's adapter in kata", chunk, folder / "lerobot.safetensors")


def told(what: str, chunk: Tensor, wanted: Path) -> None:
    expected = load_file(wanted)["chunk"]
    difference = (chunk - expected).abs().max().item() / expected.abs().max().item()
    print(f"{what}: {difference:.1e} of the largest action (at most {MOST:g})")
    if not difference <= MOST:
        sys.exit(1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"own": own, "peer": peer, "again": again}[sys.argv[1]](Path(sys.argv[2]))
