"""Diffusion: options, windows, crops, acting, and what it refuses."""

import dataclasses
import json

import pytest
import torch
from torchvision.transforms.v2 import functional as F

from kata.errors import PolicyError
from kata.nn.denoising import NoiseProcess
from kata.nn.images import crop, feature_size
from kata.nn.resnet import build_resnet
from kata.policies import build_policy
from kata.policies.base import remember
from kata.policies.diffusion.config import Config
from kata.policies.load import load_weights, save_weights
from kata.run.resolve import read_policy_config
from kata.spec import ACTION, STATE, Feature, FeatureType

TOP, WRIST = "observation.images.top", "observation.images.wrist"
TINY = {
    "down_dims": (8, 16), "horizon": 8, "n_action_steps": 3, "n_groups": 4, "diffusion_step_embed_dim": 8,  # noqa: E501
    "num_train_timesteps": 10, "spatial_softmax_num_keypoints": 4, "pretrained_backbone_weights": None,  # noqa: E501
}  # fmt: skip


def config(*, cameras=(TOP,), size=(32, 32), state=True, **options):
    inputs = {key: Feature(FeatureType.VISUAL, (3, *size)) for key in cameras}
    inputs |= {STATE: Feature(FeatureType.STATE, (4,))} if state else {}
    return Config(
        input_features=inputs,
        output_features={ACTION: Feature(FeatureType.ACTION, (2,))},
        **{**TINY, **options},
    )


def batch(policy, size=2):
    c = policy.config
    seen = {key: torch.rand(size, c.n_obs_steps, *f.shape) for key, f in c.input_features.items()}
    pad = torch.zeros(size, c.horizon, dtype=torch.bool)
    pad[0, 5:] = True
    return {**seen, ACTION: torch.rand(size, c.horizon, 2) * 2 - 1, f"{ACTION}_is_pad": pad}


def test_windows_and_the_frames_left_out_follow_from_the_horizon():
    c = config()
    assert c.windows() == {TOP: (-1, 0), STATE: (-1, 0), ACTION: tuple(range(-1, 7))}
    assert c.chunk_start() == 1
    assert c.drop_last_frames() == 8 - 3 - 2 + 1
    assert Config().drop_last_frames() == 31
    assert Config(drop_n_last_frames=7).drop_last_frames() == 7
    assert Config(horizon=16, n_action_steps=8).drop_last_frames() == 7


def test_a_config_of_before_0_6_gets_the_defaults_of_its_time(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"type": "diffusion", "n_action_steps": 4}))
    raw = read_policy_config(tmp_path, [])
    assert (raw["horizon"], raw["n_action_steps"], raw["use_group_norm"]) == (16, 4, True)
    (tmp_path / "config.json").write_text(json.dumps({"type": "diffusion", "resize_shape": None}))
    assert "horizon" not in read_policy_config(tmp_path, [])


def test_options_of_katas_own_stay_out_of_lerobots_file(tmp_path):
    config().save(tmp_path)
    assert not (tmp_path / "kata.json").exists()
    config(crop_per_sample=True).save(tmp_path)
    assert "crop_per_sample" not in json.loads((tmp_path / "config.json").read_text())
    assert read_policy_config(tmp_path, [])["crop_per_sample"] is True


def test_crops_lie_where_the_draw_says():
    frames = torch.rand(3, 2, 3, 20, 30)
    place = torch.tensor([[0.0, 0.0], [0.5, 0.999], [0.999, 0.25]])
    got = crop(frames, (8, 10), place)
    for n, (top, left) in enumerate([(0, 0), (6, 20), (12, 5)]):
        assert torch.equal(got[n], frames[n, ..., top : top + 8, left : left + 10])
    assert torch.equal(crop(frames, (7, 11), None), F.center_crop(frames, [7, 11]))


@pytest.mark.parametrize("size", [(32, 32), (84, 97), (96, 65), (480, 640)])
def test_the_feature_map_has_the_size_that_is_foretold(size):
    with torch.device("meta"):
        net, _ = build_resnet("resnet18", None)
        out = torch.nn.Sequential(*list(net.children())[:-2])(torch.empty(2, 3, *size))
    assert tuple(out.shape[-2:]) == feature_size(size)


def test_one_crop_for_the_batch_or_one_for_each_sample():
    shared = config(cameras=(TOP, WRIST), crop_shape=(24, 24)).draws()["crop"]
    assert (shared.shape, shared.shared) == ((2, 2), True)
    assert not config(crop_shape=(24, 24), crop_per_sample=True).draws()["crop"].shared
    assert "crop" not in config(crop_shape=(24, 24), crop_is_random=False).draws()
    assert "crop" not in config().draws()


def test_noising_and_denoising_meet():
    """With the true noise known, DDIM finds the clean sample again in any number of steps."""
    process = NoiseProcess(50, "squaredcos_cap_v2", 0, 0, "epsilon", 1.0)
    clean = torch.rand(4, 6, 2) * 1.8 - 0.9

    def oracle(x, step):
        kept = process.kept[step].reshape(-1, 1, 1)
        return (x - kept.sqrt() * clean) / (1 - kept).sqrt()

    for steps in (1, 5, 50):
        found = process.sample(oracle, torch.randn_like(clean), steps, ddim=True)
        torch.testing.assert_close(found, clean, rtol=0, atol=1e-4)
    found = process.sample(oracle, torch.randn_like(clean), 50, ddim=False)
    torch.testing.assert_close(found, clean, rtol=0, atol=1e-4)


