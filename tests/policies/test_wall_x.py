"""Wall-X: LeRobot's names, prompts, experts, cached prompts, precision, files, refusals."""

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
from kata.errors import DataError, PolicyError
from kata.policies import build_policy
from kata.policies.config import PolicyConfig
from kata.policies.pipelines import canonical_pipelines, saved_pipelines
from kata.policies.wall_x.config import FAST, WALL_OSS, WORDS_TERM, Config
from kata.processors.qwen.action_words import read_words
from kata.processors.qwen.wall_x import WallXTask, final_size, moved_points, view_name
from kata.run import read_policy_config
from kata.spec import (
    ACTION,
    ACTION_TOKEN_MASK,
    ACTION_TOKENS,
    IMAGE_TOKEN,
    LANGUAGE_MASK,
    LANGUAGE_PLACES,
    LANGUAGE_TOKENS,
    STATE,
    STATE_TOKEN,
    TASK,
    Feature,
    FeatureType,
    dim_pad_key,
    missing_key,
    pad_key,
)

HERE = Path(__file__).parent
TERM = "flow_matching_loss"
FACE, WRIST = "observation.images.face_view", "observation.images.left_wrist"


@pytest.fixture(scope="module")
def tools():
    """The module of the comparison with LeRobot, which knows a tiny Wall-X."""
    sys.path.insert(0, str(HERE.parents[1] / "tools/peer"))
    try:
        return importlib.import_module("policy_wall_x")
    finally:
        sys.path.pop(0)


@pytest.fixture
def config(tools):
    """A function that makes a tiny config."""

    def make(**options):
        case = tools.Case()
        features = {STATE: Feature(FeatureType.STATE, (3,))}
        for key, shape in ((FACE, (3, 64, 64)), (WRIST, (3, 48, 64))):
            features[key] = Feature(FeatureType.VISUAL, shape)
        given = {
            "pretrained_name_or_path": tools.folder(case),
            "load_base_weights": False,
            "dtype": "float32",
            **case.config,
            **options,
        }
        output = {ACTION: Feature(FeatureType.ACTION, (2,))}
        return Config(input_features=features, output_features=output, **given)

    return make


def test_a_plan_knows_the_published_sizes_without_a_network(config, monkeypatch):
    def no_network(name):
        raise PolicyError(f"{name}: its config cannot be loaded", rule="a network", remedy="")

    monkeypatch.setattr("kata.policies.wall_x.config.vlm_config", no_network)
    published = config(pretrained_name_or_path=WALL_OSS).planned()
    assert published.base_config["num_hidden_layers"] == 36
    with pytest.raises(PolicyError, match="other: its config cannot be loaded"):
        config(pretrained_name_or_path="other").planned().base  # noqa: B018


def built(config):
    torch.manual_seed(0)
    return build_policy(config)


def raw(tasks=("push it", "wait.")):
    stream = torch.Generator().manual_seed(0)
    pad = torch.zeros(2, 5, dtype=torch.bool)
    pad[0, 2:] = True
    return {
        FACE: torch.rand(2, 3, 64, 64, generator=stream),
        WRIST: torch.rand(2, 3, 48, 64, generator=stream),
        STATE: torch.randn(2, 3, generator=stream),
        ACTION: torch.randn(2, 5, 2, generator=stream),
        pad_key(ACTION): pad,
        TASK: list(tasks),
    }


def pipelines(config):
    stats = {
        key: {"mean": np.zeros(width), "std": np.ones(width)}
        for key, width in ((STATE, 3), (ACTION, 2))
    }
    return canonical_pipelines(config, stats, rename_map={}, device="cpu")


def draws():
    stream = torch.Generator().manual_seed(1)
    noise = torch.randn(2, 5, 6, generator=stream)
    return {"noise": noise, "time": torch.rand(2, 1, generator=stream)}


def details(policy, given):
    return policy(given, **draws()).detail[TERM]


