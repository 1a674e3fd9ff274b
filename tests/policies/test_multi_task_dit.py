"""Multi-Task DiT: options, windows, encoders and tokenizer from a folder, acting, and what it
refuses.
"""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch

from kata.errors import DataError, PolicyError
from kata.policies import build_policy
from kata.policies.load import load_weights, save_weights
from kata.policies.multi_task_dit.config import Config
from kata.policies.pipelines import canonical_pipelines
from kata.processors.pipeline import PREPROCESSOR, load_pipeline
from kata.processors.tokenize import Tokenize
from kata.run import resolve_run
from kata.run.resolve import read_policy_config
from kata.spec import (
    ACTION,
    ENV_STATE,
    LANGUAGE_MASK,
    LANGUAGE_TOKENS,
    STATE,
    TASK,
    Feature,
    FeatureType,
)
from kata.train.input.prepare import prepare

TOP, WRIST = "observation.images.top", "observation.images.wrist"
TINY = {
    "horizon": 8, "n_action_steps": 3, "hidden_dim": 16, "num_layers": 2, "num_heads": 2, "timestep_embed_dim": 8,  # noqa: E501
    "num_train_timesteps": 10, "num_integration_steps": 4, "num_inference_steps": 2, "tokenizer_max_length": 8,  # noqa: E501
    "image_crop_shape": (32, 32), "pretrained_encoders": False,
}  # fmt: skip


def config(clip, *, inputs=(TOP, STATE), size=(40, 48), **options):
    known = {
        TOP: Feature(FeatureType.VISUAL, (3, *size)),
        WRIST: Feature(FeatureType.VISUAL, (3, *size)),
        STATE: Feature(FeatureType.STATE, (4,)),
        ENV_STATE: Feature(FeatureType.ENV, (4,)),
    }
    names = {"vision_encoder_name": str(clip), "text_encoder_name": str(clip)}
    return Config(
        input_features={key: known[key] for key in inputs},
        output_features={ACTION: Feature(FeatureType.ACTION, (2,))},
        **{**TINY, **names, **options},
    )


def observation(c, size=2, seed=0):
    stream = torch.Generator().manual_seed(seed)
    return {
        key: torch.rand(size, *f.shape, generator=stream) for key, f in c.input_features.items()
    }


def told(c, sentences):
    return {k: v for k, v in Tokenize(**c.tokenizer())({TASK: sentences}).items() if k != TASK}


def batch(c, size=2):
    steps = [observation(c, size, seed) for seed in range(c.n_obs_steps)]
    pad = torch.zeros(size, c.horizon, dtype=torch.bool)
    pad[0, 5:] = True
    return {
        **{key: torch.stack([step[key] for step in steps], 1) for key in c.input_features},
        **told(c, ["push the block", "reach the red peg"][:size]),
        ACTION: torch.linspace(-1, 1, size * c.horizon * 2).reshape(size, c.horizon, 2),
        f"{ACTION}_is_pad": pad,
    }


@pytest.fixture
def policy(tiny_clip):
    torch.manual_seed(0)
    return build_policy(config(tiny_clip))


def opened(policy):
    """Gates away from zero, so that the condition is felt."""
    with torch.no_grad():
        for block in policy.noise_predictor.transformer_blocks:
            block.adaLN_modulation[1].weight.normal_(
                std=0.3, generator=torch.Generator().manual_seed(1)
            )
    return policy


def test_windows_draws_and_weights_follow_from_the_options(tiny_clip):
    c = config(tiny_clip)
    assert c.windows() == {TOP: (-1, 0), STATE: (-1, 0), ACTION: tuple(range(-1, 7))}
    assert (c.chunk_start(), c.drop_last_frames(), Config().drop_last_frames()) == (1, 4, 7)
    assert (c.draws()["crop"].shape, c.draws()["crop"].shared, c.draws()["time"].shape) == (
        (1, 2),
        True,
        (1,),
    )
    assert "crop" not in dataclasses.replace(c, image_crop_is_random=False).draws()
    pads = {f"{ACTION}_is_pad": np.eye(2, 8, dtype=bool)}
    assert c.loss_weights(2, pads) == {"diffusion_loss": 32.0}
    masked = dataclasses.replace(c, do_mask_loss_for_padding=True, objective="flow_matching")
    assert masked.loss_weights(2, pads) == {"flow_matching_loss": 28.0}


def test_own_options_stay_out_of_lerobots_file(tiny_clip, tmp_path):
    config(tiny_clip).save(tmp_path)
    assert "pretrained_encoders" not in json.loads((tmp_path / "config.json").read_text())
    assert json.loads((tmp_path / "kata.json").read_text()) == {"pretrained_encoders": False}
    assert read_policy_config(tmp_path, [])["type"] == "multi_task_dit"


