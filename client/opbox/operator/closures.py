"""A class or function that was defined inside a function: what it captured, and the statement without its surroundings.

    def make(k):
        class Scale(mx.operator.CustomOp):
            def forward(self, is_train, req, in_data, out_data, aux):
                self.assign(out_data[0], req[0], in_data[0] * k)

Its methods hold `k`, so it can be sent; what only the class statement itself read (`K = k` in its body) is gone.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from types import FunctionType
from typing import Any

from .bundle import SourceError
from .statements import DefiningStatement, SourceFile, shown

__all__ = ["Closure", "standalone"]


class Closure(dict[str, Any]):
    """The globals of a class or function and, before those, what it captured.

    Args:
        globals: the module's names.
        functions: the function, or those of the class.

    Attributes:
        outer: the globals themselves.
        captured: the names of the functions around it.
    """

    def __init__(self, globals: dict[str, Any], functions: Sequence[FunctionType]) -> None:
        super().__init__(globals)
        self.outer = globals
        self.captured: dict[str, str] = {}
        for function in functions:
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
                try:
                    self[name] = cell.cell_contents
                except ValueError:
                    continue  # not bound yet
                self.captured[name] = str(id(cell))


def standalone(file: SourceFile, value: Any, line: int | None, namespace: Closure, wanted_by: str) -> DefiningStatement:
    """The statement of a class or function that was defined inside a function, to be run at the top level.

    Raises:
        SourceError: it reads names of that function which nothing holds any more.
    """
    where = value.__qualname__.rpartition(".<locals>")[0]
    move = f"move it to the top level of {shown(file.path)}, so that it can be sent by itself"
    place = file.within(value.__name__, line)
    if place is None:
        raise SourceError(f"{wanted_by}: it is defined inside {where!r}: {move}")
    statement, names = place
    gone = names - namespace.captured.keys() - {value.__name__}
    copied = copy.copy(statement)
    while copied.decorator_list and _registers(copied.decorator_list[0]) and _reads(copied.decorator_list[0]) & gone:
        copied.decorator_list = copied.decorator_list[1:]  # the name is known without it
    try:
        missing = sorted(file.reads(copied) & gone)
    except SyntaxError as error:
        raise SourceError(
            f"{wanted_by}: it is defined inside {where!r}, and by itself has {error.msg}: {move}"
        ) from None
    if missing:
        reads = f"reads {missing[0]!r} there, outside of its methods"
        raise SourceError(f"{wanted_by}: it is defined inside {where!r} and {reads}: {move}")
    return copied


def _registers(decorator: ast.expr) -> bool:
    function = decorator.func if isinstance(decorator, ast.Call) else None
    return isinstance(function, ast.Attribute | ast.Name) and ast.unparse(function).endswith("register")


def _reads(decorator: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(decorator) if isinstance(node, ast.Name)}
