import math

import pytest

from kata import units
from kata.units import num_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20GB", 2e10),
        ("512MiB", 2**29),
        ("1.5 TB", 1.5e12),
        ("3k", 3000),
        ("64", 64),
        ("10 b", 10),
        ("2gib", 2**31),
    ],
)
def test_bytes_with_units(text: str, expected: float) -> None:
    assert num_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "much", "GB", "-1GB", "1..5GB", "5XB", "1 GB a day"])
def test_what_is_no_size(text: str) -> None:
    assert math.isnan(num_bytes(text))


def test_rates_keep_three_digits_and_one_is_no_plural() -> None:
    assert [units.rate_text(n) for n in (0.375, 12.34, 1234.5)] == ["0.375", "12.3", "1,234"]
    assert [units.counted(n, "frame") for n in (1, 0, 2000)] == [
        "1 frame",
        "0 frames",
        "2,000 frames",
    ]
