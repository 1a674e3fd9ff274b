"""Ranks of one machine fetch a dataset and a policy from the Hub once."""

import shutil
from collections import Counter

from kata.cli import main
from tests.conftest import TINY_ACT
from tests.data.format.test_hub import hub, pointed
from tests.dist import ranks, scenes

LIMIT_S = 300.0


def test_two_ranks_of_a_machine_fetch_each_file_once(vector_dataset, tmp_path):
    made = [f"--dataset.root={vector_dataset}", "--dataset.repo_id=x/y", *TINY_ACT, "--steps=1"]
    assert main(["train", *made, f"--output_dir={tmp_path / 'made'}"]) == 0
    repo = tmp_path / "repo"
    shutil.copytree(vector_dataset, repo)
    shutil.copytree(tmp_path / "made/checkpoints/last/pretrained_model", repo, dirs_exist_ok=True)
    with hub(repo, "v3.0", "main") as (endpoint, asked):
        options = (
            "--dataset.repo_id=x/y",
            "--policy.path=x/y",
            "--policy.push_to_hub=false",
            "--policy.device=cpu",
        )
        args = [*options, "--steps=2", f"--output_dir={tmp_path / 'out'}"]
        environment = pointed(tmp_path / "home", endpoint)
        group = ranks.start(2, scenes.train_from_hub, environment, args, folder=tmp_path / "ranks")
        assert group.ended(LIMIT_S) == [0, 0], group.said(0) + group.said(1)
    assert (tmp_path / "home/hf/hub").is_dir()
    times = Counter(line for line in asked if "/resolve/" in line)
    fetched = {line.rpartition("/")[2] for line in times if line.startswith("GET")}
    assert {"info.json", "model.safetensors"} <= fetched
    assert any(name.endswith(".parquet") for name in fetched)
    assert {line for line, count in times.items() if count > 1 and line.startswith("GET")} == set()
    assert {line for line, count in times.items() if count > 1 and "/datasets/" in line} == set(), (
        "the second rank finds the data that the first one has fetched, and asks for no file"
    )
