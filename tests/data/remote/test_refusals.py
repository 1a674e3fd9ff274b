"""What no retry can mend ends with one message that names the object and a remedy."""

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import constants

from benchmarks.streaming.servers.files import FileServer, serving
from benchmarks.streaming.servers.hub import HubServer
from kata.config.dataset import DatasetPlace
from kata.data import Reader, open_dataset
from kata.data.remote.objects import open_objects
from kata.data.remote.remote_store import RemoteStore
from kata.data.remote.retry import RetryLimits
from kata.errors import ConfigError, DataError
from tests.data.dataset_maker import CAMERA
from tests.data.remote.certificates import secure, self_signed

VIDEO = f"videos/{CAMERA}/chunk-000/file-000.mp4"
QUICK = RetryLimits(attempts=3, first_s=0.01)


def read_all(root: str) -> None:
    data = open_dataset("x/y", root=root)
    with Reader(data, {}) as reader:
        reader.read(np.arange(data.num_frames))


def refused(root: str, *words: str) -> str:
    """The message with which a dataset is refused, opened or read."""
    with pytest.raises(DataError) as caught:
        read_all(root)
    text = str(caught.value)
    for word in (*words, "rule:", "remedy:"):
        assert word in text, text
    return text


def test_a_place_without_a_dataset(web):
    refused(f"{web.url}/nowhere", f"{web.url}/nowhere/meta/info.json does not exist")


def test_a_file_that_is_absent(web, folder):
    (folder / VIDEO).unlink()
    refused(web.url, "lacks files of 2 of 3 episodes", VIDEO)


def test_a_file_that_may_not_be_read(web):
    web.statuses[f"/{VIDEO}"] = 403
    refused(web.url, "lacks files", VIDEO)


def test_a_server_that_wants_to_know_who_asks(web, monkeypatch):
    web.token = "a-token-of-mine"
    refused(web.url, "may not be read (401", "KATA_HTTP_TOKEN")
    monkeypatch.setenv("KATA_HTTP_TOKEN", "a-token-of-mine")
    assert open_dataset("x/y", root=web.url).num_frames == 16


def test_a_server_that_knows_no_ranges(web):
    web.has_ranges = False
    refused(web.url, "200 instead of 206", "nginx")


def test_a_server_that_answers_nonsense(web):
    web.statuses["/meta/info.json"] = 418
    refused(web.url, "/meta/info.json", "418")


def test_an_object_that_changes_during_a_run(web, folder):
    data = open_dataset("x/y", root=web.url)
    with Reader(data, {}) as reader:
        reader.read(np.arange(3))
        (folder / VIDEO).write_bytes((folder / VIDEO).read_bytes())
        with pytest.raises(DataError, match="has another entity tag") as caught:
            reader.read(np.arange(3, 9))
    assert VIDEO in str(caught.value)


def test_an_object_that_shrinks_during_a_run(web, folder):
    web.has_etags = False
    store = RemoteStore(open_objects(web.url), QUICK)
    stamp = store.stamps([VIDEO])[VIDEO]
    whole = (folder / VIDEO).read_bytes()
    (folder / VIDEO).write_bytes(whole[:500])
    for begin, words in ((0, "has 500 bytes instead of"), (600, "416")):
        with pytest.raises(DataError, match=words):
            store.read_into(VIDEO, begin, [memoryview(bytearray(50))], stamp)
    with pytest.raises(DataError, match="is shorter"):
        store.read_into(VIDEO, stamp.size - 1, [memoryview(bytearray(2))], stamp)


def test_a_server_that_is_gone(web):
    limits = RetryLimits(attempts=50, first_attempts=3, first_s=0.01)
    store = RemoteStore(open_objects("http://127.0.0.1:9/set"), limits)
    with pytest.raises(DataError, match="3 attempts") as caught:
        store.stamps(["meta/info.json"])
    assert "http://127.0.0.1:9/set/meta/info.json" in str(caught.value)


@pytest.mark.parametrize("kind", ["datasets", "buckets"])
def test_a_dataset_that_the_hub_does_not_have(folder, monkeypatch, kind):
    server = HubServer(folder)
    with serving(server):
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        refused(f"hf://{kind}/nobody/nothing", f"hf://{kind}/nobody/nothing", "404")


