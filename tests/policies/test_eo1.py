"""EO-1: LeRobot's names at full size, prompts, places, precision, padding, acting, refusals."""

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
from kata.errors import DataError, PolicyError
from kata.policies import build_policy, config_class
from kata.policies.config import PolicyConfig
from kata.policies.pipelines import canonical_pipelines
from kata.processors.qwen.frames import fitted_size, levels_of, resized
from kata.processors.qwen.places import multimodal_places
from kata.run import read_policy_config
from kata.spec import (
    ACTION,
    IMAGE_TOKEN,
    LANGUAGE_MASK,
    LANGUAGE_PLACES,
    LANGUAGE_TOKENS,
    STATE,
    STATE_TOKEN,
    TASK,
    Feature,
    FeatureType,
    missing_key,
    pad_key,
)

HERE = Path(__file__).parent
TOP, WRIST = "observation.images.top", "observation.images.wrist"
TERM = "flow_matching_loss"
TINY = {
    "chunk_size": 4,
    "n_action_steps": 2,
    "max_state_dim": 6,
    "max_action_dim": 5,
    "num_denoise_steps": 2,
    "image_min_pixels": 28**2,
    "image_max_pixels": 4 * 28**2,
    "load_vlm_weights": False,
}


@pytest.fixture(scope="module")
def tiny_qwen():
    sys.path.insert(0, str(HERE.parents[1] / "tools/peer"))
    try:
        return importlib.import_module("tiny_qwen")
    finally:
        sys.path.pop(0)


@pytest.fixture(scope="module")
def folder(tiny_qwen, tmp_path_factory):
    return str(tiny_qwen.write(tmp_path_factory.mktemp("qwen") / "model"))


@pytest.fixture
def config(folder):
    """A function that makes a tiny config."""

    def make(**options):
        cameras = {TOP: (3, 24, 60), WRIST: (3, 40, 40)}
        return config_class("eo1")(
            input_features={
                STATE: Feature(FeatureType.STATE, (3,)),
                **{key: Feature(FeatureType.VISUAL, shape) for key, shape in cameras.items()},
            },
            output_features={ACTION: Feature(FeatureType.ACTION, (2,))},
            **{**TINY, "vlm_base": folder, **options},
        )

    return make


@pytest.fixture
def build(config):
    def make(**options):
        torch.manual_seed(0)
        return build_policy(config(**options))

    return make


def raw(tasks=("push it", "wait"), size=2):
    stream = torch.Generator().manual_seed(0)
    pad = torch.zeros(size, 4, dtype=torch.bool)
    pad[0, 2:] = True
    return {
        TOP: torch.rand(size, 3, 24, 60, generator=stream),
        WRIST: torch.rand(size, 3, 40, 40, generator=stream),
        STATE: torch.randn(size, 3, generator=stream),
        ACTION: torch.randn(size, 4, 2, generator=stream),
        pad_key(ACTION): pad,
        TASK: list(tasks),
    }


def before(config):
    stats = {
        key: {"mean": np.zeros(width), "std": np.ones(width)}
        for key, width in ((STATE, 3), (ACTION, 2))
    }
    return canonical_pipelines(config, stats, rename_map={}, device="cpu")[0]


def draws():
    stream = torch.Generator().manual_seed(1)
    noise = torch.randn(2, 4, 5, generator=stream)
    return {"noise": noise, "time": torch.rand(2, 1, generator=stream)}


def details(policy, given):
    return policy(given, **draws()).detail[TERM]


