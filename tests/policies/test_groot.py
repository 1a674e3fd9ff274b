"""GR00T N1.7: names at full size, frozen parts, cameras, padding, raw folders, files, refusals."""

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

from kata.errors import CheckpointError, DataError, PolicyError
from kata.finetune.lora import target_names
from kata.policies import build_policy, config_class
from kata.policies.groot.config import TERM, Config
from kata.policies.groot.model import LEROBOT, LM_HEAD, WORDS
from kata.policies.groot.raw_folder import make_raw
from kata.policies.load import fill_weights, load_weights, save_weights
from kata.policies.pipelines import canonical_pipelines, saved_pipelines
from kata.processors.groot import PackInputs
from kata.run import read_policy_config
from kata.run.peft import PeftConfig
from kata.spec import (
    ACTION,
    LANGUAGE_MASK,
    LANGUAGE_TOKENS,
    STATE,
    TASK,
    VIEW,
    Feature,
    FeatureType,
    missing_key,
    pad_key,
)

HERE = Path(__file__).parent
TOP, WRIST = "observation.images.top", "observation.images.wrist"


@pytest.fixture(scope="module")
def tools():
    sys.path.insert(0, str(HERE.parents[1] / "tools/peer"))
    try:
        return importlib.import_module("policy_groot")
    finally:
        sys.path.pop(0)


def features(sizes=((48, 64), (48, 64))):
    names = dict(zip((TOP, WRIST), sizes, strict=False))
    cameras = {k: Feature(FeatureType.VISUAL, (3, *size)) for k, size in names.items()}
    return {
        "input_features": {STATE: Feature(FeatureType.STATE, (5,)), **cameras},
        "output_features": {ACTION: Feature(FeatureType.ACTION, (4,))},
    }


def built(tools, case=None, **changes):
    case = case or tools.Case()
    config = dataclasses.replace(tools.own_config(case), **changes)
    torch.manual_seed(0)
    policy = build_policy(config)
    return policy, *tools.own_pipelines(case, config)


def draws(size=3):
    stream = torch.Generator().manual_seed(1)
    noise = torch.randn(3, 6, 6, generator=stream)[:size]
    return {"noise": noise, "time": torch.rand(3, 1, generator=stream)[:size]}


def each(policy, given):
    """Return each sample's part of the loss."""
    return policy(given, **draws(len(given[STATE]))).detail[TERM]


def names_at_full_size() -> list[str]:
    """Return name, shape, state and layers of the published model."""
    with torch.device("meta"):
        policy = build_policy(Config(load_base_weights=False, **features()))
    key_map = policy.key_map()
    found: dict[str, list[str]] = {}
    for name, tensor in policy.named_parameters():
        stored = key_map.to_lerobot(name)
        layer = re.search(r"(?:layers|blocks|merger_list)\.(\d+)\.", stored)
        folded = re.sub(r"(layers|blocks|merger_list)\.\d+\.", r"\1.*.", stored)
        shape = "x".join(map(str, tensor.shape))
        state = "trained" if tensor.requires_grad else "frozen"
        found.setdefault(f"{folded} {shape} {state}", []).append(layer[1] if layer else "")
    return [f"{line} {','.join(layers)}".rstrip() for line, layers in found.items()]


def test_names_shapes_and_trained_weights_are_lerobots_at_full_size():
    kept = (HERE / "groot_keys.txt").read_text().splitlines()[1:]
    assert sorted(names_at_full_size()) == sorted(kept)


