"""Datasets behind real servers on the loopback address, each through a proxy."""

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from benchmarks.streaming.servers.files import FileServer, serving
from benchmarks.streaming.servers.gcs import PREFIX, GcsServer
from benchmarks.streaming.servers.hub import HubServer
from benchmarks.streaming.servers.proxy import Faults, Proxy, proxied
from tests.data.dataset_maker import make


@dataclass
class Place:
    """A dataset in a store: its address, and what stands between."""

    root: str
    proxy: Proxy
    server: FileServer | None


_SERVERS = {"hub": HubServer, "bucket": HubServer, "gs": GcsServer}


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    """The port of an S3 server, which tests share: to import moto takes two seconds."""
    from benchmarks.streaming.servers.s3 import s3_server

    with s3_server() as port:
        yield port


@pytest.fixture(autouse=True)
def own_session(monkeypatch, tmp_path):
    """A cache, a home of the Hub and an HTTP client of this test, without proxies or tokens."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("KATA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "lerobot"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    # Its own retries are logged as warnings, which are no faults of a test about faults.
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    huggingface_hub.close_session()
    yield
    huggingface_hub.close_session()
    logger.setLevel(level)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A small dataset on the disk; a test file may make another."""
    return make(tmp_path / "set")


@pytest.fixture
def web(folder) -> Iterator[FileServer]:
    """A web server of that folder."""
    server = FileServer(folder)
    with serving(server):
        yield server


@pytest.fixture
def place(monkeypatch, request):
    """place('hub', folder, faults) serves a folder as a context, and gives its `Place`."""

    @contextmanager
    def served(kind: str, folder: Path, faults: Faults | None = None) -> Iterator[Place]:
        with ExitStack() as stack:
            server: FileServer | None = None
            if kind == "s3":
                port = request.getfixturevalue("s3_port")
            else:
                server = _SERVERS.get(kind, FileServer)(folder)
                stack.enter_context(serving(server))
                port = server.port
            proxy = stack.enter_context(proxied("127.0.0.1", port, faults))
            yield Place(_root(kind, folder, port, proxy, monkeypatch), proxy, server)

    return served


def _root(kind, folder, port, proxy, monkeypatch) -> str:
    if kind == "s3":
        from benchmarks.streaming.servers.s3 import ENVIRONMENT, upload

        address = f"s3://sets/{folder.parent.name}/{folder.name}"
        upload(port, folder, address)
        for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": proxy.url}.items():
            monkeypatch.setenv(name, value)
        return address
    if kind == "gs":
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        return f"gs://sets/{PREFIX.rstrip('/')}"
    if kind == "web":
        return f"{proxy.url}/"
    monkeypatch.setattr(constants, "ENDPOINT", proxy.url)
    return "hf://datasets/x/y" if kind == "hub" else "hf://buckets/x/y"