def test_names_and_shapes_are_lerobots_at_full_size():
    camera = Feature(FeatureType.VISUAL, (3, 480, 640))
    with torch.device("meta"):
        policy = build_policy(
            config_class("eo1")(
                input_features={STATE: Feature(FeatureType.STATE, (7,)), TOP: camera},
                output_features={ACTION: Feature(FeatureType.ACTION, (7,))},
            ).without_downloads()
        )
    assert sum(p.numel() for p in policy.parameters()) == 3_771_607_072
    assert policy.text.dtype == torch.bfloat16  # as Qwen publishes its weights
    assert policy.state_proj.weight.dtype == torch.float32
    key_map = policy.key_map()
    tensors = {key_map.to_lerobot(name): tensor for name, tensor in policy.state_dict().items()}
    for name, other in key_map.aliases.items():
        tensors[other] = tensors[name]
    found: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        layer = re.search(r"(?:layers|blocks)\.(\d+)\.", name)
        folded = re.sub(r"(layers|blocks)\.\d+\.", r"\1.*.", name)
        line = f"{folded} {'x'.join(map(str, tensor.shape))}"
        found.setdefault(line, []).append(layer[1] if layer else "")
    lines = [f"{line} {','.join(layers)}".rstrip() for line, layers in found.items()]
    kept = (HERE / "eo1_keys.txt").read_text().splitlines()[1:]
    assert sorted(lines) == sorted(kept)
    assert all(key_map.from_lerobot(key_map.to_lerobot(n)) == n for n in policy.state_dict())


def test_places_count_an_image_by_its_longer_side():
    image = np.array([0, 0, 1, 1, 1, 1, 1, 1, 0, 1, 0], bool)
    places = multimodal_places(image, [(2, 3), (1, 1)])
    assert places.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 7],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7],
    ]


@pytest.mark.parametrize(
    ("size", "fitted"),
    [
        ((56, 84), (56, 84)),
        ((480, 640), (252, 364)),
        ((20, 30), (56, 84)),
        ((28, 2000), (28, 1988)),
    ],
)
def test_frames_fit_into_the_limits(size, fitted):
    assert fitted_size(size, 28, 4 * 28**2, 128 * 28**2) == fitted


def test_frames_of_other_devices_differ_from_pillows_by_few_levels():
    levels = levels_of(torch.rand(1, 3, 60, 90, generator=torch.Generator().manual_seed(0)))
    one, other = (resized(levels, (56, 28), with_pillow=flag).int() for flag in (True, False))
    assert (one - other).abs().max() <= 2
    assert resized(levels, (60, 90), with_pillow=True) is levels
    with pytest.raises(DataError, match="frames of 2x500 pixels"):
        fitted_size((2, 500), 28, 28**2, 28**4)


def test_a_prompt_holds_images_the_state_and_the_task(config):
    seen = before(config())(raw())
    tokens = seen[LANGUAGE_TOKENS]
    # 24 x 60 becomes 28 x 56 pixels, two tokens; 40 x 40 becomes 28 x 28, one.
    assert seen[TOP].shape == (2, 3, 28, 56)
    assert (tokens == IMAGE_TOKEN).sum(1).tolist() == [3, 3]
    assert (tokens == STATE_TOKEN).sum(1).tolist() == [1, 1]
    lengths = seen[LANGUAGE_MASK].sum(1)
    assert lengths[0] - lengths[1] == len("push it") - len("wait")
    assert seen[LANGUAGE_PLACES].amax((1, 2)).tolist() == (lengths - 1).tolist()
    assert not seen[LANGUAGE_PLACES][1, :, lengths[1] :].any()


