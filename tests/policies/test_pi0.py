"""π0: LeRobot's names at full size, frozen parts, precision, padding, acting, files, refusals."""

import dataclasses
import importlib
import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from kata.config import decode
from kata.errors import CheckpointError, PolicyError
from kata.finetune.lora import target_names
from kata.finetune.quantize import quantize_frozen
from kata.nn.attention import KeysValues, attend
from kata.policies import build_policy, config_class
from kata.policies.config import PolicyConfig
from kata.policies.load import load_weights, save_weights
from kata.policies.paligemma import EMBEDDINGS, VLM
from kata.policies.pi import PALIGEMMA
from kata.policies.pi_policy import EXPERT
from kata.policies.pipelines import canonical_pipelines
from kata.processors.pipeline import load_pipeline
from kata.processors.pretrained import unreadable
from kata.processors.tokenize import DOWNLOADS
from kata.run import read_policy_config
from kata.run.peft import PeftConfig
from kata.spec import (
    ACTION,
    LANGUAGE_MASK,
    LANGUAGE_TOKENS,
    STATE,
    TASK,
    Feature,
    FeatureType,
    missing_key,
)

HERE = Path(__file__).parent
TOP, WRIST = "observation.images.top", "observation.images.wrist"
NAME = "pi0"
TERM = "flow_matching_loss"
TINY = {
    "chunk_size": 4,
    "n_action_steps": 2,
    "max_state_dim": 6,
    "max_action_dim": 5,
    "image_resolution": (28, 28),
    "num_inference_steps": 2,
    "tokenizer_max_length": 8,
}


@pytest.fixture(scope="module")
def tools():
    """The module of the comparison with LeRobot, which knows tiny sizes and a tiny tokenizer."""
    sys.path.insert(0, str(HERE.parents[1] / "tools/peer"))
    try:
        return importlib.import_module("pi_cases")
    finally:
        sys.path.pop(0)


@pytest.fixture
def tiny(tools):
    """π0 is tiny in this test."""
    with tools.tiny_own():
        yield tools


def config(**options):
    cameras = {key: Feature(FeatureType.VISUAL, (3, 24, 32)) for key in (TOP, WRIST)}
    return config_class(NAME)(
        input_features={STATE: Feature(FeatureType.STATE, (3,)), **cameras},
        output_features={ACTION: Feature(FeatureType.ACTION, (2,))},
        **{**TINY, **options},
    )


def build(**options):
    torch.manual_seed(0)
    return build_policy(config(**options))


def batch(words=(5, 3), length=8):
    stream = torch.Generator().manual_seed(0)
    seen = torch.arange(length)[None] < torch.tensor(words)[:, None]
    tokens = torch.randint(8, 200, (2, 8), generator=stream)
    tokens = torch.nn.functional.pad(tokens, (0, length - 8))
    pad = torch.zeros(2, 4, dtype=torch.bool)
    pad[0, 2:] = True
    return {
        TOP: torch.rand(2, 3, 24, 32, generator=stream),
        WRIST: torch.rand(2, 3, 24, 32, generator=stream),
        STATE: torch.randn(2, 3, generator=stream),
        ACTION: torch.randn(2, 4, 2, generator=stream),
        f"{ACTION}_is_pad": pad,
        LANGUAGE_TOKENS: torch.where(seen, tokens, 0),
        LANGUAGE_MASK: seen,
    }


def draws():
    stream = torch.Generator().manual_seed(1)
    noise = torch.randn(2, 4, 5, generator=stream)
    return {"noise": noise, "time": torch.rand(2, 1, generator=stream)}


def summed(policy, given, drawn=None):
    return policy(given, **(drawn or draws())).terms[TERM].total


def names_at_full_size() -> list[str]:
    """Return name, shape, precision in bfloat16, state with the expert alone, and layers."""
    with torch.device("meta"):
        policy = build_policy(
            config_class(NAME)(
                input_features=config().input_features,
                output_features=config().output_features,
                dtype="bfloat16",
                train_expert_only=True,
            )
        )
        key_map = policy.key_map()
        unread = {name: make() for name, make in key_map.constants.items()}
    tensors = {key_map.to_lerobot(name): p for name, p in policy.named_parameters()}
    assert len(policy.state_dict()) == len(tensors)
    trained = {name for name, p in tensors.items() if p.requires_grad}
    tensors[key_map.aliases[EMBEDDINGS]] = tensors[EMBEDDINGS]
    found: dict[str, list[str]] = {}
    for name, tensor in {**tensors, **unread}.items():
        layer = re.search(r"layers\.(\d+)\.", name)
        shape = "x".join(map(str, tensor.shape))
        # The expert's output map has no gradient in LeRobot either.
        state = "trained" if name in trained or name in unread else "frozen"
        kind = str(tensor.dtype).removeprefix("torch.")
        folded = re.sub(r"layers\.\d+\.", "layers.*.", name)
        found.setdefault(f"{folded} {shape} {kind} {state}", []).append(layer[1] if layer else "")
    return [f"{line} {','.join(layers)}".rstrip() for line, layers in found.items()]


