"""VQ-BeT: options, windows, codebooks, the two phases, acting, and what it refuses."""

import copy
import dataclasses
import json

import numpy as np
import pytest
import torch

from kata.errors import PolicyError
from kata.optim.build import build_optimizer
from kata.optim.config import AdamConfig
from kata.optim.ema import ema_copy, ema_update
from kata.policies import build_policy
from kata.policies.load import load_weights, save_weights
from kata.policies.vqbet.config import Config, padded_chunks
from kata.policies.vqbet.quantize import Codebook, ResidualQuantizer
from kata.run import resolve_run
from kata.run.resolve import read_policy_config
from kata.spec import ACTION, ENV_STATE, STATE, Feature, FeatureType

TOP, WRIST = "observation.images.top", "observation.images.wrist"
TINY = {
    "n_obs_steps": 3, "n_action_pred_token": 2, "action_chunk_size": 3, "crop_shape": (28, 32), "dropout": 0.0,  # noqa: E501
    "pretrained_backbone_weights": None, "use_group_norm": True, "spatial_softmax_num_keypoints": 4,
    "vqvae_n_embed": 6, "vqvae_embedding_dim": 8, "vqvae_enc_hidden_dim": 12, "gpt_block_size": 16, "gpt_input_dim": 12,  # noqa: E501
    "gpt_output_dim": 10, "gpt_n_layer": 2, "gpt_n_head": 2, "gpt_hidden_dim": 16, "n_vqvae_training_steps": 3,  # noqa: E501
}  # fmt: skip

FINE = torch.tensor(False)
"""No step is skipped."""


def config(*, inputs=(TOP, STATE), size=(32, 40), **options):
    known = {
        TOP: Feature(FeatureType.VISUAL, (3, *size)),
        WRIST: Feature(FeatureType.VISUAL, (3, *size)),
        STATE: Feature(FeatureType.STATE, (4,)),
        ENV_STATE: Feature(FeatureType.ENV, (4,)),
        "observation.velocity": Feature(FeatureType.STATE, (4,)),
    }
    return Config(
        input_features={key: known[key] for key in inputs},
        output_features={ACTION: Feature(FeatureType.ACTION, (2,))},
        **{**TINY, **options},
    )


def batch(size=4, seed=0):
    stream = torch.Generator().manual_seed(seed)
    pad = torch.zeros(size, 6, dtype=torch.bool)
    pad[0, 4:] = True
    return {
        TOP: torch.rand(size, 3, 3, 32, 40, generator=stream),
        STATE: torch.rand(size, 3, 4, generator=stream),
        ACTION: torch.rand(size, 6, 2, generator=stream) * 2 - 1,
        f"{ACTION}_is_pad": pad,
    }


def draws(size=4):
    stream = torch.Generator().manual_seed(7)
    return {
        "noise": torch.rand(size, 4, 2, generator=stream),
        "crop": torch.full((size, 1, 2), 0.4),
    }


@pytest.fixture(scope="module")
def untrained():
    torch.manual_seed(0)
    return build_policy(config()).train()


@pytest.fixture
def policy(untrained):
    return copy.deepcopy(untrained)


def vqvae(policy):
    return policy.vqbet.action_head.vqvae_model


def part(values, where):
    return {key: value[where] for key, value in values.items()}


def test_windows_reach_from_the_oldest_observation_to_the_last_chunk():
    c = config()
    assert c.windows() == {TOP: (-2, -1, 0), STATE: (-2, -1, 0), ACTION: tuple(range(-2, 4))}
    assert Config().windows()[ACTION] == tuple(range(-4, 7))
    assert (c.chunk_start(), c.drop_last_frames(), c.chunks) == (2, 0, 4)
    assert c.draws()["noise"].shape == (4, 2)
    assert (c.draws()["crop"].shape, c.draws()["crop"].shared) == ((1, 2), True)


def test_options_of_katas_own_stay_out_of_lerobots_file(tmp_path):
    config(keep_unused_codes=True).save(tmp_path)
    plain = json.loads((tmp_path / "config.json").read_text())
    mine = {
        "crop_per_sample",
        "do_mask_loss_for_padding",
        "keep_unused_codes",
        "scheduler_decay_to_zero",
    }
    assert not mine & set(plain)
    assert read_policy_config(tmp_path, [])["keep_unused_codes"] is True


