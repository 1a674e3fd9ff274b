from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from kata.errors import CheckpointError, PolicyError
from kata.policies.act.config import Config
from kata.policies.act.model import Policy
from kata.policies.base import KeyMap
from kata.policies.load import fill_from_model, load_weights, save_weights
from kata.spec import Feature, FeatureType


def policy_of(**options: Any) -> Policy:
    small = {
        "dim_model": 16,
        "dim_feedforward": 8,
        "n_heads": 2,
        "chunk_size": 4,
        "n_action_steps": 4,
    }
    config = Config(
        input_features={"observation.environment_state": Feature(FeatureType.ENV, (4,))},
        output_features={"action": Feature(FeatureType.ACTION, (2,))},
        **{**small, **options},
    )
    return Policy(config)


class Renamed(Policy):
    """ACT under LeRobot names of its own, with a tied and a passed-over tensor."""

    def key_map(self) -> KeyMap:
        return KeyMap(
            prefixes=(("model.action_head.", "head."), ("model.", "net.")),
            aliases={"net.decoder_pos_embed.weight": "net.tied.weight"},
            passthrough=("unused.weight",),
        )


def test_weights_survive_the_file(tmp_path: Path) -> None:
    first, second = policy_of(), policy_of()
    save_weights(first, tmp_path / "model.safetensors")
    load_weights(second, tmp_path / "model.safetensors")
    for name, tensor in first.state_dict().items():
        assert torch.equal(second.state_dict()[name], tensor), name


def test_file_appears_whole_readable_by_others_and_marked_for_torch(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_weights(policy_of(), file)
    (tmp_path / "plain").touch()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.safetensors", "plain"]
    assert stat.S_IMODE(file.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    with safe_open(file, "pt") as opened:
        assert opened.metadata() == {"format": "pt"}


def test_given_tensors_are_saved_in_place_of_the_policys(tmp_path: Path) -> None:
    policy = policy_of()
    average = {
        name: (2 * tensor).t() if tensor.dim() == 2 else tensor
        for name, tensor in policy.state_dict().items()
    }
    save_weights(policy, tmp_path / "ema.safetensors", state=average)
    saved = load_file(tmp_path / "ema.safetensors")
    assert all(torch.equal(saved[name], tensor) for name, tensor in average.items())


def test_names_go_through_the_key_map_both_ways(tmp_path: Path) -> None:
    first, second = Renamed(policy_of().model.config), Renamed(policy_of().model.config)
    save_file({"unused.weight": torch.ones(2)}, tmp_path / "source.safetensors")
    file = tmp_path / "model.safetensors"
    save_weights(first, file, passthrough_from=tmp_path / "source.safetensors")
    saved = load_file(file)
    assert {"head.weight", "head.bias", "net.tied.weight", "unused.weight"} <= saved.keys()
    assert not any(name.startswith("model.") for name in saved)
    assert "net.decoder_pos_embed.weight" not in saved
    load_weights(second, file)
    for name, tensor in first.state_dict().items():
        assert torch.equal(second.state_dict()[name], tensor), name


def test_a_tied_tensor_loads_under_either_name(tmp_path: Path) -> None:
    first, second = Renamed(policy_of().model.config), Renamed(policy_of().model.config)
    file = tmp_path / "model.safetensors"
    save_weights(first, file)
    tensors = load_file(file)
    tensors["net.decoder_pos_embed.weight"] = tensors.pop("net.tied.weight")
    save_file(tensors, file)
    load_weights(second, file)
    assert torch.equal(second.model.decoder_pos_embed.weight, first.model.decoder_pos_embed.weight)


def test_other_float_types_are_cast(tmp_path: Path) -> None:
    first, second = policy_of(), policy_of()
    halved = {name: tensor.to(torch.bfloat16) for name, tensor in first.state_dict().items()}
    save_file(halved, tmp_path / "model.safetensors")
    load_weights(second, tmp_path / "model.safetensors")
    for name, tensor in second.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, halved[name].float())


def edited(policy: Policy, file: Path, edit: Any) -> Path:
    tensors = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    edit(tensors)
    save_file(tensors, file)
    return file


def _misprefix(tensors: dict[str, torch.Tensor]) -> None:
    for name in list(tensors):
        tensors["wrong." + name] = tensors.pop(name)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda t: t.pop("model.action_head.bias"), "1 missing (model.action_head.bias)"),
        (lambda t: t.update(extra=torch.zeros(1)), "1 unexpected (extra)"),
        (
            lambda t: t.update({"model.action_head.bias": torch.zeros(3)}),
            "model.action_head.bias (3,) for (2,)",
        ),
        (
            lambda t: t.update({"model.action_head.bias": torch.zeros(2, dtype=torch.int64)}),
            "torch.int64 for torch.float32",
        ),
        (_misprefix, "unexpected (wrong.model."),
    ],
)
def test_unexplained_tensors_are_refused(tmp_path: Path, edit: Any, said: str) -> None:
    policy = policy_of()
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    file = edited(policy_of(), tmp_path / "model.safetensors", edit)
    with pytest.raises(PolicyError) as caught:
        load_weights(policy, file)
    assert said in caught.value.what
    assert str(file) in caught.value.what
    assert caught.value.rule
    assert caught.value.remedy
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.state_dict().items())


