"""A base to fine-tune from, and runs on it that take a step in milliseconds."""

import dataclasses

import pytest
import torch

from kata.dist.engine import Engine
from kata.dist.process_group import ProcessGroup
from kata.policies import build_policy
from kata.policies.load import save_weights
from kata.run import resolve_run
from kata.update.state import build_state
from tests.conftest import TINY_ACT, undrawn_charts
from tests.plan.small import VECTORS, small_run


@pytest.fixture(autouse=True)
def quick_reports(monkeypatch):
    undrawn_charts(monkeypatch)


def write_base(folder, config, seed=0):
    """Write a policy with random weights as LeRobot's files; returns it."""
    torch.manual_seed(seed)
    policy = build_policy(config)
    folder.mkdir(parents=True)
    config.save(folder)
    save_weights(policy, folder / "model.safetensors")
    return policy


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """The folder of a small ACT without cameras."""
    folder = tmp_path_factory.mktemp("models") / "base"
    write_base(folder, small_run(VECTORS).policy)
    return folder


NOT_OF_A_BASE = ("--policy.type", "--policy.pretrained", "--policy.dim", "--policy.n_", "--policy.latent", "--policy.chunk", "--policy.optimizer")  # noqa: E501  # fmt: skip


@pytest.fixture
def tuned(base, vector_dataset, tmp_path):
    """Return a run that continues from the base, with options."""

    def make(name, *options, path=base):
        plain = [each for each in TINY_ACT if not each.startswith(NOT_OF_A_BASE)]
        return resolve_run(
            [
                f"--policy.path={path}", *plain, f"--dataset.root={vector_dataset}",
                "--dataset.repo_id=tests/vectors", f"--output_dir={tmp_path}/{name}",
                "--save_freq=2", "--steps=4", *options,
            ]
        )[0]  # fmt: skip

    return make


@pytest.fixture
def state_of():
    """Return the state before step 1 of a run whose features are those of its base."""

    def make(run, **options):
        return build_state(run, Engine(ProcessGroup(), torch.device("cpu")), **options)

    return make


def with_features(run, inputs=VECTORS):
    return dataclasses.replace(
        run, policy=run.policy.with_features(inputs, run.policy.output_features)
    )
