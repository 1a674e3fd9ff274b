"""Policies are folders that know nothing of each other: what two need stands beside them, once."""

import ast
from itertools import combinations
from pathlib import Path

POLICIES = Path(__file__).parents[2] / "src/kata/policies"
RUN = 6
"""Lines in a row that two places must share to count."""

MOST = 0.05
"""Share of a folder's lines that may stand in another one."""


def lines(file: Path) -> list[str]:
    """Return lines of code and docstrings: no imports, comments, blank lines or lone brackets."""
    text = file.read_text()
    imports = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Import | ast.ImportFrom)]
    left_out = {i for node in imports for i in range(node.lineno, (node.end_lineno or 0) + 1)}
    kept = [line.strip() for i, line in enumerate(text.splitlines(), 1) if i not in left_out]
    return [line for line in kept if any(map(str.isalnum, line)) and not line.startswith("#")]


def shared(own: list[list[str]], others: list[list[str]]) -> int:
    """Return how many lines of files stand in runs that other files have, too."""
    known = {tuple(f[i : i + RUN]) for f in others for i in range(len(f) - RUN + 1)}
    found: set[tuple[int, int]] = set()
    for number, file in enumerate(own):
        for i in range(len(file) - RUN + 1):
            if tuple(file[i : i + RUN]) in known:
                found |= {(number, i + line) for line in range(RUN)}
    return len(found)


def test_policies_repeat_each_other_in_less_than_a_twentieth_of_their_lines():
    folders = [place for place in sorted(POLICIES.iterdir()) if (place / "__init__.py").exists()]
    files = {place.name: [lines(file) for file in sorted(place.glob("*.py"))] for place in folders}
    files["(beside the folders)"] = [lines(file) for file in sorted(POLICIES.glob("*.py"))]
    assert len(files) > 10
    found = {}
    for one, other in combinations(files, 2):
        smaller = min(sum(map(len, files[name])) for name in (one, other))
        count = max(shared(files[one], files[other]), shared(files[other], files[one]))
        if count:
            found[f"{one} ~ {other}"] = round(count / smaller, 3)
    assert {pair: share for pair, share in found.items() if share >= MOST} == {}, found


def test_the_measure_finds_what_is_written_twice():
    text = [f"line {i}" for i in range(20)]
    assert shared([text], [[f"word {i}" for i in range(20)]]) == 0
    assert shared([text], [["before", *text[5:12], "after"]]) == 7
    assert shared([text], [text[: RUN - 1]]) == 0
