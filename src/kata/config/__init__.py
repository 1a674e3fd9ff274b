"""Options: flags and files in, frozen dataclasses out, and back.

flags + file -> nested dict -> names checked (nearest name) -> draccus decodes values -> dataclass
"""

from kata.config.codec import decode, encode, field_names
from kata.config.flags import assign, merge, parse_flags, read_config, read_list

__all__ = [
    "assign",
    "decode",
    "encode",
    "field_names",
    "merge",
    "parse_flags",
    "read_config",
    "read_list",
]