def test_names_and_shapes_are_lerobots(tools):
    policy = tools.build_own(tools.Case())
    key_map = policy.key_map()
    tensors = {key_map.to_lerobot(name): tensor for name, tensor in policy.state_dict().items()}
    for name, other in key_map.aliases.items():
        tensors[other] = tensors[name]
    lines = [f"{name} {'x'.join(map(str, tensor.shape))}" for name, tensor in tensors.items()]
    kept = (HERE / "wall_x_keys.txt").read_text().splitlines()[1:]
    assert sorted(lines) == sorted(kept)
    assert all(key_map.from_lerobot(key_map.to_lerobot(n)) == n for n in policy.state_dict())


def test_a_prompt_names_its_views_and_ends_before_the_actions(config):
    before, _ = pipelines(config())
    seen = before(raw())
    # The longer side has 256 pixels first: 64 x 64 ends as 252 x 252, 48 x 64 as 196 x 252.
    assert seen[FACE].shape == (2, 3, 252, 252)
    assert final_size((48, 64)) == (196, 252)
    tokens = seen[LANGUAGE_TOKENS]
    assert (tokens == IMAGE_TOKEN).sum(1).tolist() == [81 + 63] * 2
    assert (tokens == STATE_TOKEN).sum(1).tolist() == [1, 1]
    assert seen[TASK] == ["push it.", "wait."]
    lengths = seen[LANGUAGE_MASK].sum(1)
    assert lengths[0] - lengths[1] == len("push it.") - len("wait.")
    assert [view_name(key) for key in (FACE, WRIST, "observation.images.side_view")] == [
        "front view",
        "left_wrist view",
        "side view",
    ]
    text = "at <point>[10, 60]</point>, <point>1 2 3 400</point>, <point>7</point>"
    assert moved_points(text, (50, 100), (100, 150)) == (
        "at <point>[15, 99]</point>, <point>[2, 4, 4, 99]</point>, <point>[7]</point>"
    )


def test_weights_that_are_read_have_gradients_and_no_other(config):
    policy = built(config()).train()
    before, _ = pipelines(policy.config)
    policy(before(raw()), **draws()).terms[TERM].total.backward()
    unread = [n for n, p in policy.named_parameters() if not p.requires_grad]
    assert unread == [
        f"text.layers.1.moe.experts.0.{part}_proj.weight" for part in ("gate", "up", "down")
    ]
    for name, parameter in policy.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name


def test_a_cached_prompt_gives_the_velocity_of_one_pass(config):
    policy = built(config()).eval()
    given = pipelines(policy.config)[0](raw())
    noisy, time = draws()["noise"], torch.tensor([0.3, 0.8])
    kept = policy.velocity(policy.encode(given), noisy, time)
    torch.testing.assert_close(kept, policy.trained_velocity(given, noisy, time))
    # Actions see those behind them.
    later = noisy.clone()
    later[:, -1] += 1
    moved = policy.velocity(policy.encode(given), later, time)
    assert (moved[:, 0] - kept[:, 0]).abs().max() > 1e-6
    assert policy.predict_chunk(given, noise=noisy).shape == (2, 5, 2)


def test_samples_are_apart_and_absent_cameras_are_not_seen(config):
    policy = built(config()).eval()
    before, _ = pipelines(policy.config)
    whole = details(policy, before(raw()))
    alone = before({key: value[1:] for key, value in raw().items()})
    drawn = {key: value[1:] for key, value in draws().items()}
    torch.testing.assert_close(policy(alone, **drawn).detail[TERM], whole[1:], rtol=1e-5, atol=0)
    for key in (FACE, WRIST):
        absent = before({name: value for name, value in raw().items() if name != key})
        lacking = before({**raw(), missing_key(key): torch.tensor([True, False])})
        one, other = details(policy, absent), details(policy, lacking)
        torch.testing.assert_close(one[0], other[0], rtol=1e-5, atol=0)
        assert lacking[LANGUAGE_PLACES][0].max() < before(raw())[LANGUAGE_PLACES][0].max()


def test_the_loss_counts_padding_in_its_denominator_alone(config):
    pads = {pad_key(ACTION): raw()[pad_key(ACTION)].numpy()}
    assert config().loss_weights(2, pads) == {TERM: 2 * 5 * 6}
    policy = built(config()).eval()
    given = pipelines(policy.config)[0](raw())
    unknown = {**given, STATE: given[STATE].clone()}
    unknown[STATE][0, 1] = torch.nan
    assert details(policy, unknown).isfinite().all()


