"""Where a run writes is looked at before anything is opened."""

import os

import pytest

from kata.errors import CheckpointError, ConfigError
from kata.run import resolve_run
from kata.run.outputs import LOCK, check_outputs, run_folder


@pytest.fixture
def run():
    fixed = ("--policy.type=act", "--dataset.repo_id=a/b")
    return lambda *args: resolve_run([*fixed, *args])[0]


@pytest.mark.parametrize("place", ["/proc/x/y", "/dev/null/run", "{file}/run"])
def test_a_folder_that_cannot_be_made_is_refused(place, run, tmp_path):
    (tmp_path / "file").write_text("")
    folder = place.format(file=tmp_path / "file")
    with pytest.raises(CheckpointError, match="cannot be written") as caught:
        check_outputs(run(f"--output_dir={folder}"))
    assert "--output_dir" in caught.value.remedy


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_closed_folder_is_refused(run, tmp_path):
    (tmp_path / "closed").mkdir(mode=0o000)
    with pytest.raises(CheckpointError, match="cannot be written"):
        check_outputs(run(f"--output_dir={tmp_path}/closed/run"))


def test_looking_leaves_nothing_behind(run, tmp_path):
    assert run_folder(run(f"--output_dir={tmp_path}/new/run")) == tmp_path / "new" / "run"
    assert not list(tmp_path.iterdir())


def test_a_folder_with_a_run_is_taken_unless_it_is_resumed(run, tmp_path):
    (tmp_path / LOCK).write_text("")
    check_outputs(run(f"--output_dir={tmp_path}"))
    (tmp_path / "log.txt").write_text("")
    with pytest.raises(CheckpointError, match="exists already"):
        check_outputs(run(f"--output_dir={tmp_path}"))
    check_outputs(run(f"--output_dir={tmp_path}", "--resume=true"))


def test_a_name_that_the_hub_refuses(run, tmp_path):
    with pytest.raises(ConfigError, match=r"policy\.repo_id=a/b/c"):
        check_outputs(run(f"--output_dir={tmp_path}/run", "--policy.repo_id=a/b/c"))
    check_outputs(
        run(f"--output_dir={tmp_path}/run", "--policy.repo_id=a/b/c", "--policy.push_to_hub=false")
    )
