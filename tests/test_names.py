"""Names use the words of the glossary in CONTRIBUTING.md: `header`, not `told`; `scratch`, not `room`.

CONTRIBUTING.md has the wrong words. A name that comes from elsewhere (`from hypothesis import given`) is not ours. No
two classes of the distributions have one name, private ones included.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("protocol", "ops", "client", "service", "tests", "benchmarks", "examples", "docs", ".ci")
DISTRIBUTIONS = ("protocol", "ops", "client", "service")
COMMANDS = ("protocol/opbox_protocol/commands.py", "service/opbox_service/commands/")
"""A command's fields as the client writes them, and the model that reads them: one thing seen from its two ends."""
ONE_THING_TWICE = {
    "FactorScheduler": "MXNet has two of this name, in mx.lr_scheduler and, older, in mx.misc",
    "Frame": "MXNet's name for a mark in a profile; of the wire format, the header and tensors that travel together",
    "Task": "MXNet's name for a mark in a profile; the engine's, as its threads see it, is a call at work",
    "Node": "NNVM's name for a node of a graph: the client composes it, the engine has it with parsed parameters",
}
"""Class names that stand twice, with the reason."""
GLOSSARY = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("\n### Wrong words\n")[2]
IDENTIFIER = re.compile(r"\b[A-Za-z_]\w*")
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def wrong_words(heading: str) -> dict[str, str]:
    """The words of one of the glossary's tables of wrong words, by its heading, and what to say in place of each."""
    table = GLOSSARY.partition(f"| {heading} |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    return {word: row[1] for row in rows for word in re.findall(r"`(\w+)`", row[0])}


SAY_NOTHING = set(wrong_words("alone"))
"""Words that are no names by themselves."""
IN_NAMES = wrong_words("in a name")
"""Words that no name has among its own; those in capitals are meant so."""


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


def _programs(tree: ast.AST) -> Iterator[tuple[ast.AST, int]]:
    """The programs that a text has in strings of several lines, with the lines above them."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(program)) if "\n" in program and " = " in program:
                with suppress(SyntaxError, ValueError):
                    yield ast.parse(program), node.lineno - 1


def _imported(tree: ast.AST) -> set[str]:
    """The names that a text takes from other modules as they are called there."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
    return {alias.name for node in imports for alias in node.names if alias.asname is None}


def vague(text: str) -> list[tuple[str, int]]:
    """The names of a text that say nothing, with their lines."""
    tree = ast.parse(text)
    words = SAY_NOTHING - _imported(tree)
    names = [*_names(tree), *((name, line + above) for part, above in _programs(tree) for name, line in _names(part))]
    return sorted((name, line) for name, line in names if name.strip("_").lower() in words)


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
    assert vague("_made = f(given=1); import x as each") == [("_made", 1), ("each", 1), ("given", 1)]
    assert vague('\nprogram = """import x\n' + 'facts = 1"""') == [("facts", 3)]
    assert vague('\nprogram = """facts = 1"""; sentence = """it has\n facts = 1"""') == []
    assert vague("from hypothesis import given\n@given(1)\ndef f(): 'is held'") == []
    assert vague("from .own import given") == []
    assert vague("from .own import given\ngiven()") == [("given", 2)]


@cache
def words_of(name: str) -> set[str]:
    """The wrong words among a name's own; the name of a test is a sentence, and may have any."""
    parts = [] if name.startswith("test_") else PART.findall(name)
    return {part for part in parts if part in IN_NAMES} | {part.lower() for part in parts if part.lower() in IN_NAMES}


def c_names(text: str) -> set[str]:
    """The names in a text in C, without those in comments and strings."""
    code = re.sub(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"", " ", text, flags=re.DOTALL)
    return set(IDENTIFIER.findall(code))


def test_names_use_the_words_of_the_glossary() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.*")):
            if ".venv" in path.parts or path.suffix not in (".py", ".c", ".h"):
                continue
            text = path.read_text(encoding="utf-8")
            if not any(map(words_of, set(IDENTIFIER.findall(text)))):  # most files: parsing them all takes 10 s
                continue
            names = {name for name, _ in _names(ast.parse(text))} if path.suffix == ".py" else c_names(text)
            for name in sorted(names):
                for word in words_of(name):
                    places[word].append(f"{path.relative_to(ROOT)}: {name}")
    assert not places, f"say {[IN_NAMES[word] for word in places]} instead: " + "; ".join(
        place for names in places.values() for place in names
    )


def test_the_glossary_is_read() -> None:
    assert {"told", "each", "found", "given", "held", "kept", "made", "facts"} <= SAY_NOTHING
    assert IN_NAMES["room"] == "scratch"


def test_what_counts_as_a_word_of_a_name() -> None:
    assert words_of("few_rooms") == {"rooms"}
    assert words_of("_MOST_ROOM") == {"MOST", "room"}
    assert words_of("RoomOf") == {"room"}
    assert words_of("almost") == words_of("most_rows") == words_of("test_there_is_room") == set()
    assert c_names('#define SOON(p) /* room */ "lot" // laid\nlong turned_rows;') == {
        "define",
        "SOON",
        "p",
        "long",
        "turned_rows",
    }


def classes(text: str) -> list[str]:
    """The names of a text's classes, those inside functions and classes included."""
    return [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]


def test_a_class_name_means_one_thing() -> None:
    places = defaultdict(list)
    for folder in DISTRIBUTIONS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for name in classes(path.read_text()):
                places[name].append(str(path.relative_to(ROOT)))
    twice = {name: paths for name, paths in places.items() if len(paths) > 1 and not _is_command(paths)}
    other = {name: paths for name, paths in twice.items() if name not in ONE_THING_TWICE}
    assert not other, f"call one of them something else, or say in ONE_THING_TWICE why they are one thing: {other}"
    assert set(ONE_THING_TWICE) == set(twice), "a reason is left of a name that stands once now"


def _is_command(paths: list[str]) -> bool:
    """Whether the classes are a command's two ends."""
    return len(paths) == 2 and all(path.startswith(start) for path, start in zip(paths, COMMANDS, strict=True))


def test_what_counts_as_a_class() -> None:
    assert classes("class A:\n  class B: ...\ndef f():\n  class C: ...\nD = type('D', (), {})") == ["A", "B", "C"]
    assert _is_command([COMMANDS[0], COMMANDS[1] + "arrays.py"])
    assert not _is_command([COMMANDS[0], "client/opbox/session.py"])
    assert not _is_command([COMMANDS[1] + "arrays.py"] * 2)
