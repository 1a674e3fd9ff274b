"""Measure the shape of the source: `python tools/house/measure.py [folder ...]`.

It prints folders, lines, functions, comments and density as a table. The figures are a picture of a
change, not limits: the limits stand in budget.toml and tests/house.
"""

from __future__ import annotations

import ast
import statistics
import sys
import tokenize
from pathlib import Path

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def is_tuple_assignment(node: ast.AST) -> bool:
    """Return True for `a, b = x, y`: several values side by side, not the unpacking of one."""
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
    )


def comments(path: Path) -> int:
    """Count the comments of a file."""
    with path.open("rb") as file:
        return sum(token.type == tokenize.COMMENT for token in tokenize.tokenize(file.readline))


def measure(root: Path) -> dict[str, str]:
    """Measure all Python files below a folder.

    Returns: figures by name, formatted; "per 1,000" is per thousand lines.
    """
    paths = sorted(root.rglob("*.py"))
    texts = [path.read_text(encoding="utf-8") for path in paths]
    nodes: list[ast.AST] = []
    for text in texts:
        nodes.extend(ast.walk(ast.parse(text)))
    widths = sorted(len(line) for text in texts for line in text.splitlines())
    lengths: list[int] = []
    docstrings: list[str] = []
    for node in nodes:
        if isinstance(node, FUNCTIONS):
            lengths.append((node.end_lineno or node.lineno) - node.lineno + 1)
        if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Module)):
            docstrings.append(ast.get_docstring(node) or "")
    folders: dict[Path, int] = {}
    for path in paths:
        if path.name != "__init__.py":
            folders[path.parent] = folders.get(path.parent, 0) + 1
    lines = len(widths)
    headless = ("What", "How", "Where", "Which", "Whether", "By")

    def per_1000(count: int) -> str:
        return f"{1000 * count / lines:.1f}"

    lengths.sort()
    return {
        "files": str(len(paths)),
        "lines": str(lines),
        "folders": str(len(folders)),
        "most modules in a folder": str(max(folders.values())),
        "function length median / p90 / max": f"{statistics.median(lengths):.0f} / "
        f"{lengths[int(0.9 * len(lengths))]} / {lengths[-1]}",
        "comments per 1,000": per_1000(sum(map(comments, paths))),
        "comprehensions per 1,000": per_1000(sum(isinstance(n, COMPREHENSIONS) for n in nodes)),
        "conditional expressions per 1,000": per_1000(sum(isinstance(n, ast.IfExp) for n in nodes)),
        "tuple assignments per 1,000": per_1000(sum(map(is_tuple_assignment, nodes))),
        "90 % of lines at most": f"{widths[int(0.9 * lines)]} wide",
        "docstrings that begin with What, How, Where, Which, Whether, By": str(
            sum(text.partition(" ")[0] in headless for text in docstrings)
        ),
    }


def main() -> None:
    """Print a table with a column for each folder."""
    roots = [Path(name) for name in sys.argv[1:]] or [Path("src/kata")]
    found = [measure(root) for root in roots]
    print("| | " + " | ".join(str(root) for root in roots) + " |")
    print("|---|" + "---|" * len(roots))
    for name in found[0]:
        print(f"| {name} | " + " | ".join(figures[name] for figures in found) + " |")


if __name__ == "__main__":
    main()
