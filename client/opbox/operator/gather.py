"""Gathering an operator's source by content: its class, and what that refers to.

`gather(cls)` reads the file (script, module or notebook cell) that a class was written in and takes the statements
that the class needs: itself, the functions, classes, constants and imports that it names, and what those name in turn.
Which names those are is read from the compiled code, so a local variable never drags a global of its name along.
Plain values are taken as they are now; everything else is made anew by the statement that made it.
"""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import linecache
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .bundle import Bundle, Module, Piece, SourceError, literal
from .modules import is_bundled, modules_of

__all__ = ["gather"]

_ABSENT = object()
_GLOBAL_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})


def gather(*classes: type) -> Bundle:
    """The source of classes and of everything that they refer to.

    Raises:
        SourceError: the source of a class or of something it names cannot be found, or a value it names cannot be
            written down.
    """
    gatherer = _Gatherer()
    for cls in classes:
        gatherer.take_object(cls, cls.__name__, f"operator class {cls.__name__!r}")
    modules = {module.name: module for module in gatherer.modules}
    ordered = tuple(module for _, module in sorted(modules.items()))
    return Bundle(tuple(gatherer.ordered()), tuple(cls.__name__ for cls in classes), ordered)


class _File:
    """A parsed source file and which of its top-level statements binds a name."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.lines = text.splitlines()
        self.tree = _tree(text)
        self.futures: list[ast.stmt] = []
        self.binders: dict[str, list[ast.stmt]] = {}
        for statement in _statements(self.tree.body):
            if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
                self.futures.append(statement)
            else:
                for name in _bound(statement):
                    self.binders.setdefault(name, []).append(statement)

    def piece(self, statement: ast.stmt) -> Piece:
        first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", []))])
        last = statement.end_lineno or first
        lines = self.lines[first - 1 : last]
        indent = " " * statement.col_offset
        return Piece(_shown(self.path), first, "\n".join(line.removeprefix(indent) for line in lines))

    def reads(self, statement: ast.stmt) -> tuple[set[str], set[str]]:
        """The global names that a statement reads, and the modules that functions in it import."""
        body = [*self.futures, statement]
        code = compile(ast.Module(body, []), self.path, "exec", dont_inherit=True)
        names: set[str] = set()
        modules: set[str] = set()
        for instruction in _instructions(code):
            if instruction.opname in _GLOBAL_READS:
                names.add(instruction.argval)
            elif instruction.opname == "IMPORT_NAME" and instruction.argval != "__future__":
                modules.add(instruction.argval)
        return names, set() if isinstance(statement, ast.Import | ast.ImportFrom) else modules


def _instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _instructions(constant)


_files: dict[str, tuple[str, _File]] = {}


def _parsed(path: str, text: str) -> _File:
    held = _files.get(path)
    if held is None or held[0] != text:
        held = _files[path] = (text, _File(path, text))
    return held[1]


def _shown(path: str) -> str:
    """How a file is called in tracebacks: its name without the user's folders."""
    return path if path.startswith("<") else Path(path).name


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a file; those under `if __name__ == "__main__":` one by one."""
    for statement in body:
        if isinstance(statement, ast.If) and any(
            isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)
        ):
            yield from _statements(statement.body)
        else:
            yield statement


def _bound(statement: ast.stmt) -> set[str]:
    """Names that a top-level statement binds."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.split(".")[0] for alias in statement.names}
    inner = [child for child in ast.walk(statement) if child is not statement]
    found = {node.id for node in inner if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    if isinstance(statement, ast.If | ast.Try | ast.With | ast.For | ast.While):
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
        found.update(*(_bound(child) for child in inner if isinstance(child, kinds)))
    return found


class _Gatherer:
    def __init__(self) -> None:
        self.taken: dict[tuple[str, int], Piece] = {}
        self.constants: dict[str, str] = {}
        self.imports: dict[str, str] = {}
        self.modules: list[Module] = []
        self.seen: set[tuple[int, str]] = set()
        self.order: list[str] = []

    def ordered(self) -> list[Piece]:
        """Values first; then, file by file in the order that they were needed, statements as they stand."""
        lines = [text for _, text in sorted(self.imports.items())]
        lines += [f"{name} = {text}" for name, text in sorted(self.constants.items())]
        pieces = [Piece("<values>", 1, "\n".join(lines))] if lines else []
        for path in dict.fromkeys(self.order):
            pieces += [self.taken[key] for key in sorted(self.taken) if key[0] == path]
        return pieces

    def take_object(self, value: Any, name: str, wanted_by: str) -> None:
        """A class or function, by the file that it was written in."""
        if (id(value), name) in self.seen:
            return
        self.seen.add((id(value), name))
        file = self._file_of(value, wanted_by)
        statement = self._statement_of(file, value, wanted_by)
        self._take_statement(file, statement, _namespace_of(value))
        if name != value.__name__:
            # Another name of it in the file that needs it; after it, in a group of its own.
            key = (f"<{name}>", 1)
            self.taken[key] = Piece(f"<{name}>", 1, f"{name} = {value.__name__}")
            self.order.append(key[0])

    def _take_statement(self, file: _File, statement: ast.stmt, namespace: dict[str, Any]) -> None:
        key = (file.path, statement.lineno)
        if key in self.taken:
            return
        self.taken[key] = file.piece(statement)
        names, imported = file.reads(statement)
        for name in sorted(names):
            self._take_name(file, statement, name, namespace)
        for module in sorted(imported):
            self._check_module(module, f"{module} (imported in {_shown(file.path)}:{statement.lineno})")
        for future in file.futures:
            self.taken[file.path, future.lineno] = file.piece(future)
        self.order.append(file.path)

    def _take_name(self, file: _File, user: ast.stmt, name: str, namespace: dict[str, Any]) -> None:
        binders = [binder for binder in file.binders.get(name, []) if binder is not user]
        value = namespace.get(name, _ABSENT)
        if value is _ABSENT and not binders:
            return  # a name of the class's own body, a builtin, or an error that Python will report in its own words
        if name.startswith("__") and name.endswith("__"):
            return
        if value is not _ABSENT and not isinstance(value, types.ModuleType | type | types.FunctionType):
            text = literal(value)
            if text is not None and not any(isinstance(b, ast.Import | ast.ImportFrom) for b in binders):
                self.constants[name] = text
                return
        where = f"{name} (used in {_shown(file.path)}:{user.lineno})"
        if binders:
            for binder in binders:
                self._take_statement(file, binder, namespace)
                self._check_import(binder, name, file)
        elif isinstance(value, types.ModuleType):
            self._check_module(value.__name__, where)
            self.imports[name] = f"import {value.__name__} as {name}"
        elif isinstance(value, type | types.FunctionType) and getattr(builtins, name, None) is not value:
            self._take_foreign(value, name, where)
        elif getattr(builtins, name, _ABSENT) is _ABSENT:
            raise SourceError(
                f"operator source {_shown(file.path)}:{user.lineno}: name {name!r} holds a value of type "
                f"{type(value).__name__}, which cannot be sent: make it inside the operator, or put the code into a "
                "file and name that with mx.operator.bundle(path)"
            )

    def _take_foreign(self, value: Any, name: str, wanted_by: str) -> None:
        if _is_installed(value.__module__) or is_bundled(value.__module__):
            self._check_module(value.__module__, wanted_by)
            self.imports[name] = f"from {value.__module__} import {value.__name__} as {name}"
        else:
            self.take_object(value, name, wanted_by)

    def _check_import(self, statement: ast.stmt, name: str, file: _File) -> None:
        where = f"{name} (imported in {_shown(file.path)}:{statement.lineno})"
        if isinstance(statement, ast.ImportFrom):
            if statement.level:
                raise SourceError(
                    f"{where}: a relative import cannot be followed on the server: name the package's folder with "
                    "mx.operator.bundle(path) and import it by its full name"
                )
            self._check_module(statement.module or "", where)
        elif isinstance(statement, ast.Import):
            for alias in statement.names:
                self._check_module(alias.name, where)

    def _check_module(self, module: str, where: str) -> None:
        if is_bundled(module):
            self.modules += modules_of(module)
        elif not _is_installed(module):
            raise SourceError(
                f"{where}: module {module!r} is a file of yours that the server does not have: name it with "
                "mx.operator.bundle(path)"
            )

    def _file_of(self, value: Any, wanted_by: str) -> _File:
        try:
            path = _code_file(value)
        except (TypeError, OSError):
            path = None
        text = "".join(linecache.getlines(path)) if path else ""
        if not path or not text:
            shown = _shown(path) if path else "nowhere"
            raise SourceError(
                f"{wanted_by}: its source cannot be read (it was defined in {shown}): write it in a script, a "
                "module or a notebook cell, or put it into a file and name that with mx.operator.bundle(path)"
            )
        return _parsed(path, text)

    def _statement_of(self, file: _File, value: Any, wanted_by: str) -> ast.stmt:
        found = [
            statement
            for statement in file.binders.get(value.__name__, [])
            if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        if "<locals>" in value.__qualname__ or not found:
            inside = (
                value.__qualname__.split(".<locals>")[0] if "<locals>" in value.__qualname__ else "another statement"
            )
            raise SourceError(
                f"{wanted_by}: it is defined inside {inside!r}: move it to the top "
                f"level of {_shown(file.path)}, so that it can be sent by itself"
            )
        if len(found) > 1:
            line = inspect.getsourcelines(value)[1]
            found = [s for s in found if file.piece(s).line == line] or found[-1:]
        return found[-1]


def _namespace_of(value: Any) -> dict[str, Any]:
    """The globals of a class or function."""
    if isinstance(value, types.FunctionType):
        return value.__globals__
    for member in vars(value).values():
        function = getattr(member, "__func__", member)
        if isinstance(function, types.FunctionType) and function.__module__ == value.__module__:
            return function.__globals__
    return getattr(sys.modules.get(value.__module__), "__dict__", {})


def _code_file(value: Any) -> str | None:
    if isinstance(value, types.FunctionType):
        return value.__code__.co_filename
    for member in vars(value).values():
        function = getattr(member, "__func__", member)
        if isinstance(function, types.FunctionType) and function.__qualname__.startswith(value.__qualname__ + "."):
            return function.__code__.co_filename
    return inspect.getsourcefile(value)


def _tree(text: str) -> ast.Module:
    """The text parsed; a notebook cell's magics (`%time`, `!ls`) are passed over, line for line."""
    try:
        return ast.parse(text)
    except SyntaxError:
        lines = text.splitlines()
        return ast.parse("\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in lines) + "\n")


def _is_installed(module: str) -> bool:
    """Whether a module comes with Python or from an installed package, rather than from the user's own files."""
    top = module.split(".")[0]
    if top == "__main__":
        return False
    if top in sys.stdlib_module_names or top in ("opbox", "numpy"):
        return True
    found = sys.modules.get(top)
    origin = getattr(found, "__file__", None) or next(iter(getattr(found, "__path__", [])), None)
    if origin is None:
        return False
    roots = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return any(Path(origin).is_relative_to(root) for root in roots if root)
