"""Gathering an operator's source by content: its class, and what that refers to.

`gather(cls)` reads the file (script, module or notebook cell) that a class was written in and takes the statements
that the class needs: itself, the functions, classes, constants and imports that it names, and what those name in turn.
Which names those are is read from the compiled code, so a local variable never drags a global of its name along.
Plain values and numpy's arrays are taken as they are now; everything else is made anew by the statements that made it.
"""

from __future__ import annotations

import ast
import builtins
import collections
import contextlib
import dataclasses
import inspect
import io
import linecache
import re
import sys
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .bundle import Bundle, BundledModule, Piece, SourceError
from .closures import Closure, standalone
from .custom import get_all_registered_operators, prop_class
from .modules import is_bundled, is_installed, is_there, modules_of
from .program_text import NOWHERE, main_program, text_of
from .statements import SourceFile, bound, is_import, parsed, shown
from .values import expression

__all__ = ["gather"]

_ABSENT = object()
_CELL = re.compile(r"ipykernel_\d+|<ipython-input-")
_CONTAINERS = (list, dict, set, collections.deque)


def gather(*classes: type) -> Bundle:
    """The source of classes and of everything that they refer to.

    Raises:
        SourceError: the source of a class or of something it names cannot be found, a value it names cannot be
            written down, or a name means two things in two files.
    """
    gatherer = _Gatherer()
    for cls in classes:
        gatherer.take_object(cls, cls.__name__, f"operator class {cls.__name__!r}")
    gatherer.check_names()
    modules = {module.name: module for module in gatherer.modules}
    ordered = tuple(module for _, module in sorted(modules.items()))
    return Bundle(tuple(gatherer.ordered()), tuple(cls.__name__ for cls in classes), ordered)


