"""π0-FAST: LeRobot's names at full size, padding, counts, drawing tokens, files, refusals."""

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
from kata.errors import PolicyError
from kata.finetune.lora import target_names
from kata.policies import build_policy, config_class
from kata.policies.config import PolicyConfig
from kata.policies.load import load_weights, save_weights
from kata.policies.paligemma import EMBEDDINGS
from kata.policies.pi0_fast.config import TERM
from kata.policies.pi0_fast.model import HEAD, _chosen
from kata.policies.pipelines import canonical_pipelines
from kata.policies.rtc import RtcConfig
from kata.processors.pipeline import PREPROCESSOR, load_pipeline
from kata.run import read_policy_config
from kata.run.peft import PeftConfig
from kata.spec import (
    ACTION,
    ACTION_TOKEN_MASK,
    ACTION_TOKENS,
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
FEATURES = {
    "input_features": {
        STATE: Feature(FeatureType.STATE, (3,)),
        **{key: Feature(FeatureType.VISUAL, (3, 24, 32)) for key in (TOP, WRIST)},
    },
    "output_features": {ACTION: Feature(FeatureType.ACTION, (2,))},
}


@pytest.fixture(scope="module")
def cases():
    """The module of the comparison with LeRobot, and the one of the tiny sizes."""
    sys.path.insert(0, str(HERE.parents[1] / "tools/peer"))
    try:
        yield importlib.import_module("policy_pi0_fast"), importlib.import_module("pi_cases")
    finally:
        sys.path.pop(0)


@pytest.fixture
def build(cases):
    """A function that builds a tiny policy."""
    policy_cases, tiny = cases

    def built(**options):
        torch.manual_seed(0)
        names = {k: v for k, v in policy_cases.FastCase().config.items() if "name" in k}
        small = {**policy_cases.TINY, "tokenizer_max_length": 8, **names, **options}
        return build_policy(config_class("pi0_fast")(**FEATURES, **small))

    with tiny.tiny_own("pi0_fast"):
        yield built


def batch(length=8, written=16):
    stream = torch.Generator().manual_seed(0)
    seen = torch.arange(length)[None] < torch.tensor((5, 3))[:, None]
    mask = torch.arange(written)[None] < torch.tensor((14, 9))[:, None]
    tokens, actions = (torch.randint(8, 400, (2, n), generator=stream) for n in (8, 16))
    tokens = torch.nn.functional.pad(tokens, (0, length - 8))
    actions = torch.nn.functional.pad(actions, (0, written - 16))
    return {
        TOP: torch.rand(2, 3, 24, 32, generator=stream),
        WRIST: torch.rand(2, 3, 24, 32, generator=stream),
        LANGUAGE_TOKENS: torch.where(seen, tokens, 0),
        LANGUAGE_MASK: seen,
        ACTION_TOKENS: torch.where(mask, actions, 0),
        ACTION_TOKEN_MASK: mask,
    }


def test_names_shapes_and_precision_are_lerobots_at_full_size():
    with torch.device("meta"):
        policy = build_policy(config_class("pi0_fast")(**FEATURES, dtype="bfloat16"))
    found: dict[str, list[str]] = {}
    for name, tensor in policy.named_parameters():
        assert tensor.requires_grad
        other = policy.key_map().to_lerobot(name)
        assert policy.key_map().from_lerobot(other) == name
        layer = re.search(r"layers\.(\d+)\.", other)
        shape, kind = "x".join(map(str, tensor.shape)), str(tensor.dtype).removeprefix("torch.")
        folded = re.sub(r"layers\.\d+\.", "layers.*.", other)
        found.setdefault(f"{folded} {shape} {kind} trained", []).append(layer[1] if layer else "")
    lines = [f"{line} {','.join(layers)}".rstrip() for line, layers in found.items()]
    kept = (HERE / "pi0_fast_keys.txt").read_text().splitlines()[1:]
    assert sorted(lines) == sorted(kept)
    assert len(policy.state_dict()) == 604


def test_every_trained_parameter_has_a_gradient_and_no_other(build):
    for options in ({}, {"freeze_vision_encoder": True}, {"gradient_checkpointing": True}):
        policy = build(**options).train()
        policy(batch()).terms[TERM].total.backward()
        for name, parameter in policy.named_parameters():
            assert (parameter.grad is not None) == parameter.requires_grad, name
    assert not all(p.requires_grad for p in build(freeze_vision_encoder=True).parameters())


def test_padding_and_absent_cameras_change_nothing(build):
    policy, given = build().eval(), batch()
    wanted = policy(given)
    without = {key: value for key, value in given.items() if key != WRIST}
    for other, same in (
        (batch(length=12, written=24), wanted),
        ({**given, missing_key(WRIST): torch.tensor([True, True])}, policy(without)),
    ):
        torch.testing.assert_close(policy(other).detail, same.detail, rtol=1e-5, atol=1e-5)


def test_training_in_one_pass_gives_what_acting_gives_in_two(build):
    policy = build()
    given = {**batch(), missing_key(WRIST): torch.tensor((False, True))}
    tokens = given[ACTION_TOKENS][:, :-1]
    with torch.no_grad():
        alone, _ = policy._written(policy.encode_prefix(given), tokens)
        beside = policy._told(given, tokens)
    torch.testing.assert_close(beside, alone, rtol=1e-5, atol=1e-5)
    assert beside.abs().max() > 0.1


def test_sums_and_counts_of_samples_make_those_of_the_batch(build):
    policy, given = build().eval(), batch()
    whole = policy(given)
    counts = policy.config.loss_counts(given)[TERM]
    assert counts.tolist() == [13, 8]  # all tokens but the first
    assert policy.config.loss_weights(2, {}) == {}
    for i in range(2):
        one = {key: value[i : i + 1] for key, value in given.items()}
        torch.testing.assert_close(policy(one).terms[TERM].total, whole.detail[TERM][i])
        assert policy.config.loss_counts(one)[TERM] == counts[i]


def test_narrow_weights_give_nearly_the_same_loss(build):
    narrow, wide = build(dtype="bfloat16").train(), build().train()
    with torch.no_grad():
        for own, other in zip(wide.parameters(), narrow.parameters(), strict=True):
            own.copy_(other)  # so that both have the same numbers
    losses = [policy(batch()).terms[TERM].total for policy in (narrow, wide)]
    torch.testing.assert_close(losses[0], losses[1], rtol=2e-2, atol=0)
    losses[0].backward()
    units = set(narrow.shard_units())
    assert narrow.lm_head in units
    for unit in units:
        assert len({p.dtype for p in unit.parameters(recurse=unit in narrow.norms)}) <= 1


def test_tokens_follow_their_shares_at_a_temperature(build):
    scores = torch.tensor([[0.0, 1.0, -1.0]]).expand(5, 3)
    at = torch.tensor([0.0, 0.2, 0.3, 0.9, 0.9999999])[:, None]
    assert _chosen(scores, 1.0, at)[:, 0].tolist() == [0, 0, 1, 1, 2]
    assert _chosen(scores, 0.01, at)[:, 0].tolist()[1:-1] == [1, 1, 1]
    policy, given = build(temperature=0.7).eval(), batch()
    with torch.no_grad():
        policy.lm_head.weight[346:432] *= 60  # those of action tokens
    (draw,) = policy.config.act_draws().values()
    share = torch.rand(2, *draw.shape)
    chunk = policy.predict_chunk(given, share=share)
    assert torch.equal(chunk, policy.predict_chunk(given, share=share))
    assert not torch.equal(chunk, policy.predict_chunk(given, share=share.flip(1)))
    torch.manual_seed(1)
    drawn = policy.predict_chunk(given)
    torch.manual_seed(1)
    assert torch.equal(drawn, policy.predict_chunk(given, share=torch.rand(2, *draw.shape)))
    assert build().config.act_draws() == {}


def test_a_chunk_without_its_beginning_is_zeros_if_that_is_checked(build, caplog):
    plain = build().eval()
    checked = build(validate_action_token_prefix=True).eval()
    assert plain.predict_chunk(batch()).any()
    assert not checked.predict_chunk(batch()).any()
    assert "1 of 1 chunks do not begin with `Action:`" in caplog.text


def test_acting_executes_the_first_actions_of_a_chunk(build):
    policy, given = build(n_action_steps=2).eval(), batch()
    chunk = policy.predict_chunk(given)
    first, state = policy.act(given, policy.init_state(2))
    second, state = policy.act({}, state)
    assert policy.needs_observation(state)
    assert torch.equal(torch.stack((first, second), 1), chunk[:, :2])


def test_weights_return_from_files_with_one_table_of_tokens_or_two(build, tmp_path):
    policy = build()
    policy.config.save(tmp_path)
    file = tmp_path / "model.safetensors"
    save_weights(policy, file)
    stored = load_file(file)
    assert not torch.equal(stored[EMBEDDINGS], stored[HEAD])
    older = {name.removeprefix("model."): tensor for name, tensor in stored.items()}
    lacking = {n: t for n, t in stored.items() if n != HEAD}
    tied = {n: t for n, t in stored.items() if n != EMBEDDINGS}
    for content, source in ((stored, HEAD), (older, HEAD), (lacking, EMBEDDINGS), (tied, HEAD)):
        save_file(content, file)
        again = build_policy(decode(PolicyConfig, read_policy_config(tmp_path, [])))
        load_weights(again, file)
        assert torch.equal(again.lm_head.weight, stored[source])
        table = HEAD if content is tied else EMBEDDINGS
        assert torch.equal(again.text.embed_tokens.weight, stored[table])
    save_file({n: t for n, t in lacking.items() if n != EMBEDDINGS}, file)
    with pytest.raises(PolicyError, match=r"2 missing"):
        load_weights(policy, file)


def test_the_pipeline_is_lerobots_and_reads_actions_as_tokens(build, tmp_path):
    config = dataclasses.replace(build().config, tokenizer_max_length=60, allow_truncation=False)
    stats = {}
    for key, width in ((STATE, 3), (ACTION, 2)):
        stats[key] = {"mean": np.zeros(width), "std": np.full(width, 2.0)}
    before, _ = canonical_pipelines(config, stats, rename_map={}, device="cpu")
    assert [step.registry_name for step in before.steps] == [
        "rename_observations_processor", "to_batch_processor", "relative_actions_processor",
        "normalizer_processor", "pi0_fast_prepare_state_tokenizer_processor_step",
        "tokenizer_processor", "action_tokenizer_processor", "device_processor",
    ]  # fmt: skip
    given = {STATE: torch.zeros(1, 3), TASK: ["go_on"], ACTION: torch.ones(1, 4, 2)}
    told = before(given)
    assert told[TASK] == ["Task: go on, State: 128 128 128;\n"]
    assert told[ACTION_TOKEN_MASK].sum() == 1 + 8 + 8 + 2 - 3  # three pairs of zeros
    before.save(tmp_path)
    listed = json.loads((tmp_path / "policy_preprocessor.json").read_text())["steps"]
    (written,) = [e["config"] for e in listed if e["registry_name"].startswith("action_tok")]
    assert written["fast_skip_tokens"] == 8
    assert "allow_truncation" not in written  # LeRobot 0.6.1 does not know it
    policy = build()
    policy.use_pipeline(load_pipeline(tmp_path, PREPROCESSOR))
    assert policy.names == (str(tmp_path / "action_tokenizer"), str(tmp_path / "tokenizer"))
    config.save(tmp_path)
    plain = json.loads((tmp_path / "config.json").read_text())
    assert {"allow_truncation", "freeze_vision_encoder", "min_period"}.isdisjoint(plain)
    assert "text_tokenizer_name" in plain


def test_tokenizers_beside_the_pipeline_are_those_that_write_and_read(build, tmp_path):
    config = build().config
    places = {"action": config.action_tokenizer_name, "text": config.text_tokenizer_name}
    for name, folder in places.items():
        shutil.copytree(folder, tmp_path / name)
    steps = [
        {
            "registry_name": "tokenizer_processor",
            "config": {"tokenizer_name": "text", "max_length": 8},
            "artifacts": {"tokenizer_name": "text"},
        },
        {
            "registry_name": "action_tokenizer_processor",
            "config": {"action_tokenizer_name": "action", "allow_truncation": False},
            "artifacts": {"action_tokenizer_name": "action"},
        },
    ]
    file = tmp_path / "policy_preprocessor.json"
    file.write_text(json.dumps({"name": PREPROCESSOR, "steps": steps}))
    policy = build(action_tokenizer_name="hub/absent", text_tokenizer_name="hub/absent")
    policy.use_pipeline(load_pipeline(tmp_path, PREPROCESSOR))
    assert policy.names == (str(tmp_path / "action"), str(tmp_path / "text"))
    assert policy.predict_chunk(batch()).shape == (2, 4, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_action_steps": 5}, "no more actions are executed than a chunk holds"),
        ({"image_resolution": (42, 42)}, "positions for 28 pixels alone"),
        ({"paligemma_variant": "gemma_300m"}, "as wide as gemma_2b"),
        ({"rtc_config": RtcConfig()}, "real-time chunking"),
    ],
)
def test_what_cannot_run_is_refused_by_name(build, options, message):
    with pytest.raises(PolicyError, match=message):
        build(**options)


def test_adapters_go_to_queries_and_values_of_the_language_model(build):
    names = target_names(build(), PeftConfig())
    assert len(names) == 2 * 3
    assert all(name.startswith("text.layers.") for name in names)
