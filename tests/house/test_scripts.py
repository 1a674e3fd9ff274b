"""The scripts beside the package import names that exist, so that a rename cannot break them."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(
    path for folder in ("benchmarks", "tools", "scripts") for path in (ROOT / folder).rglob("*.py")
)


def imported(path: Path) -> list[tuple[str, str]]:
    """Return (module, name) of everything that a file imports from kata, wherever it does so."""
    found: list[tuple[str, str]] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "kata":
            found += [(str(node.module), alias.name) for alias in node.names]
    return found


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_script_imports_from_kata_exists(path: Path) -> None:
    for module, name in imported(path):
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            # Simulators are extras, which an environment may lack.
            if (error.name or "").partition(".")[0] == "kata":
                raise
            continue
        if not hasattr(found, name):
            importlib.import_module(f"{module}.{name}")
