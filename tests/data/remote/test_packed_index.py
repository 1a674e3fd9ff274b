"""Packet indexes stored beside the dataset: a run opens no video, and ignores what does not fit."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from benchmarks.streaming.servers.files import FileServer, serving
from kata.cli import main
from kata.data import Reader, open_dataset
from kata.data.remote.packed_file import PACKED_NAME
from kata.data.storage.store import StoredFile, local_file
from kata.data.video import packet_index
from kata.data.video.packed_index import pack_index, unpack_index
from kata.data.video.packet_index import build_index, open_index
from tests.data.dataset_maker import CAMERA, make, picture, write_video

VIDEO = f"videos/{CAMERA}/chunk-000/file-000.mp4"


@pytest.fixture
def folder(tmp_path) -> Path:
    return make(tmp_path / "set", lengths=(30, 40, 25), b_frames=2)


def pixels(root: object) -> np.ndarray:
    data = open_dataset("x/y", root=str(root))
    with Reader(data, {}) as reader:
        return reader.read(np.arange(data.num_frames))[CAMERA]


def fresh_machine(tmp_path: Path, monkeypatch, name: str) -> None:
    monkeypatch.setenv("KATA_CACHE", str(tmp_path / name))


@pytest.mark.parametrize("b_frames", [0, 2])
@pytest.mark.parametrize("open_gop", [False, True])
def test_a_packed_index_is_the_index(tmp_path, b_frames, open_gop):
    path = tmp_path / "video.mp4"
    write_video(
        path, [picture(0, n) for n in range(50)], b_frames=b_frames, open_gop=open_gop, gop=7
    )
    index = build_index(local_file(path))
    block = packet_index.packed_bytes(index)
    assert len(block) < 1200
    found = unpack_index(block)
    for name, values in found.arrays.items():
        assert (values == vars(index)[name]).all(), name
    assert found.note["tick_s"] == index.tick_s


@pytest.mark.parametrize("cut", [0, 1, 10, -3])
def test_a_damaged_block_is_none(tmp_path, cut):
    path = tmp_path / "video.mp4"
    write_video(path, [picture(0, n) for n in range(8)])
    block = packet_index.packed_bytes(build_index(local_file(path)))
    assert unpack_index(block[:cut]) is None
    assert unpack_index(b"\0" * 40) is None


def test_numbers_of_any_size_are_packed():
    big = 2**40
    arrays = {
        "pts": np.array([-3, big]),
        "offset": np.array([big, 7]),
        "size": np.array([5, big]),
        "packet": np.array([1, 0, 1]),
        "start": np.array([0, 0, 0]),
    }
    found = unpack_index(pack_index(arrays, {"any": [1]}))
    assert found.note == {"any": [1]}
    for name, values in arrays.items():
        assert found.arrays[name].tolist() == values.tolist(), name


def test_an_index_made_in_the_folder_serves_the_web(tmp_path, folder, monkeypatch, capsys):
    assert main(["data", "index", str(folder)]) == 0
    assert "2 videos indexed" in capsys.readouterr().out
    fresh_machine(tmp_path, monkeypatch, "other")
    server = FileServer(folder)
    with serving(server):
        data = open_dataset("x/y", root=server.url)
        indexes = [open_index(StoredFile(data.store, name)) for name in data.layout.files()[2:]]
        videos = [each for each in server.asked_for(".mp4") if each[2] != "bytes=0-0"]
        assert not videos
        assert [len(index) for index in indexes] == [70, 25]
        assert (pixels(server.url) == pixels(folder)).all()


@pytest.mark.parametrize("kind", ["s3", "hub", "gs"])
def test_an_index_is_stored_beside_a_dataset(tmp_path, folder, place, monkeypatch, capsys, kind):
    with place(kind, folder) as there:
        assert main(["data", "index", there.root, "--upload"]) == 0
        assert f"{there.root}/{PACKED_NAME}" in capsys.readouterr().out
        fresh_machine(tmp_path, monkeypatch, "other")
        data = open_dataset("x/y", root=there.root)
        assert not data.notes
        name = data.layout.files()[-1]
        assert data.store.packed_index(name, data.store.stamps([name])[name]) is not None
        assert (pixels(there.root) == pixels(folder)).all()


def test_without_upload_the_index_is_kept_on_this_machine(folder, capsys):
    server = FileServer(folder)
    with serving(server):
        assert main(["data", "index", server.url]) == 0
        assert "--upload" in capsys.readouterr().out
        server.asked.clear()
        data = open_dataset("x/y", root=server.url)
        open_index(StoredFile(data.store, VIDEO))
        assert not [each for each in server.asked_for(".mp4") if each[2] != "bytes=0-0"]


def test_an_index_that_does_not_fit_is_not_used_and_said(tmp_path, folder, monkeypatch):
    assert main(["data", "index", str(folder)]) == 0
    write_video(folder / VIDEO, [picture(5, n) for n in range(70)])
    fresh_machine(tmp_path, monkeypatch, "other")
    server = FileServer(folder)
    with serving(server):
        data = open_dataset("x/y", root=server.url)
        name = data.layout.files()[-1]
        stamps = data.store.stamps([VIDEO, name])
        assert data.store.packed_index(VIDEO, stamps[VIDEO]) is None
        assert data.store.packed_index(name, stamps[name]) is not None
        assert (pixels(server.url) == pixels(folder)).all()


def test_a_listing_shows_what_does_not_fit(tmp_path, folder, place):
    assert main(["data", "index", str(folder)]) == 0
    write_video(folder / VIDEO, [picture(5, n) for n in range(70)])
    with place("hub", folder) as there:
        notes = open_dataset("x/y", root=there.root).notes
    assert len(notes) == 1
    for word in (PACKED_NAME, "1 video", VIDEO, "kata data index", "--upload"):
        assert word in notes[0]


def test_a_damaged_file_is_not_used_and_said(folder, place):
    assert main(["data", "index", str(folder)]) == 0
    path = folder / PACKED_NAME
    path.write_bytes(path.read_bytes()[:-5])
    with place("web", folder) as there:
        data = open_dataset("x/y", root=there.root)
        assert "is damaged or of another version" in data.notes[0]
        assert (pixels(there.root) == pixels(folder)).all()


def test_a_folder_is_no_place_for_an_upload(folder, capsys):
    assert main(["data", "index", str(folder), "--upload"]) == 2
    assert "leave --upload out" in capsys.readouterr().err
    assert not (folder / PACKED_NAME).exists()


def test_a_web_server_takes_no_upload(folder, capsys):
    server = FileServer(folder)
    with serving(server):
        assert main(["data", "index", server.url, "--upload"]) == 2
    assert "405" in capsys.readouterr().err


def test_the_file_is_no_fault_of_the_dataset(folder, capsys):
    assert main(["data", "index", str(folder)]) == 0
    capsys.readouterr()
    assert main(["data", "check", str(folder), "--json"]) == 0
    before = json.loads(capsys.readouterr().out)
    shutil.rmtree(folder / "meta/kata")
    assert main(["data", "check", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == before
