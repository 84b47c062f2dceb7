"""Bundles: the source that an operator needs, as readable pieces of the user's files, and how to run it elsewhere.

    bundle = gather(SoftmaxProp)                 # see gather.py
    bundle.sha256, bundle.text()
    run(Bundle.from_json(received), {})["SoftmaxProp"]

Nothing is pickled: a bundle is JSON that a person can read. Pieces keep their line numbers, so that a traceback on the
other side shows the user's own lines.
"""

from __future__ import annotations

import builtins
import hashlib
import json
import linecache
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from opbox_protocol.errors import MXNetError

__all__ = ["Bundle", "BundledModule", "Piece", "SourceError", "run", "shown_name"]


class SourceError(MXNetError):
    """The source of an operator cannot be had; the message says what, why, and what to do."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive lines of a file: its name, the first line's number, the text."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class BundledModule:
    """A module that travels whole: its full name, whether it is a package, its file's name, its text."""

    name: str
    package: bool
    file: str
    text: str


@dataclass(frozen=True, slots=True)
class Bundle:
    """Source to run, in order.

    Attributes:
        pieces: the statements.
        exports: the names that they are there for.
        modules: files that the pieces import.
    """

    pieces: tuple[Piece, ...]
    exports: tuple[str, ...]
    modules: tuple[BundledModule, ...] = ()

    def json(self) -> dict[str, Any]:
        """Return the bundle's JSON, for the wire and for `-ops.json` files."""
        entry: dict[str, Any] = {
            "pieces": [{"file": piece.file, "line": piece.line, "text": piece.text} for piece in self.pieces],
            "exports": list(self.exports),
        }
        if self.modules:
            entry["modules"] = [
                {"name": m.name, "package": m.package, "file": m.file, "text": m.text} for m in self.modules
            ]
        return entry

    @classmethod
    def from_json(cls, entry: Any) -> Bundle:
        """The bundle that `json` wrote; SourceError when it is something else."""
        try:
            pieces = tuple(Piece(str(p["file"]), int(p["line"]), str(p["text"])) for p in entry["pieces"])
            modules = tuple(
                BundledModule(str(m["name"]), bool(m["package"]), str(m["file"]), str(m["text"]))
                for m in entry.get("modules", ())
            )
            return cls(pieces, tuple(str(name) for name in entry["exports"]), modules)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise SourceError("operator sources: expected an object with pieces and exports") from None

    @property
    def sha256(self) -> str:
        """Content hash: the same source is sent once."""
        text = json.dumps(self.json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def text(self) -> str:
        """The whole source for reading."""
        whole = [f"# {module.file}, module {module.name}\n{module.text}" for module in self.modules]
        return "\n".join([*whole, *(f"# {piece.file}:{piece.line}\n{piece.text}" for piece in self.pieces)]) + "\n"


def run(bundle: Bundle, namespace: dict[str, Any]) -> dict[str, Any]:
    """Execute a bundle's pieces in `namespace`, line numbers as the user's, and return it.

    Its modules are imported by its own statements only: they stay out of `sys.modules`, so that two bundles may hold
    different files of one name.
    """
    if bundle.modules:
        namespace["__builtins__"] = _Imports(bundle.modules).builtins
    for file, pieces in _by_file(bundle.pieces):
        exec(_compiled(_joined(pieces), file), namespace)
    return namespace


class _Imports:
    """`__import__` for code that brings modules along."""

    def __init__(self, modules: Iterable[BundledModule]) -> None:
        self._sources = {module.name: module for module in modules}
        self._modules: dict[str, ModuleType] = {}
        self.builtins = {**vars(builtins), "__import__": self._import}

    def _import(self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if level:
            package = (globals or {}).get("__package__") or ""
            parts = package.split(".")[: len(package.split(".")) - level + 1]
            name = ".".join([*parts, name] if name else parts)
        if name.split(".")[0] not in {part.split(".")[0] for part in self._sources}:
            return builtins.__import__(name, globals, locals, fromlist or (), 0)
        leaf = self._module(name)
        for part in fromlist or ():
            if not hasattr(leaf, part) and f"{name}.{part}" in self._sources:
                self._module(f"{name}.{part}")
        return leaf if fromlist else self._modules[name.split(".")[0]]

    def _module(self, name: str) -> ModuleType:
        parent, _, last = name.rpartition(".")
        above = self._module(parent) if parent else None
        if name in self._modules:
            return self._modules[name]
        source = self._sources.get(name)
        if source is None:
            raise ModuleNotFoundError(f"No module named {name!r} in the operator's bundle", name=name)
        module = self._modules[name] = ModuleType(name)
        vars(module).update(
            __builtins__=self.builtins,
            __package__=name if source.package else parent,
            __file__=source.file,
        )
        if source.package:
            module.__path__ = []
        try:
            exec(_compiled(source.text, source.file), vars(module))
        except BaseException:
            del self._modules[name]
            raise
        if above is not None:
            setattr(above, last, module)
        return module


def shown_name(filename: str) -> str:
    """Return the user's name for the file of a code object that `run` compiled."""
    if filename.startswith("<") and filename.endswith(">"):
        return filename[1:-1].partition("#")[0] or filename
    return filename


def _compiled(text: str, file: str) -> Any:
    """The code, whose lines tracebacks find; another text of the same file gets a number."""
    base = file.strip("<>")
    name, number = f"<{base}>", 1
    while name in linecache.cache and "".join(linecache.getlines(name)) != text:
        number += 1
        name = f"<{base}#{number}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    return compile(text, name, "exec", dont_inherit=True)


def _by_file(pieces: Iterable[Piece]) -> Iterable[tuple[str, list[Piece]]]:
    grouped: list[tuple[str, list[Piece]]] = []
    for piece in pieces:
        if not grouped or grouped[-1][0] != piece.file or grouped[-1][1][-1].line >= piece.line:
            grouped.append((piece.file, []))
        grouped[-1][1].append(piece)
    return grouped


def _joined(pieces: list[Piece]) -> str:
    lines: list[str] = []
    for piece in pieces:
        lines += [""] * (piece.line - 1 - len(lines))
        lines += piece.text.split("\n")
    return "\n".join(lines) + "\n"
