"""Values, parameters and functions are not called by a participle that fits any of them: `header`, not `told`.

A name that comes from elsewhere (`from hypothesis import given`) is not ours.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("protocol", "ops", "client", "service", "tests", "benchmarks", "examples", "docs", ".ci")
SAY_NOTHING = {"told", "each", "found", "given", "held", "kept", "made"}


def _names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that a text binds or reads, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.keyword(arg=str(name)) | ast.ExceptHandler(name=str(name)) | ast.alias(asname=str(name)):
                yield name, node.lineno


def _imported(tree: ast.AST) -> set[str]:
    """The names that a text takes from other modules as they are called there."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
    return {alias.name for node in imports for alias in node.names if alias.asname is None}


def vague(text: str) -> list[tuple[str, int]]:
    """The names of a text that say nothing, with their lines."""
    tree = ast.parse(text)
    words = SAY_NOTHING - _imported(tree)
    return sorted((name, line) for name, line in _names(tree) if name.strip("_").lower() in words)


@pytest.mark.parametrize("folder", FOLDERS)
def test_values_are_named_by_what_they_are(folder: str) -> None:
    names = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if ".venv" not in path.parts
        for name, line in vague(path.read_text())
    ]
    assert not names, "say what the value is (header, array, entry, …): " + "; ".join(names)


def test_what_counts_as_a_name() -> None:
    assert vague("def f(told): return held.kept") == [("held", 1), ("kept", 1), ("told", 1)]
    assert vague("_made = f(given=1)\nimport x as each") == [("_made", 1), ("each", 2), ("given", 1)]
    assert vague("from hypothesis import given\n@given(1)\ndef f(): 'is held'") == []
    assert vague("from .own import given") == []
    assert vague("from .own import given\ngiven()") == [("given", 2)]
