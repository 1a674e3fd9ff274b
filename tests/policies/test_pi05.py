"""π0.5: LeRobot's names at full size, prompts with the state, quantiles, precision, old names."""

import dataclasses
import importlib
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from kata.errors import CheckpointError, DataError, PolicyError
from kata.policies.pipelines import canonical_pipelines
from kata.policies.rtc import RtcConfig
from kata.processors import StatePrompt, Tokenize
from kata.spec import ACTION, LANGUAGE_MASK, LANGUAGE_TOKENS, STATE, TASK, NormMode
from tests.policies import test_pi0 as pi0

tools, tiny = pi0.tools, pi0.tiny


@pytest.fixture(autouse=True)
def pi05(monkeypatch):
    """The functions of π0's tests build π0.5."""
    monkeypatch.setattr(pi0, "NAME", "pi05")


def test_names_shapes_precision_and_trained_weights_are_lerobots_at_full_size():
    kept = (Path(__file__).parent / "pi05_keys.txt").read_text().splitlines()[1:]
    assert sorted(pi0.names_at_full_size()) == sorted(kept)


def test_every_trained_parameter_has_a_gradient_and_no_other(tiny):
    for options in ({}, {"train_expert_only": True}):
        policy = pi0.build(**options).train()
        pi0.summed(policy, pi0.batch()).backward()
        for name, parameter in policy.named_parameters():
            assert (parameter.grad is not None) == parameter.requires_grad, name


def test_the_state_steers_the_prompt_alone_and_the_time_the_norms(tiny):
    policy, given = pi0.build().eval(), pi0.batch()
    other = {**given, STATE: given[STATE] + 1}
    assert torch.equal(pi0.summed(policy, given), pi0.summed(policy, other))
    at = policy.suffix(policy.encode(given), torch.zeros(2, 4, 5), torch.tensor([0.2, 0.9]))
    assert at.tokens.shape == (2, 4, 32)
    assert not torch.equal(at.condition[0], at.condition[1])


def test_narrow_weights_give_nearly_the_same_loss(tiny):
    narrow, wide = pi0.build(dtype="bfloat16").train(), pi0.build().train()
    with torch.no_grad():
        for own, other in zip(wide.parameters(), narrow.parameters(), strict=True):
            other.normal_(std=0.1)
            own.copy_(other)  # so that both have the same numbers
    losses = [pi0.summed(policy, pi0.batch()) for policy in (narrow, wide)]
    torch.testing.assert_close(losses[0], losses[1], rtol=2e-2, atol=0)


def test_recomputed_activations_give_the_same_gradients(tiny):
    plain, again = pi0.build().train(), pi0.build(gradient_checkpointing=True).train()
    for policy in (plain, again):
        pi0.summed(policy, pi0.batch()).backward()
    for one, other in zip(plain.parameters(), again.parameters(), strict=True):
        assert one.grad is None or torch.equal(one.grad, other.grad)


def test_weights_return_from_files_of_every_age(tiny, tmp_path):
    policy = pi0.build(text_tokenizer_name=tiny.folder())
    stored = pi0.saved(policy, tmp_path)
    older = {name.removeprefix("model."): tensor for name, tensor in stored.items()}
    renamed = {re.sub("^time_mlp", "action_time_mlp", n): tensor for n, tensor in older.items()}
    for file in (stored, older, renamed):
        again = pi0.restored(tmp_path, file)
        for name, tensor in policy.state_dict().items():
            assert torch.equal(again.state_dict()[name], tensor), name


def test_prompts_hold_bins_of_the_state():
    states = torch.tensor([[-1.5, -1.0, -0.9921], [0.0, 0.99999, 3.0]])
    given = {STATE: states, TASK: [" pick_up\nit ", "go"]}
    assert StatePrompt()(given)[TASK] == [
        "Task: pick up it, State: -1 0 1;\nAction: ",
        "Task: go, State: 128 255 255;\nAction: ",
    ]
    assert given[TASK][1] == "go"  # the caller's batch is as it was
    for lacking in ({STATE: states}, {TASK: ["go", "go"]}):
        with pytest.raises(DataError, match="a task sentence and the state"):
            StatePrompt()(lacking)


