"""Action tokens: round trips, sentences, what is cut or unknown, folders that are not there."""

import dataclasses
import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from kata.errors import DataError, PolicyError
from kata.processors import ActionTokens
from kata.processors.action_tokens import read_sentences
from kata.processors.counted_warning import CountedWarning
from kata.processors.fast import cosines, read_fast
from kata.spec import ACTION, ACTION_TOKEN_MASK, ACTION_TOKENS

SKIPPED = 8


@pytest.fixture(scope="module")
def folders():
    """The folders of the tiny tokenizers: that of actions, and that of the language model."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tools/peer"))
    try:
        cases = importlib.import_module("pi_cases")
    finally:
        sys.path.pop(0)
    return cases.fast_folder(), cases.folder(440)


@pytest.fixture
def step(folders):
    def build(**options):
        return ActionTokens(
            folders[0], fast_skip_tokens=SKIPPED, paligemma_tokenizer_name=folders[1], **options
        )

    return build


def chunks(count=3, steps=5, dims=2, scale=1.0):
    stream = np.random.default_rng(0)
    return (scale * stream.uniform(-1, 1, (count, steps, dims))).astype(np.float32)


@pytest.mark.parametrize("steps", [1, 2, 5, 50])
def test_the_cosine_transform_is_orthonormal_and_the_second_kind(steps):
    matrix = cosines(steps)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(steps), atol=1e-13)
    constant = np.full(steps, 3.0)
    np.testing.assert_allclose((matrix @ constant)[0], 3.0 * np.sqrt(steps))
    ramp = matrix @ np.arange(steps)
    by_hand = np.sqrt(2 / steps) * sum(
        n * np.cos(np.pi * (2 * n + 1) / (2 * steps)) for n in range(steps)
    )
    assert steps == 1 or np.isclose(ramp[1], by_hand)


def test_chunks_return_from_their_tokens_but_for_rounding(folders):
    fast, given = read_fast(folders[0]), chunks()
    for tokens, chunk in zip(fast.encode(given), given, strict=True):
        assert fast.holds(tokens, 10)
        # Each coefficient is rounded to a tenth, and the transform keeps lengths.
        assert np.linalg.norm(fast.decode(tokens, 5, 2) - chunk) < 0.05 * np.sqrt(10) + 1e-6


def test_pairs_of_coefficients_are_one_token(folders):
    (still,) = read_fast(folders[0]).encode(np.zeros((1, 4, 3), np.float32))
    assert len(still) == 6


def test_tokens_without_a_meaning_are_zeros_and_too_few_or_many_coefficients_fit(folders):
    fast = read_fast(folders[0])
    (tokens,) = fast.encode(chunks(1))
    assert not fast.decode([-1, *tokens], 5, 2).any()
    assert not fast.decode([], 5, 2).any()
    np.testing.assert_array_equal(fast.decode([*tokens, *tokens], 5, 2), fast.decode(tokens, 5, 2))
    assert fast.decode(tokens[:3], 5, 2).shape == (5, 2)


def test_a_sentence_has_its_beginning_its_end_and_the_tokens_between(folders):
    sentences = read_sentences(*folders, SKIPPED)
    codes = sentences.fast.encode(chunks(1))[0]
    row = sentences.written(codes)
    assert row[0] == 2
    assert row[-2:] == [sentences.bar, 1]
    assert row[9:-2] == [440 - 1 - SKIPPED - code for code in codes]
    assert sentences.begins_well(row[1:])
    assert not sentences.begins_well(row)
    told = sentences.chunk(row[1:], 5, 2)
    np.testing.assert_array_equal(told, sentences.fast.decode(codes, 5, 2))
    # As in LeRobot, every `Action: ` is dropped, and what stands behind the first `|`.
    twice = [*sentences.lead, *row[1:], *row[1:]]
    np.testing.assert_array_equal(sentences.chunk(twice, 5, 2), told)
    early = sentences.chunk([*row[1:13], sentences.bar, *row[13:]], 5, 2)
    np.testing.assert_array_equal(early, sentences.fast.decode(codes[:4], 5, 2))


@pytest.mark.parametrize("lead", [(9,), (9, 8), (9, 8, 7)])
def test_a_tokenizer_may_have_one_token_for_what_leads_a_chunk(folders, lead):
    sentences = dataclasses.replace(read_sentences(*folders, SKIPPED), lead=lead)
    row = sentences.written(sentences.fast.encode(chunks(1))[0])
    assert sentences.begins_well(row[1:])
    assert not sentences.begins_well(row)
    assert not sentences.begins_well([])


def test_the_step_pads_to_the_longest_sentence_and_leaves_acting_alone(step):
    given = {ACTION: torch.from_numpy(chunks(2))}
    given[ACTION][1] = 0
    told = step()(given)
    assert told[ACTION_TOKENS].shape == (2, 32)
    assert told[ACTION_TOKEN_MASK].sum(1).tolist() == [21, 16]
    assert not told[ACTION_TOKENS][~told[ACTION_TOKEN_MASK]].any()
    assert ACTION_TOKENS not in given
    assert step()({"task": ["go"]}) == {"task": ["go"]}


def test_long_sentences_are_cut_and_counted_or_refused(step, caplog):
    given = {ACTION: torch.from_numpy(chunks())}
    cutting = step(max_action_tokens=12)
    for _ in range(4):
        told = cutting(given)
    assert told[ACTION_TOKENS].shape == (3, 12)
    assert told[ACTION_TOKEN_MASK].all()
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "1 of 1 action sentences are cut", "10 of 10 action sentences are cut",
    ]  # fmt: skip
    assert "max_action_tokens is 12" in caplog.text
    with pytest.raises(DataError, match=r"of 21 tokens.*\n.*\n.*max_action_tokens=32"):
        step(max_action_tokens=12, allow_truncation=False)(given)


def test_values_that_the_tokenizer_does_not_know_are_counted(step, caplog):
    step()({ACTION: torch.from_numpy(chunks(1, scale=9.0))})
    assert "1 of 1 chunks hold values that the action tokenizer does not know" in caplog.text
    for wrong in (float("nan"), 1e5):
        with pytest.raises(DataError, match="finite numbers"):
            step()({ACTION: torch.full((1, 5, 2), wrong)})


def test_a_tally_speaks_at_powers_of_ten(caplog):
    tally = CountedWarning("%d of %d")
    for number in range(200):
        tally.note(number % 2 == 0)
    assert caplog.messages == ["1 of 1", "10 of 19", "100 of 199"]


def test_a_folder_that_is_not_there_or_damaged_is_named_with_the_way_to_it(folders, tmp_path):
    with pytest.raises(PolicyError, match=r"nowhere: no such folder") as told:
        read_fast(str(tmp_path / "nowhere"))
    assert "tokenizer.json and processor_config.json" in str(told.value)
    pairs, options = tmp_path / "tokenizer.json", tmp_path / "processor_config.json"
    pairs.write_text((Path(folders[0]) / "tokenizer.json").read_text())
    with pytest.raises(PolicyError, match=r"no processor_config.json"):
        read_fast(str(tmp_path))
    for broken in ("{", "[]"):
        options.write_text(broken)
        with pytest.raises(PolicyError, match=r"processor_config.json: damaged"):
            read_fast(str(tmp_path))
    options.write_text(json.dumps({"scale": 10}))
    pairs.write_text("{}")
    with pytest.raises(PolicyError, match="no model in it"):
        read_fast(str(tmp_path))


def test_a_hub_name_without_network_says_how_to_fetch_the_files(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(PolicyError) as told:
        read_fast("tests/no-such-tokenizer")
    message = str(told.value)
    assert message.startswith("tests/no-such-tokenizer: its action tokenizer cannot be loaded")
    assert (
        "hf download tests/no-such-tokenizer tokenizer.json processor_config.json --local-dir"
        in message
    )


def test_tokenizers_that_do_not_fit_together_are_refused(folders):
    with pytest.raises(PolicyError, match="fast_skip_tokens=400"):
        read_sentences(*folders, 400)
    options = {"fast_skip_tokens": 400, "paligemma_tokenizer_name": folders[1]}
    with pytest.raises(PolicyError, match="fast_skip_tokens=400"):
        ActionTokens(folders[0], reads_actions=True, **options)
    ActionTokens(folders[0], **options)  # acting reads no actions