def test_names_shapes_precision_and_trained_weights_are_lerobots_at_full_size():
    kept = (HERE / "pi0_keys.txt").read_text().splitlines()[1:]
    assert sorted(names_at_full_size()) == sorted(kept)


def test_every_name_maps_to_one_of_lerobots_and_back(tiny):
    policy = build()
    key_map, names = policy.key_map(), list(policy.state_dict())
    assert [key_map.from_lerobot(key_map.to_lerobot(name)) for name in names] == names


def test_a_frozen_model_keeps_no_graph(tiny):
    policy = build(train_expert_only=True).train()
    encoded = policy.encode(batch())
    assert not any(given.keys.requires_grad for given in encoded.layers)
    assert not policy.text.training
    assert policy.expert.training
    assert encoded.valid.shape[1] == 2 * 4 + 8
    assert build().train().encode(batch()).layers[0].keys.requires_grad


def test_every_trained_parameter_has_a_gradient_and_no_other(tiny):
    for options in ({}, {"freeze_vision_encoder": True}, {"train_expert_only": True}):
        policy = build(**options).train()
        summed(policy, batch()).backward()
        for name, parameter in policy.named_parameters():
            assert (parameter.grad is not None) == parameter.requires_grad, name
        (group,) = policy.param_groups()
        assert len(group.params) == sum(p.requires_grad for p in policy.parameters())


def test_sums_of_micro_batches_make_the_sum_of_the_batch(tiny):
    policy, given, drawn = build().eval(), batch(), draws()
    whole = policy(given, **drawn)
    parts = []
    for i in range(2):
        one = {key: value[i : i + 1] for key, value in given.items()}
        parts.append(summed(policy, one, {k: v[i : i + 1] for k, v in drawn.items()}))
    torch.testing.assert_close(torch.stack(parts).sum(), whole.terms[TERM].total)
    torch.testing.assert_close(torch.stack(parts), whole.detail[TERM])


def test_padding_of_sentences_and_absent_cameras_change_nothing(tiny):
    policy = build().eval()
    short, long = batch(), batch(length=12)
    torch.testing.assert_close(summed(policy, short), summed(policy, long), rtol=1e-5, atol=0)
    without = {key: value for key, value in short.items() if key != WRIST}
    marked = {**short, missing_key(WRIST): torch.tensor([True, True])}
    torch.testing.assert_close(summed(policy, without), summed(policy, marked), rtol=1e-5, atol=0)


def test_padded_steps_count_unless_they_are_masked(tiny):
    given = batch()
    pads = {f"{ACTION}_is_pad": given[f"{ACTION}_is_pad"].numpy()}
    plain, masked = build().eval(), build(do_mask_loss_for_padding=True).eval()
    assert plain.config.loss_weights(2, pads) == {TERM: 16.0}
    assert masked.config.loss_weights(2, pads) == {TERM: 12.0}
    more, less = (policy(given, **draws()).detail[TERM] for policy in (plain, masked))
    assert less[0] < more[0]
    torch.testing.assert_close(less[1], more[1])


def test_recomputed_activations_give_the_same_gradients(tiny):
    plain, again = build().train(), build(gradient_checkpointing=True).train()
    for policy in (plain, again):
        summed(policy, batch()).backward()
    for one, other in zip(plain.parameters(), again.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        assert one.grad is None or torch.equal(one.grad, other.grad)
    assert len(plain.recompute_units()) == 2 + 3 + 3
    assert again.recompute_units() == []  # nothing is left for --gradient_checkpointing


def test_compile_model_compiles_every_layer(tiny, monkeypatch):
    compiled = []
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda unit, mode: compiled.append((unit, mode))
    )
    policy = build(compile_model=True, compile_mode="default")
    assert compiled == [(unit, "default") for unit in policy.layers]


