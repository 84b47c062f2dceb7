"""Gathering an operator's source by content: its class, and what that refers to.

`gather(cls)` reads the file (script, module or notebook cell) that a class was written in and takes the statements
that the class needs: itself, the functions, classes, constants and imports that it names, and what those name in turn.
Which names those are is read from the compiled code, so a local variable never drags a global of its name along.
Plain values and numpy's arrays are taken as they are now; everything else is computed again by the statements that
computed it.

Three steps: `collect` finds the statements and what each needs, `order` puts those that others need first, and
`render` writes them as the pieces of a bundle.
"""

from __future__ import annotations

import ast
import builtins
import collections
import io
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .bundle import Bundle, BundledModule, Piece, SourceError
from .closures import Closure, standalone
from .custom import get_all_registered_operators, prop_class
from .modules import is_bundled, is_installed, is_there, modules_of
from .origins import cell_that_binds, file_of, functions_of, line_of, namespace_of, unwrapped
from .statements import SourceFile, bound, is_import, shown
from .values import expression

__all__ = ["gather"]

_ABSENT = object()
_CONTAINERS = (list, dict, set, collections.deque)


class StatementPlace(NamedTuple):
    """Where a statement stands: statements of one group stay together, in the order of their lines."""

    group: str
    line: int
    column: int


@dataclass
class Statement:
    """A statement that operators need, and the places of those that it needs itself."""

    piece: Piece
    needs: list[StatementPlace] = field(default_factory=list)


@dataclass
class Collected:
    """All that operators need.

    Attributes:
        roots: the statements of the operators' classes.
        statements: all statements, by their places.
        values: source text of the plain values, by the name that they have.
        imports: import statements that no file has, by the name that they bind.
        modules: files of the user's that come whole, by the module's name.
        meanings: by a name, and by the file (and function) where it is used: what it is there.
    """

    roots: list[StatementPlace] = field(default_factory=list)
    statements: dict[StatementPlace, Statement] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    modules: dict[str, BundledModule] = field(default_factory=dict)
    meanings: dict[str, dict[tuple[str, str], Any]] = field(default_factory=dict)


def gather(*classes: type) -> Bundle:
    """The source of classes and of everything that they refer to.

    Raises:
        SourceError: the source of a class or of something it names cannot be found, a value it names cannot be
            written down, or a name means two things in two files.
    """
    collected = collect(classes)
    check_names(collected.meanings)
    pieces = render(collected, order(collected))
    modules = tuple(module for _, module in sorted(collected.modules.items()))
    return Bundle(tuple(pieces), tuple(cls.__name__ for cls in classes), modules)


def collect(classes: Iterable[type]) -> Collected:
    """What classes need.

    Raises:
        SourceError: as `gather`, except for names that mean two things.
    """
    collector = _Collector()
    for cls in classes:
        collector.collected.roots += collector.take_object(cls, cls.__name__, f"operator class {cls.__name__!r}")
        collector.finish()
    return collector.collected


def check_names(meanings: dict[str, dict[tuple[str, str], Any]]) -> None:
    """All pieces share one namespace: SourceError when two files mean different things by a name."""
    for name, values in sorted(meanings.items()):
        ((first, _), value), *others = values.items()
        for (other, _), another in others:
            if value is another or (expression(value) is not None and expression(value) == expression(another)):
                continue
            if first == other:
                raise SourceError(f"name {name!r} means two things in {shown(first)}: rename one of them")
            raise SourceError(
                f"name {name!r} is one thing in {shown(first)} and another in {shown(other)}: rename one of them, "
                "or name the second file with mx.operator.bundle(path)"
            )


def order(collected: Collected) -> list[str]:
    """The groups, in an order in which those that others need come first."""
    groups: dict[str, None] = {}
    seen: set[StatementPlace] = set()
    for root in collected.roots:
        waiting: list[tuple[StatementPlace, Iterator[StatementPlace]]] = []
        if root not in seen:
            seen.add(root)
            waiting.append((root, iter(collected.statements[root].needs)))
        while waiting:
            place, needs = waiting[-1]
            needed = next((one for one in needs if one not in seen), None)
            if needed is None:
                waiting.pop()
                groups.setdefault(place.group)
            else:
                seen.add(needed)
                waiting.append((needed, iter(collected.statements[needed].needs)))
    return list(groups)


def render(collected: Collected, groups: Sequence[str]) -> list[Piece]:
    """The pieces of a bundle: values first; then, group by group, statements as they stand."""
    lines = [text for _, text in sorted(collected.imports.items())]
    lines += [f"{name} = {text}" for name, text in sorted(collected.values.items())]
    pieces = [Piece("<values>", 1, "\n".join(lines))] if lines else []
    of_group: dict[str, list[StatementPlace]] = {}
    for place in sorted(collected.statements):
        of_group.setdefault(place.group, []).append(place)
    return pieces + [collected.statements[place].piece for group in groups for place in of_group[group]]