@pytest.mark.parametrize(
    ("options", "trained"),
    [
        ({"tune_llm": True}, {"text.embed_tokens", "text.layers.2", "head.vlln"}),
        ({"tune_visual": True, "tune_vlln": False}, {"visual.merger", "head.model"}),
        ({"tune_top_llm_layers": 1, "tune_diffusion_model": False}, {"text.layers.2"}),
        ({"tune_projector": False}, {"head.model"}),
    ],
)
def test_flags_say_what_is_trained(tools, options, trained):
    policy, *_ = built(tools, **options)
    open_ = {name for name, p in policy.named_parameters() if p.requires_grad}
    parts = {
        "text.embed_tokens": "tune_llm",
        "text.layers.0": "tune_llm",
        "visual.merger": "tune_visual",
        "head.state_encoder": "tune_projector",
        "head.position_embedding": "tune_projector",
        "head.model": "tune_diffusion_model",
        "head.vlln": "tune_vlln",
        "head.vl_self_attention": "tune_vlln",
    }
    for part, flag in parts.items():
        is_open = any(name.startswith(part) for name in open_)
        assert is_open == vars(policy.config)[flag], part
    assert all(any(name.startswith(part) for name in open_) for part in trained)
    assert not policy.text.norm.weight.requires_grad


def test_only_biases_and_norms_go_without_weight_decay(tools):
    policy, *_ = built(tools)
    main, free = policy.param_groups()
    names = {parameter: name for name, parameter in policy.named_parameters()}
    assert free.weight_decay == 0.0
    assert {names[p].rpartition(".")[2] for p in main.params} == {"weight", "W", "b"}
    assert "head.vlln.weight" in {names[p] for p in free.params}
    trained = [p for p in policy.parameters() if p.requires_grad]
    assert len(main.params) + len(free.params) == len(trained)


def test_a_samples_loss_does_not_depend_on_the_others_unless_padding_is_attended(tools):
    case = tools.Case(tasks=tools.MIXED)
    for attends in (False, True):
        policy, before, _ = built(tools, case, attend_padding=attends)
        whole = before(tools.batch(case))
        short = {key: value[:1] for key, value in tools.batch(case).items()}
        alone = each(policy, before(short))
        apart = abs(float(alone[0] / each(policy, whole)[0]) - 1)
        assert (apart < 1e-5) != attends
        assert before(short)[LANGUAGE_TOKENS].shape < whole[LANGUAGE_TOKENS].shape


def test_cameras_of_unequal_size_are_resized_each_for_itself(tools):
    case = tools.Case({STATE: (5,), TOP: (3, 48, 64), WRIST: (3, 96, 40)})
    policy, before, _ = built(tools, case)
    given = before(tools.batch(case))
    assert given[f"{VIEW}0"].shape == given[f"{VIEW}1"].shape == (3, 3, 64, 64)
    assert each(policy, given).isfinite().all()
    # Where the base model keeps proportions, images differ in size in the encoder as well.
    shapes = tools.Case(case.inputs, processor={"use_albumentations": True})
    policy, before, _ = built(tools, shapes)
    given = before(tools.batch(shapes))
    assert given[f"{VIEW}0"].shape[-2:] == (64, 85)
    assert each(policy, given).isfinite().all()
    moved = policy(given, **draws(), crop=torch.zeros(3, 2)).detail[TERM]
    assert not torch.equal(moved, each(policy, given))


def test_nothing_of_a_missing_camera_is_seen(tools):
    policy, before, _ = built(tools)
    given = {**tools.batch(tools.Case()), missing_key(WRIST): torch.tensor([True, False, False])}
    other = {**given, WRIST: given[WRIST].flip(2)}
    first, second = each(policy, before(given)), each(policy, before(other))
    torch.testing.assert_close(first[0], second[0])
    assert (first[1:] != second[1:]).all()


def test_weights_in_bfloat16_compute_without_mixed_precision(tools):
    kept = tools.Case(changes={"dtype": "bfloat16"})
    for case, options in (
        (tools.Case(), {"frozen_dtype": "bfloat16"}),
        (kept, {"model_params_fp32": False}),
    ):
        policy, before, _ = built(tools, case, **options)
        whole, *_ = built(tools, case)
        whole.load_state_dict({k: v.float() for k, v in policy.state_dict().items()})
        assert policy.visual.pos_embed.weight.dtype == torch.bfloat16
        given = before(tools.batch(case))
        torch.testing.assert_close(each(policy, given), each(whole, given), rtol=0.05, atol=0)
        assert len(policy.shard_units()) == len(whole.shard_units()) + 3 * (case != kept)


