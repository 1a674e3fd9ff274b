"""Task sentences that are longer than the policy reads are counted, named, and cut when told."""

import dataclasses
import logging

import pytest

from kata.data import open_dataset
from kata.data.dataset.mixture import Mixture, MixtureEntry
from kata.data.format.episode_table import TaskLists
from kata.errors import DataError
from kata.processors import Pipeline, StatePrompt, Tokenize
from kata.spec import TASK
from kata.train.input.prompts import check_prompts
from tests.policies import test_pi0 as pi0

tools = pi0.tools


@pytest.fixture
def data(tiny_dataset):
    opened = open_dataset("tests/tiny", root=tiny_dataset)
    tasks = TaskLists.of((f"task {'x' * n}",) for n in (0, 1, 9, 10, 20, 1))
    layout = dataclasses.replace(opened.layout, tasks=tasks)
    return Mixture((MixtureEntry("one", dataclasses.replace(opened, layout=layout)),))


def checked(tools, data, **options):
    config = pi0.config(text_tokenizer_name=tools.folder(), **options)
    step = Tokenize(tools.folder(), max_length=config.tokenizer_max_length)
    told = [StatePrompt()] if options.get("cut_long_prompts") else []
    return check_prompts(config, Pipeline("before", (*told, step)), data)


def test_long_sentences_are_counted_and_named_with_what_helps(tools, data):
    with pytest.raises(DataError) as caught:
        checked(tools, data, tokenizer_max_length=12)
    message = str(caught.value)
    assert "3 of 5 task sentences have more than 12 tokens" in message
    assert "'task xxxxxxxxx' has" in message
    assert "--policy.cut_long_prompts=true" in message
    needed = int(message.partition("tokenizer_max_length=")[2].split(",")[0])
    assert checked(tools, data, tokenizer_max_length=needed) == []


def test_they_are_cut_when_told_and_states_count(tools, data):
    (note,) = checked(tools, data, tokenizer_max_length=12, cut_long_prompts=True)
    assert note.startswith("5 of 5 task sentences")
    assert note.endswith("their ends are cut off")


def test_acting_tells_of_the_first_sentence_that_it_cuts(tools, caplog):
    step = Tokenize(tools.folder(), max_length=4)
    with caplog.at_level(logging.WARNING):
        step({TASK: ["go", "push the block", "push the red block"]})
    (record,) = caplog.records
    assert "is cut to 4: 'push the block'" in record.getMessage()
