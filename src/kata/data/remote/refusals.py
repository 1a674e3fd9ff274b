"""Errors of stores on the network: those that a retry may mend, and messages for the others."""

from __future__ import annotations

import ssl

from kata.data.storage.file_stamp import replaced
from kata.errors import DataError, KataError
from kata.log import redacted

ABSENT = (404, 410)
DENIED = (401, 403)
_CHANGED = (412, 416)
_PROXY = 407


class TransientError(Exception):
    """A request that may succeed when it is sent again.

    Args:
        reason: what happened.
        retry_after_s: time for which the store wants to be left alone.
    """

    def __init__(self, reason: str, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = redacted(reason)
        self.retry_after_s = retry_after_s


class RefusedError(Exception):
    """A request that the store refuses, now and later.

    Args:
        status: HTTP's number for the reason.
        reason: the reason in words.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = redacted(reason)


def refusal(location: str, error: RefusedError, login: str) -> KataError:
    """Return the message for a refused request.

    Args:
        location: the object, without credentials.
        error: the store's answer.
        login: what the user of this kind of store can do to be let in.
    """
    said = f"{error.status} {error.reason}".strip()
    if error.status in ABSENT:
        return DataError(
            f"{location} does not exist ({said})",
            rule="the store has every file that the dataset names",
            remedy="check --dataset.root and --dataset.repo_id, or upload the file",
        )
    if error.status in DENIED:
        return DataError(
            f"{location} may not be read ({said})",
            rule="the store lets you read every file of the dataset",
            remedy=login,
        )
    if error.status in _CHANGED:
        return replaced(location, f"has another size or entity tag ({said})")
    if error.status == _PROXY:
        return DataError(
            f"{location} cannot be reached: the proxy wants a login ({said})",
            rule="the proxy that HTTPS_PROXY names forwards requests",
            remedy="put user and password into HTTPS_PROXY, or exempt the store with NO_PROXY",
        )
    return DataError(
        f"{location} cannot be read: the store answers {said}",
        rule="the store serves ranges of every file of the dataset",
        remedy="check --dataset.root",
    )


def ignores_ranges(location: str) -> DataError:
    """Return the message for a store that sends whole files instead of ranges."""
    return DataError(
        f"{location} is sent whole, although a range was requested (200 instead of 206)",
        rule="the store answers range requests, since videos are read in pieces",
        remedy="serve the files with a server that knows ranges (nginx, caddy, S3), or copy the "
        "dataset to a disk",
    )


def no_credentials(location: str, login: str) -> DataError:
    """Return the message for a store that needs credentials where there are none."""
    return DataError(
        f"{location} cannot be read: no credentials were found",
        rule="a private store needs credentials",
        remedy=login,
    )


def bad_certificate(location: str, error: BaseException) -> DataError:
    """Return the message for a certificate that this machine does not trust."""
    return DataError(
        f"{location} cannot be reached: its certificate is not trusted "
        f"({redacted(_certificate_error(error) or str(error))})",
        rule="the certificate of the store, or of the proxy before it, leads to a trusted one",
        remedy="set SSL_CERT_FILE (AWS_CA_BUNDLE for s3://) to the file with the proxy's "
        "certificate",
    )


def is_certificate_error(error: BaseException) -> bool:
    """Return whether an error comes from a certificate that is not trusted."""
    return bool(_certificate_error(error))


def _certificate_error(error: BaseException | None) -> str:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, ssl.SSLCertVerificationError):
            return error.verify_message or str(error)
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return ""
