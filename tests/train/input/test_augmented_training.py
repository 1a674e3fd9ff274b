"""Augmentation in training: keyed by position, absent from validation, the same after a resume."""

import pytest
import torch

from kata.errors import ConfigError
from kata.train import train

ON = "--dataset.image_transforms.enable=true"


def weights(trained):
    return {name: tensor.clone() for name, tensor in trained.state.policy.state_dict().items()}


def equal(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


def test_augmented_training_repeats_resumes_and_differs_from_plain(tiny_run, tmp_path):
    straight = train(tiny_run(ON))
    train(tiny_run(ON, "--steps=3", f"--output_dir={tmp_path}/part"))
    resumed = train(tiny_run(ON, f"--output_dir={tmp_path}/part", "--resume=true"))
    plain = train(tiny_run(f"--output_dir={tmp_path}/plain"))
    assert equal(weights(straight), weights(resumed))
    assert not equal(weights(straight), weights(plain))


def test_micro_batches_are_augmented_as_the_whole_batch(tiny_run, tmp_path):
    # By SGD and without dropout, as in the test of accumulation itself.
    plain = (ON, "--policy.dropout=0", "--optimizer.type=sgd", "--optimizer.lr=0.01")
    whole = train(tiny_run(*plain))
    split = train(tiny_run(*plain, f"--output_dir={tmp_path}/split", "--batch_size=1",
                           "--accelerator.gradient_accumulation.steps=4"))  # fmt: skip
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(tensor, weights(split)[name], rtol=0, atol=1e-6)


def test_a_resume_cannot_change_the_augmentation(tiny_run, tmp_path):
    train(tiny_run(ON, "--steps=3"))
    with pytest.raises(ConfigError, match="image_transforms"):
        train(tiny_run("--dataset.image_transforms.enable=false", "--resume=true"))


def test_a_typo_in_a_transform_is_found_before_anything_is_written(tiny_run):
    run = tiny_run(ON, '--dataset.image_transforms.tfs={"dim": {"type": "ColorJiter"}}')
    with pytest.raises(ConfigError, match="ColorJitter"):
        train(run)
