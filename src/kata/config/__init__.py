"""Options: declared once at the fields of dataclasses, read from flags and files, and explained.

option -> schema (flat list) -> help, completion, reference
flags + file -> nested dict of texts -> decode (names, types, rules checked) -> dataclass
"""

from kata.config.decode import decode, decode_value, encode, plain, refuse_unknown
from kata.config.flags import Text, assign, overlay, parse_flags, read_config, read_list
from kata.config.option import (
    BYTES,
    DEVICE,
    DURATION,
    HUB_NAME,
    REQUIRED,
    VARIABLE,
    Chosen,
    Form,
    Options,
    names_where,
    option,
)
from kata.config.schema import flags_of

__all__ = [
    "BYTES",
    "DEVICE",
    "DURATION",
    "HUB_NAME",
    "REQUIRED",
    "VARIABLE",
    "Chosen",
    "Form",
    "Options",
    "Text",
    "assign",
    "decode",
    "decode_value",
    "encode",
    "flags_of",
    "names_where",
    "option",
    "overlay",
    "parse_flags",
    "plain",
    "read_config",
    "read_list",
    "refuse_unknown",
]