def test_codebooks_follow_the_mean_of_what_is_nearest():
    book = Codebook(3, 2, keep_unused=False)
    book.embed[0] = torch.tensor([[0.0, 0.0], [1.0, 0.0], [9.0, 9.0]])
    x = torch.tensor([[0.1, 0.0], [0.9, 0.2], [1.1, 0.2], [5.0, 5.0]])
    codes = book.nearest(x)
    assert codes.tolist() == torch.cdist(x, book.embed[0]).argmin(1).tolist() == [0, 1, 1, 2]
    for _ in range(60):  # averages of what never changes arrive at it
        book.count(x, codes, torch.tensor([True, True, True, False]))
        assert book.update(FINE) == 2
    torch.testing.assert_close(
        book.embed[0, :2], torch.tensor([[0.1, 0.0], [1.0, 0.2]]), rtol=0, atol=1e-4
    )


def test_unused_codes_stay_only_where_they_are_asked_to():
    for keep in (False, True):
        book = Codebook(3, 2, keep_unused=keep)
        before = book.embed.clone()
        x = before[0, :1].expand(4, 2)
        book.count(x, book.nearest(x), None)
        book.update(FINE)
        assert torch.equal(book.embed[0, 2], before[0, 2]) == keep
        assert (book.embed[0, 2].abs().max() > 100) == (not keep)


def test_a_skipped_step_leaves_the_codebook():
    book = Codebook(3, 2, keep_unused=False)
    before = {name: value.clone() for name, value in book.named_buffers()}
    for skipped in (True, False):
        book.count(torch.tensor([[float("nan") if skipped else 0.5, 1.0]]), torch.tensor([1]), None)
        book.update(torch.tensor(skipped))
        assert (
            all(torch.equal(value, before[name]) for name, value in book.named_buffers()) == skipped
        )
    assert all(value.isfinite().all() for value in book.buffers())


def test_what_one_codebook_leaves_the_next_one_quantises():
    quantizer = ResidualQuantizer(2, 5, 3, keep_unused=False)
    for book in quantizer.books():
        book.embed.normal_()
    x = torch.randn(7, 3, requires_grad=True)
    found = quantizer(x)
    torch.testing.assert_close(quantizer.entries(found.codes), found.value)
    first = quantizer.books()[0].embed[0][found.codes[:, 0]]
    second = quantizer.books()[1].embed[0][found.codes[:, 1]]
    torch.testing.assert_close(
        found.distance, (first - x).square() + (second - (x - first)).square()
    )
    found.value.sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 2.0))


