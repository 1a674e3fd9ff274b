"""The examples of docs/python_api.md run as they stand, and use only frozen names."""

import ast
import re
from pathlib import Path

import numpy as np

from tests.house.test_exports import EXPORTS, TAUGHT

PAGE = Path(__file__).parents[2] / "docs" / "python_api.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_examples_run_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"{PAGE.name}, block {number + 1}", "exec"), names)
    assert np.array_equal(names["stats"]["action"]["mean"], names["actions"].mean(axis=0))
    assert names["first_two"].num_frames == 30
    assert names["images"].shape == (8, 3, 48, 64)
    assert names["saved"] == {"position": 40}
    assert names["rest"] == [5]
    assert names["trained"].state.step == 2
    assert names["action"].shape == (1, 2)


def imported_from_kata() -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for block in BLOCKS:
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("kata"):
                found += [(str(node.module), alias.name) for alias in node.names]
    return found


def test_the_examples_import_frozen_names_alone():
    frozen = {**EXPORTS, **TAUGHT}
    loose = [(module, name) for module, name in imported_from_kata() if name not in frozen[module]]
    assert not loose, loose
    assert imported_from_kata()