@pytest.mark.parametrize(
    "options", [{"dtype": "bfloat16"}, {"train_expert_only": True, "frozen_dtype": "bfloat16"}]
)
def test_narrow_weights_give_nearly_the_same_loss_and_actions(tiny, options):
    narrow, wide = build(**options).train(), build().train()
    with torch.no_grad():
        for own, other in zip(wide.parameters(), narrow.parameters(), strict=True):
            own.copy_(other)  # so that both have the same numbers
    losses = [summed(policy, batch()) for policy in (narrow, wide)]
    torch.testing.assert_close(losses[0], losses[1], rtol=2e-2, atol=0)
    losses[0].backward()
    for name, parameter in narrow.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
    noise = draws()["noise"]
    chunks = [policy.eval().predict_chunk(batch(), noise=noise) for policy in (narrow, wide)]
    torch.testing.assert_close(chunks[0], chunks[1], rtol=0, atol=5e-2)
    if "dtype" in options:  # a shard unit has one dtype
        units = set(narrow.shard_units())
        for unit in units:
            inner = [part for part in unit.modules() if part is not unit and part in units]
            apart = {p for part in inner for p in part.parameters()}
            assert len({p.dtype for p in unit.parameters() if p not in apart}) == 1


def test_heads_that_share_keys_see_what_copies_of_the_keys_would_show(tiny):
    stream = torch.Generator().manual_seed(0)
    query, keys, values = (torch.randn(2, n, 3, 4, generator=stream) for n in (6, 1, 1))
    mask = torch.rand(2, 1, 3, 3, generator=stream) > 0.4
    mask[..., 0] = True
    copied = KeysValues(keys.expand(-1, 6, -1, -1), values.expand(-1, 6, -1, -1))
    for seen in (mask, mask[:, :, :1]):
        given = attend(query, KeysValues(keys, values), seen)
        torch.testing.assert_close(given, attend(query, copied, seen))


def test_acting_executes_the_first_actions_of_a_chunk(tiny):
    policy, given, noise = build().eval(), batch(), draws()["noise"]
    chunk = policy.predict_chunk(given, noise=noise)
    assert chunk.shape == (2, 4, 2)
    state = dataclasses.replace(policy.init_state(2), source=lambda name, draw: noise)
    first, state = policy.act(given, state)
    assert not policy.needs_observation(state)
    second, state = policy.act({}, state)
    assert policy.needs_observation(state)
    assert torch.equal(torch.stack((first, second), 1), chunk[:, :2])


def saved(policy, folder):
    policy.config.save(folder)
    save_weights(policy, folder / "model.safetensors")
    return load_file(folder / "model.safetensors")


def restored(folder, stored):
    save_file(stored, folder / "model.safetensors")
    again = build_policy(decode(PolicyConfig, read_policy_config(folder, [])))
    with torch.no_grad():
        again.text.embed_tokens.weight.zero_()
    load_weights(again, folder / "model.safetensors")
    return again


def test_weights_return_from_files_of_every_age(tiny, tmp_path):
    policy = build(text_tokenizer_name=tiny.folder())
    stored = saved(policy, tmp_path)
    # kata writes the table of tokens once, under the name that LeRobot reads it from.
    assert EMBEDDINGS not in stored
    assert not stored[f"{EXPERT}lm_head.weight"].any()
    table = stored[f"{VLM}lm_head.weight"]
    both = {**stored, EMBEDDINGS: table.clone(), f"{VLM}lm_head.weight": table + 1}
    older = {name.removeprefix("model."): tensor for name, tensor in both.items()}
    renamed = {re.sub("^action_time_mlp", "time_mlp", n): tensor for n, tensor in older.items()}
    lacking = {n: t for n, t in both.items() if "lm_head" not in n}
    for file in (stored, both, older, renamed, lacking):
        again = restored(tmp_path, file)
        for name, tensor in policy.state_dict().items():
            assert torch.equal(again.state_dict()[name], tensor), name
    with pytest.raises(PolicyError, match=r"1 missing .*embed_tokens"):
        restored(tmp_path, {n: t for n, t in lacking.items() if n != EMBEDDINGS})


