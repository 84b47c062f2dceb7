"""A source file taken apart: which of its top-level statements binds a name, changes it, or is a class.

Statements under `if __name__ == "__main__":` count as the file's own, one by one.
"""

from __future__ import annotations

import ast
import dis
import re
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from ..base import cell_name
from .bundle import Piece

__all__ = ["DefiningStatement", "SourceFile", "bound", "is_import", "parsed", "shown"]

_GLOBAL_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_RELATIVE = re.compile(r"^from\s*\.[.\s\w]*?\bimport\b")
DefiningStatement: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class SourceFile:
    """A parsed file.

    Args:
        path: what code objects call it.
        text: what it holds.

    Attributes:
        binders: the statements that bind a name.
        stores: those that set an item or an attribute of it: `TABLE["a"] = f`.
        calls: those that call a method of it: `TABLE.append(f)`.
    """

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.lines = re.split(r"\r\n|\r|\n", text)
        self.futures: list[ast.stmt] = []
        self.binders: dict[str, list[ast.stmt]] = {}
        self.stores: dict[str, list[ast.stmt]] = {}
        self.calls: dict[str, list[ast.stmt]] = {}
        self.tree = _tree(text)
        for statement in _statements(self.tree.body):
            if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
                self.futures.append(statement)
                continue
            for table, names in (
                (self.binders, bound(statement)),
                (self.stores, _stored(statement)),
                (self.calls, _called(statement)),
            ):
                for name in names:
                    table.setdefault(name, []).append(statement)

    def piece(self, statement: ast.stmt, package: str) -> Piece:
        """The statement's text; its relative imports in full, as seen from `package`."""
        first = self.first_line(statement)
        last = statement.end_lineno or first
        lines = self.lines[first - 1 : last]
        for node in ast.walk(statement):
            if isinstance(node, ast.ImportFrom) and node.level:
                head, rest = _split(lines[node.lineno - first], node.col_offset)
                lines[node.lineno - first] = head + _RELATIVE.sub(f"from {_absolute(node, package)} import", rest)
        # Other statements may stand on its first and its last line.
        _, after = _split(self.lines[last - 1], statement.end_col_offset or 0)
        if after.lstrip().startswith(";"):
            lines[-1] = lines[-1].removesuffix(after)
        if first == statement.lineno:
            before, _ = _split(self.lines[first - 1], statement.col_offset)
            if before.strip():
                lines[0] = lines[0].removeprefix(before)
        indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
        return Piece(shown(self.path), first, "\n".join(line.removeprefix(indent) for line in lines))

    def first_line(self, statement: ast.stmt) -> int:
        """The first line of a statement, decorators included."""
        decorators = statement.decorator_list if isinstance(statement, _DEFINITIONS) else []
        return min([statement.lineno, *(decorator.lineno for decorator in decorators)])

    def reads(self, statement: ast.stmt) -> set[str]:
        """The global names that a statement reads."""
        body = [*self.futures, statement]
        code = compile(ast.Module(body, []), self.path, "exec", dont_inherit=True)
        return {instruction.argval for instruction in _instructions(code) if instruction.opname in _GLOBAL_READS}

    def imports(self, statement: ast.stmt, package: str) -> dict[str, int]:
        """The modules that a statement imports, wherever in it, and in which line."""
        lines: dict[str, int] = {}
        for node in ast.walk(statement):
            if isinstance(node, ast.ImportFrom) and node.module != "__future__":
                lines[_absolute(node, package)] = node.lineno
            elif isinstance(node, ast.Import):
                lines.update((alias.name, node.lineno) for alias in node.names)
        return lines

    def op_types(self, statement: ast.stmt, namespace: Mapping[str, Any]) -> set[str]:
        """The operators that a statement calls by name: `mx.nd.Custom(x, op_type="softmax")`."""
        keywords = [
            node.value for node in ast.walk(statement) if isinstance(node, ast.keyword) and node.arg == "op_type"
        ]
        values = [
            node.value if isinstance(node, ast.Constant) else namespace.get(node.id)
            for node in keywords
            if isinstance(node, ast.Constant | ast.Name)
        ]
        return {node for node in values if isinstance(node, str)}

    def defining(self, name: str, line: int | None) -> ast.stmt | None:
        """The statement that defines a class or function of that name, at `line` if there are several.

        It may be one that others are inside of (`for`, `if`, `try`), or an assignment of what a call has made.
        """
        binders = self.binders.get(name, [])
        chosen: list[ast.stmt] = [binder for binder in binders if isinstance(binder, _DEFINITIONS)]
        if line is not None and len(chosen) != 1:
            around = [
                binder for binder in binders if self.first_line(binder) <= line <= (binder.end_lineno or binder.lineno)
            ]
            chosen = around or chosen
        if line is None and not chosen:
            chosen = [binder for binder in binders if isinstance(binder, ast.Assign)]
        return chosen[-1] if chosen else None

    def within(self, name: str, line: int | None) -> tuple[DefiningStatement, set[str]] | None:
        """A class or function that is defined in functions, around `line`, and the names that those bind."""
        around = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, _DEFINITIONS)
            and line is not None
            and self.first_line(node) <= line <= (node.end_lineno or node.lineno)
        ]
        around.sort(key=self.first_line)
        named = [node for node in around if node.name == name]
        if not named:
            return None
        names: set[str] = set()
        for function in around[: around.index(named[-1])]:
            if not isinstance(function, ast.ClassDef):
                names.update(node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg))
                names.update(*(bound(node) for node in function.body))
        return named[-1], names


