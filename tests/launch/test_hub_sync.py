"""What is sent when, and that a Hub that is down costs uploads only."""

import json
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd

from kata.cli import main
from kata.launch.hub_sync import Courier


class Hub:
    """Takes commits as HfApi does, or fails as it does without a network."""

    def __init__(self):
        self.down = False
        self.commits: list[tuple[set[str], set[str]]] = []
        self.pointers = {}

    def create_commit(self, repo_id, operations, commit_message):
        if self.down:
            raise OSError("no route to host")
        added = {
            each.path_in_repo: each for each in operations if isinstance(each, CommitOperationAdd)
        }
        gone = {each.path_in_repo for each in operations if each.path_in_repo not in added}
        self.pointers = json.loads(added["pointers.json"].path_or_fileobj)
        self.commits.append((set(added), gone))


@pytest.fixture
def courier(tmp_path) -> Courier:
    one = Courier("me/run", tmp_path)
    one._api = Hub()
    (tmp_path / "train_config.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    return one


def save(folder: Path, name: str) -> None:
    inner = folder / "checkpoints" / name / "pretrained_model"
    inner.mkdir(parents=True)
    (inner / "model.safetensors").write_text(name)


def test_each_new_checkpoint_replaces_the_one_before(courier, tmp_path):
    courier._bring()
    assert courier._api.commits == []
    save(tmp_path, "000010")
    courier._bring()
    courier._bring()
    save(tmp_path, "000020")
    save(tmp_path, "best-000010")
    (tmp_path / "checkpoints/best").symlink_to("best-000010")
    (tmp_path / "checkpoints/last").symlink_to("000010")  # as after a kill just before it was moved
    (tmp_path / "checkpoints/.000030.partial").mkdir()
    courier._bring()
    figures = {"train_config.json", "metrics.jsonl", "pointers.json"}
    assert courier._api.commits == [
        ({"checkpoints/000010/pretrained_model/model.safetensors", *figures}, set()),
        (
            {
                f"checkpoints/{name}/pretrained_model/model.safetensors"
                for name in ("000020", "best-000010")
            }
            | figures,
            {"checkpoints/000010/"},
        ),
    ]
    assert courier._api.pointers == {"last": "000020", "best": "best-000010"}


def test_a_hub_that_is_down_is_told_once_and_tried_again(courier, tmp_path, caplog):
    save(tmp_path, "000010")
    courier._api.down = True
    courier._bring()
    courier._bring()
    assert [record.message for record in caplog.records] == [
        "checkpoints not uploaded to me/run, will be tried again: no route to host"
    ]
    courier._api.down = False
    courier._bring()
    assert len(courier._api.commits) == 1


def test_a_run_without_a_folder_has_nothing_to_upload(capsys):
    train = ["train", "--policy.type=act", "--dataset.repo_id=a/b", "--policy.push_to_hub=false"]
    assert main(["launch", "--ranks=1", "--checkpoint_repo=me/run", "--", *train]) == 2
    assert "output_dir: not given" in capsys.readouterr().err