class _Collector:
    """Follows names to the statements that bind them, until every statement's names are known."""

    def __init__(self) -> None:
        self.collected = Collected()
        self._objects: dict[tuple[int, str], list[StatementPlace]] = {}
        self._unread: list[tuple[SourceFile, ast.stmt, dict[str, Any], StatementPlace]] = []

    def finish(self) -> None:
        """Read the statements that were taken, and those that they need."""
        while self._unread:
            self._read(*self._unread.pop())

    def take_object(self, value: Any, name: str, wanted_by: str) -> list[StatementPlace]:
        """A class or function, by the file that it was written in."""
        known = self._objects.get((id(value), name))
        if known is not None:
            return known
        file = file_of(value, wanted_by)
        namespace, line, called = namespace_of(value), line_of(value), value.__name__
        if isinstance(namespace, Closure):
            places = self._take_closure(file, value, namespace, wanted_by)
        else:
            statement = file.defining(called, line)
            if statement is None:
                statement, called = file.defining(name, line), name  # f = lambda x: …
            if statement is None:
                raise SourceError(
                    f"{wanted_by}: it is made by another object: write it at the top level of {shown(file.path)}, so "
                    "that it can be sent by itself"
                )
            places = [
                *self._take_statement(file, statement, namespace),
                *self._take_changes(file, called, value, namespace),
            ]
        if name != called:
            # Another name of it in the file that needs it; after it, in a group of its own.
            alias = StatementPlace(f"<{name}>", 1, 0)
            self.collected.statements[alias] = Statement(Piece(alias.group, 1, f"{name} = {called}"), places)
            places = [alias]
        self._objects[id(value), name] = places
        return places

    def _take_closure(self, file: SourceFile, value: Any, namespace: Closure, wanted_by: str) -> list[StatementPlace]:
        statement = standalone(file, value, line_of(value), namespace, wanted_by)
        meanings = self.collected.meanings.setdefault(value.__name__, {})
        if meanings.setdefault((file.path, value.__qualname__), value) is not value:
            raise SourceError(
                f"{wanted_by}: it needs two classes that two calls of a function have made of one statement: write "
                f"them at the top level of {shown(file.path)}"
            )
        return self._take_statement(file, statement, namespace, group=f"{file.path}:")

    def _take_statement(
        self, file: SourceFile, statement: ast.stmt, namespace: dict[str, Any], group: str | None = None
    ) -> list[StatementPlace]:
        place = StatementPlace(group or file.path, statement.lineno, statement.col_offset)
        if place not in self.collected.statements:
            package = str(namespace.get("__package__") or "")
            self.collected.statements[place] = Statement(file.piece(statement, package))
            self._unread.append((file, statement, namespace, place))
        return [place]

    def _read(self, file: SourceFile, statement: ast.stmt, namespace: dict[str, Any], place: StatementPlace) -> None:
        """Take what a statement needs."""
        package = str(namespace.get("__package__") or "")
        needs = self.collected.statements[place].needs
        for name in bound(statement) if place.group == file.path else ():
            self._note(name, namespace, file)
        for name in sorted(file.reads(statement)):
            needs += self._take_name(file, statement, name, namespace)
        for module, line in sorted(file.imports(statement, package).items()):
            self._check_module(module, f"{module} (imported in {shown(file.path)}:{line})")
        for op_type in sorted(file.op_types(statement, namespace)):
            if op_type in get_all_registered_operators():
                prop = prop_class(op_type)
                wanted_by = f"operator {op_type!r} (used in {shown(file.path)}:{place.line})"
                needs += self.take_object(prop, prop.__name__, wanted_by)
        for future in file.futures:
            self.collected.statements[StatementPlace(place.group, future.lineno, 0)] = Statement(
                file.piece(future, package)
            )

    def _note(self, name: str, namespace: dict[str, Any], file: SourceFile) -> None:
        if name in namespace:
            path = str(namespace.get("__file__") or namespace.get("__name__") or file.path)
            cell = namespace.captured.get(name, "") if isinstance(namespace, Closure) else ""
            self.collected.meanings.setdefault(name, {})[path, cell] = namespace[name]

    def _take_name(
        self, file: SourceFile, user: ast.stmt, name: str, namespace: dict[str, Any]
    ) -> list[StatementPlace]:
        binders = [binder for binder in file.binders.get(name, []) if binder is not user]
        if isinstance(namespace, Closure):
            if name in namespace.captured:
                binders = []
            else:
                namespace = namespace.outer
        value = namespace.get(name, _ABSENT)
        if value is _ABSENT and not binders:
            return []  # a name of the class's own body, a builtin, or an error that Python will report in its own words
        if name.startswith("__") and name.endswith("__"):
            if name == "__file__" and not isinstance(user, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                raise SourceError(
                    f"operator source {shown(file.path)}:{user.lineno}: it reads __file__ when it is loaded, where "
                    "operators run, and your files are not there: read the file into a number, string, list or array"
                )
            return []
        if _is_open_file(value):
            raise SourceError(
                f"operator source {shown(file.path)}:{user.lineno}: name {name!r} holds an open file, which cannot be "
                "sent to where operators run: read what the operator needs into a number, string, list or array"
            )
        self._note(name, namespace, file)
        if value is not _ABSENT and not isinstance(value, types.ModuleType | type | types.FunctionType):
            text = expression(value)
            if text is not None and not any(is_import(binder) for binder in binders):
                self.collected.values[name] = text
                return []
        where = f"{name} (used in {shown(file.path)}:{user.lineno})"
        if binders:
            places = [place for binder in binders for place in self._take_statement(file, binder, namespace)]
            return places + self._take_changes(file, name, value, namespace)
        if isinstance(value, types.ModuleType):
            self._check_module(value.__name__, where)
            self.collected.imports[name] = f"import {value.__name__} as {name}"
            return []
        in_cell, places = self._take_from_cell(file, name, value, namespace)
        if in_cell:
            return places
        if isinstance(unwrapped(value), type | types.FunctionType) and getattr(builtins, name, None) is not value:
            return places + self._take_foreign(unwrapped(value), name, where)
        if getattr(builtins, name, _ABSENT) is _ABSENT and file.binders.get(name) is None:
            raise SourceError(
                f"operator source {shown(file.path)}:{user.lineno}: name {name!r} holds a value of type "
                f"{type(value).__name__}, which cannot be sent: make it inside the operator, or put the code into a "
                "file and name that with mx.operator.bundle(path)"
            )
        return places

    def _take_from_cell(
        self, file: SourceFile, name: str, value: Any, namespace: dict[str, Any]
    ) -> tuple[bool, list[StatementPlace]]:
        """Take a value that another cell of a notebook made, unless it knows its own source; whether a cell did, and
        the statements."""
        value = unwrapped(value)
        if isinstance(value, type | types.FunctionType) and (is_installed(value.__module__) or functions_of(value)):
            return False, []
        cell = cell_that_binds(name, file)
        binders = cell.binders[name] if cell is not None else []
        places = [place for binder in binders for place in self._take_statement(cell or file, binder, namespace)]
        places += self._take_changes(cell or file, name, value, namespace)
        return cell is not None, places

    def _take_changes(self, file: SourceFile, name: str, value: Any, namespace: dict[str, Any]) -> list[StatementPlace]:
        """The statements that changed what a name holds after it was made, and the functions that a container has."""
        if isinstance(value, types.ModuleType):
            return []
        changes = list(file.stores.get(name, []))
        if isinstance(value, _CONTAINERS):
            changes += file.calls.get(name, [])
            members: Iterable[Any] = value.values() if isinstance(value, dict) else value
            for member in list(members):
                named = member.__name__ if isinstance(member, type | types.FunctionType) else None
                if named is not None and namespace.get(named) is member:
                    changes += file.binders.get(named, [])
        return [place for statement in changes for place in self._take_statement(file, statement, namespace)]

    def _take_foreign(self, value: Any, name: str, wanted_by: str) -> list[StatementPlace]:
        if not is_installed(value.__module__) and not is_bundled(value.__module__):
            return self.take_object(value, name, wanted_by)
        self._check_module(value.__module__, wanted_by)
        self.collected.imports[name] = f"from {value.__module__} import {value.__name__} as {name}"
        return []

    def _check_module(self, module: str, where: str) -> None:
        if is_bundled(module):
            self.collected.modules |= {one.name: one for one in modules_of(module)}
        elif is_there(module) and not is_installed(module):
            what = f"the folder of its package {module.split('.')[0]!r}" if "." in module else "it"
            raise SourceError(
                f"{where}: module {module!r} is a file of yours that the server does not have: name {what} with "
                "mx.operator.bundle(path)"
            )


def _is_open_file(value: Any) -> bool:
    """Return whether a value is an open file, other than the process's own streams, such as sys.stdout."""
    kinds = (io.FileIO, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)
    streams = (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
    return isinstance(value, kinds) and not any(value is stream for stream in streams)