def test_the_pipeline_is_lerobots_and_empty_cameras_are_not_asked_for(tiny, tmp_path):
    policy_config = config(text_tokenizer_name=tiny.folder(), empty_cameras=1)
    stats = {}
    for key, width in ((STATE, 3), (ACTION, 2)):
        stats[key] = {"mean": np.zeros(width), "std": np.ones(width)}
    before, after = canonical_pipelines(policy_config, stats, rename_map={}, device="cpu")
    assert [step.registry_name for step in before.steps] == [
        "rename_observations_processor", "to_batch_processor", "pi0_new_line_processor",
        "tokenizer_processor", "device_processor", "relative_actions_processor",
        "normalizer_processor",
    ]  # fmt: skip
    assert [step.registry_name for step in after.steps] == [
        "unnormalizer_processor", "absolute_actions_processor", "device_processor",
    ]  # fmt: skip
    seen = before({STATE: torch.zeros(1, 3), TASK: ["push"]})
    assert seen[LANGUAGE_TOKENS].shape == (1, 8)
    assert seen[LANGUAGE_MASK].sum() == 6  # the beginning, four letters and the newline
    policy_config.save(tmp_path)
    file = tmp_path / "config.json"
    plain = json.loads(file.read_text())
    assert "text_tokenizer_name" not in plain
    blank = {"type": "VISUAL", "shape": [3, 28, 28]}
    plain["input_features"]["observation.images.empty_camera_0"] = blank
    file.write_text(json.dumps(plain))
    assert decode(PolicyConfig, read_policy_config(tmp_path, [])) == policy_config


def test_a_tokenizer_may_lie_beside_the_pipeline(tiny, tmp_path):
    shutil.copytree(tiny.folder(), tmp_path / "tokenizer")
    step = {
        "registry_name": "tokenizer_processor",
        "config": {"tokenizer_name": "tokenizer", "max_length": 8},
        "artifacts": {"tokenizer_name": "tokenizer"},
    }
    file = tmp_path / "policy_preprocessor.json"
    file.write_text(json.dumps({"name": "policy_preprocessor", "steps": [step]}))
    loaded = load_pipeline(tmp_path, "policy_preprocessor")
    assert loaded({TASK: ["push"]})[LANGUAGE_MASK].sum() == 5
    step["artifacts"] = {"tokenizer_name": "../tokenizer"}
    file.write_text(json.dumps({"name": "policy_preprocessor", "steps": [step]}))
    with pytest.raises(CheckpointError, match="lies outside"):
        load_pipeline(tmp_path, "policy_preprocessor")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_action_steps": 5}, "no more actions are executed than a chunk holds"),
        ({"n_obs_steps": 2}, "one observation step"),
        ({"paligemma_variant": "gemma_300m"}, "as wide as gemma_2b"),
        ({"image_resolution": (28, 42)}, "a square"),
        ({"image_resolution": (30, 30)}, "a side that 14 divides"),
        ({"time_sampling_scale": 1.5}, "times end at 1"),
        ({"frozen_dtype": "bfloat16"}, "train_expert_only=false"),
        ({"max_state_dim": 2}, "max_state_dim=2"),
        ({"max_action_dim": 1}, "max_action_dim=1"),
    ],
)
def test_what_cannot_run_is_refused_by_name(tiny, options, message):
    with pytest.raises(PolicyError, match=message):
        build(**options)


def test_adapters_go_where_lerobot_puts_them(tiny):
    names = target_names(build(), PeftConfig())
    assert len(names) == 2 * 3 + 5  # queries and values of three layers, and five maps
    assert {name.partition(".")[0] for name in names} == {
        "expert", "state_proj", "action_in_proj", "action_out_proj", "action_time_mlp_in",
        "action_time_mlp_out",
    }  # fmt: skip


def test_frozen_maps_in_few_bits_give_nearly_the_same_loss(tiny):
    policy = build(train_expert_only=True)
    with torch.no_grad():
        whole = summed(policy, batch())
        assert quantize_frozen(policy, 8) > 0
        torch.testing.assert_close(summed(policy, batch()), whole, rtol=0.05, atol=0)


def test_other_files_that_cannot_run_are_refused_by_name(tiny):
    with pytest.raises(PolicyError, match="a batch without any of"):
        build().predict_chunk({k: v for k, v in batch().items() if k not in (TOP, WRIST)})


def test_a_tokenizer_that_cannot_be_had_is_explained_in_one_message():
    error = unreadable(PALIGEMMA, "its tokenizer", OSError("offline\nmore"), DOWNLOADS)
    assert str(error).startswith(f"{PALIGEMMA}: its tokenizer cannot be loaded (offline)")
    assert f"https://huggingface.co/{PALIGEMMA}" in str(error)
    assert f"hf download {PALIGEMMA} tokenizer.json" in str(error)
