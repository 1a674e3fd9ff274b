"""Verbs and runs on datasets in a store: they say what they say of a folder, and no secret."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.streaming.servers.files import FileServer, serving
from benchmarks.streaming.servers.proxy import Faults
from kata.cli import main
from kata.data import Reader, open_dataset
from kata.errors import DataError
from kata.log import redacted
from kata.units import bytes_text
from tests.conftest import TINY_ACT
from tests.data.dataset_maker import CAMERA, make

TOKEN = "secret-token-of-a-web-server"


@pytest.fixture
def folder(tmp_path) -> Path:
    return make(tmp_path / "set", lengths=(12, 9, 14))


def printed(capsys, *words: str) -> dict:
    """What a verb prints as JSON, without the place of the dataset."""
    assert main([*words, "--json"]) == 0, capsys.readouterr().err
    found = json.loads(capsys.readouterr().out)
    for key in ("root", "name", "kept_bytes"):
        found.pop(key, None)
    return found


@pytest.mark.parametrize("camera", ["video", "image"])
def test_info_and_check_and_stats_say_what_they_say_of_the_folder(tmp_path, place, capsys, camera):
    folder = make(tmp_path / "images", lengths=(12, 9, 14), camera=camera)
    with place("hub", folder, Faults(share=0.05)) as there:
        for words in (["info"], ["check", "--decode"], ["stats", "--images"]):
            near = printed(capsys, "data", words[0], str(folder), *words[1:])
            far = printed(capsys, "data", words[0], there.root, *words[1:])
            assert far == near, words


def test_info_names_the_address_and_what_is_where(folder, capsys):
    whole = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    server = FileServer(folder)
    with serving(server):
        assert main(["data", "info", server.url]) == 0
        text = capsys.readouterr().out
        found = printed(capsys, "data", "info", server.url)
    assert f"({server.url})" in text
    assert f"in the store  {bytes_text(whole)} (" in text
    assert "of metadata and numbers, in $KATA_CACHE" in text
    assert found["bytes"]["total"] == whole


def test_check_finds_what_is_wrong_in_a_store(folder, place, capsys):
    video = folder / f"videos/{CAMERA}/chunk-000/file-001.mp4"
    video.write_bytes(video.read_bytes()[:-300])
    (folder / f"videos/{CAMERA}/chunk-000/file-000.mp4").unlink()
    with place("hub", folder) as there:
        assert main(["data", "check", there.root]) == 1
    text = capsys.readouterr().out
    assert "file-000.mp4 is absent" in text
    assert "file-001.mp4 has" in text


@pytest.mark.parametrize("verb", ["repair", "convert", "split", "transcode", "merge"])
def test_verbs_that_copy_want_a_folder(verb, tmp_path, capsys):
    address = "http://127.0.0.1:9/set"
    more = {"merge": ["s3://bucket/other"], "split": ["--by=task"]}.get(verb, [])
    assert main(["data", verb, address, *more, f"--out={tmp_path / 'out'}"]) == 2
    said = capsys.readouterr().err
    assert f"{address}: an address" in said
    assert "name that folder" in said
    assert not (tmp_path / "out").exists()


def test_an_episode_is_drawn_from_a_store(tmp_path, folder, capsys):
    server = FileServer(folder)
    with serving(server):
        out = tmp_path / "episode.html"
        assert main(["data", "view", server.url, "--episode=1", f"--out={out}"]) == 0
    assert out.stat().st_size > 1000


def assert_nowhere(secret: str, folder: Path, *texts: str) -> None:
    for text in texts:
        assert secret not in text
    for path in folder.rglob("*"):
        assert secret not in str(path)
        if path.is_file() and not path.is_symlink():
            assert secret.encode() not in path.read_bytes(), path


def test_no_output_of_a_run_has_a_secret(vector_dataset, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("KATA_HTTP_TOKEN", TOKEN)
    server = FileServer(vector_dataset)
    server.token = TOKEN
    with serving(server):
        args = [
            "train",
            f"--dataset.root={server.url}",
            "--dataset.repo_id=x/y",
            *TINY_ACT,
            "--steps=2",
            f"--output_dir={tmp_path}/run",
        ]
        assert main(args) == 0
    shown = capfd.readouterr()
    assert (tmp_path / "run/checkpoints").is_dir()
    assert_nowhere(TOKEN, tmp_path, shown.out, shown.err)


def test_no_message_has_a_signature(folder, tmp_path, place, capsys):
    with place("hub", folder) as there:
        data = open_dataset("x/y", root=there.root)
        there.server.statuses[f"/cdn/videos/{CAMERA}/chunk-000/file-000.mp4"] = 404
        with pytest.raises(DataError) as caught, Reader(data, {}) as reader:
            reader.read(np.arange(20))
    chain: list[str] = []
    error: BaseException | None = caught.value
    while error is not None:
        chain.append(str(error))
        error = error.__cause__ or error.__context__
    assert "404" in chain[0]
    assert_nowhere("SIGNATURE0", tmp_path, *chain, capsys.readouterr().err)


def test_no_message_has_a_key_of_s3(folder, tmp_path, place, s3_port, capsys):
    from benchmarks.streaming.servers.s3 import KEY, SECRET

    with place("s3", folder, Faults(share=1.0, kinds=("500",))) as there:
        from kata.data.remote.objects import open_objects
        from kata.data.remote.remote_store import RemoteStore
        from kata.data.remote.retry import RetryLimits

        store = RemoteStore(open_objects(there.root), RetryLimits(attempts=2, first_s=0.01))
        with pytest.raises(DataError, match="2 attempts") as caught:
            store.listing()
    for secret in (KEY, SECRET):
        assert_nowhere(secret, tmp_path, str(caught.value), capsys.readouterr().err)


@pytest.mark.parametrize(
    "address",
    [
        "https://host/a?X-Amz-Algorithm=A&X-Amz-Signature=hidden&b=1",
        "GET https://host/a?Expires=1&Signature=hidden failed",
        "https://host/a?sig=hidden'",
        "https://host/a?access_token=hidden",
        "https://me:hidden@host/a",
    ],
)
def test_signatures_and_passwords_are_redacted(address):
    text = redacted(address)
    assert "hidden" not in text
    assert "host" in text
