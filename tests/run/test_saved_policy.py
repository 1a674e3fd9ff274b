"""Policies that are saved elsewhere."""

import importlib
import json
from pathlib import Path

import huggingface_hub

from kata.run import policy_folder
from tests import forked
from tests.data.format.test_hub import hub, pointed

SAVED = (
    "config.json", "model.safetensors", "policy_preprocessor.json", "tokenizer/merges.txt",
    "tokenizer/tokenizer.model", "tokenizer/chat_template.jinja", "action_tokenizer/tokenizer.json",
)  # fmt: skip
OTHERS = ("README.md", "train.log", "model.bin")


def fetch(found: Path) -> None:
    """Fetch a policy where the Hub is what the environment says; runs in another process."""
    importlib.reload(huggingface_hub.constants)
    folder = policy_folder("x/y")
    files = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    found.write_text(json.dumps(sorted(files)))


def test_a_policy_of_the_hub_comes_with_all_files_of_its_tokenizers_and_no_others(tmp_path: Path):
    for name in (*SAVED, *OTHERS):
        file = tmp_path / "remote" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    said, found = tmp_path / "said.txt", tmp_path / "found.json"
    with hub(tmp_path / "remote", "main") as (endpoint, _):
        process = forked.start(fetch, [found], said, pointed(tmp_path / "home", endpoint))
        team = forked.Team([process], [said])
        assert team.ended(60) == [0], team.said()
    assert json.loads(found.read_text()) == sorted(SAVED)
