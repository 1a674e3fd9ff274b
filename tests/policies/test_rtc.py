"""Real-time chunking in acting: which actions are executed when, files, and refusals."""

import dataclasses
import json

import pytest
import torch

from kata.config import decode
from kata.errors import ConfigError, PolicyError
from kata.policies.config import PolicyConfig
from kata.policies.rtc import RtcChanges, RtcConfig
from kata.run import read_policy_config
from kata.spec import ACTION, ORIGIN
from tests.policies import test_pi0 as pi0

tools, tiny = pi0.tools, pi0.tiny


def acted(policy, monkeypatch, delay, steps=12):
    """Return the executed actions, and the calls: each chunk is numbered by hundreds."""
    calls = []

    def chunk(batch, left_over=None, inference_delay=None, **drawn):
        calls.append((left_over, inference_delay))
        length = policy.options.chunk_size
        return (100 * len(calls) + torch.arange(length).float())[None, :, None].expand(1, -1, 2)

    monkeypatch.setattr(policy, "predict_chunk", chunk)
    monkeypatch.setattr(policy, "continued", chunk)
    state, found = policy.init_state(1), []
    state.inference_delay = delay
    for _ in range(steps):
        needed = policy.needs_observation(state)
        before = len(calls)
        action, state = policy.act({}, state)
        assert needed == (len(calls) > before)
        found.append(int(action[0, 0]))
    return found, calls


def test_the_last_chunk_goes_on_while_the_next_is_predicted(tiny, monkeypatch):
    policy = pi0.build(chunk_size=8, n_action_steps=4)
    found, calls = acted(policy, monkeypatch, 2)
    assert found == [100, 101, 102, 103, 104, 105, 202, 203, 204, 205, 302, 303]
    assert calls == [(None, None)] * 3  # nothing is told of the last chunk without rtc_config
    found, _ = acted(policy, monkeypatch, 0)
    assert found[:9] == [100, 101, 102, 103, 200, 201, 202, 203, 300]


def test_a_continuation_gets_what_is_left_over(tiny, monkeypatch):
    policy = pi0.build(chunk_size=8, n_action_steps=3, rtc_config=RtcConfig())
    found, calls = acted(policy, monkeypatch, 2, steps=8)
    assert found == [100, 101, 102, 103, 104, 202, 203, 204]
    assert calls[0] == (None, None)
    left = [given[0, :, 0].int().tolist() for given, _ in calls[1:]]
    assert left == [[103, 104, 105, 106, 107], [203, 204, 205, 206, 207]]
    assert [delay for _, delay in calls[1:]] == [2, 2]


def test_files_hold_what_lerobot_reads(tiny, tmp_path):
    config = pi0.config(rtc_config=RtcConfig(prefix_attention_schedule="EXP"))
    config.save(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())["rtc_config"]
    assert written == {
        "enabled": True, "prefix_attention_schedule": "EXP", "max_guidance_weight": 10.0,
        "execution_horizon": 10, "debug": False, "debug_maxlen": 100,
    }  # fmt: skip
    assert decode(PolicyConfig, read_policy_config(tmp_path, [])) == config
    trained = dataclasses.replace(
        config, rtc_config=RtcConfig(mode="trained", prefix_attention_schedule="EXP")
    )
    trained.save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["rtc_config"] == written
    own = json.loads((tmp_path / "kata.json").read_text())
    assert own["rtc_config"] == {"mode": "trained"}
    assert decode(PolicyConfig, read_policy_config(tmp_path, [])) == trained


def test_what_is_asked_for_in_acting_lies_over_the_policys_own_options():
    own = RtcConfig(mode="trained", prefix_attention_schedule="EXP", execution_horizon=5)
    asked = decode(RtcChanges, {"execution_horizon": 4})
    assert asked.over(own) == dataclasses.replace(own, execution_horizon=4)
    assert decode(RtcChanges, {"enabled": True}).over(own) == own
    assert asked.over(None) == RtcConfig(execution_horizon=4)
    with pytest.raises(PolicyError, match="one of: ZEROS, ONES, LINEAR, EXP"):
        decode(RtcChanges, {"prefix_attention_schedule": "EXPO"}, at="policy.rtc_config")


@pytest.mark.parametrize(
    ("options", "delay", "message"),
    [
        ({}, 3, "n_action_steps=3 or more"),
        ({"n_action_steps": 3}, 2, "n_action_steps=2 or less"),
        ({"n_action_steps": 4, "rtc_config": {}}, 0, "something is left over"),
        ({"rtc_config": {"mode": "trained"}}, 1, "was trained with policy.rtc_training_max_delay"),
    ],
)
def test_delays_that_chunks_do_not_last_for_are_refused(tiny, options, delay, message):
    rtc = options.pop("rtc_config", None)
    config = pi0.config(**options, rtc_config=None if rtc is None else RtcConfig(**rtc))
    with pytest.raises(PolicyError, match=message):
        config.refuse_delay(delay)
    assert pi0.config(n_action_steps=2).refuse_delay(2) is None
    relative = pi0.config(use_relative_actions=True, rtc_config=RtcConfig())
    with pytest.raises(PolicyError, match="relative to an older state"):
        relative.refuse_delay(1)


def test_queued_actions_are_relative_to_the_state_of_their_chunk(tiny, monkeypatch):
    policy = pi0.build(chunk_size=8, n_action_steps=2)
    monkeypatch.setattr(policy, "predict_chunk", lambda batch, **drawn: torch.zeros(1, 8, 2))
    state, found = policy.init_state(1), []
    state.inference_delay = 1
    for step in range(6):
        _, state = policy.act({ORIGIN: torch.tensor([[float(step)]])}, state)
        found.append(state.memory[ORIGIN].item())
    assert found == [0, 0, 0, 2, 2, 4]


def test_wrong_options_are_refused_by_name(tiny):
    raw = {"type": "pi0", "output_features": {ACTION: {"type": "ACTION", "shape": [2]}}}
    for given, message in (
        ({"prefix_attention_schedule": "linear"}, "one of: ZEROS"),
        ({"max_guidance_weight": 0}, "above 0"),
        ({"execution_horizont": 3}, "did you mean --rtc_config.execution_horizon"),
        ({"debug": True}, "no record of denoising steps"),
    ):
        with pytest.raises((ConfigError, PolicyError), match=message):
            decode(PolicyConfig, {**raw, "rtc_config": given})
