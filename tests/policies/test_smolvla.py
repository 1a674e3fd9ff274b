"""SmolVLA: LeRobot's names at full size, frozen parts, padding, acting, files, and refusals."""

import dataclasses
import importlib
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from kata.config import decode
from kata.errors import PolicyError
from kata.policies import build_policy
from kata.policies.config import PolicyConfig
from kata.policies.load import load_weights, save_weights
from kata.policies.pipelines import canonical_pipelines
from kata.policies.smolvla.config import Config
from kata.policies.smolvla.model import VLM
from kata.run import read_policy_config
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

TOP, WRIST = "observation.images.top", "observation.images.wrist"
TINY = {
    "chunk_size": 4,
    "n_action_steps": 2,
    "max_state_dim": 6,
    "max_action_dim": 5,
    "resize_imgs_with_padding": (32, 32),
    "num_vlm_layers": 2,
    "num_steps": 2,
    "tokenizer_max_length": 24,
}


@pytest.fixture(scope="module")
def smolvlm(tmp_path_factory):
    """A folder with the files of a tiny SmolVLM, without weights."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tools/peer"))
    try:
        tiny = importlib.import_module("tiny_smolvlm")
    finally:
        sys.path.pop(0)
    return tiny.write(tmp_path_factory.mktemp("models") / "smolvlm")


def config(folder, **options):
    cameras = {key: Feature(FeatureType.VISUAL, (3, 24, 32)) for key in (TOP, WRIST)}
    return Config(
        input_features={STATE: Feature(FeatureType.STATE, (3,)), **cameras},
        output_features={ACTION: Feature(FeatureType.ACTION, (2,))},
        vlm_model_name=str(folder),
        **{**TINY, **options},
    )


TERM = "flow_matching_loss"


def build(folder, **options):
    torch.manual_seed(0)
    return build_policy(config(folder, **options))


def batch(size=2, words=(5, 3), length=5):
    stream = torch.Generator().manual_seed(0)
    seen = torch.arange(length)[None] < torch.tensor(words[:size])[:, None]
    tokens = torch.randint(8, 200, (size, 5), generator=stream)
    tokens = torch.nn.functional.pad(tokens, (0, length - 5), value=2)
    pad = torch.zeros(size, 4, dtype=torch.bool)
    pad[0, 2:] = True
    return {
        TOP: torch.rand(size, 3, 24, 32, generator=stream),
        WRIST: torch.rand(size, 3, 24, 32, generator=stream),
        STATE: torch.randn(size, 3, generator=stream),
        ACTION: torch.randn(size, 4, 2, generator=stream),
        f"{ACTION}_is_pad": pad,
        LANGUAGE_TOKENS: torch.where(seen, tokens, 2),
        LANGUAGE_MASK: seen,
    }


def draws(size=2):
    stream = torch.Generator().manual_seed(1)
    return {
        "noise": torch.randn(size, 4, 5, generator=stream),
        "time": torch.rand(size, 1, generator=stream),
    }


def summed(policy, given, drawn):
    return policy(given, **drawn).terms["flow_matching_loss"].total


def test_a_camera_that_a_dataset_of_a_mixture_lacks_is_not_seen(smolvlm):
    policy, given = build(smolvlm).eval(), batch()
    marked = {**given, missing_key(WRIST): torch.tensor([False, True])}
    other = {**marked, WRIST: given[WRIST].clone()}
    other[WRIST][1] += 1
    seen, same, without = (policy(each, **draws()).detail[TERM] for each in (given, marked, other))
    assert torch.equal(same, without)
    assert same[0] == seen[0]
    assert same[1] != seen[1]


def test_names_shapes_and_trained_weights_are_lerobots_at_full_size():
    full = Config(
        input_features={
            STATE: Feature(FeatureType.STATE, (6,)),
            TOP: Feature(FeatureType.VISUAL, (3, 480, 640)),
        },
        output_features={ACTION: Feature(FeatureType.ACTION, (6,))},
    )
    with torch.device("meta"):
        policy = build_policy(full)
    found: dict[str, list[str]] = {}
    for name, parameter in policy.named_parameters():
        stored = policy.key_map().to_lerobot(name)
        layer = re.search(r"layers\.(\d+)\.", stored)
        shape = "x".join(map(str, parameter.shape))
        state = "trained" if parameter.requires_grad else "frozen"
        folded = re.sub(r"layers\.\d+\.", "layers.*.", stored)
        found.setdefault(f"{folded} {shape} {state}", []).append(layer[1] if layer else "")
    lines = [f"{line} {','.join(layers)}".rstrip() for line, layers in found.items()]
    kept = (Path(__file__).parent / "smolvla_keys.txt").read_text().splitlines()[1:]
    assert sorted(lines) == sorted(kept)
    assert list(policy.state_dict()) == [name for name, _ in policy.named_parameters()]


def test_every_name_maps_to_one_of_lerobots_and_back(smolvlm):
    policy = build(smolvlm)
    key_map = policy.key_map()
    names = list(policy.state_dict())
    assert [key_map.from_lerobot(key_map.to_lerobot(name)) for name in names] == names


def test_a_frozen_model_keeps_no_graph(smolvlm):
    policy = build(smolvlm).train()
    tokens, _ = policy._context(batch())
    encoded = policy.encode(batch())
    assert encoded.layers[0].keys.requires_grad  # through the state
    assert not policy.vision.training
    assert not policy.text.training
    assert policy.expert.training
    constant = build(smolvlm, train_state_proj=False).train().encode(batch())
    assert not any(given.keys.requires_grad for given in constant.layers)
    assert tokens.shape[1] == 2 * 1 + 5


def test_every_trained_parameter_has_a_gradient_and_no_other(smolvlm):
    for options in (
        {},
        {"train_expert_only": False},
        {"train_expert_only": False, "freeze_vision_encoder": False},
    ):
        policy = build(smolvlm, **options).train()
        summed(policy, batch(), draws()).backward()
        for name, parameter in policy.named_parameters():
            assert (parameter.grad is not None) == parameter.requires_grad, name
        (group,) = policy.param_groups()
        assert len(group.params) == sum(p.requires_grad for p in policy.parameters())


@pytest.mark.parametrize("marks", [False, True])
def test_a_step_looks_words_up_once(smolvlm, marks):
    policy = build(smolvlm, train_expert_only=False, add_image_special_tokens=marks).train()
    lookups = []
    policy.text.embed_tokens.register_forward_pre_hook(lambda *_: lookups.append(1))
    summed(policy, batch(), draws())
    assert lookups == [1]


@pytest.mark.parametrize("empty", [0, 1])
def test_one_pass_for_all_of_the_prefix_gives_the_numbers_of_two(smolvlm, empty):
    options = {"add_image_special_tokens": True, "empty_cameras": empty}
    at_once = build(smolvlm, train_expert_only=False, **options).eval()
    twice = build(smolvlm, **options).eval()
    twice.load_state_dict(at_once.state_dict())
    wanted, found = at_once.encode(batch()), twice.encode(batch())
    assert torch.equal(found.valid, wanted.valid)
    for mine, theirs in zip(found.layers, wanted.layers, strict=True):
        real = wanted.valid[:, None, :, None]
        torch.testing.assert_close(mine.keys * real, theirs.keys * real)
        torch.testing.assert_close(mine.values * real, theirs.values * real)


def test_sums_of_micro_batches_make_the_sum_of_the_batch(smolvlm):
    policy, given, drawn = build(smolvlm).eval(), batch(), draws()
    whole = policy(given, **drawn)
    parts = [
        summed(
            policy,
            {k: v[i : i + 1] for k, v in given.items()},
            {k: v[i : i + 1] for k, v in drawn.items()},
        )
        for i in range(2)
    ]
    term = "flow_matching_loss"
    torch.testing.assert_close(torch.stack(parts).sum(), whole.terms[term].total)
    torch.testing.assert_close(torch.stack(parts), whole.detail[term])


def test_padding_of_sentences_changes_nothing(smolvlm):
    policy = build(smolvlm).eval()
    short, long = batch(), batch(length=12)
    torch.testing.assert_close(
        summed(policy, short, draws()), summed(policy, long, draws()), rtol=1e-5, atol=0
    )


def test_padded_dimensions_enter_neither_loss_nor_count(smolvlm):
    policy, given = build(smolvlm).eval(), batch()
    other = {**given, "action_dim_is_pad": torch.tensor([[False, True], [False, False]])}
    term = "flow_matching_loss"
    less, all_of_it = (policy(g, **draws()).detail[term] for g in (other, given))
    assert less[0] < all_of_it[0]
    assert less[1] == all_of_it[1]
    pads = {f"{ACTION}_is_pad": given[f"{ACTION}_is_pad"].numpy()}
    assert policy.config.loss_weights(2, pads) == {term: 12.0}
    dims = {**pads, "action_dim_is_pad": other["action_dim_is_pad"].numpy()}
    assert policy.config.loss_weights(2, dims) == {term: 10.0}


def test_acting_executes_the_first_actions_of_a_chunk(smolvlm):
    policy, given = build(smolvlm).eval(), batch()
    noise = draws()["noise"]
    chunk = policy.predict_chunk(given, noise=noise)
    assert chunk.shape == (2, 4, 2)
    state = dataclasses.replace(policy.init_state(2), source=lambda name, draw: noise)
    first, state = policy.act(given, state)
    assert not policy.needs_observation(state)
    second, state = policy.act({}, state)
    assert policy.needs_observation(state)
    assert torch.equal(torch.stack((first, second), 1), chunk[:, :2])


def test_weights_return_from_their_file_and_the_pipeline_is_lerobots(smolvlm, tmp_path):
    policy = build(smolvlm)
    policy.config.save(tmp_path)
    save_weights(policy, tmp_path / "model.safetensors")
    stats = {
        key: {"mean": np.zeros(width), "std": np.ones(width)}
        for key, width in ((STATE, 3), (ACTION, 2))
    }
    before, after = canonical_pipelines(policy.config, stats, rename_map={}, device="cpu")
    before.save(tmp_path)
    names = [
        s["registry_name"]
        for s in json.loads((tmp_path / "policy_preprocessor.json").read_text())["steps"]
    ]
    assert names == [
        "rename_observations_processor", "to_batch_processor", "smolvla_new_line_processor",
        "tokenizer_processor", "device_processor", "normalizer_processor",
    ]  # fmt: skip
    assert [step.registry_name for step in after.steps] == [
        "unnormalizer_processor",
        "device_processor",
    ]
    again = build_policy(decode(PolicyConfig, read_policy_config(tmp_path, [])))
    load_weights(again, tmp_path / "model.safetensors")
    for name, tensor in policy.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    told = before({STATE: torch.zeros(1, 3), TASK: ["push"]})
    assert told[LANGUAGE_TOKENS].shape == (1, 5)  # four letters and the newline


def test_the_frozen_model_may_be_held_and_written_in_bfloat16(smolvlm, tmp_path):
    narrow, wide = build(smolvlm, frozen_dtype="bfloat16"), build(smolvlm)
    with torch.no_grad():
        for own, other in zip(wide.parameters(), narrow.parameters(), strict=True):
            own.copy_(other)  # so that both have the same numbers
    losses = [summed(policy.train(), batch(), draws()) for policy in (narrow, wide)]
    torch.testing.assert_close(losses[0], losses[1], rtol=2e-2, atol=0)
    losses[0].backward()
    for name, parameter in narrow.named_parameters():
        kind = torch.float32 if parameter.requires_grad else torch.bfloat16
        assert parameter.dtype == kind, name
        assert (parameter.grad is not None) == parameter.requires_grad, name
    save_weights(narrow, tmp_path / "model.safetensors")
    load_weights(wide, tmp_path / "model.safetensors")
    assert torch.equal(wide.lm_head.weight, narrow.lm_head.weight.float())
    torch.testing.assert_close(
        narrow.eval().predict_chunk(batch(), noise=draws()["noise"]),
        wide.eval().predict_chunk(batch(), noise=draws()["noise"]),
        rtol=0, atol=5e-2,
    )  # fmt: skip


def test_empty_cameras_of_a_lerobot_file_are_not_asked_of_a_dataset(smolvlm, tmp_path):
    config(smolvlm, empty_cameras=1).save(tmp_path)
    file = tmp_path / "config.json"
    plain = json.loads(file.read_text())
    blank = {"type": "VISUAL", "shape": [3, 480, 640]}
    plain["input_features"]["observation.images.empty_camera_0"] = blank
    file.write_text(json.dumps(plain))
    read = decode(PolicyConfig, read_policy_config(tmp_path, []))
    assert set(read.input_features) == {STATE, TOP, WRIST}
    assert read.empty_cameras == 1


def test_pretrained_weights_come_from_the_models_own_files(smolvlm, tmp_path):
    for file in smolvlm.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    given = build(smolvlm)
    stored: dict[str, torch.Tensor] = {}
    for name, tensor in given.state_dict().items():
        other = given.key_map().to_lerobot(name)
        if other.startswith(VLM):
            stored[other.removeprefix(VLM)] = tensor + 1
    save_file(stored, tmp_path / "model.safetensors")
    policy = build(tmp_path, load_vlm_weights=True)
    assert torch.equal(policy.vision.post_layernorm.weight, given.vision.post_layernorm.weight + 1)
    assert torch.equal(policy.lm_head.weight, given.lm_head.weight + 1)
    stored.pop("lm_head.weight")
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(PolicyError, match=r"1 missing .*lm_head"):
        build(tmp_path, load_vlm_weights=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_action_steps": 5}, "no more actions are executed than a chunk holds"),
        ({"n_obs_steps": 2}, "one observation step"),
        ({"adapt_to_pi_aloha": True}, "adapt_to_pi_aloha=true"),
        ({"use_delta_joint_actions_aloha": True}, "use_delta_joint_actions_aloha=true"),
        ({"use_cache": False}, "use_cache=false"),
        ({"num_expert_layers": 1}, "num_expert_layers=1"),
        ({"num_vlm_layers": 0, "num_expert_layers": 2}, "num_expert_layers=2 with 6 layers"),
        ({"compile_model": True}, "compile_model=true"),
        ({"frozen_dtype": "bfloat16", "train_expert_only": False}, "held in float32"),
        ({"num_vlm_layers": 7}, "has 6 layers"),
        ({"resize_imgs_with_padding": (64, 32)}, "squares"),
        ({"resize_imgs_with_padding": None}, "squares"),
        ({"max_state_dim": 2}, "max_state_dim=2"),
        ({"max_action_dim": 1}, "max_action_dim=1"),
        ({"expert_width_multiplier": 0.73}, "an even width"),
    ],
)
def test_what_cannot_run_is_refused_by_name(smolvlm, options, message):
    with pytest.raises(PolicyError, match=message):
        build(smolvlm, **options)


def test_an_expert_of_all_layers_may_be_asked_for_by_their_number(smolvlm):
    policy = build(smolvlm, num_vlm_layers=0, num_expert_layers=6)
    assert len(policy.text.layers) == len(policy.expert.layers) == 6


def test_a_policy_accepts_fewer_cameras_and_other_widths(smolvlm):
    c = config(smolvlm)
    camera, state = c.input_features[TOP], Feature(FeatureType.STATE, (6,))
    dataset = {TOP: camera, STATE: state, ACTION: Feature(FeatureType.ACTION, (4,))}
    assert all(c.accepts(key, dataset) for key in (TOP, WRIST, STATE, ACTION))
    assert not c.accepts(WRIST, {"observation.images.front": camera, STATE: state})
    assert not c.accepts(ACTION, {TOP: camera, STATE: state})
    assert not c.accepts(STATE, {**dataset, STATE: Feature(FeatureType.STATE, (2, 3))})
    assert not c.accepts(TOP, {TOP: Feature(FeatureType.VISUAL, (1, 24, 32))})


def test_inputs_that_nothing_reads_are_refused(smolvlm):
    c = config(smolvlm)
    more = {**c.input_features, "observation.environment_state": Feature(FeatureType.ENV, (2,))}
    with pytest.raises(PolicyError, match="nothing else is read"):
        build_policy(c.with_features(more, c.output_features))
    with pytest.raises(PolicyError, match="a batch without any of"):
        build(smolvlm).predict_chunk({k: v for k, v in batch().items() if k not in (TOP, WRIST)})
