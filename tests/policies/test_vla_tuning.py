"""EO-1, GR00T, Wall-X and X-VLA in fine-tuning: adapters, and activations computed again."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

from kata.errors import PolicyError
from kata.finetune.lora import EVERY, adapt, target_names
from kata.run.peft import PeftConfig
from kata.update.activation_checkpointing import recompute_activations

NAMES = ("eo1", "groot", "wall_x", "xvla")
TABLES = {
    "groot": ("state_encoder.layer1", "action_decoder.layer2"),
    "xvla": ("action_encoder.fc", "action_decoder.bias"),
}
"""Maps of which each robot has its own, by the ends of LeRobot's names."""


@pytest.fixture(scope="module")
def made():
    """A function that gives a policy with the weights of the formula, a batch and its draws."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tools/peer"))
    try:
        modules = {name: importlib.import_module(f"policy_{name}") for name in NAMES}
        yield lambda name: modules[name].training_sample(modules[name].CHECKPOINT)
    finally:
        sys.path.pop(0)


def gradients(policy, given, draws):
    """Return gradients by name, and the numbers that are kept for them."""
    kept = [0]

    def count(tensor):
        kept[0] += tensor.numel()
        return tensor

    torch.manual_seed(0)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        terms = policy.train()(given, **draws).terms
    sum(term.scale * term.total for term in terms.values()).backward()
    return {n: p.grad for n, p in policy.named_parameters() if p.grad is not None}, kept[0]


@pytest.mark.parametrize("name", NAMES)
def test_layers_computed_again_give_the_same_gradients(name, made):
    plain, kept = gradients(*made(name))
    policy, given, draws = made(name)
    recompute_activations(policy)
    again, kept_again = gradients(policy, given, draws)
    assert kept_again < 0.8 * kept
    assert again.keys() == plain.keys()
    for key, value in plain.items():
        torch.testing.assert_close(again[key], value, rtol=0, atol=1e-6 * float(value.abs().max()))


@pytest.mark.parametrize("name", NAMES)
def test_adapters_beside_all_maps_add_nothing_and_alone_are_trained(name, made):
    pytest.importorskip("peft")
    policy, given, draws = made(name)
    torch.manual_seed(0)
    before = policy.train()(given, **draws).terms
    adapt(policy, PeftConfig(r=2, target_modules=EVERY))
    torch.manual_seed(0)
    after = policy(given, **draws).terms
    for key, term in before.items():
        torch.testing.assert_close(after[key].total, term.total, rtol=1e-6, atol=0)
    found, _ = gradients(policy, given, draws)
    trained = {key for key, p in policy.named_parameters() if p.requires_grad}
    assert trained == found.keys()
    assert len(trained) > 20
    assert all(".lora_" in key for key in trained)


@pytest.mark.parametrize(("name", "table"), [(n, t) for n, ends in TABLES.items() for t in ends])
def test_an_adapter_beside_the_maps_of_robots_is_refused_by_name(name, table, made):
    with pytest.raises(PolicyError, match=f"is no linear map: .*{table}"):
        target_names(made(name)[0], PeftConfig(r=2, target_modules=[table]))
