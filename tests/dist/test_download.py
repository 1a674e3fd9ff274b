"""Ranks of one machine fetch a dataset and a policy from the Hub once."""

import shutil
import subprocess
import sys
from collections import Counter

from kata.cli import main
from tests.conftest import TINY_ACT
from tests.data.test_hub import hub, pointed
from tests.dist.ranks import free_port

LIMIT_S = 300.0


def test_two_ranks_of_a_machine_fetch_each_file_once(vector_dataset, tmp_path):
    made = [f"--dataset.root={vector_dataset}", "--dataset.repo_id=x/y", *TINY_ACT, "--steps=1"]
    assert main(["train", *made, f"--output_dir={tmp_path / 'made'}"]) == 0
    repo = tmp_path / "repo"
    shutil.copytree(vector_dataset, repo)
    shutil.copytree(tmp_path / "made/checkpoints/last/pretrained_model", repo, dirs_exist_ok=True)
    with hub(repo, "v3.0", "main") as (endpoint, asked):
        options = ("--dataset.repo_id=x/y", "--policy.path=x/y", "--policy.push_to_hub=false", "--policy.device=cpu")
        command = [sys.executable, "-m", "kata", "train", *options, "--steps=2", f"--output_dir={tmp_path / 'out'}"]
        meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        ranks = []
        for rank in ("0", "1"):
            environment = {**pointed(tmp_path / "home", endpoint), **meeting, "RANK": rank, "LOCAL_RANK": rank}
            with (tmp_path / f"rank-{rank}").open("w") as out:
                ranks.append(subprocess.Popen(command, env=environment, stdout=out, stderr=out))
        try:
            statuses = [rank.wait(LIMIT_S) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        assert statuses == [0, 0], "".join((tmp_path / f"rank-{rank}").read_text() for rank in (0, 1))
    times = Counter(line for line in asked if "/resolve/" in line)
    fetched = {line.rpartition("/")[2] for line in times if line.startswith("GET")}
    assert {"info.json", "model.safetensors"} <= fetched
    assert any(name.endswith(".parquet") for name in fetched)
    assert {line for line, count in times.items() if count > 1 and line.startswith("GET")} == set()
    assert {line for line, count in times.items() if count > 1 and "/datasets/" in line} == set(), (
        "the second rank finds the data that the first one has fetched, and asks for no file"
    )