def test_numbers_of_actions_that_are_not_known_have_no_part_in_the_loss(config):
    policy = built(config()).train()
    given = pipelines(policy.config)[0](raw())
    whole = details(policy, given)
    action = given[ACTION].clone()
    action[0, :, 1] = torch.nan
    action[1, 2:, 0] = torch.nan
    found = policy({**given, ACTION: action}, **draws()).terms[TERM].total
    found.backward()
    assert 0 < found < whole.sum()
    assert all(p.grad.isfinite().all() for p in policy.parameters() if p.grad is not None)


def test_tokens_may_be_larger_and_must_divide_the_frames(config, tools):
    vision = {"patch_size": 63, "window_size": 126}
    base = tools.tiny_qwen.config(**tools.Case(vision=vision).sizes)
    known = config(base_config=base)
    before, _ = pipelines(known)
    with pytest.raises(DataError, match="frames of 196x252 pixels after resizing"):
        before(raw())
    square = {**raw(), WRIST: raw()[FACE]}
    assert (before(square)[LANGUAGE_TOKENS] == IMAGE_TOKEN).sum(1).tolist() == [8, 8]
    assert details(built(known), before(square)).isfinite().all()
    blank = known.blank_inputs({}, 1)[LANGUAGE_TOKENS]
    assert blank.shape == (1, 96 + 4 + 196 * 252 // 126**2)
    base = tools.tiny_qwen.config(**tools.Case(vision={"patch_size": 63}).sizes)
    with pytest.raises(PolicyError, match="window_size=56 and tokens of 126 pixels"):
        build_policy(config(base_config=base))


def test_narrow_weights_give_nearly_the_same_loss_and_units_of_one_dtype(config):
    narrow, wide = built(config(dtype="bfloat16")).train(), built(config()).train()
    given = pipelines(wide.config)[0](raw())
    with torch.no_grad():
        for own, other in zip(wide.parameters(), narrow.parameters(), strict=True):
            own.copy_(other)
    assert narrow.text.norm.weight.dtype == narrow.head.w1.weight.dtype == torch.float32
    losses = [policy(given, **draws()).terms[TERM].total for policy in (narrow, wide)]
    torch.testing.assert_close(losses[0], losses[1], rtol=2e-2, atol=0)
    noise = draws()["noise"]
    chunks = [policy.predict_chunk(given, noise=noise) for policy in (narrow, wide)]
    torch.testing.assert_close(chunks[0], chunks[1], rtol=0, atol=5e-2)
    units = set(narrow.shard_units())
    for unit in [narrow, *units]:
        inner = [part for part in unit.modules() if part is not unit and part in units]
        apart = {p for part in inner for p in part.parameters()}
        assert len({p.dtype for p in unit.parameters() if p not in apart}) <= 1


def test_checkpoints_hold_what_lerobot_reads_and_prompts_return(config, tmp_path):
    known = config().with_columns({})
    known.save(tmp_path)
    assert decode(PolicyConfig, read_policy_config(tmp_path, [])) == known
    before, after = pipelines(known)
    assert [step.registry_name for step in before.steps] == [
        "rename_observations_processor", "to_batch_processor", "wall_x_task_processor",
        "normalizer_processor", "device_processor",
    ]  # fmt: skip
    assert before.steps[2].config() == {}
    for pipeline in (before, after):
        pipeline.save(tmp_path)
    again, _ = saved_pipelines(known, tmp_path, "cpu")
    assert torch.equal(again(raw())[LANGUAGE_TOKENS], before(raw())[LANGUAGE_TOKENS])
    plain = WallXTask()({TASK: "push"})
    assert plain == {TASK: ["push."]}


def test_first_weights_are_those_of_the_model(config, tools, tmp_path):
    policy = built(config())
    key_map = policy.key_map()
    stored = {
        key_map.to_lerobot(name).removeprefix("model."): tensor
        for name, tensor in policy.state_dict().items()
    }
    case = tools.Case()
    place = tools.tiny_qwen.write(tmp_path / "model", tools.MARKS, **case.sizes)
    save_file(stored, place / "model.safetensors")
    torch.manual_seed(7)
    again = build_policy(config(pretrained_name_or_path=str(place), load_base_weights=True))
    for name, tensor in policy.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"prediction_mode": "fast", "chunk_size": 33, "n_action_steps": 33},
            "policy.chunk_size=33 with policy.prediction_mode=fast",
        ),
        ({"normalization_mapping": {"VISUAL": "MEAN_STD"}}, "VISUAL: MEAN_STD"),
        ({"n_action_steps": 9}, "no more actions are executed than a chunk holds"),
        ({"max_action_dim": 8}, "policy.max_action_dim=8 with dof_config of 6 numbers"),
        ({"max_state_dim": 8}, "policy.max_state_dim=8 with agent_pos_config of 7 numbers"),
        ({"pretrained_name_or_path": "/nowhere"}, "/nowhere: no such folder"),
    ],
)
def test_impossible_options_are_refused(config, options, message):
    with pytest.raises(PolicyError, match=re.escape(message)):
        build_policy(config(**options))