def _split(line: str, column: int) -> tuple[str, str]:
    """A line at a column as ast counts them, in bytes."""
    encoded = line.encode()
    return encoded[:column].decode(), encoded[column:].decode()


def _absolute(node: ast.ImportFrom, package: str) -> str:
    """The full name of the module that a `from … import` names."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])


def _instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _instructions(constant)


_files: dict[str, tuple[str, SourceFile]] = {}


def parsed(path: str, text: str) -> SourceFile:
    """The file, taken apart once as long as it does not change."""
    cached = _files.get(path)
    if cached is None or cached[0] != text:
        cached = _files[path] = (text, SourceFile(path, text))
    return cached[1]


def shown(path: str) -> str:
    """Return a file's name for tracebacks: without the user's folders, or "Cell In[9]" in a notebook."""
    return path if path.startswith("<") else cell_name(path) or Path(path).name


def is_import(statement: ast.stmt) -> bool:
    """Return whether a statement is an import."""
    return isinstance(statement, ast.Import | ast.ImportFrom)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, ast.If) and any(
            isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)
        ):
            yield from _statements(statement.body)
        else:
            yield statement


def bound(statement: ast.stmt) -> set[str]:
    """Names that a top-level statement binds."""
    names: set[str] = set()
    for node in _outside_functions(statement):
        if isinstance(node, _DEFINITIONS):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def _stored(statement: ast.stmt) -> set[str]:
    """Names of which a statement sets an item or an attribute."""
    names: set[str] = set()
    for node in _outside_functions(statement):
        if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            inner: ast.expr = node
            while isinstance(inner, ast.Subscript | ast.Attribute):
                inner = inner.value
            if isinstance(inner, ast.Name):
                names.add(inner.id)
    return names


def _called(statement: ast.stmt) -> set[str]:
    """Names of which a statement calls a method."""
    return {
        node.func.value.id
        for node in _outside_functions(statement)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
    }


def _outside_functions(statement: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement that run with it, in the file's own namespace."""
    yield statement
    if isinstance(statement, (*_DEFINITIONS, ast.Lambda)):
        return
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, ast.comprehension):
            yield from _outside_functions(child)


def _tree(text: str) -> ast.Module:
    """The text parsed; a notebook cell's magics (`%time`, `!ls`) are passed over, line for line."""
    try:
        return ast.parse(text)
    except SyntaxError:
        lines = text.splitlines()
        return ast.parse("\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in lines) + "\n")
