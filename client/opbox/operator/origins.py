"""Finds file, line and globals of classes and functions, notebook cells included."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import linecache
import re
import sys
import types
from pathlib import Path
from typing import Any

from .bundle import SourceError
from .closures import Closure
from .program_text import NOWHERE, main_program, text_of
from .statements import SourceFile, parsed, shown

__all__ = ["cell_that_binds", "file_of", "functions_of", "line_of", "namespace_of", "unwrapped"]

_CELL = re.compile(r"ipykernel_\d+|<ipython-input-")


def cell_that_binds(name: str, file: SourceFile) -> SourceFile | None:
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


def unwrapped(value: Any) -> Any:
    """Return the function inside a decorator such as functools.lru_cache."""
    return inspect.unwrap(value) if callable(value) and not isinstance(value, type) else value


def functions_of(value: Any) -> list[types.FunctionType]:
    """List the functions of a value: a function itself, or those written in a class."""
    if isinstance(value, types.FunctionType):
        return [unwrapped(value)]
    members = [unwrapped(getattr(member, "__func__", member)) for member in vars(value).values()]
    return [
        function
        for function in members
        if isinstance(function, types.FunctionType)
        and function.__module__ == value.__module__
        and function.__qualname__.startswith(value.__qualname__ + ".")
        and not (function.__code__.co_filename == "<string>" and dataclasses.is_dataclass(value))  # made, not written
    ]


def namespace_of(value: Any) -> dict[str, Any]:
    """The globals of a class or function."""
    functions = functions_of(value)
    names = functions[0].__globals__ if functions else getattr(sys.modules.get(value.__module__), "__dict__", {})
    return Closure(names, functions) if "<locals>" in value.__qualname__ else names


def file_of(value: Any, wanted_by: str) -> SourceFile:
    """The file of a class or function.

    Raises:
        SourceError: it cannot be read; `wanted_by` names what needs it.
    """
    path, text = _source(value)
    if not path or not text:
        reason = NOWHERE.get(path or "") or f"it was defined in {shown(path) if path else 'nowhere'}"
        raise SourceError(
            f"{wanted_by}: its source cannot be read ({reason}): write it in a script, a module or a notebook "
            "cell, or put it into a file and name that with mx.operator.bundle(path)"
        )
    return parsed(path, text)


def _source(value: Any) -> tuple[str | None, str]:
    """The file of a class or function, and what is in it."""
    code = next((function.__code__ for function in functions_of(value)), None)
    path = code.co_filename if code is not None else None
    if path is None:
        with contextlib.suppress(TypeError, OSError):
            path = inspect.getsourcefile(value)
    if path is None and value.__module__ == "__main__":
        path = main_program()[0] or None
    namespace = namespace_of(value)
    names = namespace.outer if isinstance(namespace, Closure) else namespace
    return path, text_of(path, names, code) if path else ""


def line_of(value: Any) -> int | None:
    """A line of a class or function, as it was written."""
    for function in functions_of(value):
        return function.__code__.co_firstlineno
    try:
        return inspect.getsourcelines(value)[1]
    except (OSError, TypeError):
        return None