def test_every_parameter_has_a_gradient_and_recomputing_changes_none(build, config):
    given = before(config())(raw())
    plain, again = build().train(), build(gradient_checkpointing=True).train()
    for policy in (plain, again):
        policy(given, **draws()).terms[TERM].total.backward()
    for one, other in zip(plain.parameters(), again.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    assert len(plain.recompute_units()) == 2 + 3
    assert again.recompute_units() == []


def test_samples_are_apart_and_padding_of_prompts_changes_nothing(build, config):
    policy, steps = build().eval(), before(config())
    whole = details(policy, steps(raw()))
    alone = {key: value[1:] for key, value in raw().items()}
    drawn = {key: value[1:] for key, value in draws().items()}
    other = policy(steps(alone), **drawn).detail[TERM]
    torch.testing.assert_close(other, whole[1:], rtol=1e-5, atol=0)


def test_a_camera_that_a_sample_lacks_is_as_one_that_is_absent(build, config):
    policy, steps = build().eval(), before(config())
    absent = steps({key: value for key, value in raw().items() if key != WRIST})
    lacking = steps({**raw(), missing_key(WRIST): torch.tensor([True, False])})
    one, other = details(policy, absent), details(policy, lacking)
    torch.testing.assert_close(one[0], other[0], rtol=1e-5, atol=0)
    assert abs(one[1] - other[1]) > 1e-4
    chunks = [policy.predict_chunk(seen, noise=draws()["noise"]) for seen in (absent, lacking)]
    torch.testing.assert_close(chunks[0][0], chunks[1][0])


def test_padding_counts_as_options_say(build, config):
    pads = {pad_key(ACTION): raw()[pad_key(ACTION)].numpy()}
    plain = config()
    assert plain.loss_weights(2, pads) == {TERM: 2 * 4 * 5}
    real = config(supervise_padding_actions=False, supervise_padding_action_dims=False)
    assert real.loss_weights(2, pads) == {TERM: 6 * 2}
    given = before(plain)(raw())
    more, less = details(build().eval(), given), details(build_policy_of(real).eval(), given)
    assert (less < more).all()
    # Nothing sees actions that are left out.
    changed = {**given, ACTION: given[ACTION] + given[pad_key(ACTION)][..., None] * 5}
    torch.testing.assert_close(details(build_policy_of(real).eval(), changed), less)


def build_policy_of(config):
    torch.manual_seed(0)
    return build_policy(config)


def test_a_cached_prompt_gives_the_velocity_of_one_pass(build, config):
    policy, given = build().eval(), before(config())(raw())
    noisy, time = draws()["noise"], torch.tensor([0.3, 0.8])
    kept = policy.velocity(policy.encode(given), noisy, time)
    torch.testing.assert_close(kept, policy.trained_velocity(given, noisy, time))
    chunk = policy.predict_chunk(given, noise=noisy)
    assert chunk.shape == (2, 4, 2)
    state = dataclasses.replace(policy.init_state(2), source=lambda name, draw: noisy)
    first, state = policy.act(given, state)
    second, state = policy.act({}, state)
    assert policy.needs_observation(state)
    assert torch.equal(torch.stack((first, second), 1), chunk[:, :2])


def test_narrow_weights_give_nearly_the_same_loss_and_units_of_one_dtype(build, config):
    given = before(config())(raw())
    narrow, wide = build(dtype="bfloat16").train(), build(dtype="float32").train()
    with torch.no_grad():
        for own, other in zip(wide.parameters(), narrow.parameters(), strict=True):
            own.copy_(other)
    losses = [policy(given, **draws()).terms[TERM].total for policy in (narrow, wide)]
    torch.testing.assert_close(losses[0], losses[1], rtol=2e-2, atol=0)
    units = set(narrow.shard_units())
    for unit in [narrow, *units]:
        inner = [part for part in unit.modules() if part is not unit and part in units]
        apart = {p for part in inner for p in part.parameters()}
        assert len({p.dtype for p in unit.parameters() if p not in apart}) == 1
    real = torch.ones(2, 5, dtype=torch.bool)
    with torch.autocast("cpu", torch.bfloat16):
        assert wide.action_tokens(draws()["noise"], torch.ones(2), real).dtype == torch.float32
        free = build(dtype="float32", force_fp32_autocast=False)
        assert free.action_tokens(draws()["noise"], torch.ones(2), real).dtype == torch.bfloat16


def test_files_hold_the_config_of_the_model_and_the_steps_of_lerobot(config, tmp_path):
    known = config().with_columns({})
    assert known.vlm_config["text_config"]["hidden_size"] == 32
    known.save(tmp_path)
    plain = json.loads((tmp_path / "config.json").read_text())
    assert "load_vlm_weights" not in plain
    assert decode(PolicyConfig, read_policy_config(tmp_path, [])) == known
    pipeline = before(known)
    assert [step.registry_name for step in pipeline.steps] == [
        "rename_observations_processor", "to_batch_processor", "normalizer_processor",
        "eo1_conversation_template_processor", "eo1_qwen_processor", "device_processor",
    ]  # fmt: skip
    assert sorted(pipeline.steps[4].config()) == [
        "image_max_pixels", "image_min_pixels", "processor_name", "use_fast_processor",
    ]  # fmt: skip


def test_pretrained_weights_come_from_files_of_both_ages(build, config, tiny_qwen, tmp_path):
    policy = build()
    key_map = policy.key_map()
    stored = {
        key_map.to_lerobot(name).removeprefix("model.vlm_backbone."): tensor
        for name, tensor in policy.state_dict().items()
        if key_map.to_lerobot(name).startswith("model.vlm_backbone.")
    }
    older = {
        re.sub(r"^model\.language_model\.", "model.", re.sub(r"^model\.visual", "visual", n)): t
        for n, t in stored.items()
    }
    place = tiny_qwen.write(tmp_path / "model")
    for names in (stored, older):
        save_file(names, place / "model.safetensors")
        torch.manual_seed(7)
        again = build_policy(config(vlm_base=str(place), load_vlm_weights=True))
        for name, tensor in [*policy.text.named_parameters(), *policy.vision.named_parameters()]:
            owner = again.text if name in dict(again.text.named_parameters()) else again.vision
            assert torch.equal(owner.get_parameter(name), tensor), name
    del older["visual.merger.ln_q.weight"]
    save_file(older, place / "model.safetensors")
    with pytest.raises(PolicyError, match=r"1 missing .*merger.ln_q"):
        build_policy(config(vlm_base=str(place), load_vlm_weights=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_action_steps": 5}, "no more actions are executed than a chunk holds"),
        ({"image_min_pixels": None}, "image_min_pixels=null"),
        ({"image_max_pixels": None}, "image_max_pixels=null"),
        ({"image_min_pixels": 10000}, "the fewest pixels are no more than the most"),
        ({"time_sampling_scale": 1.5}, "times end at 1, the noise"),
        ({"n_obs_steps": 2}, "sees one observation step"),
        ({"max_action_dim": 1}, "2 numbers with policy.max_action_dim=1"),
        ({"vlm_config": {"text_config": {"hidden_size": 8}}}, "without num_attention_heads"),
        ({"vlm_base": "/nowhere"}, "/nowhere: no such folder"),
    ],
)
def test_impossible_options_are_refused(config, options, message):
    with pytest.raises(PolicyError, match=re.escape(message)):
        build_policy(config(**options))


def test_models_that_differ_from_the_published_ones_are_refused(config, tiny_qwen):
    for sizes, message in (
        ({"text": {"use_sliding_window": True}}, "use_sliding_window=True"),
        ({"vision": {"patch_size": 16}}, "tokens have 32 pixels"),
        ({"vision": {"out_hidden_size": 64}}, "out_hidden_size=64"),
        ({"text": {"rope_parameters": {"mrope_section": [1, 1, 1]}}}, "sections of half a head"),
    ):
        with pytest.raises(PolicyError, match=message):
            build_policy(config(vlm_config=tiny_qwen.config(**sizes)))
    small = config(vlm_config=tiny_qwen.config(text={"vocab_size": 270}))
    with pytest.raises(PolicyError, match="277 tokens with EO-1's, and a table of 270"):
        before(small)
    with pytest.raises(DataError, match="a task sentence and at least one camera"):
        before(config())({STATE: torch.zeros(1, 3), TASK: ["push"]})