def test_checkpoints_with_statistics_inside_are_named_with_the_way_to_convert(
    tmp_path: Path,
) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors["normalize_inputs.buffer_observation_state.mean"] = torch.zeros(5)

    file = edited(policy_of(), tmp_path / "model.safetensors", edit)
    with pytest.raises(PolicyError, match=r"before 0\.4") as caught:
        load_weights(policy_of(), file)
    assert "migrate_policy_normalization" in caught.value.remedy


@pytest.mark.parametrize("content", [None, b"", b"no safetensors at all"])
def test_unreadable_files_are_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "model.safetensors"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        load_weights(policy_of(), file)
    assert str(file) in caught.value.what
    assert caught.value.remedy


def filled(folder: Path, wanted: dict[str, torch.Tensor], **options: Any) -> None:
    fill_from_model(wanted, str(folder), "a test model", remedy="another folder", **options)


def test_a_models_tensors_are_found_in_all_of_its_files(tmp_path: Path) -> None:
    save_file({"old.a": torch.ones(2), "beside": torch.ones(1)}, tmp_path / "1.safetensors")
    save_file({"b": torch.full((3,), 2.0).half()}, tmp_path / "2.safetensors")
    wanted = {"a": torch.zeros(2), "b": torch.zeros(3)}
    filled(tmp_path, wanted, current=lambda name: name.removeprefix("old."))
    assert wanted["a"].tolist() == [1.0, 1.0]
    assert wanted["b"].tolist() == [2.0, 2.0, 2.0]


def test_all_tensors_that_do_not_fit_a_model_stand_in_one_table(tmp_path: Path) -> None:
    stored = {f"layer.{i}.weight": torch.ones(2) for i in range(7)}
    save_file(
        {**stored, "beside": torch.ones(1), "bias": torch.ones(4)}, tmp_path / "m.safetensors"
    )
    wanted = {f"block.{i}.weight": torch.zeros(2) for i in range(7)} | {"bias": torch.zeros(3)}
    with pytest.raises(PolicyError) as caught:
        filled(tmp_path, wanted, unread=["beside"])
    said = str(caught.value)
    assert "missing: block.{0-6}.weight (2,)" in said
    assert "unexpected: layer.{0-6}.weight (2,)" in said
    assert "bias (4,) for (3,)" in said
    assert "beside" not in said


def test_a_model_that_is_not_there_is_named_with_the_way_to_fetch_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(PolicyError, match=r"hf download nobody/nothing --include '\*.json'"):
        filled(Path("nobody/nothing"), {"a": torch.zeros(1)})
