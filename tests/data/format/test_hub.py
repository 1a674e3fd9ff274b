"""The Hub path, against a small server on this machine.

huggingface_hub reads its address and folders when it is imported, so each case runs in a process of
its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest

from kata.data import Reader, open_dataset
from kata.errors import DataError
from tests import forked
from tests.data.dataset_maker import make

COMMIT = "c" * 40
NONE: Mapping[str, str] = {}


def read_in_process(options: dict[str, object], found: Path) -> None:
    """Read a dataset where the Hub is what the environment says; runs in another process."""
    importlib.reload(huggingface_hub.constants)
    try:
        data = open_dataset("x/y", **options)
        with Reader(data, {}) as reader:
            frames = len(reader.read(np.arange(data.num_frames))["task"])
        answer = {"frames": frames, "version": data.version, "root": str(data.root)}
    except DataError as error:
        answer = {"error": str(error)}
    found.write_text(json.dumps(answer))


class Hub(BaseHTTPRequestHandler):
    """As much of the Hub as downloading a snapshot takes: revision, tree, files; as a model the
    same files again.
    """

    folder: Path
    tags: tuple[str, ...]
    asked: list[str]

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        path = self.path.partition("?")[0]
        self.asked.append(f"{self.command} {path}")
        path = path.replace("/api/models/", "/api/datasets/")
        path = f"/datasets{path}" if path.startswith("/x/y/") else path
        names = [
            str(p.relative_to(self.folder)) for p in sorted(self.folder.rglob("*")) if p.is_file()
        ]
        api = "/api/datasets/x/y"
        if path.startswith(f"{api}/revision/") and path.rpartition("/")[2] in (*self.tags, COMMIT):
            siblings = [{"rfilename": name} for name in names]
            self.send(json.dumps({"id": "x/y", "sha": COMMIT, "siblings": siblings}).encode(), body)
        elif path.startswith(f"{api}/tree/") and path.split("/")[6] in (*self.tags, COMMIT):
            files = [(name, (self.folder / name).read_bytes()) for name in names]
            tree = [{"type": "file", "path": n, "size": len(d), "oid": etag(d)} for n, d in files]
            self.send(json.dumps(tree).encode(), body)
        elif path.startswith("/datasets/x/y/resolve/") and "/".join(path.split("/")[6:]) in names:
            self.send((self.folder / "/".join(path.split("/")[6:])).read_bytes(), body)
        else:
            kind = "RevisionNotFound" if api in path else "EntryNotFound"
            self.send(b"", body, status=404, kind=kind)

    def send(self, data: bytes, body: bool, status: int = 200, kind: str = "") -> None:
        self.send_response(status)
        headers = {
            "Content-Length": str(len(data)),
            "ETag": f'"{etag(data)}"',
            "X-Repo-Commit": COMMIT,
        }
        for name, value in (headers | ({"X-Error-Code": kind} if kind else {})).items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        return


def etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@contextlib.contextmanager
def hub(folder: Path, *tags: str) -> Iterator[tuple[str, list[str]]]:
    """A server on the loopback address that ends with the block."""
    asked: list[str] = []
    handler = type("Bound", (Hub,), {"folder": folder, "tags": tags, "asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()


def read(
    home: Path, endpoint: str, variables: Mapping[str, str] = NONE, **options: object
) -> dict[str, object]:
    said, found = home.with_name("said.txt"), home.with_name("found.json")
    environment = {**pointed(home, endpoint), **variables}
    process = forked.start(read_in_process, [options, found], said, environment)
    team = forked.Team([process], [said])
    assert team.ended(60) == [0], team.said()
    return json.loads(found.read_text())


def pointed(home: Path, endpoint: str) -> dict[str, str]:
    """The environment of a process that has its files there, and asks this server for others."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("HF_") and "proxy" not in key.lower()
    }
    return environment | {
        "HF_LEROBOT_HOME": str(home), "HF_HOME": str(home / "hf"), "HF_ENDPOINT": endpoint,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1", "PYTHONPATH": str(Path(__file__).parents[3] / "src"),
        "HF_HUB_DOWNLOAD_TIMEOUT": "5", "HF_HUB_ETAG_TIMEOUT": "5",
    }  # fmt: skip


def test_the_newest_format_tag_is_taken_and_downloaded_once(tmp_path: Path) -> None:
    make(tmp_path / "repo", version="v2.1")
    with hub(tmp_path / "repo", "v2.1", "v2.0") as (endpoint, asked):
        first = read(tmp_path / "home", endpoint)
        assert first["frames"] == 16, first
        assert first["version"] == "v2.1"
        assert str(tmp_path / "home" / "hub") in str(first["root"])
        files = [
            line
            for line in asked
            if line.startswith("GET /datasets/") and line.endswith((".mp4", ".parquet"))
        ]
        assert len(files) == len(set(files)) == 6
        asked.clear()
        assert read(tmp_path / "home", endpoint) == first
        assert not [line for line in asked if line.startswith("GET /datasets/")]
    offline = read(tmp_path / "home", "http://127.0.0.1:9")
    assert offline == first


def test_only_the_files_of_the_selected_episodes_are_fetched(tmp_path: Path) -> None:
    make(tmp_path / "repo", version="v2.1")
    with hub(tmp_path / "repo", "main") as (endpoint, asked):
        assert read(tmp_path / "home", endpoint, episodes=[1])["frames"] == 7
        assert not [line for line in asked if "episode_000000" in line or "episode_000002" in line]
        asked.clear()
        assert read(tmp_path / "home", endpoint, revision="main")["frames"] == 16
        assert not [line for line in asked if "GET" in line and "episode_000001" in line]


def test_a_revision_that_does_not_exist_is_named(tmp_path: Path) -> None:
    make(tmp_path / "repo", camera="")
    with hub(tmp_path / "repo", "main") as (endpoint, _):
        found = read(tmp_path / "home", endpoint, revision="v9")
    assert "'v9'" in str(found["error"])


@pytest.mark.parametrize("variables", [{}, {"HF_HUB_OFFLINE": "1"}])
def test_without_network_the_error_names_the_cache_folder(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    found = str(read(tmp_path / "home", "http://127.0.0.1:9", variables)["error"])
    for word in ("x/y", str(tmp_path / "home" / "hub"), "rule:", "remedy:", "--dataset.root"):
        assert word in found
