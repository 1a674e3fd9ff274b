"""The options are frozen: users' scripts depend on them. A change updates flags.txt too.

Write the list and docs/options.md again with: python tools/options_page.py
"""

import functools
from collections import defaultdict

import pytest
from tools.options_page import LIST, PAGE, frozen_list

from kata.cli import KATA
from kata.config.reference import options_page
from kata.config.schema import EVERYTHING, Entry
from kata.config.verb import Verb


@functools.cache
def every_option() -> list[tuple[str, Entry]]:
    return options()


def options(verb: Verb = KATA, path: str = "kata") -> list[tuple[str, Entry]]:
    """Every option of every verb, with the verb that takes it."""
    found = [(path, entry) for entry in (verb.entries(EVERYTHING) if verb.options else [])]
    for name, below in verb.verbs.items():
        found += options(below, f"{path} {name}")
    return found


def test_names_types_and_defaults_of_all_flags_are_those_on_record():
    assert frozen_list() == LIST.read_text()


def test_the_page_of_all_options_is_current():
    assert options_page(KATA) == PAGE.read_text(), "run: python tools/options_page.py"


@pytest.mark.parametrize(
    ("verb", "entry"), every_option(), ids=lambda each: getattr(each, "name", each)
)
def test_every_option_has_a_sentence_of_help_and_a_default_that_is_allowed(verb, entry):
    assert entry.declared.help[:1].isupper() or entry.declared.help.startswith(
        ("gymnasium", "clip_pool")
    )
    assert entry.declared.help.endswith((".", ")", "'.")), f"{verb} --{entry.name}"
    assert len(entry.declared.help) <= 200
    values = entry.default if isinstance(entry.default, list | tuple) else [entry.default]
    assert all(entry.declared.allows(value) for value in values)


def test_a_plain_help_of_train_shows_about_twenty():
    common = [entry for entry in KATA.verbs["train"].entries({}) if entry.declared.is_common]
    assert 18 <= len(common) <= 22


def test_verbs_that_open_a_dataset_name_it_alike():
    names = defaultdict(set)
    for path, entry in every_option():
        names[path].add(entry.name)
    for verb in ("info", "stats", "check", "view", "convert", "split", "transcode"):
        assert {"dataset.root", "dataset.repo_id", "dataset.revision"} <= names[
            f"kata data {verb}"
        ] & names["kata train"]
    for verb in ("stats", "check", "convert", "split", "transcode"):
        assert {"dataset.episodes", "dataset.exclude_episodes"} <= names[f"kata data {verb}"]
    for path, entry in every_option():
        if (
            path in ("kata quickstart", "kata data demo", "kata data replay", "kata bench data")
            and entry.name == "root"
        ):
            assert "dataset.root" in entry.declared.aliases
