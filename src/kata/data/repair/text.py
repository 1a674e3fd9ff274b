"""Repairs of encodings: every text file of the metadata becomes UTF-8 without a byte order mark."""

from __future__ import annotations

from kata.data.format.text import byte_order_mark, fitting_encodings
from kata.data.repair.working_copy import WorkingCopy
from kata.errors import ConfigError

_TEXTS = ("meta/*.json", "meta/*.jsonl")


def repair_text(copy: WorkingCopy) -> None:
    """Write texts in UTF-8 where their encoding is certain or the user names it.

    One program wrote all of them, so an encoding must fit all that are not UTF-8.

    Raises:
        ConfigError: The named encoding is unknown or does not fit.
    """
    strange: dict[str, bytes] = {}
    names: list[str] = []
    for pattern in _TEXTS:
        names += copy.names(pattern)
    for name in names:
        data = (copy.root / name).read_bytes()
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            strange[name] = data
            continue
        if byte_order_mark(copy.root / name):
            copy.write_text(name, text.removeprefix("\ufeff"))
            copy.changed("text", f"{name} begins without a byte order mark")
    if not strange:
        return
    fits = [copy.answers.encoding] if copy.answers.encoding else fitting_encodings(strange.values())
    if len(fits) != 1:
        copy.leave(
            "text",
            f"{', '.join(strange)}: the encoding cannot be told",
            *(f"--encoding={e}" for e in fits),
        )
        return
    for name, data in strange.items():
        copy.write_text(name, _decoded(name, data, fits[0]))
        copy.changed("text", f"{name} is UTF-8; it was {fits[0]}")


def _decoded(name: str, data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except (UnicodeDecodeError, LookupError) as error:
        raise ConfigError(
            f"encoding={encoding}: {name} cannot be read so ({error})",
            rule="an encoding that Python knows and that fits every text that is not UTF-8",
            remedy="for example --encoding=gbk, latin-1 or cp1252",
        ) from error
