"""The folder of checkpoints: whole ones are found, damaged ones are named, what retention spares
stays.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from kata.errors import CheckpointError
from kata.pointers import point
from kata.train.checkpoint.folder import best_checkpoints, checkpoints, publish, recover, resumable
from kata.train.checkpoint.manifest import MANIFEST, damage, has_manifest, step_of
from kata.train.checkpoint.retention import Keep, prune, surplus

WEIGHTS, STEP = "pretrained_model/model.safetensors", "training_state/training_step.json"


def fill(folder: Path, text: str = "{}") -> None:
    (folder / "pretrained_model").mkdir()
    (folder / "training_state").mkdir()
    (folder / "pretrained_model" / "config.json").write_text(text)
    save_file({"w": np.arange(len(text) * 100, dtype=np.float32)}, folder / WEIGHTS)
    (folder / STEP).write_text(text)


@pytest.fixture
def home(tmp_path):
    """Checkpoints of steps 2, 4, 6; `last` points at 6, `best` at the weights of 4."""
    home = tmp_path / "checkpoints"
    for step in (2, 4, 6):
        publish(home / f"{step:06d}", step, fill)
    for step, error in ((2, 0.5), (4, 0.3), (6, 0.4)):
        text = json.dumps({"step": step, "action_error": error})
        publish(
            home / f"best-{step:06d}",
            step,
            lambda f, text=text: (f / "validation.json").write_text(text),
        )
    point(home / "last", "000006")
    point(home / "best", "best-000004")
    return home


def names(paths):
    return [path.name for path in paths]


def test_the_manifest_lists_every_file_with_size_and_hash(home):
    manifest = json.loads((home / "000004" / MANIFEST).read_text())
    assert manifest["step"] == 4
    assert set(manifest["versions"]) == {"kata", "torch", "safetensors", "python"}
    found = {
        str(p.relative_to(home / "000004")): p.stat().st_size
        for p in (home / "000004").rglob("*.*")
    }
    assert {name: entry["bytes"] for name, entry in manifest["files"].items()} == {
        name: size for name, size in found.items() if name != MANIFEST
    }
    assert damage(home / "000004") == []


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def turn_a_bit(path):
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(raw)


HARM = {
    "cut off": (lambda f: cut(f / WEIGHTS), "bytes"),
    "one bit": (lambda f: turn_a_bit(f / WEIGHTS), "content changed"),
    "gone": (lambda f: (f / STEP).unlink(), "training_step.json: absent"),
    "manifest cut off": (lambda f: cut(f / MANIFEST), "manifest.json: cannot be read"),
    "manifest empty": (lambda f: (f / MANIFEST).write_text("[]"), "manifest.json: cannot be read"),
}


@pytest.mark.parametrize("kind", HARM)
def test_a_damaged_newest_is_skipped_by_name_and_set_aside(home, kind):
    harm, words = HARM[kind]
    harm(home / "000006")
    found = resumable(home)
    assert found.source == home / "000004"
    assert words in found.notes[0]
    assert "000006.damaged" in found.notes[0]
    assert names(checkpoints(home)) == ["000002", "000004"]


def test_where_every_checkpoint_is_damaged_nothing_starts(home):
    for path in checkpoints(home):
        cut(path / WEIGHTS)
    with pytest.raises(CheckpointError) as caught:
        resumable(home)
    assert all(f"{name}: {WEIGHTS}" in str(caught.value) for name in ("000002", "000004", "000006"))
    assert names(checkpoints(home)) == ["000002", "000004", "000006"]


def test_an_empty_folder_starts(tmp_path):
    assert resumable(tmp_path / "checkpoints").source is None


def test_a_checkpoint_without_a_manifest_is_taken_with_a_note_when_its_files_are_whole(home):
    (home / "000006" / MANIFEST).unlink()
    assert not has_manifest(home / "000006")
    found = resumable(home)
    assert found.source == home / "000006"
    assert "has no manifest.json" in found.notes[0]
    for harm in (
        lambda: cut(home / "000006" / WEIGHTS),
        lambda: (home / "000006" / WEIGHTS).unlink(),
    ):
        harm()
        assert damage(home / "000006")
    assert resumable(home).source == home / "000004"


def test_the_newest_is_the_highest_number_not_the_last_word(home):
    publish(home / "1000000", 1_000_000, fill)
    assert resumable(home).source == home / "1000000"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_save_killed_at_every_moment_leaves_whole_checkpoints(tmp_path):
    """Killed before each call that changes the folder, while step 6 is written over and step 2
    is removed.
    """
    moment, ended = 0, False
    while not ended:
        moment += 1
        home = tmp_path / str(moment) / "checkpoints"
        for step in (2, 4, 6):
            publish(home / f"{step:06d}", step, fill)
        point(home / "last", "000006")
        done = os.fork()
        if done == 0:
            killed_at(home, moment)
        ended = os.waitstatus_to_exitcode(os.waitpid(done, 0)[1]) == 0
        recover(home)
        assert names(path for path in checkpoints(home) if damage(path)) == []
        assert resumable(home).source == home / "000006"
        assert not [path.name for path in home.glob(".*") if path.name != ".last.new"]
    assert moment > 15


def killed_at(home, moment):
    """In a forked process: the same save, which ends without a word before the `moment`-th call."""
    calls = 0

    def counted(work):
        def step(*args, **options):
            nonlocal calls
            calls += 1
            if calls == moment:
                os._exit(9)
            return work(*args, **options)

        return step

    for place, name in (
        (os, "fsync"),
        (Path, "rename"),
        (os, "replace"),
        (os, "unlink"),
        (os, "rmdir"),
    ):
        setattr(place, name, counted(getattr(place, name)))
    publish(home / "000006", 6, lambda folder: fill(folder, '{"new": 1}'))
    point(home / "last", "000006")
    prune(home, Keep(last=2))
    os._exit(0)


def test_a_best_folder_of_an_older_version_gets_a_name_and_a_pointer(tmp_path):
    old = tmp_path / "best"
    old.mkdir()
    (old / "validation.json").write_text('{"step": 30, "action_error": 0.2}')
    recover(tmp_path)
    assert (tmp_path / "best").readlink() == Path("best-000030")
    assert (tmp_path / "best" / "validation.json").is_file()


KEPT = [
    (Keep(), []),
    (Keep(last=3), []),
    (Keep(last=1), ["000002", "000004"]),
    (Keep(every=4), ["000002"]),
    (Keep(last=1, every=2), []),
]


@pytest.mark.parametrize(("keep", "gone"), KEPT)
def test_what_goes_is_what_no_rule_keeps(home, keep, gone):
    assert names(surplus(home, Keep(keep.last, keep.every, 0), hashes=False)) == gone


def test_the_best_weights_stay_by_their_error_and_the_pointed_one_always(home):
    assert names(best_checkpoints(home)) == ["best-000004", "best-000006", "best-000002"]
    assert names(surplus(home, Keep(best=2), hashes=False)) == ["best-000002"]
    point(home / "best", "best-000002")
    assert names(surplus(home, Keep(best=1), hashes=False)) == ["best-000006"]


def test_what_last_points_at_and_the_only_good_one_are_never_removed(home):
    point(home / "last", "000002")
    assert names(prune(home, Keep(last=1, best=0))) == ["000004"]
    turn_a_bit(home / "000006" / WEIGHTS)
    assert names(surplus(home, Keep(last=1, best=0), hashes=True)) == ["000006"]
    cut(home / "000002" / WEIGHTS)
    assert surplus(home, Keep(last=1, best=0), hashes=True) == []


def test_the_folder_is_managed_without_torch():
    code = (
        "import sys, kata.train.checkpoint.folder, kata.train.checkpoint.retention, "
        "kata.train.checkpoint.run_lock; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("alone", [False, True])
def test_pointers_that_a_copy_made_folders_become_checkpoints_again(home, tmp_path, alone):
    """As after cp -rL, scp -r or a zip file; or where nothing but `last` was copied."""
    for path in home.glob("0*"):
        (path / STEP).write_text(json.dumps({"step": int(path.name)}))
    copy = tmp_path / "copy"
    shutil.copytree(home / "last" if alone else home, copy / "last" if alone else copy)
    assert not (copy / "last").is_symlink()
    (note,) = recover(copy)
    assert "last" in note
    assert names(checkpoints(copy)) == (["000006"] if alone else ["000002", "000004", "000006"])
    point(copy / "last", "000006")
    assert (copy / "last").resolve() == copy / "000006"
    if not alone:
        assert (copy / "best").resolve() == copy / "best-000004"
        assert (copy / "000006.copy").is_dir()


@pytest.mark.parametrize("text", ['{"step": -3}', '{"step": "x"}', "[]", "{"])
def test_a_step_that_is_none_is_refused(home, text):
    (home / "000006" / STEP).write_text(text)
    with pytest.raises(ValueError, match=r"training_step|property name|Expecting"):
        step_of(home / "000006")
