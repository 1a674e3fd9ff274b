"""Errors of the operating system as messages."""

import errno

import pytest

from kata.errors import refused_by_system


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "a file that is written: No space"),
        (OSError(errno.ENOSPC, "No space left on device", "/run/a"), "/run/a: No space"),
        (OSError(errno.EIO, "Input/output error"), None),
    ],
)
def test_a_full_disk_is_told_though_a_write_knows_no_name(error, said):
    found = refused_by_system(error)
    if said is None:
        assert found is None
        return
    assert said in found.what
    assert "make room" in found.remedy