def test_what_a_chunk_reads_of_the_features_is_computed_once(tools):
    policy, before, _ = built(tools)
    seen = before(tools.observation(tools.Case(), 0))
    counted = []
    reading = policy.head.model.transformer_blocks[0].attn1.to_k
    reading.register_forward_hook(lambda *_: counted.append(1))
    policy.predict_chunk(seen)
    assert len(counted) == 1


def test_a_raw_folder_gives_weights_and_robot(tools, tmp_path):
    case = tools.Case(**tools.LIBERO)
    source, *_ = built(tools, case)
    names = source.key_map()
    stored = {
        names.to_lerobot(name).removeprefix(LEROBOT): tensor.clone()
        for name, tensor in source.state_dict().items()
    }
    raw = tools.tiny_groot.write_raw(
        tmp_path / "raw",
        Path(tools.folder()),
        options=case.processor,
        statistics=case.statistics,
    )
    half = {name: tensor.bfloat16() for name, tensor in stored.items()}
    save_file(half, raw / "model.safetensors")
    policy = build_policy(
        dataclasses.replace(
            tools.own_config(case), base_model_path=str(raw), load_base_weights=True
        )
    )
    assert policy.robot == 2
    assert policy.config.executed == 3
    assert policy.config.windows() == {ACTION: (0, 1, 2, 3)}
    mine = policy.text.embed_tokens.weight
    assert mine.dtype == torch.float32
    assert torch.equal(mine, half[WORDS.removeprefix(LEROBOT)].float())
    del half["action_head.vlln.weight"]
    save_file(half, raw / "model.safetensors")
    with pytest.raises(PolicyError, match=r"1 missing .*action_head.vlln.weight"):
        build_policy(dataclasses.replace(policy.config, load_base_weights=True))


def test_a_checkpoint_becomes_a_raw_folder_that_acts_alike(tools, tmp_path):
    policy, before, after = built(tools)
    for part in (before, after, policy.config):
        part.save(tmp_path)
    save_weights(policy, tmp_path / "model.safetensors")
    make_raw(tmp_path, policy.config)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "config.json", "embodiment_id.json", "model.safetensors", "processor_config.json",
        "statistics.json",
    ]  # fmt: skip
    again = dataclasses.replace(
        policy.config, base_model_path=str(tmp_path), load_base_weights=True
    )
    other = build_policy(again)
    assert again.files.horizon == 6
    own = canonical_pipelines(again, {}, rename_map={}, device="cpu")
    seen, noise = tools.observation(tools.Case(), 0), draws()["noise"]
    found = [
        undo({ACTION: one.predict_chunk(do(dict(seen)), noise=noise)})[ACTION]
        for one, do, undo in ((policy, before, after), (other, *own))
    ]
    torch.testing.assert_close(*found)
    with pytest.raises(
        PolicyError, match=re.escape("--policy.type=groot --policy.base_model_path=")
    ):
        read_policy_config(tmp_path, [])
    with pytest.raises(CheckpointError, match="leave out --raw"):
        make_raw(tmp_path, config_class("act")())


def test_an_adapter_goes_to_the_heads_queries_and_values(tools):
    policy, *_ = built(tools)
    names = target_names(policy, PeftConfig(r=2))
    assert len(names) == 2 * (2 + 6)
    assert all(name.startswith("head.") for name in names)


def test_files_hold_the_table_of_words_once_under_either_name(tools, tmp_path):
    policy, *_ = built(tools)
    file = tmp_path / "model.safetensors"
    save_weights(policy, file)
    other, *_ = built(tools, attend_padding=True)
    torch.nn.init.zeros_(other.text.embed_tokens.weight)
    load_weights(other, file)
    assert torch.equal(other.text.embed_tokens.weight, policy.text.embed_tokens.weight)
    names = policy.key_map()
    found = {names.to_lerobot(name): tensor for name, tensor in policy.state_dict().items()}
    found[LM_HEAD] = found.pop(WORDS) + 1
    fill_weights(other, found, "a file")
    assert torch.equal(other.text.embed_tokens.weight, policy.text.embed_tokens.weight + 1)