def test_the_loss_does_not_depend_on_the_split():
    policy = build_policy(config(use_group_norm=True, do_mask_loss_for_padding=True)).train()
    whole, draws = batch(policy, 4), {"noise": torch.randn(4, 8, 2), "time": torch.rand(4, 1)}
    total = policy(whole, **draws).terms["denoising_loss"].total
    parts = [
        policy({k: v[p] for k, v in whole.items()}, **{k: v[p] for k, v in draws.items()})
        .terms["denoising_loss"]
        .total
        for p in (slice(0, 1), slice(1, 4))
    ]
    torch.testing.assert_close(sum(parts), total)
    pads = {"action_is_pad": whole["action_is_pad"].numpy()}
    assert policy.config.loss_weights(4, pads) == {"denoising_loss": (4 * 8 - 3) * 2}


def test_padded_actions_count_only_where_they_are_asked_for():
    masked, plain = (config(do_mask_loss_for_padding=flag) for flag in (True, False))
    policy = build_policy(masked)
    other = build_policy(plain)
    other.load_state_dict(policy.state_dict())
    given, draws = batch(policy), {"noise": torch.randn(2, 8, 2), "time": torch.full((2, 1), 0.5)}
    # The last action reaches the first through the U-Net, so only its own error may change the sum.
    masked_sum, plain_sum = (
        p.eval()(given, **draws).terms["denoising_loss"].total.item() for p in (policy, other)
    )
    assert masked_sum < plain_sum


def test_acting_keeps_a_history_and_denoises_when_the_queue_is_empty():
    policy = build_policy(config(noise_scheduler_type="DDIM", num_inference_steps=2)).eval()
    seen = [
        {k: v[:, 0] for k, v in batch(policy).items() if k != f"{ACTION}_is_pad"} for _ in range(5)
    ]
    calls = []
    predict = policy.predict_chunk
    policy.predict_chunk = lambda b, **k: calls.append(b) or predict(b, **k)
    state = policy.init_state(2)
    for one in seen:
        action, state = policy.act(one, state)
        assert action.shape == (2, 2)
    assert len(calls) == 2
    assert torch.equal(calls[0][STATE], torch.stack([seen[0][STATE]] * 2, 1))
    assert torch.equal(calls[1][STATE], torch.stack([seen[2][STATE], seen[3][STATE]], 1))


def test_two_states_do_not_share_their_history():
    policy = build_policy(config())
    one = {k: v[:, 0] for k, v in batch(policy).items() if k != f"{ACTION}_is_pad"}
    first = remember(policy.init_state(2), one, [STATE], 2)
    assert STATE not in policy.init_state(2).memory.get("history", {})
    assert first[STATE].shape == (2, 2, 4)


def test_a_policy_without_a_state_trains_and_acts():
    policy = build_policy(
        config(state=False, num_inference_steps=2, noise_scheduler_type="DDIM")
    ).train()
    policy(batch(policy)).terms["denoising_loss"].total.backward()
    assert policy.predict_chunk(batch(policy)).shape == (2, 3, 2)


def test_recomputed_blocks_give_the_same_gradients():
    plain, again = build_policy(config()), build_policy(config(gradient_checkpointing=True))
    again.load_state_dict(plain.state_dict())
    given, draws = batch(plain), {"noise": torch.randn(2, 8, 2), "time": torch.rand(2, 1)}
    for policy in (plain.train(), again.train()):
        policy(given, **draws).terms["denoising_loss"].total.backward()
    for (name, a), b in zip(plain.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad), name


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_weights_of_a_compiled_unet_are_written_and_read_under_lerobots_prefix(tmp_path):
    plain, compiled = build_policy(config()), build_policy(config(compile_model=True))
    compiled.load_state_dict(plain.state_dict())
    save_weights(compiled, tmp_path / "model.safetensors")
    again = build_policy(config(compile_model=True))
    load_weights(again, tmp_path / "model.safetensors")
    assert all(
        torch.equal(a, b)
        for a, b in zip(again.state_dict().values(), plain.state_dict().values(), strict=True)
    )
    with pytest.raises(PolicyError, match="unet"):
        load_weights(plain, tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"horizon": 10}, "multiple of 4"),
        ({"n_action_steps": 8}, "n_action_steps=7"),
        ({"down_dims": (6, 16)}, "n_groups"),
        ({"num_inference_steps": 11}, "num_inference_steps"),
        ({"noise_scheduler_type": "DDMP"}, "DDPM"),
        ({"prediction_type": "noise"}, "epsilon"),
        (
            {
                "use_group_norm": True,
                "pretrained_backbone_weights": "ResNet18_Weights.IMAGENET1K_V1",
            },
            "batch norm",
        ),
        ({"crop_ratio": 1.5}, "crop_ratio"),
        ({"crop_shape": (0, 4)}, "crop_shape"),
        ({"vision_backbone": "resnet19"}, "resnet18"),
        ({"n_obs_steps": 0}, "n_obs_steps"),
    ],
)
def test_impossible_options_are_refused_with_a_remedy(options, said):
    with pytest.raises(PolicyError) as caught:
        config(**options)
    assert said in str(caught.value)


def test_features_that_do_not_suit_are_refused():
    with pytest.raises(PolicyError, match="crop_shape"):
        config(crop_shape=(40, 30)).validate_features()
    config(crop_shape=(40, 30), resize_shape=(48, 48), crop_ratio=0.9).validate_features()
    inputs = {**config().input_features, WRIST: Feature(FeatureType.VISUAL, (3, 16, 16))}
    unequal = dataclasses.replace(config(), input_features=inputs)
    with pytest.raises(PolicyError, match="one size"):
        unequal.validate_features()
    with pytest.raises(PolicyError, match="camera"):
        config(cameras=()).validate_features()