@pytest.mark.parametrize("learnt", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_loss_and_codebooks_do_not_depend_on_the_split(policy, learnt, masked):
    """Also not when the parts lie on several ranks, which add their sums before the codebooks
    move.
    """
    policy.vqbet.config = dataclasses.replace(policy.config, do_mask_loss_for_padding=masked)
    if learnt:
        vqvae(policy).fix_codes()
    split, other = copy.deepcopy(policy), copy.deepcopy(policy)
    given, drawn = batch(), draws()
    whole = policy(given, **drawn).terms
    parts = [
        p(part(given, w), **part(drawn, w)).terms
        for p, w in ((split, slice(1)), (other, slice(1, 4)))
    ]
    parts.append(split(part(given, slice(0)), **part(drawn, slice(0))).terms)
    for name, term in whole.items():
        torch.testing.assert_close(
            sum(p[name].total for p in parts), term.total, rtol=1e-5, atol=1e-5, msg=name
        )
    for mine, theirs in zip(split.step_sums(), other.step_sums(), strict=True):
        mine += theirs
    assert len(policy.step_sums()) == (0 if learnt else 4)
    used = [policy.after_step(1, FINE), split.after_step(1, FINE)]
    assert used[0] == used[1]
    for (name, a), b in zip(vqvae(policy).named_buffers(), vqvae(split).buffers(), strict=True):
        torch.testing.assert_close(a, b, msg=name)


def test_denominators_are_those_of_both_phases(policy):
    pads = {f"{ACTION}_is_pad": batch()[f"{ACTION}_is_pad"].numpy()}
    counts = policy.config.loss_weights(4, pads)
    assert (counts["reconstruction_loss"], counts["commitment_loss"]) == (4 * 4 * 3 * 2, 4 * 4 * 8)
    assert (counts["offset_loss"], counts["primary_code_loss"]) == (4 * 4 * 3 * 2, 4 * 4)
    masked = config(do_mask_loss_for_padding=True)
    assert masked.loss_weights(4, pads)["primary_code_loss"] == 4 * 4 - 2
    assert (
        masked.loss_weights(1, {f"{ACTION}_is_pad": np.ones((1, 6), bool)})["primary_code_loss"]
        == 1
    )
    first = policy(batch(), **draws()).terms
    vqvae(policy).fix_codes()
    second = policy(batch(), **draws()).terms
    assert {*first, *second} == set(counts)
    assert {name for name, term in second.items() if term.scale == 0} == {
        *("primary_code_match", "secondary_code_match", "decoded_error")
    }


def test_chunks_with_padded_actions_are_found():
    pad = np.array([[1, 0, 0, 0, 1, 1]], bool)
    assert (
        padded_chunks(pad, 3).tolist()
        == padded_chunks(torch.from_numpy(pad), 3).tolist()
        == [[1, 0, 1, 1]]
    )
    assert padded_chunks(pad, 1).tolist() == pad.tolist()


def test_the_phase_ends_with_the_step_whatever_came_before(policy):
    """A run that is continued in the first phase ends it where a straight one does."""
    for step in (1, 2):
        policy(batch(), **draws())
        assert set(policy.after_step(step, FINE)) == {"primary_codes_used", "secondary_codes_used"}
    continued = build_policy(policy.config).train()
    continued.load_state_dict(policy.state_dict())
    assert "reconstruction_loss" in continued(batch(), **draws()).terms
    continued.after_step(3, FINE)
    assert vqvae(continued).discretized
    assert vqvae(continued).vq_layer.freeze_codebook
    before = vqvae(continued).vq_layer.books()[0].embed.clone()
    assert "offset_loss" in continued(batch(), **draws()).terms
    assert continued.after_step(4, FINE) == {}
    assert torch.equal(vqvae(continued).vq_layer.books()[0].embed, before)


def test_judging_learns_no_codes(policy):
    policy.eval()(batch(), **draws())
    assert policy.step_sums() == []


def test_the_average_of_the_weights_changes_phase_too(policy):
    average = ema_copy(policy)
    assert "reconstruction_loss" in average(batch(), **draws()).terms
    vqvae(policy).fix_codes()
    ema_update(average, policy, 0.9, FINE)
    assert "offset_loss" in average(batch(), **draws()).terms


def test_no_step_moves_what_has_no_gradient(policy):
    """Neither decay nor moments of the phase before."""
    groups = policy.param_groups()
    assert sorted(id(p) for group in groups for p in group.params) == sorted(
        id(p) for p in policy.parameters()
    )
    assert [(g.lr, g.weight_decay, len(g.params)) for g in groups[1:]] == [
        (1e-3, 1e-4, 12),
        (None, 0.0, 20),
    ]
    optimizer = build_optimizer(groups, AdamConfig(lr=0.1, weight_decay=0.5))
    codes = {id(p) for p in groups[1].params}
    for step in range(5):
        before = {name: p.detach().clone() for name, p in policy.named_parameters()}
        loss = policy(batch(), **draws())
        torch.stack([t.scale * t.total for t in loss.terms.values()]).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        policy.after_step(step + 1, FINE)
        moved = {id(p) for name, p in policy.named_parameters() if not torch.equal(p, before[name])}
        assert moved == codes if step < 3 else moved and not moved & codes


@pytest.mark.parametrize("sequentially", [False, True])
def test_a_step_reads_nothing_from_the_device(sequentially):
    """On the meta device there is nothing to read: whatever waited for the device would fail."""
    with torch.device("meta"):
        policy = build_policy(
            config(sequentially_select=sequentially, do_mask_loss_for_padding=True)
        ).train()
    given, drawn = (
        {key: value.to("meta") for key, value in values.items()} for values in (batch(), draws())
    )
    with pytest.raises(RuntimeError, match="meta"):
        vqvae(policy).has_codes()
    vqvae(policy)._known = False
    for step in range(1, 5):
        terms = policy(given, **drawn).terms
        assert ("offset_loss" in terms) == (step > 3)
        torch.stack([t.total * t.scale for t in terms.values()]).sum().backward()
        policy.after_step(step, FINE.to("meta"))


def test_codes_are_chosen_by_the_draw(policy):
    head = policy.vqbet.action_head
    logits = torch.tensor([0.1, 0.4, 0.3, 0.2]).log() * policy.config.bet_softmax_temperature
    noise = torch.tensor([0.0, 0.09, 0.11, 0.49, 0.51, 0.79, 0.81, 1.0])
    assert head._choose(logits.expand(8, 4), noise).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("sequentially", [False, True])
def test_acting_keeps_a_history_and_predicts_when_the_queue_is_empty(sequentially):
    policy = build_policy(config(sequentially_select=sequentially)).eval()
    seen = [{k: v[:, 0] for k, v in batch(2, n).items() if k in (TOP, STATE)} for n in range(5)]
    calls = []
    predict = policy.predict_chunk
    policy.predict_chunk = lambda b, **k: calls.append(b) or predict(b, **k)
    state = policy.init_state(2)
    for one in seen:
        action, state = policy.act(one, state)
        assert action.shape == (2, 2)
    assert len(calls) == 2
    assert torch.equal(calls[1][STATE], torch.stack([s[STATE] for s in seen[1:4]], 1))
    chunk = predict(calls[1], noise=torch.full((2, 4, 2), 0.5))
    assert chunk.shape == (2, 3, 2)
    torch.testing.assert_close(
        chunk[1:], predict(part(calls[1], slice(1, 2)), noise=torch.full((1, 4, 2), 0.5))
    )


@pytest.mark.parametrize("learnt", [False, True])
def test_weights_are_written_with_all_that_lerobot_holds_and_read_again(policy, tmp_path, learnt):
    if learnt:
        vqvae(policy).fix_codes()
    save_weights(policy, tmp_path / "model.safetensors")
    again = build_policy(policy.config).train()
    assert not vqvae(again).has_codes()
    load_weights(again, tmp_path / "model.safetensors")
    assert vqvae(again).has_codes() == learnt
    for (name, a), b in zip(policy.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"n_obs_steps": 0}, "n_obs_steps"),
        ({"gpt_n_head": 3}, "multiple of the heads"),
        ({"gpt_n_head": 0}, "gpt_n_head"),
        ({"gpt_block_size": 9}, "gpt_block_size=10"),
        ({"dropout": 1.0}, "dropout"),
        ({"bet_softmax_temperature": 0.0}, "temperature=0.1"),
        ({"n_vqvae_training_steps": 0}, "n_vqvae_training_steps"),
        ({"vision_backbone": "resnet19"}, "resnet18"),
        ({"pretrained_backbone_weights": "ResNet18_Weights.IMAGENET1K_V1"}, "batch norm"),
        ({"crop_shape": (0, 4)}, "crop_shape"),
    ],
)
def test_impossible_options_are_refused_with_a_remedy(options, said):
    with pytest.raises(PolicyError) as caught:
        config(**options)
    assert said in str(caught.value)