def test_other_models_and_long_prompts_are_refused(config, tools):
    wrong = [{"hidden_size": 16, "intermediate_size": 8}, tools.EXPERTS[1]]
    for text, message in (
        ({"attention_moe": True}, "attention_moe=True"),
        ({"experts": wrong}, "hidden_size=16 and dim_inputs=32"),
        ({"num_experts": 3}, "num_experts=3, 2 experts and 2 dim_inputs"),
    ):
        base = tools.tiny_qwen.config(**tools.Case(text=text).sizes)
        with pytest.raises(PolicyError, match=message):
            build_policy(config(base_config=base))
    before, _ = pipelines(config())
    with pytest.raises(DataError, match="at most 768"):
        before(raw(("x" * 700, "y")))
    with pytest.raises(DataError, match="a batch without any of"):
        before({STATE: torch.zeros(1, 3), TASK: ["push"]})
    plain = str(tools.tiny_qwen.write(tools.files_folder() / "plain"))
    with pytest.raises(PolicyError, match=r"lacks <\|propri\|>, <\|action\|>"):
        pipelines(config(pretrained_name_or_path=plain))


@pytest.fixture
def speaking(tools, config):
    """A function that makes a tiny config of a model that writes actions as words."""
    case = tools.Case(words=True)

    def make(**options):
        names = {"pretrained_name_or_path": tools.folder(case)}
        return config(**{**names, **case.config, "max_decoding_steps": 30, **options})

    return make


def test_words_hold_the_chunk_and_are_counted(speaking):
    known = speaking()
    before, _ = pipelines(known)
    batch = raw()
    batch[ACTION] = batch[ACTION].clamp(-1, 1)
    given = before(batch)
    words = read_words(known.action_tokenizer, known.pretrained_name_or_path)
    for i in range(2):
        tokens = given[ACTION_TOKENS][i][given[ACTION_TOKEN_MASK][i]].tolist()
        assert (tokens[0], *tokens[-2:]) == (words.begin, *words.end)
        chunk = words.fast.decode(words.codes(tokens[1:]), 5, 2)
        np.testing.assert_allclose(chunk, batch[ACTION][i], atol=0.12)
        assert words.codes([7, *tokens[1:]]) == words.codes(tokens[1:])
    counts = known.loss_counts(given)[WORDS_TERM]
    assert counts.tolist() == (given[ACTION_TOKEN_MASK].sum(1) - 1).tolist()
    assert known.loss_weights(2, {}) == known.draws() == known.act_draws() == {}
    # The prompt's last token, a new line, is the first of the words.
    plain = pipelines(speaking(prediction_mode="diffusion"))[0](raw())
    assert torch.equal(plain[LANGUAGE_TOKENS][0][:-1], given[LANGUAGE_TOKENS][0])
    assert plain[LANGUAGE_TOKENS][0, -1] == words.begin