@pytest.mark.parametrize("objective", ["diffusion", "flow_matching"])
def test_the_loss_does_not_depend_on_the_split(tiny_clip, objective):
    c = config(tiny_clip, objective=objective, do_mask_loss_for_padding=True, dropout=0.0)
    policy, whole = opened(build_policy(c)), batch(c)
    draws = {
        "noise": torch.linspace(-1, 1, 32).reshape(2, 8, 2), "time": torch.tensor([[0.2], [0.7]]),
        "crop": torch.full((2, 1, 2), 0.4),
    }  # fmt: skip
    name = f"{objective}_loss"

    def total(part):
        mine = {key: value[part] for key, value in whole.items()}
        return policy(mine, **{key: value[part] for key, value in draws.items()}).terms[name].total

    torch.testing.assert_close(total(slice(0, 2)), total(slice(0, 1)) + total(slice(1, 2)))


def test_the_sentence_changes_what_is_done(policy):
    c, seen = policy.config, batch(policy.config)
    start = torch.linspace(-1, 1, 32).reshape(2, 8, 2)
    opened(policy)
    torch.manual_seed(0)
    one = policy.predict_chunk(seen, noise=start)
    torch.manual_seed(0)
    other = policy.predict_chunk(
        {**seen, **told(c, ["insert the peg", "reach the red peg"])}, noise=start
    )
    assert one.shape == (2, 3, 2)
    assert not torch.allclose(one[0], other[0])
    assert torch.equal(one[1], other[1])


def test_acting_together_is_acting_alone(tiny_clip):
    c = config(tiny_clip, objective="flow_matching", integration_method="rk4")
    policy = opened(build_policy(c)).eval()
    words = told(c, ["push the block", "insert the peg"])
    frames = [observation(c, 2, seed) for seed in range(4)]

    def acted(rows):
        state, actions = policy.init_state(1), []
        for frame in frames:
            torch.manual_seed(0)
            start = torch.randn(2, 8, 2)[rows]
            given = {key: value[rows] for key, value in {**frame, **words}.items()}
            policy_chunk = policy.predict_chunk
            policy.predict_chunk = lambda b, chunk=policy_chunk, start=start: chunk(b, noise=start)
            action, state = policy.act(given, state)
            del policy.predict_chunk
            actions.append(action)
        return torch.stack(actions)

    together = acted(slice(0, 2))
    torch.testing.assert_close(
        together, torch.cat([acted(slice(0, 1)), acted(slice(1, 2))], 1), rtol=0, atol=1e-5
    )


def test_the_text_encoder_is_frozen_and_the_image_encoder_learns_slowly(policy):
    main, vision = policy.param_groups()
    assert (main.lr, vision.lr) == (None, 2e-5 * 0.1)
    trained = {id(p) for group in (main, vision) for p in group.params}
    names = {name for name, p in policy.named_parameters() if id(p) not in trained}
    assert all(
        ".text_encoder.text_encoder." in name or ".post_layernorm." in name for name in names
    )
    assert (
        len(trained)
        == len(main.params) + len(vision.params)
        == len(list(policy.parameters())) - len(names)
    )


def test_weights_come_from_a_folder_and_a_checkpoint_needs_none(tiny_clip, tmp_path):
    from transformers import CLIPConfig, CLIPModel

    clip = shutil.copytree(tiny_clip, tmp_path / "clip")
    with pytest.raises(PolicyError, match=r"no model\.safetensors; or pytorch_model\.bin"):
        build_policy(config(clip, pretrained_encoders=True))
    model = CLIPModel(CLIPConfig.from_pretrained(clip))
    model.save_pretrained(clip)
    shutil.copy(tiny_clip / "config.json", clip)
    policy = build_policy(config(clip, pretrained_encoders=True))
    stored = model.vision_model.encoder.layers[1].mlp.fc1.weight
    assert torch.equal(
        policy.observation_encoder.vision_encoder.model["vision_model"]
        .encoder.layers[1]
        .mlp.fc1.weight,
        stored,
    )
    words = policy.observation_encoder.text_encoder.text_encoder[
        "text_model"
    ].embeddings.token_embedding.weight
    assert torch.equal(words, model.text_model.embeddings.token_embedding.weight)
    save_weights(policy, tmp_path / "model.safetensors")
    (clip / "model.safetensors").unlink()
    again = build_policy(policy.config.without_downloads())
    load_weights(again, tmp_path / "model.safetensors")
    assert all(
        torch.equal(value, again.state_dict()[key]) for key, value in policy.state_dict().items()
    )


