"""What training promises, for each policy: a resume continues bit for bit, validation repeats,
the loss falls.
"""

import dataclasses
import math

import numpy as np
import pytest
import torch

from kata.data.writing.dataset_writer import DatasetWriter
from kata.run import resolve_run
from kata.spec import Column
from kata.train import train
from kata.train.evaluation.validation import Validator
from kata.train.metrics.meter import read_metrics
from kata.train.stopping import StopSignal
from tests.conftest import TINY_ACT

TINY = {
    "diffusion": (
        *(
            "--policy.down_dims=[8,16]",
            "--policy.horizon=8",
            "--policy.n_action_steps=3",
            "--policy.n_groups=4",
        ),
        *(
            "--policy.diffusion_step_embed_dim=8",
            "--policy.num_train_timesteps=10",
            "--policy.num_inference_steps=2",
        ),
        *("--policy.spatial_softmax_num_keypoints=4", "--policy.pretrained_backbone_weights=null"),
        *(
            "--policy.crop_shape=[20,24]",
            "--policy.crop_per_sample=true",
            "--policy.use_group_norm=true",
        ),
        '--policy.input_features={"observation.images.top": {"type": "VISUAL", "shape": [3, 48, '
        "64]}, "
        '"observation.state": {"type": "STATE", "shape": [3]}}',
    ),
    "tdmpc": (
        *(
            "--policy.horizon=3",
            "--policy.image_encoder_hidden_dim=4",
            "--policy.state_encoder_hidden_dim=8",
        ),
        *(
            "--policy.latent_dim=6",
            "--policy.mlp_dim=12",
            "--policy.cem_iterations=2",
            "--policy.n_pi_samples=2",
        ),
        *(
            "--policy.n_gaussian_samples=8",
            "--policy.n_elites=4",
            "--policy.shift_by_executed=true",
        ),
        '--policy.input_features={"observation.images.top": {"type": "VISUAL", "shape": [3, 48, '
        "64]}, "
        '"observation.state": {"type": "STATE", "shape": [3]}}',
    ),
    "vqbet": (  # the second of four steps is the last one of the first phase
        *(
            "--policy.n_obs_steps=3",
            "--policy.n_action_pred_token=2",
            "--policy.action_chunk_size=3",
        ),
        *(
            "--policy.vqvae_n_embed=6",
            "--policy.vqvae_embedding_dim=8",
            "--policy.vqvae_enc_hidden_dim=12",
        ),
        *("--policy.gpt_input_dim=12", "--policy.gpt_output_dim=10", "--policy.gpt_hidden_dim=16"),
        *(
            "--policy.gpt_n_layer=2",
            "--policy.gpt_n_head=2",
            "--policy.gpt_block_size=16",
            "--policy.dropout=0",
        ),
        *("--policy.spatial_softmax_num_keypoints=4", "--policy.pretrained_backbone_weights=null"),
        *(
            "--policy.crop_shape=[20,24]",
            "--policy.crop_per_sample=true",
            "--policy.use_group_norm=true",
        ),
        *("--policy.n_vqvae_training_steps=2", "--policy.offset_loss_weight=2"),
        '--policy.input_features={"observation.images.top": {"type": "VISUAL", "shape": [3, 48, '
        "64]}, "
        '"observation.state": {"type": "STATE", "shape": [3]}}',
    ),
    "multi_task_dit": (  # {clip}: a folder of a tiny CLIP model
        *(
            "--policy.horizon=8",
            "--policy.n_action_steps=3",
            "--policy.hidden_dim=16",
            "--policy.num_layers=1",
        ),
        *(
            "--policy.num_heads=2",
            "--policy.timestep_embed_dim=8",
            "--policy.num_train_timesteps=10",
            "--policy.dropout=0",
        ),
        *(
            "--policy.num_inference_steps=2",
            "--policy.crop_per_sample=true",
            "--policy.pretrained_encoders=false",
        ),
        *(
            "--policy.image_resize_shape=[36,48]",
            "--policy.image_crop_shape=[32,32]",
            "--policy.tokenizer_max_length=8",
        ),
        *("--policy.vision_encoder_name={clip}", "--policy.text_encoder_name={clip}"),
        '--policy.input_features={"observation.images.top": {"type": "VISUAL", "shape": [3, 48, '
        "64]}, "
        '"observation.state": {"type": "STATE", "shape": [3]}}',
    ),
}


@pytest.fixture
def policy_run(tiny_dataset, tiny_clip, tmp_path):
    """Makes a run of a tiny policy, five steps of four samples."""

    def make(name, folder, *options):
        own = [option.replace("{clip}", str(tiny_clip)) for option in TINY[name]]
        return resolve_run(
            [
                f"--policy.type={name}", *own, "--dataset.repo_id=tests/tiny", f"--dataset.root={tiny_dataset}",  # noqa: E501
                "--policy.device=cpu", "--policy.push_to_hub=false", "--batch_size=4", "--steps=4", "--log_freq=1",  # noqa: E501
                "--num_workers=1", "--prefetch_factor=1", "--dataset.eval_split=0.3", "--max_eval_samples=4",  # noqa: E501
                "--eval_steps=2", "--save_freq=2", f"--output_dir={tmp_path}/{folder}", *options,
            ]
        )[0]  # fmt: skip

    return make


