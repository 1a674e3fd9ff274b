"""An S3 server: that of moto, which needs no account and keeps objects in memory."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import s3fs
from moto.server import ThreadedMotoServer

KEY = "AKIAKATATESTKEY00001"
SECRET = "kata/test/secret/0123456789abcdef"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""Variables of a process that reads from the server, beside AWS_ENDPOINT_URL."""


@contextmanager
def s3_server() -> Generator[int]:
    """Run a server in threads of this process until the context ends; the value is its port."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield server.get_host_and_port()[1]
    finally:
        server.stop()


def upload(port: int, folder: Path, address: str) -> None:
    """Copy the files below a folder to s3://bucket/path on the server, whose bucket is made."""
    system = s3fs.S3FileSystem(
        key=KEY,
        secret=SECRET,
        endpoint_url=f"http://127.0.0.1:{port}",
        client_kwargs={"region_name": "us-east-1"},
        skip_instance_cache=True,
    )
    path = address.removeprefix("s3://")
    bucket = path.partition("/")[0]
    if not system.exists(bucket):
        system.call_s3("create_bucket", Bucket=bucket)
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            name = file.relative_to(folder).as_posix()
            system.pipe_file(f"{path}/{name}", file.read_bytes())
