import huggingface_hub
import pytest

from kata.train.publish import upload


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_a_hub_that_cannot_be_reached_costs_nothing_but_the_upload(monkeypatch, tiny_run, folder):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", "hf_secret_of_the_test")
    said = upload(tiny_run("--policy.repo_id=user/policy", "--policy.push_to_hub=true"), folder)
    assert said.startswith("not uploaded to user/policy")
    assert str(folder) in said
    assert "hf_secret" not in said
    assert (folder / "config.json").is_file()


def test_the_card_names_the_dataset_and_the_policy(monkeypatch, tiny_run, folder):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", "x")
    upload(tiny_run("--policy.repo_id=user/policy", "--policy.tags=[mine]"), folder)
    card = (folder / "README.md").read_text()
    for word in ("datasets: tests/tiny", "library_name: lerobot", "- act", "- mine"):
        assert word in card
