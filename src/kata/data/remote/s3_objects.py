"""Objects of S3 and of stores that speak its protocol: s3://bucket/folder, through s3fs.

Credentials, region and endpoint come from where AWS's own tools take them: AWS_PROFILE,
AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL and so on. FSSPEC_S3_ANON=true reads public buckets.
"""

from __future__ import annotations

from typing import Any

from aiohttp import ClientError as HttpClientError
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    PartialCredentialsError,
    SSLError,
)
from fsspec.asyn import sync
from fsspec.exceptions import FSTimeoutError

from kata.data.remote.fsspec_objects import FsspecObjects
from kata.data.remote.http_ranges import retry_after_s
from kata.data.remote.refusals import (
    RefusedError,
    TransientError,
    bad_certificate,
    is_certificate_error,
    no_credentials,
)
from kata.data.storage.file_stamp import Stamp

_TIMEOUT_S = 30
_PASSING = (408, 429, 500, 502, 503, 504)
_PASSING_CODES = ("SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable")


class S3Objects(FsspecObjects):
    """The objects below an address of S3.

    Args:
        url: s3://<bucket>/<folder>.
    """

    failures = (OSError, RuntimeError, BotoCoreError, ClientError, HttpClientError, FSTimeoutError)

    login = (
        "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; FSSPEC_S3_ANON=true for "
        "a public bucket"
    )

    def __init__(self, url: str) -> None:
        # Retries are counted in one place, which is not here.
        config = {
            "retries": {"total_max_attempts": 1},
            "connect_timeout": _TIMEOUT_S,
            "read_timeout": _TIMEOUT_S,
            "max_pool_connections": 128,
        }
        super().__init__(url, config_kwargs=config, skip_instance_cache=True)
        self.system.retries = 1

    def read(self, name: str, begin: int, size: int, stamp: Stamp) -> bytes:
        """Return `size` bytes of an object from `begin` on, if it still has its entity tag."""
        system: Any = self.system
        found: Any = self.asked(
            name, lambda: sync(system.loop, self._get, name, begin, size, stamp)
        )
        return found

    async def _get(self, name: str, begin: int, size: int, stamp: Stamp) -> bytes:
        bucket, _, key = self.path(name).partition("/")
        answer = await self.system._call_s3(  # the only way to a range with its entity tag
            "get_object",
            Bucket=bucket,
            Key=key,
            Range=f"bytes={begin}-{begin + size - 1}",
            IfMatch=stamp.version,
        )
        async with answer["Body"] as body:
            found = await body.read()
        if len(found) != size:
            raise TransientError(f"{len(found)} of {size} bytes")
        return found

    def translated(self, error: Exception, location: str) -> Exception:
        """Return what an error of s3fs, botocore or aiohttp means."""
        cause = error.__cause__ if isinstance(error.__cause__, ClientError) else error
        if isinstance(cause, NoCredentialsError | PartialCredentialsError):
            return no_credentials(location, self.login)
        if isinstance(cause, SSLError) or is_certificate_error(cause):
            return bad_certificate(location, cause)
        if not isinstance(cause, ClientError):
            return super().translated(error, location)
        answer: Any = cause.response
        status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        code = str(answer.get("Error", {}).get("Code", ""))
        if status in _PASSING or code in _PASSING_CODES:
            headers = answer["ResponseMetadata"].get("HTTPHeaders", {})
            return TransientError(f"{status} {code}", retry_after_s(headers))
        return RefusedError(status, code)