@pytest.fixture(scope="session")
def one_number_dataset(tmp_path_factory):
    """Three episodes of eight frames; the state is one number, and so is the action."""
    root = tmp_path_factory.mktemp("data") / "one_number"
    features = {
        "observation.images.top": Column("image", (48, 64, 3)),
        "observation.state": Column("float32", (1,)),
        "action": Column("float32", (1,)),
        "next.reward": Column("float32", (1,)),
    }
    with DatasetWriter.create(root, fps=10, features=features) as writer:
        for episode in range(3):
            for t in range(8):
                position = np.array([np.sin(t + episode)], dtype=np.float32)
                frame = {
                    "observation.images.top": np.full((48, 64, 3), 20 * t, dtype=np.uint8),
                    "observation.state": position,
                    "action": position / 2,
                    "next.reward": np.float32(t % 3),
                }
                writer.add_frame(frame, task="slide")
            writer.save_episode()
    return root


def figures(trained):
    wanted = ("loss", "grad_norm", "action_error")
    return [
        {name: line[name] for name in wanted if name in line}
        for line in read_metrics(trained.folder / "metrics.jsonl")
        if line["kind"] in ("train", "validation")
    ]


@pytest.mark.parametrize("name", TINY)
def test_resumed_equals_straight_and_its_checkpoint_acts(name, policy_run, monkeypatch):
    straight = train(policy_run(name, "straight", "--ema.enable=true"))
    answers = iter([False, True])
    with monkeypatch.context() as patched:
        patched.setattr(StopSignal, "should_stop", lambda stop_signal: next(answers))
        stopped = train(policy_run(name, "half", "--ema.enable=true"))
    assert stopped.state.step == 1
    resumed = train(policy_run(name, "half", "--ema.enable=true", "--resume=true"))
    for before, after in (
        (straight.state.policy, resumed.state.policy),
        (straight.state.ema, resumed.state.ema),
    ):
        for key, tensor in before.state_dict().items():
            assert torch.equal(after.state_dict()[key], tensor), key
    assert figures(straight) == figures(resumed)
    assert len(figures(straight)) >= 6
    assert_acts_as(straight)


def assert_acts_as(trained):
    """The checkpoint acts as the policy that wrote it."""
    from kata.eval.rollout_policy import load_for_acting

    acting = load_for_acting(
        str(trained.folder / "checkpoints" / "last" / "pretrained_model"), "cpu"
    )
    assert acting.config == dataclasses.replace(
        trained.state.policy.config, device=acting.config.device
    )
    for key, tensor in trained.state.policy.state_dict().items():
        assert torch.equal(acting.policy.state_dict()[key], tensor), key


@pytest.mark.parametrize("name", TINY)
def test_micro_batches_give_the_update_of_the_whole_batch(name, policy_run):
    options = ("--optimizer.type=sgd", "--optimizer.lr=0.01")
    whole = train(policy_run(name, "whole", *options))
    split = train(
        policy_run(
            name, "split", *options, "--batch_size=1", "--accelerator.gradient_accumulation.steps=4"
        )
    )
    for key, tensor in whole.state.policy.state_dict().items():
        torch.testing.assert_close(
            split.state.policy.state_dict()[key], tensor, rtol=0, atol=1e-5, msg=key
        )


@pytest.mark.parametrize("name", ["act", *TINY])
def test_a_state_and_an_action_of_one_number_train(
    name, one_number_dataset, tiny_clip, tmp_path, monkeypatch
):
    """Validation hands over all that predicting draws, so nothing comes from torch's stream."""
    judge, handed = Validator._judge, []

    def noting(validator, policy):
        predict = policy.predict_chunk
        policy.predict_chunk = lambda batch, **draws: (
            handed.append(set(draws)) or predict(batch, **draws)
        )
        try:
            return judge(validator, policy)
        finally:
            del policy.predict_chunk

    monkeypatch.setattr(Validator, "_judge", noting)
    options = TINY_ACT if name == "act" else (f"--policy.type={name}", *TINY[name])
    given = [
        o.replace("{clip}", str(tiny_clip)).replace('"shape": [3]}', '"shape": [1]}')
        for o in options
        if not o.startswith(("--steps", "--batch_size", "--policy.device", "--policy.push_to_hub"))
    ]
    run = resolve_run(
        [
            *given, "--dataset.repo_id=tests/one", f"--dataset.root={one_number_dataset}", "--steps=3",  # noqa: E501
            "--batch_size=2", "--dataset.eval_split=0.4", "--save_checkpoint=false", "--policy.device=cpu",  # noqa: E501
            "--policy.push_to_hub=false", f"--output_dir={tmp_path}/run",
        ]
    )[0]  # fmt: skip
    trained = train(run)
    assert trained.best is not None
    assert math.isfinite(trained.best["action_error"])
    assert trained.report.is_file()
    assert handed
    wanted = set(trained.state.policy.config.act_draws())
    assert all(names == wanted for names in handed)
