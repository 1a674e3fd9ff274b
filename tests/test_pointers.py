"""`last` and `best`: links where the file system has them, small files where it has not."""

import json
import os
import shutil
from pathlib import Path

import pytest

from kata.errors import CheckpointError
from kata.pointers import point, pointed, resolve_pointer
from kata.run import policy_folder


@pytest.fixture
def no_links(monkeypatch):
    """A file system that refuses symbolic links, as exFAT does."""

    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", refuse)


@pytest.fixture
def run_folder(tmp_path):
    for step in ("000002", "000004"):
        inner = tmp_path / "checkpoints" / step / "pretrained_model"
        inner.mkdir(parents=True)
        (inner / "config.json").write_text(json.dumps({"type": "act", "step": step}))
    return tmp_path


def test_a_pointer_is_a_relative_link_and_moves(run_folder):
    link = run_folder / "checkpoints" / "last"
    point(link, "000002")
    point(link, "000004")
    assert link.readlink() == Path("000004")
    assert pointed(link) == link.parent / "000004"
    assert pointed(link.with_name("best")) is None


@pytest.mark.usefixtures("no_links")
@pytest.mark.parametrize("named", [".", "checkpoints/last", "checkpoints/last/pretrained_model"])
def test_without_links_every_way_to_name_the_last_checkpoint_works(run_folder, named):
    link = run_folder / "checkpoints" / "last"
    point(link, "000002")
    point(link, "000004")
    assert link.read_text() == "000004\n"
    assert not link.is_symlink()
    assert (
        policy_folder(str(run_folder / named)) == run_folder / "checkpoints/000004/pretrained_model"
    )


def test_a_path_without_pointers_stays(run_folder):
    path = run_folder / "checkpoints/000002/pretrained_model"
    assert resolve_pointer(path) == path
    (run_folder / "last").mkdir()
    assert resolve_pointer(run_folder / "last" / "x") == run_folder / "last" / "x"


@pytest.mark.parametrize("text", ["", "..", "../../elsewhere", "/etc"])
def test_a_pointer_out_of_its_folder_is_refused(run_folder, text):
    (run_folder / "checkpoints" / "last").write_text(text)
    with pytest.raises(CheckpointError, match="last"):
        resolve_pointer(run_folder / "checkpoints" / "last" / "pretrained_model")


def test_a_pointer_that_a_copy_made_a_folder_is_the_checkpoint(run_folder):
    link = run_folder / "checkpoints" / "last"
    point(link, "000004")
    link.unlink()
    shutil.copytree(run_folder / "checkpoints" / "000004", link)
    assert pointed(link) == link
    assert resolve_pointer(link / "pretrained_model") == link / "pretrained_model"