def test_a_revision_that_the_hub_does_not_have(folder, monkeypatch):
    server = HubServer(folder)
    with serving(server):
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        refused("hf://datasets/x/y@v9", "hf://datasets/x/y@v9")
        with pytest.raises(DataError, match="no revision 'v9'"):
            open_dataset("x/y", revision="v9", streaming=True)


def test_a_private_dataset_of_the_hub(folder, monkeypatch):
    server = HubServer(folder)
    server.token = "hf_" + "a" * 30
    with serving(server):
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        refused("hf://datasets/x/y", "may not be read (401", "hf auth login")


def test_the_hub_is_not_asked_when_it_is_said_to_be_away(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refused("hf://datasets/x/y", "HF_HUB_OFFLINE")
    refused("hf://buckets/x/y", "HF_HUB_OFFLINE")


def test_other_servers_are_read_when_the_hub_is_said_to_be_away(web, folder, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    there, here = (open_dataset("x/y", root=root) for root in (web.url, folder))
    rows = np.arange(6)
    with Reader(there, {}) as far, Reader(here, {}) as near:
        np.testing.assert_array_equal(far.read(rows)[CAMERA], near.read(rows)[CAMERA])


def test_s3_without_credentials_bucket_or_object(s3_port, folder, place, monkeypatch, tmp_path):
    with place("s3", folder) as there:
        refused("s3://no-such-bucket/set", "s3://no-such-bucket/set", "404")
        refused(f"{there.root}/nowhere", "nowhere/meta/info.json does not exist")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        refused(there.root, "no credentials were found", "AWS_PROFILE", "FSSPEC_S3_ANON")


def test_an_object_of_s3_that_changes(s3_port, folder, place):
    from benchmarks.streaming.servers.s3 import upload

    with place("s3", folder) as there:
        store = RemoteStore(open_objects(there.root), QUICK)
        name = "meta/info.json"
        stamp = store.stamps([name])[name]
        (folder / name).write_text("x" * stamp.size)
        upload(s3_port, folder, there.root)
        with pytest.raises(DataError, match="has changed since the run began") as caught:
            store.read_into(name, 0, [memoryview(bytearray(9))], stamp)
    assert f"{there.root}/{name}" in str(caught.value)


@pytest.mark.parametrize(
    ("root", "words"),
    [
        ("nothing://bucket/set", "nothing:// is not known"),
        ("hf://models/x/y", "names no dataset or bucket"),
        ("hf://buckets/x/y@main", "names no dataset or bucket"),
    ],
)
def test_addresses_without_a_meaning_here(root, words):
    refused(root, root, words)


def test_a_certificate_that_is_not_trusted(folder, tmp_path, monkeypatch):
    certificate = self_signed(tmp_path / "proxy.pem")
    server = FileServer(folder)
    secure(server, certificate)
    root = server.url.replace("http://", "https://")
    with serving(server):
        refused(root, root, "certificate is not trusted", "SSL_CERT_FILE")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        huggingface_hub.close_session()
        assert open_dataset("x/y", root=root).num_frames == 16


def test_a_proxy_that_wants_a_login(web, monkeypatch):
    web.statuses["/set/meta/info.json"] = 407
    monkeypatch.setenv("HTTP_PROXY", web.url)
    huggingface_hub.close_session()
    text = refused("http://nowhere.invalid/set", "the proxy wants a login")
    assert "HTTPS_PROXY" in text


@pytest.mark.parametrize(
    "root",
    [
        "https://me:secret-word@host/set",
        "https://me@host/set",
        "https://host/set?X-Amz-Signature=secret-word",
    ],
)
def test_credentials_in_an_address_are_refused_and_not_repeated(root):
    with pytest.raises(ConfigError) as caught:
        DatasetPlace(root=root)
    assert "secret-word" not in str(caught.value)
    assert "--dataset.root=https://host/set" in str(caught.value)


def test_a_revision_belongs_to_the_address():
    with pytest.raises(ConfigError, match=r"--dataset\.root=hf://datasets/x/y@v3\.0"):
        DatasetPlace(root="hf://datasets/x/y", revision="v3.0")
