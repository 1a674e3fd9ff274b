"""Sentences, names and expressions that are hard to read become fewer: their counts may only fall.

`[remaining]` in budget.toml holds the count of each rule that still finds places; of the others
none may appear. Lower a number when you have repaired some, and remove its line at 0. Print all
that remain with:

    python tests/house/test_words.py [rule]
"""

import ast
import functools
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(p for place in ("src", "benchmarks/lab") for p in (ROOT / place).rglob("*.py"))
SLACK = 25
HEADLESS = ("What", "How", "Where", "Which", "Whether", "By")
PROSE = re.compile(
    r"\b(so many|told|anew|as they lie|of its own|of their own|in the making|is said|of those"
    r"|goes on|graphics card|moments)\b",
    re.IGNORECASE,
)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@functools.cache
def parsed(path: Path) -> tuple[str, ast.Module]:
    """Return the text of a file and its tree."""
    text = path.read_text()
    return text, ast.parse(text)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of every docstring, also of those below fields and constants."""
    for node in ast.walk(tree):
        body = node.body if isinstance(node, DOCUMENTED) else []
        for statement in body:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                text = statement.value.value
                if isinstance(text, str):
                    yield statement.lineno, text


def comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of what follows '#', which in strings are few and do no harm."""
    for number, line in enumerate(text.splitlines(), 1):
        _, mark, comment = line.partition("#")
        if mark:
            yield number, comment


def headless_docstrings(text: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield docstrings that begin with a question word and so lack a main clause."""
    for line, docstring in docstrings(tree):
        if docstring.split()[:1] and docstring.split()[0] in HEADLESS:
            yield line, docstring


def words_to_avoid(text: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield idioms and private words in docstrings and comments."""
    for line, prose in (*docstrings(tree), *comments(text)):
        for found in PROSE.finditer(prose):
            yield line, found.group()


def nested_comprehensions(text: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield comprehensions inside another, and those with more than one `for` or `if`."""
    for node in ast.walk(tree):
        if not isinstance(node, COMPREHENSIONS):
            continue
        inside = [n for n in ast.walk(node) if isinstance(n, COMPREHENSIONS) and n is not node]
        conditions = sum(len(clause.ifs) for clause in node.generators)
        if inside or len(node.generators) > 1 or conditions > 1:
            yield node.lineno, ast.unparse(node)


def wide_tuple_assignments(text: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield assignments of a tuple of more than two values to as many names."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)):
            continue
        if len(node.value.elts) > 2 and isinstance(node.targets[0], ast.Tuple):
            yield node.lineno, ast.unparse(node)


RULES: dict[str, Callable[[str, ast.Module], Iterator[tuple[int, str]]]] = {
    "headless_docstrings": headless_docstrings,
    "words_to_avoid": words_to_avoid,
    "nested_comprehensions": nested_comprehensions,
    "wide_tuple_assignments": wide_tuple_assignments,
}


def found_by(rule: str) -> list[str]:
    """Return every place that breaks a rule, as 'file:line: what'."""
    if rule == "names_in_two_files":
        return names_in_two_files()
    places: list[str] = []
    for path in SOURCES:
        for line, what in RULES[rule](*parsed(path)):
            shown = " ".join(what.split())[:90]
            places.append(f"{path.relative_to(ROOT)}:{line}: {shown}")
    return places


def names_in_two_files() -> list[str]:
    """Return public classes and functions that stand in more than one file.

    Every policy has `config.Config` and `model.Policy`, and every verb that needs one a `main`.
    """
    files = defaultdict[str, set[str]](set)
    for path in SOURCES:
        for node in parsed(path)[1].body:
            if isinstance(node, DOCUMENTED[1:]) and not node.name.startswith("_"):
                files[node.name].add(str(path.relative_to(ROOT)))
    shared = {"Config", "Policy", "main"}
    return [
        f"{name}: {', '.join(sorted(where))}"
        for name, where in sorted(files.items())
        if len(where) > 1 and name not in shared
    ]


@pytest.mark.parametrize("rule", [*RULES, "names_in_two_files"])
def test_what_is_hard_to_read_becomes_less(rule):
    allowed = tomllib.loads((ROOT / "budget.toml").read_text())["remaining"].get(rule, 0)
    found = found_by(rule)
    listed = "\n  ".join(found)
    assert len(found) <= allowed, (
        f"{rule}: {len(found)} of {allowed} allowed; repair yours. All that remain:\n  {listed}"
    )
    assert allowed - len(found) <= SLACK, (
        f"{rule}: only {len(found)} of {allowed} remain; lower the number in budget.toml"
    )


@pytest.mark.parametrize(
    ("rule", "code", "count"),
    [
        ("headless_docstrings", '"""What this is."""\nx = 1\n"""How so."""', 2),
        ("headless_docstrings", '"""Return what this is."""', 0),
        ("words_to_avoid", '"""Made anew by a thread of its own."""  # so many', 3),
        ("nested_comprehensions", "[[a for a in b] for b in c]\n[a for b in c for a in b]", 2),
        ("nested_comprehensions", "[a for a in b if a]", 0),
        ("wide_tuple_assignments", "a, b, c = 1, 2, 3\nd, e = 1, 2\nf, g, h = some()", 1),
    ],
)
def test_each_rule_finds_what_it_is_about(rule, code, count):
    assert len(list(RULES[rule](code, ast.parse(code)))) == count


if __name__ == "__main__":
    for chosen in sys.argv[1:] or [*RULES, "names_in_two_files"]:
        places = found_by(chosen)
        print(f"{chosen} = {len(places)}", *places, sep="\n  ")
