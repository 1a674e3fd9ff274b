"""Metadata and columns are brought once, whole or not at all, and again when they change."""

import errno
import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from benchmarks.streaming.servers.files import FileServer, serving
from kata.data import open_dataset
from kata.data.remote import mirror as mirrors
from kata.data.remote import old_states
from kata.data.remote.mirror import Mirror
from kata.data.remote.objects import open_objects
from kata.data.remote.remote_store import RemoteStore
from kata.errors import DataError
from tests.data import dataset_maker
from tests.data.dataset_maker import CAMERA, make


def bytes_sent(server: FileServer, end: str) -> int:
    """The bytes of the ranges that were asked for, apart from looks at the first byte."""
    total = 0
    for _, _, asked in server.asked_for(end):
        begin, _, last = asked.removeprefix("bytes=").partition("-")
        total += int(last) - int(begin) + 1 if asked != "bytes=0-0" else 0
    return total


def test_files_are_brought_once(web, folder):
    first = open_dataset("x/y", root=web.url)
    first.column("action")
    tables = sum(path.stat().st_size for path in folder.glob("data/**/*.parquet"))
    assert bytes_sent(web, ".parquet") <= tables + sum(
        path.stat().st_size for path in folder.glob("meta/**/*.parquet")
    )
    web.asked.clear()
    again = open_dataset("x/y", root=web.url)
    assert (again.column("action") == first.column("action")).all()
    assert not [each for each in web.asked if each[2] != "bytes=0-0"]
    assert again.root == first.root


def test_what_changes_is_brought_again_and_said(web, folder):
    first = open_dataset("x/y", root=web.url)
    info = json.loads((folder / "meta/info.json").read_text())
    (folder / "meta/info.json").write_text(json.dumps(info | {"robot_type": "another"}))
    web.asked.clear()
    again = open_dataset("x/y", root=web.url)
    assert again.robot_type == "another"
    assert any("has changed since it was last read here" in note for note in again.notes)
    brought = {path for _, path, asked in web.asked if asked != "bytes=0-0"}
    assert brought == {"/meta/info.json"}
    # A run that reads the state before is not disturbed.
    assert json.loads((first.root / "meta/info.json").read_text())["robot_type"] == "made"
    assert not any("changed" in note for note in open_dataset("x/y", root=web.url).notes)


def test_states_are_removed_that_nobody_reads(web, folder):
    def change(robot: str) -> Path:
        info = json.loads((folder / "meta/info.json").read_text())
        (folder / "meta/info.json").write_text(json.dumps(info | {"robot_type": robot}))
        return open_dataset("x/y", root=web.url).root

    first, second = change("one"), change("two")
    blobs = len([*first.parent.parent.glob("blobs/*")])
    assert (first / "meta/info.json").is_file(), "this process may read it"
    # As if this process had ended.
    os.close(old_states._held.pop(first))
    third = change("three")
    assert not first.exists()
    assert not first.with_name(f"{first.name}.lock").exists()
    assert (second / "meta/info.json").is_file()
    assert json.loads((third / "meta/info.json").read_text())["robot_type"] == "three"
    assert len([*first.parent.parent.glob("blobs/*")]) == blobs
    for state in (second, third):
        assert all(path.exists() for path in state.rglob("*"))


def test_another_content_is_another_fingerprint_which_a_resumed_run_compares(web, folder):
    first = open_dataset("x/y", root=web.url).fingerprint
    assert open_dataset("x/y", root=web.url).fingerprint == first
    video = folder / f"videos/{CAMERA}/chunk-000/file-000.mp4"
    video.write_bytes(video.read_bytes() + b"\0\0\0\x08free")
    assert open_dataset("x/y", root=web.url).fingerprint != first


def test_images_are_not_brought_with_the_numbers(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    monkeypatch.setattr(
        dataset_maker, "picture", lambda *_: rng.integers(0, 256, (32, 48, 3), np.uint8)
    )
    folder = make(tmp_path / "images", camera="image", lengths=(40, 40))
    near = open_dataset("x/y", root=folder)
    server = FileServer(folder)
    with serving(server):
        data = open_dataset("x/y", root=server.url)
        server.asked.clear()
        name = data.layout.data.files[0]
        mirror = Mirror(RemoteStore(open_objects(server.url)))
        mirror.bring_metadata()
        mirror.bring([name], [CAMERA, "unknown"])
        whole = (folder / name).stat().st_size
        assert (mirror.root / name).stat().st_size == whole
        assert bytes_sent(server, name) < whole / 2
    assert np.array_equal(data.column("grid"), near.column("grid"))


def test_an_interrupted_download_leaves_nothing(web, folder, monkeypatch):
    store = RemoteStore(open_objects(web.url))
    mirror = Mirror(store)
    mirror.bring_metadata()
    name = "data/chunk-000/file-000.parquet"
    monkeypatch.setattr(mirrors, "_PART_BYTES", 500)
    real, calls = store.read_into, []

    def cut_off(*args):
        calls.append(args)
        if len(calls) > 2:
            raise KeyboardInterrupt
        real(*args)

    monkeypatch.setattr(store, "read_into", cut_off)
    before = sorted(path.name for path in mirror.root.parent.parent.glob("blobs/*"))
    with pytest.raises(KeyboardInterrupt):
        mirror.bring([name])
    assert sorted(path.name for path in mirror.root.parent.parent.glob("blobs/*")) == before
    assert not (mirror.root / name).exists()
    monkeypatch.setattr(store, "read_into", real)
    mirror.bring([name])
    assert (mirror.root / name).read_bytes() == (folder / name).read_bytes()


def test_parts_of_a_killed_download_are_removed(web):
    store = RemoteStore(open_objects(web.url))
    mirror = Mirror(store)
    mirror.bring_metadata()
    part = mirror.root.parent.parent / "blobs" / "0123.part"
    part.write_bytes(b"half")
    mirror.bring(["data/chunk-000/file-000.parquet"])
    assert not part.exists()


@pytest.mark.parametrize(
    ("call", "named"), [("pwrite", "{url}/meta/"), ("symlink", "the list of {url}")]
)
def test_a_full_disk_is_one_message(web, monkeypatch, call, named):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(DataError, match="No space left on device") as caught:
        open_dataset("x/y", root=web.url)
    for word in (named.format(url=web.url), "KATA_CACHE"):
        assert word in str(caught.value)


def test_runs_that_start_together_bring_each_file_once(web):
    found: list[object] = []
    gate = threading.Barrier(8)

    def start() -> None:
        gate.wait()
        found.append(open_dataset("x/y", root=web.url).column("action"))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    whole = [path for _, path, asked in web.asked if asked != "bytes=0-0"]
    tables = [path for path in whole if path.startswith(("/meta", "/data"))]
    assert len(tables) == len(set(tables))


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"not a table at all" * 9])
def test_a_damaged_table_is_named(tmp_path, damage):
    folder = make(tmp_path / "damaged", camera="image")
    name = "data/chunk-000/file-000.parquet"
    (folder / name).write_bytes(damage)
    server = FileServer(folder)
    with serving(server), pytest.raises(DataError, match="complete parquet file") as caught:
        open_dataset("x/y", root=server.url)
    assert name in str(caught.value)