def test_a_checkpoints_own_steps_say_how_images_are_read(tools):
    case = tools.Case(processor={"use_albumentations": True})
    _, before, _ = built(tools, case)
    policy, *_ = built(tools)
    policy.use_pipeline(before)
    assert policy.geometry.use_albumentations
    # The tokenizer that options name, and that nothing has fetched, does not resize images.
    policy, before, _ = built(tools)
    other, *_ = built(tools)
    other.rules = dataclasses.replace(other.rules, least=2**16)
    given = before(tools.batch(tools.Case()))
    assert torch.equal(each(policy, given), each(other, given))


@pytest.mark.parametrize("name", ["default", "robot_of_the_base", "relative"])
def test_pipelines_are_the_same_after_writing(tools, tmp_path, name):
    case = tools.GOLDEN[name]
    config = tools.own_config(case)
    before, after = tools.own_pipelines(case, config)
    for pipeline in (before, after):
        pipeline.save(tmp_path)
    again, undone = saved_pipelines(config, tmp_path, "cpu")
    given = tools.batch(case)
    first, second = before(dict(given)), again(dict(given))
    assert first.keys() == second.keys()
    for key, value in first.items():
        same = torch.equal(value, second[key]) if torch.is_tensor(value) else value == second[key]
        assert same, key
    told = {key: first[key] for key in first if key.startswith("observation.state.")}
    action = {ACTION: first[ACTION], **told}
    assert torch.equal(after(action)[ACTION], undone(action)[ACTION])


def test_relative_actions_come_back_as_they_were(tools):
    case = tools.GOLDEN["relative"]
    before, after = tools.own_pipelines(case, tools.own_config(case))
    given = tools.batch(case)
    given[ACTION] = given[STATE][:, None, :4] + 0.05 * given[ACTION]
    packed = before(given)
    low, high = (tools.relative_stats(case)[n][:6] for n in ("min", "max"))
    moved = (given[ACTION] - given[STATE][:, None, :4])[..., :3].numpy()
    inside = ((moved > low[:, :3]) & (moved < high[:, :3])).all(-1)
    assert inside.any()
    back = after({ACTION: packed[ACTION], "observation.state.origin": given[STATE]})[ACTION]
    torch.testing.assert_close(back[inside][:, :3], given[ACTION][inside][:, :3])


def test_denominators_count_real_values_alone(tools):
    case = tools.Case(**tools.LIBERO)
    config = tools.own_config(case)
    pad = np.zeros((2, 4), bool)
    pad[1, 1:] = True
    assert config.loss_weights(2, {pad_key(ACTION): pad}) == {TERM: 5 * 4}
    assert config.drop_last_frames() == 3


def test_a_plans_batch_has_the_shapes_of_a_real_one(tools):
    policy, before, _ = built(tools)
    real = before(tools.batch(tools.Case()))
    blank = policy.config.blank_inputs({TOP: None, WRIST: None}, 3)
    views = [key for key in real if key.startswith(VIEW)]
    assert {key: blank[key].shape for key in views} == {key: real[key].shape for key in views}
    images = int((real[LANGUAGE_TOKENS][0] == policy.sizes.image_token).sum())
    assert blank[LANGUAGE_TOKENS].shape == blank[LANGUAGE_MASK].shape == (3, images + 48)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"lora_rank": 8}, "--peft.r=8"),
        ({"tokenizer_assets_repo": "x"}, "GR00T N1.5"),
        ({"base_model_path": "nvidia/GR00T-N1.5-3B"}, "GR00T N1.5"),
        ({"base_model_path": "/nowhere"}, "no such folder"),
        ({"max_action_dim": 8}, "policy.max_action_dim=8 with nvidia/GR00T-N1.7-3B, which has 132"),
        ({"embodiment_tag": "my_arm"}, "policy.embodiment_tag=my_arm"),
        ({"action_decode_transform": "flip"}, "auto, none or libero"),
        ({"n_action_steps": 41}, "no more actions are executed"),
        ({"tune_top_llm_layers": 17}, "uses 16 layers"),
        (
            {"tune_projector": False, "tune_diffusion_model": False, "tune_vlln": False},
            "a part of the policy is trained",
        ),
    ],
)
def test_impossible_options_are_refused_by_name(options, says):
    with pytest.raises(PolicyError, match=re.escape(says)), torch.device("meta"):
        build_policy(Config(load_base_weights=False, **features(), **options))


