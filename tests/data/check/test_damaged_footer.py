"""A table file whose footer names a column in bytes that are no text."""

import json
from pathlib import Path

import pytest

from benchmarks.streaming.servers.files import FileServer, serving
from kata.cli import main
from kata.data import open_dataset
from kata.errors import DataError
from tests.data.dataset_maker import CAMERA, make

NAME = "data/chunk-000/file-000.parquet"


def damaged(root: Path, leaf: bytes) -> Path:
    """A dataset of images whose first file names the cells of the camera otherwise."""
    make(root, camera="image")
    data = (root / NAME).read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    schema = data.index(CAMERA.encode(), footer)
    column = data.index(CAMERA.encode(), schema + 1)
    place = data.index(b"bytes", column)
    (root / NAME).write_bytes(data[:place] + leaf + data[place + len(leaf) :])
    return root


def test_check_reports_it_with_all_else(tmp_path, capsys):
    folder = damaged(tmp_path / "set", b"\xf8ytes")
    assert main(["data", "check", str(folder), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    found = [each for each in report["problems"] if each["kind"] == f"camera '{CAMERA}'"]
    assert [each["rule"] for each in found] == ["a complete parquet file"]
    assert NAME in found[0]["what"]


def test_info_shows_the_camera_as_damaged(tmp_path, capsys):
    folder = damaged(tmp_path / "set", b"\xf8ytes")
    assert main(["data", "info", str(folder)]) == 0
    assert f"damaged: {NAME}" in capsys.readouterr().out


@pytest.mark.parametrize("column", [b"\xf8bserv", b"unknown"])
def test_a_store_refuses_it(tmp_path, column):
    folder = make(tmp_path / "set", camera="image")
    data = (folder / NAME).read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    place = data.index(CAMERA.encode(), data.index(CAMERA.encode(), footer) + 1)
    (folder / NAME).write_bytes(data[:place] + column + data[place + len(column) :])
    server = FileServer(folder)
    with serving(server), pytest.raises(DataError, match="complete parquet file") as caught:
        open_dataset("x/y", root=server.url)
    assert NAME in str(caught.value)
