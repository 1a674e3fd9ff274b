"""LeRobot reads a config.json only if it knows every name in it."""

import dataclasses
import json
from pathlib import Path

import pytest

from kata.policies import config_class
from kata.policies.config import declaration

FIELDS = json.loads((Path(__file__).parent / "lerobot_fields.json").read_text())
"""Names of the options of LeRobot 0.6.1's configs; `make peer` compares them with LeRobot."""


@pytest.mark.parametrize("name", FIELDS)
def test_what_config_json_names_is_what_lerobot_knows(name):
    kind = config_class(name)
    written = []
    for each in dataclasses.fields(kind):
        if not declaration(kind, each.name).is_own:
            written.append(each.name)
    assert sorted(written) == FIELDS[name]
