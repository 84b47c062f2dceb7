"""A function in C, built before, or compiled when NumPy has done enough of its work; NumPy runs while there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from . import c_compiler

__all__ = ["CKernel"]


class CKernel:
    """One function of a text in C.

    Args:
        text, name: the text, and which of its functions.
        types: of the function's arguments; it returns nothing.
        hot: how much work NumPy does before the kernel is asked for, as `ready` counts it.
        threads: whether the text has loops for OpenMP, in the threads that all kernels share.

    Attributes:
        function: the compiled one; None as long as there is none.
    """

    def __init__(self, text: str, name: str, types: Sequence[Any], hot: int, *, threads: bool = False) -> None:
        self._threads = threads
        self._text, self._name, self._types, self._hot = text, name, list(types), hot
        self.function: Any = None
        self._heat = 0
        self._asked = False

    def ready(self, work: int) -> Any:
        """The compiled function for a call of so much work, or None."""
        mode = c_compiler.mode()
        if mode == "off":
            return None
        if not self._asked:
            self._heat += work
            if mode == "now" or c_compiler.is_built(self._text, self._name, threads=self._threads):
                self._asked = True
                self._make()
            elif self._heat >= self._hot:
                self._asked = True
                c_compiler.request(self._make)
        return self.function

    def asked_by(self, work: int) -> Callable[[], Any]:
        """Return a function that asks `ready` for a call that comes again and again, until there is a function.

        `ready` reads the environment each time, which takes longer than a small kernel.
        """
        function: Any = None

        def ask() -> Any:
            nonlocal function
            if function is None:
                function = self.ready(work)
            return function

        return ask

    def _make(self) -> None:
        function = c_compiler.compiled_function(self._text, self._name, threads=self._threads)
        if function is not None:
            function.restype, function.argtypes = None, self._types
            self.function = function
