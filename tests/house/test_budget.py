"""Sizes have budgets. Complexity has one too: ruff's C901 and PLR09 rules, in `make check`."""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUDGET = tomllib.loads((ROOT / "budget.toml").read_text())
SOURCES = sorted(p for place in ("src", "benchmarks/lab") for p in (ROOT / place).rglob("*.py"))
FORBIDDEN_MODULES = {"utils", "util", "helpers", "helper", "misc", "manager", "common"}


def functions(path: Path) -> list[tuple[str, int]]:
    tree = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        (node.name, node.end_lineno - node.lineno + 1)
        for node in ast.walk(tree)
        if isinstance(node, kinds)
    ]


def test_no_file_outgrows_its_budget():
    allowed = BUDGET["files"]
    default = BUDGET["default"]["file_lines"]
    sizes = {str(p.relative_to(ROOT)): p.read_text().count("\n") for p in SOURCES}
    late = {n: size for n, size in sizes.items() if size > allowed.get(n, {}).get("lines", default)}
    assert not late, late


def test_no_function_outgrows_its_budget():
    allowed = BUDGET["functions"]
    default = BUDGET["default"]["function_lines"]
    late = [
        f"{path.relative_to(ROOT)}:{name} {size}"
        for path in SOURCES
        for name, size in functions(path)
        if size > allowed.get(f"{path.relative_to(ROOT)}:{name}", {}).get("lines", default)
    ]
    assert not late, late


def test_every_exception_has_a_reason_and_is_needed():
    for table in ("files", "functions"):
        for name, entry in BUDGET[table].items():
            assert entry["reason"], name
            assert (ROOT / name.partition(":")[0]).is_file(), f"{name} is gone; drop its line"


def test_the_loop_stays_on_one_page():
    sizes = dict(functions(ROOT / "src/kata/train/loop.py"))
    assert sizes["loop"] <= 60


def test_no_module_is_a_drawer_for_everything():
    assert not [
        p for p in SOURCES if p.stem in FORBIDDEN_MODULES or p.parent.name in FORBIDDEN_MODULES
    ]


@pytest.mark.parametrize("word", ["hasattr(", "except Exception:", "TODO", "FIXME"])
def test_no_ducking_and_no_debts(word):
    """Catching everything is right only at the border to foreign code, with the reason on the
    line or below it.
    """
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in SOURCES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if word in line and path.name not in ("trackers.py", "upload.py")
    ]
    assert not found, found


def test_a_folder_holds_at_most_fifteen_modules():
    """More than that is a room that needs walls: name the rooms inside it."""
    sizes = {
        str(folder.relative_to(ROOT)): sum(p.name != "__init__.py" for p in folder.glob("*.py"))
        for folder in {path.parent for path in SOURCES}
    }
    crowded = {name: size for name, size in sizes.items() if size > 15}
    assert not crowded, crowded
