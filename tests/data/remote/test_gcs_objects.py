"""gs:// against a server that speaks Google's API: what it sends, and what its answers mean."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.auth.exceptions import RefreshError, TransportError

from benchmarks.streaming.servers.files import serving
from benchmarks.streaming.servers.gcs import PREFIX, GcsServer
from kata.data import open_dataset
from kata.data.remote import gcs_objects
from kata.data.remote.objects import open_objects
from kata.data.remote.remote_store import RemoteStore
from kata.data.remote.retry import RetryLimits
from kata.errors import DataError

QUICK = RetryLimits(attempts=3, first_s=0.01)
ROOT = f"gs://sets/{PREFIX.rstrip('/')}"
NAME = "meta/info.json"


class Credentials:
    """Google's credentials, as far as they are used: a token for an hour, when it is asked for."""

    def __init__(self, token: str, error: Exception | None = None) -> None:
        self.valid, self.token, self.error, self.renewed = False, token, error, 0

    def refresh(self, request: object) -> None:
        del request
        self.renewed += 1
        if self.error is not None:
            raise self.error
        self.valid = True

    def apply(self, headers: dict[str, str]) -> None:
        headers["Authorization"] = f"Bearer {self.token}"


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    server = GcsServer(folder)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    with serving(server):
        yield server


def message(root: str) -> str:
    with pytest.raises(DataError) as caught:
        RemoteStore(open_objects(root), QUICK).listing()
    return str(caught.value)


def test_all_pages_of_a_list_are_read(server, folder):
    listing = RemoteStore(open_objects(ROOT)).listing()
    assert sorted(listing) == server.names()
    assert listing[NAME].size == (folder / NAME).stat().st_size
    assert len(server.asked) == -(-len(listing) // server.page)


def test_an_object_that_is_written_is_read(server):
    store = RemoteStore(open_objects(ROOT))
    store.write("meta/a b.bin", b"0123456789")
    stamp = store.objects.look("meta/a b.bin")
    part = bytearray(4)
    store.read_into("meta/a b.bin", 3, [memoryview(part)], stamp)
    assert part == b"3456"


def test_an_object_of_another_generation_is_refused(server, folder):
    store = RemoteStore(open_objects(ROOT), QUICK)
    stamp = store.stamps([NAME])[NAME]
    os.utime(folder / NAME, ns=(0, 10**18))
    with pytest.raises(DataError, match="has changed since the run began") as caught:
        store.read_into(NAME, 0, [memoryview(bytearray(9))], stamp)
    assert f"{ROOT}/{NAME}" in str(caught.value)


def test_a_bucket_that_is_absent_and_one_that_is_closed(server):
    assert "gs://other/one does not exist (404" in message("gs://other/one")
    server.token = "a-token"
    said = message(ROOT)
    assert "may not be read (401" in said
    assert "gcloud auth application-default login" in said


@pytest.fixture
def signed_in(server, monkeypatch):
    """Let Google's library find these credentials, as it does where no emulator is named."""

    def found(credentials: Credentials) -> None:
        monkeypatch.delenv("STORAGE_EMULATOR_HOST")
        monkeypatch.setattr(gcs_objects, "_SERVER", server.url)
        monkeypatch.setattr(gcs_objects, "default", lambda scopes: (credentials, "project"))

    return found


def test_a_token_is_renewed_when_it_is_needed(server, signed_in):
    server.token = "secret-token"
    credentials = Credentials("secret-token")
    signed_in(credentials)
    assert open_dataset("x/y", root=ROOT).num_frames == 16
    assert credentials.renewed == 1


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RefreshError("Reauthentication is needed"), "no credentials were found"),
        (TransportError("no way to oauth2.googleapis.com"), "3 attempts"),
    ],
)
def test_a_token_that_cannot_be_renewed(signed_in, error, words):
    signed_in(Credentials("secret-token", error))
    said = message(ROOT)
    assert words in said
    assert "secret-token" not in said


def test_without_its_package_the_extra_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "kata.data.remote.gcs_objects")
    monkeypatch.setitem(sys.modules, "google.auth", None)
    with pytest.raises(DataError, match=r"pip install 'kata\[gcs\]'"):
        open_objects(ROOT)
