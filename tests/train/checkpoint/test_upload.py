import socket

import huggingface_hub
import pytest

from kata.cli import main
from kata.train.checkpoint.upload import upload


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize("place", ["http://127.0.0.1:9", "http://hub.invalid"])
def test_a_hub_that_cannot_be_reached_costs_nothing_but_the_upload(
    monkeypatch, tiny_run, folder, place
):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", place)
    monkeypatch.setenv("HF_TOKEN", "hf_secret_of_the_test")
    said = upload(tiny_run("--policy.repo_id=user/policy", "--policy.push_to_hub=true"), folder)
    assert said.startswith("not uploaded to user/policy")
    assert f"kata checkpoint push {folder} --repo_id=user/policy" in said
    assert "hf_secret" not in said
    assert (folder / "config.json").is_file()


def test_the_card_names_the_dataset_and_the_policy(monkeypatch, tiny_run, folder):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", "x")
    upload(tiny_run("--policy.repo_id=user/policy", "--policy.tags=[mine]"), folder)
    card = (folder / "README.md").read_text()
    for word in ("datasets: tests/tiny", "library_name: lerobot", "- act", "- mine"):
        assert word in card


def test_a_run_whose_hub_is_down_from_start_to_end_succeeds_and_says_how_to_upload(
    light_args, tmp_path, monkeypatch, capsys
):
    """A real connection that is refused."""
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    options = ["--policy.push_to_hub=true", "--policy.repo_id=user/policy", "--steps=2"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
        assert main(["train", *light_args, *options]) == 0
    said = capsys.readouterr().out
    assert "not uploaded to user/policy" in said
    assert "kata checkpoint push" in said
    weights = tmp_path / "run/checkpoints/last/pretrained_model/model.safetensors"
    assert weights.is_file()
