"""X-VLA: LeRobot's names at full size, frozen parts, modes of actions, views, files, refusals."""

import importlib
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from kata.config import decode
from kata.errors import PolicyError
from kata.optim.build import build_optimizer
from kata.policies import build_policy
from kata.policies.config import PolicyConfig
from kata.policies.load import load_weights, save_weights
from kata.policies.pipelines import canonical_pipelines, saved_pipelines
from kata.policies.xvla.config import Config
from kata.policies.xvla.florence import FLORENCE_2_LARGE
from kata.run import read_policy_config
from kata.spec import (
    ACTION,
    LANGUAGE_MASK,
    LANGUAGE_TOKENS,
    STATE,
    TASK,
    Feature,
    FeatureType,
    NormMode,
    dim_pad_key,
    frozen_key,
    missing_key,
)

TOP, WRIST = "observation.images.top", "observation.images.wrist"
SHARED = "model.vlm.language_model.shared.weight"
TABLE = "model.vlm.language_model.encoder.embed_tokens.weight"


@pytest.fixture(scope="module")
def cases():
    """The cases of the comparison with LeRobot."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tools/peer"))
    try:
        return importlib.import_module("policy_xvla")
    finally:
        sys.path.pop(0)


@pytest.fixture
def built(cases):
    """Build a tiny policy in the mode `auto`, unless options name another."""

    def make(action_dim=7, **options):
        chosen = {"action_mode": "auto", **options}
        own = {n: chosen.pop(n) for n in ("domain_id", "do_mask_loss_for_padding") if n in chosen}
        return cases.build_own(cases.Case(action_dim=action_dim, options=chosen, own=own))

    return make


@pytest.fixture
def given(cases):
    return lambda **options: cases.batch(cases.Case(**options))


def draws(cases, policy):
    noise = cases.noise(cases.Case(options={"action_mode": policy.config.action_mode}))
    return {"noise": noise, "time": torch.tensor([[0.2], [0.5], [1.1]])}


def test_names_and_shapes_are_lerobots_at_full_size():
    cameras = {key: Feature(FeatureType.VISUAL, (3, 224, 224)) for key in (TOP, WRIST)}
    full = Config(
        input_features={STATE: Feature(FeatureType.STATE, (6,)), **cameras},
        output_features={ACTION: Feature(FeatureType.ACTION, (20,))},
    )
    with torch.device("meta"):
        policy = build_policy(full)
    key_map = policy.key_map()
    stored = {key_map.to_lerobot(k): v.shape for k, v in policy.state_dict().items()}
    stored |= {name: make().shape for name, make in key_map.constants.items()}
    # LeRobot's tensor of this name is that of the encoder.
    stored[SHARED] = stored[TABLE]
    found: dict[str, list[str]] = {}
    for name, size in stored.items():
        line = f"{re.sub(r'(?<=[.])[0-9]+(?=[.])', '*', name)} {'x'.join(map(str, size))}"
        found.setdefault(line, []).append(".".join(re.findall(r"(?<=[.])[0-9]+(?=[.])", name)))
    lines = [f"{line} {','.join(numbers)}".rstrip() for line, numbers in found.items()]
    kept = (Path(__file__).parent / "xvla_keys.txt").read_text().splitlines()[1:]
    assert sorted(lines) == sorted(kept)
    assert all(parameter.requires_grad for parameter in policy.parameters())
    assert sum(p.numel() for p in policy.parameters()) == 879_851_096


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"freeze_vision_encoder": True}, ("vision.",)),
        ({"freeze_language_encoder": True}, ("encoder.",)),
        ({"train_soft_prompts": False}, ("transformer.soft_prompt_hub.",)),
    ],
)
def test_frozen_parts_get_no_gradient_and_all_others_do(built, given, cases, options, parts):
    policy = built(**options).train()
    loss = policy(given(), **draws(cases, policy))
    sum(term.total for term in loss.terms.values()).backward()
    for name, parameter in policy.named_parameters():
        assert parameter.requires_grad == (not name.startswith(parts)), name
        assert (parameter.grad is not None) == parameter.requires_grad, name
    assert not any(module.training for module in policy.frozen_modules())


def test_prompts_alone_are_trained_with_what_leads_to_them(built):
    policy = built(train_policy_transformer=False)
    trained = {n for n, p in policy.named_parameters() if p.requires_grad}
    assert {n for n in trained if n.startswith("transformer.")} == {
        "transformer.soft_prompt_hub.weight"
    }
    assert any(name.startswith("vision.") for name in trained)


def test_groups_have_lerobots_rates(built):
    policy = built(
        optimizer_soft_prompt_lr_scale=0.5, optimizer_weight_decay=0.2, optimizer_lr=1e-3
    )
    groups = {group.name: group for group in policy.param_groups()}
    optimizer = build_optimizer(list(groups.values()), policy.config.optimizer_preset())
    rates = [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups]
    assert rates == [
        (1e-3, 0.2),
        pytest.approx((5e-4, 0.2)),
        pytest.approx((1e-4, 0.02)),
    ]
    names = {id(p): n for n, p in policy.named_parameters()}
    vlm = {names[id(p)] for p in groups["vlm"].params}
    # LeRobot chooses by the name, which this map of the transformer has, too.
    assert "transformer.vlm_proj.weight" in vlm
    assert "transformer.aux_visual_proj.weight" not in vlm
    assert [names[id(p)] for p in groups["soft_prompts"].params] == [
        "transformer.soft_prompt_hub.weight"
    ]
    started = built(optimizer_soft_prompt_warmup_lr_scale=0.01)
    assert started.param_groups()[1].lr_scale == 0.01


@pytest.mark.parametrize("mode", ["auto", "ee6d", "so101_bimanual"])
def test_sums_of_micro_batches_make_the_sums_of_the_batch(built, cases, given, mode):
    size = {"auto": 7, "ee6d": 20, "so101_bimanual": 12}[mode]
    policy = built(size, action_mode=mode).eval()
    batch = given(action_dim=size, options={"action_mode": mode})
    drawn = draws(cases, policy)
    whole = policy(batch, **drawn)
    for i in range(3):
        part = policy(
            {k: v[i : i + 1] for k, v in batch.items()},
            **{k: v[i : i + 1] for k, v in drawn.items()},
        )
        for name, term in part.terms.items():
            torch.testing.assert_close(term.total, whole.detail[name][i])
    for name, term in whole.terms.items():
        torch.testing.assert_close(term.total, whole.detail[name].sum())


def test_padded_steps_and_dimensions_leave_loss_and_count(built, cases, given):
    policy = built(20, action_mode="ee6d", do_mask_loss_for_padding=True).eval()
    batch = given(action_dim=20, options={"action_mode": "ee6d"})
    pad = torch.zeros(3, 5, dtype=torch.bool)
    pad[0, 2:] = True
    lacking = torch.zeros(3, 20, dtype=torch.bool)
    lacking[1, 10:] = True  # one arm
    drawn = draws(cases, policy)
    plain = policy(batch, **drawn).detail
    masks = {f"{ACTION}_is_pad": pad, dim_pad_key(ACTION): lacking}
    masked = policy({**batch, **masks}, **drawn).detail
    for name, values in plain.items():
        assert masked[name][0] < values[0]
        assert masked[name][1] < values[1]
        assert masked[name][2] == values[2]
    counts = policy.config.loss_weights(3, {key: mask.numpy() for key, mask in masks.items()})
    # Of 15 steps three are padded; one of two arms of the second sample is lacking.
    assert counts == {"position_loss": 28.5, "rotate6D_loss": 57.0, "gripper_loss": 19.0}
    whole = policy.config.loss_weights(3, {})
    assert whole == {"position_loss": 45.0, "rotate6D_loss": 90.0, "gripper_loss": 30.0}


def test_a_view_that_is_missing_is_zeros_behind_the_others(built, given):
    policy, batch = built().eval(), given()
    none = torch.zeros(3, dtype=torch.bool)
    marked = {**batch, missing_key(TOP): ~none}
    absent = {key: value for key, value in batch.items() if key != TOP}
    seen, same = (policy.encode(each).context for each in (marked, absent))
    torch.testing.assert_close(seen, same)
    some = {**batch, missing_key(TOP): torch.tensor([True, False, True])}
    mixed = policy.encode(some).context
    torch.testing.assert_close(mixed[::2], same[::2])
    torch.testing.assert_close(mixed[1], policy.encode(batch).context[1])


def test_features_of_the_frozen_image_encoder_take_the_place_of_cameras(built, given, cases):
    policy = built(freeze_vision_encoder=True).train()
    batch = {**given(), missing_key(TOP): torch.tensor([True, False, False])}
    features = policy.frozen_features(batch, "vision")
    replaced = policy.config.frozen_features()["vision"]
    cached = {key: value for key, value in batch.items() if key not in replaced}
    cached |= {frozen_key(name): value for name, value in features.items()}
    totals = []
    for one in (batch, cached):
        torch.manual_seed(0)
        totals.append(policy(one, **draws(cases, policy)).terms["joints_loss"].total)
    assert torch.equal(*totals)
    totals[1].backward()
    assert policy.projector.image_projection.weight.grad is not None
    assert built().config.frozen_features() == {}


def test_robots_have_weights_of_their_own(built, given):
    policy = built(domain_id=3).eval()
    batch = {key: value for key, value in given().items() if key != "domain_id"}
    third = policy.encode(batch)
    assert third.domain.tolist() == [3, 3, 3]
    told = policy.encode({**batch, "domain_id": torch.tensor([3, 1, 3])})
    torch.testing.assert_close(told.context[0], third.context[0])
    assert not torch.allclose(told.context[1], third.context[1])
    with pytest.raises(PolicyError, match=r"robots \[3, 4\]"):
        policy.encode({**batch, "domain_id": torch.tensor([3, 4, 3])})


def test_the_number_of_a_robot_may_be_an_input(built, given):
    plain = built()
    key = "observation.robot"
    inputs = {**plain.config.input_features, key: Feature(FeatureType.STATE, (1,))}
    options = {**vars(plain.config), "input_features": inputs, "domain_feature_key": key}
    policy = build_policy(Config(**options))
    policy.load_state_dict(plain.state_dict())
    batch = {**given(), key: torch.tensor([[1.0], [0.0], [2.0]])}
    assert policy.encode(batch).domain.tolist() == [1, 0, 2]
    modes = {"STATE": NormMode.MEAN_STD}
    with pytest.raises(PolicyError, match="read as it is"):
        build_policy(Config(**{**options, "normalization_mapping": modes}))
    with pytest.raises(PolicyError, match="one of the policy's inputs"):
        built(domain_feature_key="observation.unknown")


def test_acting_executes_the_first_actions_of_a_chunk(built, given, cases):
    policy, batch = built().eval(), given()
    noise = draws(cases, policy)["noise"]
    chunk = policy.predict_chunk(batch, noise=noise)
    assert chunk.shape == (3, 5, 7)
    state = policy.init_state(3)
    state.source = lambda name, draw: noise
    actions = []
    for _ in range(3):
        action, state = policy.act(batch, state)
        actions.append(action)
    assert policy.needs_observation(state)
    assert torch.equal(torch.stack(actions, 1), chunk[:, :3])


def test_the_encoder_runs_once_per_chunk(built, given):
    policy, calls = built().eval(), []
    policy.encoder.register_forward_hook(lambda *_: calls.append("encoder"))
    policy.transformer.register_forward_hook(lambda *_: calls.append("transformer"))
    policy.predict_chunk(given())
    assert calls == ["encoder", *["transformer"] * policy.config.num_denoising_steps]


def test_weights_are_held_in_bfloat16_and_losses_in_float32(built, given, cases):
    narrow, wide = built(dtype="bfloat16"), built()
    assert {p.dtype for p in narrow.parameters()} == {torch.bfloat16}
    losses = [policy.eval()(given(), **draws(cases, policy)) for policy in (narrow, wide)]
    totals = [loss.terms["joints_loss"].total for loss in losses]
    assert totals[0].dtype == torch.float32
    torch.testing.assert_close(*totals, rtol=3e-2, atol=0)
    assert narrow.predict_chunk(given()).dtype == torch.float32


def test_recomputed_activations_give_the_same_gradients(built, given, cases):
    from kata.update.activation_checkpointing import recompute_activations

    grads = []
    for recomputes in (False, True):
        policy = built().train()
        if recomputes:
            recompute_activations(policy)
        torch.manual_seed(0)
        policy(given(), **draws(cases, policy)).terms["joints_loss"].total.backward()
        grads.append([p.grad for p in policy.parameters()])
    assert len(policy.shard_units()) == 2 * 5 + 2 + 2
    for one, other in zip(*grads, strict=True):
        assert torch.equal(one, other)


def test_files_return_and_hold_what_lerobot_asks(built, cases, tmp_path):
    policy = built(domain_id=2)
    policy.config.save(tmp_path)
    save_weights(policy, tmp_path / "model.safetensors")
    stored = load_file(tmp_path / "model.safetensors")
    assert SHARED not in stored  # LeRobot leaves it out, too
    pipelines = canonical_pipelines(policy.config, {}, rename_map={}, device="cpu")
    for pipeline in pipelines:
        pipeline.save(tmp_path)
    steps = json.loads((tmp_path / "policy_preprocessor.json").read_text())["steps"]
    assert [step["registry_name"] for step in steps] == [
        "rename_observations_processor", "to_batch_processor", "tokenizer_processor",
        "xvla_image_to_float", "xvla_imagenet_normalize", "xvla_add_domain_id",
        "device_processor", "normalizer_processor",
    ]  # fmt: skip
    # The number of the robot lies among the steps, where LeRobot reads it.
    (tmp_path / "kata.json").unlink()
    read = decode(PolicyConfig, read_policy_config(tmp_path, []))
    assert read.domain_id == 2
    again = build_policy(read)
    # The tied table may have its other name.
    stored[SHARED] = stored.pop(TABLE)
    save_file(stored, tmp_path / "model.safetensors")
    load_weights(again, tmp_path / "model.safetensors")
    for name, tensor in policy.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    before, _ = saved_pipelines(read, tmp_path, "cpu")
    frames = torch.full((3, 64, 48), 255, dtype=torch.uint8)
    told = before({STATE: torch.zeros(5), TOP: frames, WRIST: frames.float(), TASK: "push"})
    assert told["domain_id"].tolist() == [2]
    assert told[LANGUAGE_TOKENS].shape == (1, 10)
    assert told[LANGUAGE_MASK].sum() == 4
    expected = (1 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    for key in (TOP, WRIST):
        torch.testing.assert_close(told[key][0, :, 0, 0], expected)


def test_checkpoints_with_florence_in_microsofts_layout_are_read(built, tmp_path):
    policy = built()
    save_weights(policy, tmp_path / "today.safetensors")
    old: dict[str, torch.Tensor] = {"model.vlm.language_model.final_logits_bias": torch.zeros(1, 9)}
    block = r"(model\.vlm\.vision_tower\.blocks\.\d+\.\d+\.)"
    projector = r"model\.vlm\.multi_modal_projector\."
    rules = (
        (r"(model\.vlm\.vision_tower\.convs\.\d+\.)conv\.", r"\1proj."),
        (block + r"(\w+)\.(conv[12])\.", r"\1\2.\3.fn.dw."),
        (block + r"spatial_block\.norm1\.", r"\1spatial_block.window_attn.norm."),
        (block + r"channel_block\.norm1\.", r"\1channel_block.channel_attn.norm."),
        (block + r"(\w+)\.norm2\.", r"\1\2.ffn.norm."),
        (block + r"(\w+)\.(window_attn|channel_attn)\.(qkv|proj)\.", r"\1\2.\3.fn.\4."),
        (block + r"(\w+)\.ffn\.(fc[12])\.", r"\1\2.ffn.fn.net.\3."),
        (projector + "image_proj_norm", "model.vlm.image_proj_norm"),
        (projector + "image_position_embed", "model.vlm.image_pos_embed"),
        (projector + "visual_temporal_embed", "model.vlm.visual_temporal_embed"),
        (r"model\.vlm\.language_model\.encoder\.", "model.vlm.language_model.model.encoder."),
    )
    for name, tensor in load_file(tmp_path / "today.safetensors").items():
        if name.endswith("image_projection.weight"):
            old["model.vlm.image_projection"] = tensor.t().contiguous()
            continue
        renamed = name
        for pattern, other in rules:
            renamed, count = re.subn(pattern, other, renamed)
            if count:
                break
        old[renamed] = tensor
    save_file(old, tmp_path / "old.safetensors")
    again = build_policy(policy.config)
    load_weights(again, tmp_path / "old.safetensors")
    for name, tensor in policy.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_florence_in_microsofts_words_has_the_same_sizes(built, cases):
    vision = {k: v for k, v in cases.VISION.items() if k not in ("embed_dim", "model_type")}
    positions = {
        "type": "learned_abs_2d",
        "max_pos_embeddings": vision.pop("max_position_embeddings"),
    }
    frames = {"type": "COSINE", "max_temporal_embeddings": vision.pop("max_temporal_embeddings")}
    other = {
        "vision_config": {
            **vision,
            "model_type": "davit",
            "dim_embed": cases.VISION["embed_dim"],
            "image_pos_embed": positions,
            "visual_temporal_embedding": frames,
            "image_feature_source": ["spatial_avg_pool", "temporal_avg_pool"],
            "enable_checkpoint": False,
        },
        "text_config": {**cases.TEXT, "model_type": "florence2_language"},
    }
    assert built(florence_config=other).config.florence() == built().config.florence()


def test_without_sizes_florence_2_large_is_meant_and_written(tmp_path):
    Config().save(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["florence_config"] == FLORENCE_2_LARGE
    assert "domain_id" not in written


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_action_steps": 6}, "no more actions are executed than a chunk holds"),
        ({"num_heads": 5}, "a divisor of the width"),
        ({"domain_id": 4}, "policy.domain_id=4"),
        ({"action_mode": "so101_bimanual", "max_state_dim": 12}, "as wide as its actions"),
        ({"action_mode": "so101_bimanual", "max_state_dim": 32}, "as wide as its actions"),
        ({"action_mode": "ee6d", "max_state_dim": 19}, "hides number 19"),
        ({"action_mode": "joint", "use_proprio": False}, "use_proprio=false"),
        ({"max_state_dim": 4}, "max_state_dim=4"),
        ({"max_action_dim": 6}, "max_action_dim=6"),
        ({"action_mode": "franka_joint7", "action_dim": 8}, "have 7 numbers"),
        ({"action_mode": "so101_bimanual", "action_dim": 11}, "have 12 numbers"),
        ({"action_mode": "joint", "action_dim": 15}, "14 numbers or fewer"),
        ({"max_len_seq": 20}, "room for 25 tokens: 5 actions, 15 of the first"),
        ({"florence_config": {"vision_config": {}}}, "no text_config"),
    ],
)
def test_what_cannot_run_is_refused_by_name(built, options, message):
    with pytest.raises(PolicyError, match=message):
        built(**options)


@pytest.mark.parametrize(
    ("part", "changed", "message"),
    [
        ("vision_config", {"model_type": "siglip"}, "model_type=siglip"),
        ("vision_config", {"depths": [1, 1]}, "an entry for each of the 4 stages"),
        ("vision_config", {"num_groups": [3, 3, 4, 2]}, r"num_groups\[0\]=3"),
        ("vision_config", {"projection_dim": 32}, "equally wide"),
        ("vision_config", {"max_position_embeddings": 1}, "cells along a side"),
        ("vision_config", {"image_feature_source": ["last_frame"]}, "image_feature_source"),
        ("text_config", {"activation_function": "swish"}, "activation_function=swish"),
        ("text_config", {"encoder_layerdrop": 0.1}, "encoder_layerdrop=0.1"),
        ("text_config", {"max_position_embeddings": 14}, "text encoder reads 14"),
    ],
)
def test_florences_that_cannot_be_are_refused_by_name(built, cases, part, changed, message):
    with pytest.raises(PolicyError, match=message):
        built(florence_config=cases.florence(**{part: changed}))


def test_cameras_of_unequal_size_are_fitted_or_refused(cases):
    shapes = {STATE: (5,), TOP: (3, 40, 64), WRIST: (3, 64, 48)}
    with pytest.raises(PolicyError, match="cameras of one size"):
        cases.build_own(cases.Case(shapes))
    fitted = cases.Case(
        shapes, options={"action_mode": "auto", "resize_imgs_with_padding": (64, 64)}
    )
    assert cases.build_own(fitted).encode(cases.batch(fitted)).context.shape[1] == 2 * 5 + 10 + 3


def test_inputs_that_nothing_reads_are_refused(built, given):
    config = built().config
    more = {
        **config.input_features,
        "observation.environment_state": Feature(FeatureType.ENV, (2,)),
    }
    with pytest.raises(PolicyError, match="nothing else is read"):
        build_policy(config.with_features(more, config.output_features))
    blind = {k: v for k, v in given().items() if k not in (TOP, WRIST)}
    with pytest.raises(PolicyError, match="a batch without any of"):
        built().predict_chunk(blind)


def test_adapters_go_to_all_maps_and_prompts_may_be_trained_beside_them(built, given, cases):
    pytest.importorskip("peft")
    from kata.finetune.lora import adapt, adapted
    from kata.run.peft import PeftConfig

    policy, batch = built(freeze_vision_encoder=True).eval(), given()
    noise = draws(cases, policy)["noise"]
    before = policy.predict_chunk(batch, noise=noise)
    adapt(policy, PeftConfig(r=2, full_training_modules=["transformer.soft_prompt_hub"]))
    torch.testing.assert_close(policy.predict_chunk(batch, noise=noise), before)
    names = adapted(policy)
    assert "transformer.blocks.1.attn.qkv" in names
    assert not any(name.startswith("vision.") for name in names)
    loss = policy.train()(batch, **draws(cases, policy)).terms["joints_loss"].total
    loss.backward()
    trained = {n for n, p in policy.named_parameters() if p.requires_grad}
    assert all(".lora_" in name or "soft_prompt_hub" in name for name in trained)
    assert any("soft_prompt_hub" in name for name in trained)
    for name, parameter in policy.named_parameters():
        assert (parameter.grad is not None) == (name in trained), name


def test_numbers_that_are_made_up_are_named_before_step_1(built):
    rows = dict(built(6, action_mode="ee6d", domain_id=2).preflight_rows())
    assert rows["action mode"].startswith("ee6d: 6 of 20 numbers are the dataset's, the others")
    assert rows["robot"] == "domain 2 of 4"
    assert dict(built().preflight_rows())["action mode"] == "auto"


def test_a_delay_is_refused_where_chunks_do_not_last(built):
    config = built().config
    config.refuse_delay(2)
    with pytest.raises(PolicyError, match="a chunk lasts until"):
        config.refuse_delay(3)
    assert config.told_of_delay(2) == {"inference_delay": 2, "n_action_steps": 3}


def test_counts_are_at_least_one(built):
    config = built(do_mask_loss_for_padding=True).config
    assert config.loss_weights(2, {f"{ACTION}_is_pad": np.ones((2, 5), bool)}) == {
        "joints_loss": 1.0
    }