def test_the_pipeline_is_lerobots_and_wants_quantiles(tiny):
    policy_config = pi0.config(text_tokenizer_name=tiny.folder(), tokenizer_max_length=60)
    assert policy_config.normalization_mapping["STATE"] is NormMode.QUANTILES
    stats = {}
    for key, width in ((STATE, 3), (ACTION, 2)):
        stats[key] = {"q01": np.full(width, -2.0), "q99": np.full(width, 2.0)}
    before, after = canonical_pipelines(policy_config, stats, rename_map={}, device="cpu")
    assert [step.registry_name for step in before.steps] == [
        "rename_observations_processor", "to_batch_processor", "relative_actions_processor",
        "normalizer_processor", "pi05_prepare_state_tokenizer_processor_step",
        "tokenizer_processor", "device_processor",
    ]  # fmt: skip
    assert after.steps[1].registry_name == "absolute_actions_processor"
    seen = before({STATE: torch.tensor([[0.0, 1.0, 2.0]]), TASK: ["go"]})
    prompt = "Task: go, State: 128 192 255;\nAction: "
    assert seen[TASK] == [prompt]
    assert seen[LANGUAGE_TOKENS].shape == (1, 60)
    assert seen[LANGUAGE_MASK].sum() == 1 + len(prompt)
    with pytest.raises(CheckpointError, match="no q01 and q99 among the statistics"):
        canonical_pipelines(policy_config, {STATE: {}, ACTION: {}}, rename_map={}, device="cpu")


def test_tokens_of_a_bounded_number_of_prompts_are_kept(tiny, monkeypatch):
    monkeypatch.setattr("kata.processors.tokenize.KEPT", 3)
    step = Tokenize(tiny.folder(), max_length=12)
    rows = [step({TASK: [f"go {n}"]})[LANGUAGE_TOKENS] for n in range(8)]
    assert len(step._known) <= 3
    assert torch.equal(step({TASK: ["go 0"]})[LANGUAGE_TOKENS], rows[0])


def test_chunks_that_begin_with_given_actions_are_those_of_lerobots_main_branch(tools):
    """The file was recorded with LeRobot 7427f318, which is newer than 0.6.1."""
    options = {**tools.EXPERT_ONLY, "chunk_size": 8, "rtc_training_max_delay": 3}
    case = tools.Case(options=options)
    policy, given = tools.Sides("pi05", "PI05").build_own(case).train(), tools.batch(case)
    shares = torch.tensor([[0.1], [0.55], [0.93]])  # 0, 2 and 3 given actions
    pads = {"given": shares.numpy(), "action_is_pad": given["action_is_pad"].numpy()}
    count = policy.config.loss_weights(3, pads)[pi0.TERM]
    assert count == (3 * 8 - 5) * 4
    drawn = {"noise": tools.noise(case), "time": torch.tensor(tools.SHARES)[:, None]}
    loss = policy(given, **drawn, given=shares).terms[pi0.TERM].total / count
    loss.backward()
    own = {"loss": loss.detach()}
    for name, parameter in policy.named_parameters():
        if parameter.grad is not None:
            own[f"grad/{policy.key_map().to_lerobot(name)}"] = parameter.grad
    policy.eval()
    policy.options = dataclasses.replace(policy.options, rtc_config=RtcConfig(mode="trained"))
    left = 0.7 * tools.tensor("left over", (3, 8, 4))[:, 2:]
    seen = {**tools.observation(case, 0), **tools.sentences(case)}
    own["continued"] = policy.continued(seen, left, 2, noise=tools.noise(case))
    assert torch.equal(own["continued"][:, :2], left[:, :2])
    kept = load_file(Path(__file__).parent / "pi05_training_rtc.safetensors")
    numbers = importlib.import_module("numbers_of")
    own = {name: value for name, value in numbers.golden(own).items() if name in kept}
    assert own.keys() == kept.keys()
    for name, value in kept.items():
        assert numbers.difference(own[name], value) < 2e-3, name


def test_each_sample_draws_how_many_actions_are_given(tiny):
    config = pi0.config(rtc_training_max_delay=3)
    assert config.draws()["given"].shape == (1,)
    assert config.counted_draws() == ("given",)
    assert "given" not in pi0.config().draws()
    shares = np.array([[1e-9], [0.3], [0.5], [1.0]], np.float32)
    assert config.given_actions(shares)[:, 0].tolist() == [0, 1, 2, 3]
    assert config.given_actions(torch.from_numpy(shares))[:, 0].tolist() == [0, 1, 2, 3]
    with pytest.raises(PolicyError, match="rtc_training_max_delay=3 or less"):
        pi0.config(rtc_training_max_delay=4)