def test_the_tokenizer_is_a_step_of_the_pipeline(tiny_clip, tmp_path):
    c = dataclasses.replace(config(tiny_clip), normalization_mapping={})
    before, _ = canonical_pipelines(c, {}, rename_map={}, device="cpu")
    before.save(tmp_path)
    again = load_pipeline(tmp_path, PREPROCESSOR)
    assert [step.registry_name for step in again.steps][2] == "tokenizer_processor"
    kept = {"tokenizer_name": str(tmp_path / "tokenizer")}
    assert again.steps[2].config() == {**before.steps[2].config(), **kept}
    batch = again({STATE: torch.zeros(4), TASK: "push the block"})
    ends = json.loads((tiny_clip / "vocab.json").read_text())
    words = [ends[word] for word in ("<|startoftext|>", "push</w>", "the</w>", "block</w>")]
    assert batch[LANGUAGE_TOKENS].tolist() == [[*words, *[ends["<|endoftext|>"]] * 4]]
    assert batch[LANGUAGE_MASK].tolist() == [[True] * 5 + [False] * 3]
    with pytest.raises(DataError, match="told in a sentence"):
        again({STATE: torch.zeros(4)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "flow"}, "policy.objective=flow"),
        ({"hidden_dim": 18, "num_heads": 4}, "each head takes an equal part"),
        ({"n_action_steps": 8}, "at most horizon - n_obs_steps"),
        ({"num_inference_steps": 11}, "between 1 and num_train_timesteps=10"),
        ({"sigma_min": -0.1}, "policy.sigma_min=-0.1"),
        ({"timestep_sampling_alpha": 0.0}, "policy.timestep_sampling_alpha=0.0"),
        ({"vision_encoder_name": "google/siglip"}, "a CLIP model"),
        (
            {"image_crop_shape": (41, 32)},
            r"policy.image_crop_shape=\[41, 32\] of observation.images.top",
        ),
        ({"image_crop_shape": (30, 32)}, "frames of 30x32.*\n.*32x32"),
        ({"image_crop_shape": None, "size": (24, 24)}, "frames of 24x24.*\n.*32x32"),
        ({"tokenizer_max_length": 17}, "reads at most 16 tokens"),
        ({"text_encoder_name": "/no/clip"}, "/no/clip: no such folder"),
        ({"inputs": (TOP,)}, "nothing else is read"),
        ({"inputs": (TOP, STATE, ENV_STATE)}, "nothing else is read"),
    ],
)
def test_what_cannot_work_is_refused(tiny_clip, options, message):
    with pytest.raises(PolicyError, match=message):
        build_policy(config(tiny_clip, **options))


def test_absent_tokenizer_files_are_named(tiny_clip, tmp_path):
    clip = shutil.copytree(tiny_clip, tmp_path / "clip")
    (clip / "merges.txt").unlink()
    with pytest.raises(
        PolicyError, match=r"no tokenizer\.json; or merges\.txt; or tokenizer\.model"
    ):
        Tokenize(**config(clip).tokenizer())
    with pytest.raises(PolicyError, match="no such folder"):
        Tokenize("./nowhere")


def test_episodes_without_a_sentence_are_refused(tiny_clip, tiny_dataset, tmp_path):
    from kata.data.writing.dataset_writer import DatasetWriter
    from kata.spec import Column

    root = tmp_path / "silent"
    features = {
        TOP: Column("image", (40, 48, 3)), STATE: Column("float32", (4,)), ACTION: Column("float32", (2,))  # noqa: E501
    }  # fmt: skip
    rng = np.random.default_rng(0)
    with DatasetWriter.create(root, fps=10, features=features) as writer:
        for task in ("push the block", ""):
            for _ in range(6):
                frame = {TOP: np.zeros((40, 48, 3), np.uint8)}
                frame |= {
                    key: rng.uniform(-1, 1, n).astype(np.float32)
                    for key, n in ((STATE, 4), (ACTION, 2))
                }
                writer.add_frame(frame, task=task)
            writer.save_episode()
    run = resolve_run(
        [
            "--policy.type=multi_task_dit", "--policy.image_crop_shape=[32,32]",
            f"--policy.vision_encoder_name={tiny_clip}",
            f"--policy.text_encoder_name={tiny_clip}", "--dataset.repo_id=tests/silent", f"--dataset.root={root}",  # noqa: E501
            "--policy.device=cpu", "--policy.push_to_hub=false", "--batch_size=2", f"--output_dir={tmp_path}/run",  # noqa: E501
            "--policy.horizon=8", "--policy.n_action_steps=6",
        ]
    )[0]  # fmt: skip
    with pytest.raises(DataError, match="1 episodes have no task sentence, the first is episode 1"):
        prepare(run)
