"""The documentation names files, rooms and pages that exist."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file(page):
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    own = [link for link in links if "://" not in link]
    assert not [link for link in own if not (page.parent / link).exists()]


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md"])
def test_every_path_in_the_map_exists(page):
    paths = re.findall(
        r"`((?:src|tests|tools|docs|benchmarks|configs)/[^`<*]+)`", (ROOT / page).read_text()
    )
    assert len(paths) > 10
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_the_walk_through_the_code_names_files_that_exist():
    modules = [str(path) for part in ("src", "tools") for path in (ROOT / part).rglob("*.py")]
    named = re.findall(r"\b[\w/]+\.py\b", ARCHITECTURE)
    assert not [name for name in named if not any(path.endswith(f"/{name}") for path in modules)]


@pytest.mark.parametrize("container", ["kata", "kata.data", "kata.train"])
def test_the_drawn_layers_are_those_of_the_contract(container):
    contracts = [c for c in CONTRACTS["contracts"] if c.get("containers") == [container]]
    blocks = re.findall(r"```\n(.*?)```", ARCHITECTURE, re.DOTALL)
    drawn = [[line.strip().split("  ")[0] for line in block.splitlines()] for block in blocks]
    assert contracts[0]["layers"] in drawn


def test_the_top_of_the_repository_holds_what_the_map_names():
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    folders = {name.split("/")[0] for name in listed if "/" in name and not name.startswith(".")}
    readme = (ROOT / "README.md").read_text()
    assert not [folder for folder in sorted(folders) if f"`{folder}/" not in readme]