def test_words_of_absent_numbers_are_left_out(speaking):
    known = speaking()
    before, _ = pipelines(known)
    words = read_words(known.action_tokenizer, known.pretrained_name_or_path)
    batch = raw()
    batch[ACTION] = batch[ACTION].clamp(-1, 1)
    batch[ACTION][0, :, 1] = torch.nan
    batch[ACTION][1, 3, 0] = torch.nan
    given = before({**batch, dim_pad_key(ACTION): torch.zeros(2, 2, dtype=torch.bool)})
    row = words.codes(given[ACTION_TOKENS][0].tolist()[1:])
    assert words.fast.holds(row, 5)
    assert words.fast.holds(words.codes(given[ACTION_TOKENS][1].tolist()[1:]), 10)
    mixed = before({**raw(), dim_pad_key(ACTION): torch.tensor([[False, True]] * 2)})
    assert words.fast.holds(words.codes(mixed[ACTION_TOKENS][1].tolist()[1:]), 5)


def test_words_train_all_that_they_read_and_samples_are_apart(speaking):
    policy = built(speaking()).train()
    given = pipelines(policy.config)[0](raw())
    policy(given).terms[WORDS_TERM].total.backward()
    for name, parameter in policy.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
    still = [n for n, p in policy.named_parameters() if not p.requires_grad]
    assert {name.split(".")[0] for name in still} == {"text", "head"}
    assert "head.propri_proj.weight" not in still
    whole = policy(given).detail[WORDS_TERM]
    for i in range(2):
        alone = pipelines(policy.config)[0]({key: value[i : i + 1] for key, value in raw().items()})
        torch.testing.assert_close(policy(alone).detail[WORDS_TERM], whole[i : i + 1])


def test_words_of_cached_prompts_are_the_likeliest_of_one_pass(speaking):
    policy = built(speaking()).eval()
    given = pipelines(policy.config)[0](raw())
    policy.runs_together = True
    words = policy.action_words()
    with torch.no_grad():
        told = torch.cat(list(policy.written_words(given, words)), dim=1)
        begin = torch.full_like(told[:, :1], words.begin)
        tokens = torch.cat((begin, told), dim=1)
        x = policy.text.embed_tokens(tokens[:, :-1])
        seen = torch.ones_like(tokens[:, :-1], dtype=torch.bool)
        x = policy.one_pass(policy.embedded(given), x, seen, actions=0)
        assert torch.equal(policy.scores(policy.normed(x)).argmax(2), told)
    chunk = policy.predict_chunk(given)
    assert chunk.shape == (2, 5, 2)
    for row, own in zip(told.tolist(), chunk, strict=True):
        decoded = words.fast.decode(words.codes(row), 5, 2)
        np.testing.assert_allclose(decoded, own, atol=1e-6)


def test_checkpoints_with_words_are_lerobots(speaking, tmp_path):
    known = speaking().with_columns({})
    known.save(tmp_path)
    assert decode(PolicyConfig, read_policy_config(tmp_path, [])) == known
    named = json.loads((tmp_path / "config.json").read_text())
    assert named["action_tokenizer_path"] == known.action_tokenizer
    assert "max_decoding_steps" not in named
    assert speaking(action_tokenizer_path=None).written()["action_tokenizer_path"] == FAST
    assert speaking(prediction_mode="diffusion").written()["action_tokenizer_path"] is None
    before, _ = pipelines(known)
    before.save(tmp_path)
    steps = json.loads((tmp_path / "policy_preprocessor.json").read_text())["steps"]
    assert [step["registry_name"] for step in steps] == [
        "rename_observations_processor", "to_batch_processor", "wall_x_task_processor",
        "normalizer_processor", "device_processor",
    ]  # fmt: skip


def test_models_without_words_and_long_chunks_are_refused(speaking, config, caplog):
    fast = speaking().action_tokenizer
    with pytest.raises(PolicyError, match=r"no token <\|action_token_0\|> \(86 of 86"):
        pipelines(config(prediction_mode="fast", action_tokenizer_path=fast))
    before, _ = pipelines(speaking())
    with pytest.raises(DataError, match=r"tokens behind a prompt of \d+"):
        before(raw(("x" * 440, "y")))
    pipelines(speaking(max_decoding_steps=3))[0](raw())
    assert "policy.max_decoding_steps is 3" in caplog.text
