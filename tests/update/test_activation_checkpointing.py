"""Activations computed again in the backward pass: the same gradients in less memory, for each
policy.
"""

import pytest
import torch
from torch.distributed._tools.mem_tracker import MemTracker

from kata.errors import PolicyError
from kata.policies import build_policy
from kata.run import resolve_run
from kata.train import train
from kata.update.activation_checkpointing import recompute_activations
from tests.conftest import TINY_ACT
from tests.train.test_every_policy import TINY, figures, policy_run  # noqa: F401  the fixture

ONE_STEP = (
    "--steps=1",
    "--optimizer.type=sgd",
    "--optimizer.lr=0.1",
    "--dataset.eval_split=0",
    "--eval_steps=0",
)
AGAIN = "--gradient_checkpointing=true"


@pytest.fixture(autouse=True)
def quick(narrow_backbone, plain_charts):
    """Policies with cameras train within a second."""


@pytest.mark.parametrize("name", TINY)
def test_every_policy_takes_the_same_step(name, policy_run):  # noqa: F811
    options = (*ONE_STEP, "--max_eval_samples=0", "--save_checkpoint=false")
    options += (
        ("--steps=3",) if name == "vqbet" else ()
    )  # what it learns first has nothing to compute again
    plain, again = (
        train(policy_run(name, at, *options, *more))
        for at, more in (("plain", ()), ("again", (AGAIN,)))
    )
    expected = plain.state.policy.state_dict()
    for key, tensor in again.state.policy.state_dict().items():
        torch.testing.assert_close(tensor, expected[key], rtol=0, atol=1e-6, msg=key)
    assert figures(again)[0]["grad_norm"] == pytest.approx(figures(plain)[0]["grad_norm"], rel=1e-6)


def act():
    features = (
        '{"observation.state": {"type": "STATE", "shape": [3]}, "observation.environment_state": '
    )
    args = [
        "--dataset.repo_id=a/b",
        *TINY_ACT,
        "--policy.dropout=0.3",
        "--policy.dim_feedforward=512",
    ]
    args += [
        "--policy.n_encoder_layers=1",
        "--policy.n_vae_encoder_layers=6",
        "--policy.chunk_size=60",
    ]
    args += [f'--policy.input_features={features}{{"type": "ENV", "shape": [2]}}}}']
    args += ['--policy.output_features={"action": {"type": "ACTION", "shape": [2]}}']
    torch.manual_seed(0)
    return build_policy(resolve_run(args)[0].policy)


def gradients(policy):
    """The gradients of a batch, and the most memory that its passes took."""
    draw = torch.Generator().manual_seed(1)
    sizes = {
        "observation.state": (8, 3),
        "observation.environment_state": (8, 2),
        "action": (8, 60, 2),
    }
    batch = {key: torch.randn(size, generator=draw) for key, size in sizes.items()}
    batch["action_is_pad"] = torch.zeros(8, 60, dtype=torch.bool)
    noise = torch.randn(8, 4, generator=draw)
    tracker = MemTracker()
    tracker.track_external(policy)
    torch.manual_seed(2)
    with tracker:
        torch.stack(
            [term.total for term in policy.train()(batch, noise=noise).terms.values()]
        ).sum().backward()
    return [p.grad for p in policy.parameters()], tracker.get_tracker_snapshot("peak")[
        torch.device("cpu")
    ]["Total"]


def test_act_draws_its_dropout_again_and_takes_less_memory():
    plain, again = act(), act()
    recompute_activations(again)
    (expected, most), (found, less) = gradients(plain), gradients(again)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert less < 0.5 * most, (less, most)
    assert list(again.state_dict()) == list(plain.state_dict())


def test_what_has_nothing_to_compute_again_is_refused_by_name(policy_run):  # noqa: F811
    with pytest.raises(PolicyError, match="gradient_checkpointing=true for diffusion"):
        train(policy_run("diffusion", "twice", AGAIN, "--policy.gradient_checkpointing=true"))