def test_defaults_of_the_old_model_become_todays_with_a_warning(caplog):
    config = Config(max_state_dim=64, chunk_size=50, n_action_steps=50, **features())
    assert (config.max_state_dim, config.chunk_size, config.n_action_steps) == (132, 40, 40)
    assert "policy.chunk_size=50 was the default of GR00T N1.5" in caplog.text
    assert Config(embodiment_tag="libero_sim").action_decode_transform == "libero"
    none = Config(embodiment_tag="libero_sim", action_decode_transform="none")
    assert none.action_decode_transform is None


def test_folders_that_are_no_raw_models_are_refused(tools, tmp_path):
    path = tmp_path / "config.json"
    for content, says in (
        ({"type": "groot"}, "--policy.path=<folder>"),
        ({"model_type": "gr00t_n1_5"}, "GR00T N1.5"),
        ({"model_type": "Gr00tN1d7", "use_alternate_vl_dit": False}, "use_alternate_vl_dit=False"),
    ):
        folder = tmp_path / str(len(says))
        folder.mkdir()
        (folder / path.name).write_text(json.dumps(content))
        with pytest.raises(PolicyError, match=re.escape(says)):
            _ = Config(base_model_path=str(folder), **features()).base
    assert tools.own_config(tools.Case()).base.horizon == 6


def test_pipelines_of_other_robots_and_of_the_old_model_are_refused(tools, tmp_path):
    case = tools.Case()
    config = tools.own_config(case)
    for pipeline in tools.own_pipelines(case, config):
        pipeline.save(tmp_path)
    other = dataclasses.replace(config, embodiment_tag="libero_sim")
    with pytest.raises(PolicyError, match="made for new_embodiment"):
        saved_pipelines(other, tmp_path, "cpu")
    path = tmp_path / "policy_preprocessor.json"
    name = PackInputs.registry_name
    path.write_text(path.read_text().replace(f'"{name}"', '"groot_pack_inputs_v3"'))
    with pytest.raises(CheckpointError, match=r"GR00T N1\.5"):
        saved_pipelines(config, tmp_path, "cpu")


def test_relative_actions_need_names_and_complete_chunks(tools):
    config = tools.own_config(tools.GOLDEN["relative"])
    nameless = dataclasses.replace(config, action_feature_names=None)
    with pytest.raises(PolicyError, match="does not name the numbers"):
        nameless.with_columns({})
    with pytest.raises(PolicyError, match=r"policy\.embodiment_tag=my_arm"):
        dataclasses.replace(config, embodiment_tag="my_arm").with_columns({})
    before, _ = tools.own_pipelines(tools.GOLDEN["relative"], config)
    long = {**tools.batch(tools.GOLDEN["relative"]), ACTION: torch.zeros(3, 41, 4)}
    with pytest.raises(DataError, match="statistics for 40"):
        before(long)
    absolute = dataclasses.replace(config, relative_exclude_joints=["s", "e", "gripper", "w"])
    with pytest.raises(PolicyError, match="no number of the action is relative"):
        canonical_pipelines(absolute, tools.stats(tools.Case()), rename_map={}, device="cpu")


def test_sentences_are_formatted_and_absent_ones_replaced(tools):
    _, before, _ = built(tools)
    given = {**tools.observation(tools.Case(), 0), TASK: ["Open THE_box!", "", "2 cups, please"]}
    assert before(given)[TASK] == ["open the_box", "perform the task", "2 cups please"]