@pytest.mark.parametrize("more", [WRIST, ENV_STATE, "observation.velocity"])
def test_a_third_input_is_refused_with_the_two_that_may_stay(more):
    with pytest.raises(PolicyError) as caught:
        config(inputs=(TOP, more, STATE)).validate_features()
    assert more not in str(caught.value).partition("--policy.input_features=")[2]
    assert TOP in str(caught.value).partition("--policy.input_features=")[2]


@pytest.mark.parametrize("inputs", [(TOP,), (STATE,), (TOP, WRIST), (TOP, ENV_STATE)])
def test_camera_and_state_are_both_needed(inputs):
    with pytest.raises(PolicyError, match="one camera and"):
        config(inputs=inputs).validate_features()
    with pytest.raises(PolicyError, match="crop_shape"):
        config(crop_shape=(40, 30)).validate_features()


def test_a_run_that_ends_before_the_policy_learns_to_act_is_refused():
    options = ["--policy.type=vqbet", "--dataset.repo_id=a/b", "--policy.push_to_hub=false"]
    with pytest.raises(PolicyError, match="n_vqvae_training_steps=1000"):
        resolve_run([*options, "--steps=5000"])
    run, notes = resolve_run([*options, "--steps=5000", "--policy.n_vqvae_training_steps=4900"])
    assert (run.scheduler.num_vqvae_training_steps, run.scheduler.num_warmup_steps) == (4900, 100)
    assert any("500 to 100" in note for note in notes)
    run, _ = resolve_run([*options, "--steps=50000", "--policy.scheduler_decay_to_zero=true"])
    assert run.scheduler.decay_to_zero