class _Gatherer:
    def __init__(self) -> None:
        self.taken: dict[tuple[str, int, int], Piece] = {}
        self.constants: dict[str, str] = {}
        self.imports: dict[str, str] = {}
        self.modules: list[BundledModule] = []
        self.seen: set[tuple[int, str]] = set()
        self.order: list[str] = []
        self.meanings: dict[str, dict[tuple[str, str], Any]] = {}

    def ordered(self) -> list[Piece]:
        """Values first; then, file by file in the order that they were needed, statements as they stand."""
        lines = [text for _, text in sorted(self.imports.items())]
        lines += [f"{name} = {text}" for name, text in sorted(self.constants.items())]
        pieces = [Piece("<values>", 1, "\n".join(lines))] if lines else []
        for path in dict.fromkeys(self.order):
            pieces += [self.taken[key] for key in sorted(self.taken) if key[0] == path]
        return pieces

    def check_names(self) -> None:
        """All pieces share one namespace: SourceError when two files mean different things by a name."""
        for name, meanings in sorted(self.meanings.items()):
            ((first, _), value), *others = meanings.items()
            for (other, _), another in others:
                if value is another or (expression(value) is not None and expression(value) == expression(another)):
                    continue
                if first == other:
                    raise SourceError(f"name {name!r} means two things in {shown(first)}: rename one of them")
                raise SourceError(
                    f"name {name!r} is one thing in {shown(first)} and another in {shown(other)}: rename one of them, "
                    "or name the second file with mx.operator.bundle(path)"
                )

    def take_object(self, value: Any, name: str, wanted_by: str) -> None:
        """A class or function, by the file that it was written in."""
        if (id(value), name) in self.seen:
            return
        self.seen.add((id(value), name))
        file = self._file_of(value, wanted_by)
        namespace, line, called = _namespace_of(value), _line(value), value.__name__
        if isinstance(namespace, Closure):
            self._take_closure(file, value, namespace, wanted_by)
        else:
            statement = file.defining(called, line)
            if statement is None:
                statement, called = file.defining(name, line), name  # f = lambda x: …
            if statement is None:
                raise SourceError(
                    f"{wanted_by}: it is made by another object: write it at the top level of {shown(file.path)}, so "
                    "that it can be sent by itself"
                )
            self._take_statement(file, statement, namespace)
            self._take_changes(file, called, value, namespace)
        if name != called:
            # Another name of it in the file that needs it; after it, in a group of its own.
            key = (f"<{name}>", 1, 0)
            self.taken[key] = Piece(f"<{name}>", 1, f"{name} = {called}")
            self.order.append(key[0])

    def _take_closure(self, file: SourceFile, value: Any, namespace: Closure, wanted_by: str) -> None:
        statement = standalone(file, value, _line(value), namespace, wanted_by)
        if self.meanings.setdefault(value.__name__, {}).setdefault((file.path, value.__qualname__), value) is not value:
            raise SourceError(
                f"{wanted_by}: it needs two classes that two calls of a function have made of one statement: write "
                f"them at the top level of {shown(file.path)}"
            )
        self._take_statement(file, statement, namespace, group=f"{file.path}:")

    def _take_statement(
        self, file: SourceFile, statement: ast.stmt, namespace: dict[str, Any], group: str | None = None
    ) -> None:
        group = group or file.path
        key = (group, statement.lineno, statement.col_offset)
        if key in self.taken:
            return
        package = str(namespace.get("__package__") or "")
        self.taken[key] = file.piece(statement, package)
        for name in bound(statement) if group == file.path else ():
            self._note(name, namespace, file)
        for name in sorted(file.reads(statement)):
            self._take_name(file, statement, name, namespace)
        for module, line in sorted(file.imports(statement, package).items()):
            self._check_module(module, f"{module} (imported in {shown(file.path)}:{line})")
        for op_type in sorted(file.op_types(statement, namespace)):
            if op_type in get_all_registered_operators():
                prop = prop_class(op_type)
                self.take_object(prop, prop.__name__, f"operator {op_type!r} (used in {shown(file.path)}:{key[1]})")
        for future in file.futures:
            self.taken[group, future.lineno, 0] = file.piece(future, package)
        self.order.append(group)

    def _note(self, name: str, namespace: dict[str, Any], file: SourceFile) -> None:
        if name in namespace:
            place = str(namespace.get("__file__") or namespace.get("__name__") or file.path)
            cell = namespace.captured.get(name, "") if isinstance(namespace, Closure) else ""
            self.meanings.setdefault(name, {})[place, cell] = namespace[name]

    def _take_name(self, file: SourceFile, user: ast.stmt, name: str, namespace: dict[str, Any]) -> None:
        binders = [binder for binder in file.binders.get(name, []) if binder is not user]
        if isinstance(namespace, Closure):
            if name in namespace.captured:
                binders = []
            else:
                namespace = namespace.outer
        value = namespace.get(name, _ABSENT)
        if value is _ABSENT and not binders:
            return  # a name of the class's own body, a builtin, or an error that Python will report in its own words
        if name.startswith("__") and name.endswith("__"):
            if name == "__file__" and not isinstance(user, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                raise SourceError(
                    f"operator source {shown(file.path)}:{user.lineno}: it reads __file__ when it is loaded, where "
                    "operators run, and your files are not there: read the file into a number, string, list or array"
                )
            return
        if _is_open_file(value):
            raise SourceError(
                f"operator source {shown(file.path)}:{user.lineno}: name {name!r} holds an open file, which cannot be "
                "sent to where operators run: read what the operator needs into a number, string, list or array"
            )
        self._note(name, namespace, file)
        if value is not _ABSENT and not isinstance(value, types.ModuleType | type | types.FunctionType):
            text = expression(value)
            if text is not None and not any(is_import(binder) for binder in binders):
                self.constants[name] = text
                return
        where = f"{name} (used in {shown(file.path)}:{user.lineno})"
        if binders:
            for binder in binders:
                self._take_statement(file, binder, namespace)
            self._take_changes(file, name, value, namespace)
        elif isinstance(value, types.ModuleType):
            self._check_module(value.__name__, where)
            self.imports[name] = f"import {value.__name__} as {name}"
        elif self._take_from_cell(file, name, value, namespace):
            return
        elif isinstance(_unwrapped(value), type | types.FunctionType) and getattr(builtins, name, None) is not value:
            self._take_foreign(_unwrapped(value), name, where)
        elif getattr(builtins, name, _ABSENT) is _ABSENT and file.binders.get(name) is None:
            raise SourceError(
                f"operator source {shown(file.path)}:{user.lineno}: name {name!r} holds a value of type "
                f"{type(value).__name__}, which cannot be sent: make it inside the operator, or put the code into a "
                "file and name that with mx.operator.bundle(path)"
            )

    def _take_from_cell(self, file: SourceFile, name: str, value: Any, namespace: dict[str, Any]) -> bool:
        """Take a value that another cell of a notebook made; False where no cell did, or it knows its own source."""
        value = _unwrapped(value)
        if isinstance(value, type | types.FunctionType) and (is_installed(value.__module__) or _functions(value)):
            return False
        cell = _cell_that_binds(name, file)
        for binder in cell.binders[name] if cell is not None else ():
            self._take_statement(cell or file, binder, namespace)
        self._take_changes(cell or file, name, value, namespace)
        return cell is not None

    def _take_changes(self, file: SourceFile, name: str, value: Any, namespace: dict[str, Any]) -> None:
        """The statements that changed what a name holds after it was made, and the functions that a container has."""
        if isinstance(value, types.ModuleType):
            return
        for statement in file.stores.get(name, []):
            self._take_statement(file, statement, namespace)
        if not isinstance(value, _CONTAINERS):
            return
        for statement in file.calls.get(name, []):
            self._take_statement(file, statement, namespace)
        members: Iterable[Any] = value.values() if isinstance(value, dict) else value
        for member in list(members):
            made_here = isinstance(member, type | types.FunctionType) and namespace.get(member.__name__) is member
            for binder in file.binders.get(member.__name__, []) if made_here else ():
                self._take_statement(file, binder, namespace)

    def _take_foreign(self, value: Any, name: str, wanted_by: str) -> None:
        if is_installed(value.__module__) or is_bundled(value.__module__):
            self._check_module(value.__module__, wanted_by)
            self.imports[name] = f"from {value.__module__} import {value.__name__} as {name}"
        else:
            self.take_object(value, name, wanted_by)

    def _check_module(self, module: str, where: str) -> None:
        if is_bundled(module):
            self.modules += modules_of(module)
        elif is_there(module) and not is_installed(module):
            what = f"the folder of its package {module.split('.')[0]!r}" if "." in module else "it"
            raise SourceError(
                f"{where}: module {module!r} is a file of yours that the server does not have: name {what} with "
                "mx.operator.bundle(path)"
            )

    def _file_of(self, value: Any, wanted_by: str) -> SourceFile:
        path, text = _source(value)
        if not path or not text:
            reason = NOWHERE.get(path or "") or f"it was defined in {shown(path) if path else 'nowhere'}"
            raise SourceError(
                f"{wanted_by}: its source cannot be read ({reason}): write it in a script, a module or a notebook "
                "cell, or put it into a file and name that with mx.operator.bundle(path)"
            )
        return parsed(path, text)


def _is_open_file(value: Any) -> bool:
    """Return whether a value is an open file, other than the process's own streams, such as sys.stdout."""
    kinds = (io.FileIO, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)
    streams = (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
    return isinstance(value, kinds) and not any(value is stream for stream in streams)


def _cell_that_binds(name: str, file: SourceFile) -> SourceFile | None:
    """The last cell of a notebook that binds a name, other than the cell at hand."""
    last = None
    for path in list(linecache.cache):
        if Path(path).parent == Path(file.path).parent and _CELL.search(path) and path != file.path:
            try:
                cell = parsed(path, "".join(linecache.getlines(path)))
            except SyntaxError:
                continue  # a cell that never ran
            last = cell if name in cell.binders else last
    return last


def _unwrapped(value: Any) -> Any:
    """Return the function inside a decorator such as functools.lru_cache."""
    return inspect.unwrap(value) if callable(value) and not isinstance(value, type) else value


def _functions(value: Any) -> list[types.FunctionType]:
    """List the functions of a value: a function itself, or those written in a class."""
    if isinstance(value, types.FunctionType):
        return [_unwrapped(value)]
    members = [_unwrapped(getattr(member, "__func__", member)) for member in vars(value).values()]
    return [
        function
        for function in members
        if isinstance(function, types.FunctionType)
        and function.__module__ == value.__module__
        and function.__qualname__.startswith(value.__qualname__ + ".")
        and not (function.__code__.co_filename == "<string>" and dataclasses.is_dataclass(value))  # made, not written
    ]


def _namespace_of(value: Any) -> dict[str, Any]:
    """The globals of a class or function."""
    functions = _functions(value)
    names = functions[0].__globals__ if functions else getattr(sys.modules.get(value.__module__), "__dict__", {})
    return Closure(names, functions) if "<locals>" in value.__qualname__ else names


def _source(value: Any) -> tuple[str | None, str]:
    """The file of a class or function, and what is in it."""
    code = next((function.__code__ for function in _functions(value)), None)
    path = code.co_filename if code is not None else None
    if path is None:
        with contextlib.suppress(TypeError, OSError):
            path = inspect.getsourcefile(value)
    if path is None and value.__module__ == "__main__":
        path = main_program()[0] or None
    namespace = _namespace_of(value)
    names = namespace.outer if isinstance(namespace, Closure) else namespace
    return path, text_of(path, names, code) if path else ""


def _line(value: Any) -> int | None:
    """A line of a class or function, as it was written."""
    for function in _functions(value):
        return function.__code__.co_firstlineno
    try:
        return inspect.getsourcelines(value)[1]
    except (OSError, TypeError):
        return None
