"""CuPy's compiler options in this process: small numbers are computed with, and each step of its formulas rounds.

CuPy adds -ftz=true to the options of all that it compiles, its users' kernels too. With it log(1e-40) is minus infinity
and 1e-40 * 1e10 is 0; on a CPU they are -92.1 and 1e-30. Kernels that wait for memory are no faster with it. What CuPy
generates itself (functions of arrays, reductions) is compiled with EXACT, as our formulas are (`cuda.exact`): so a
function has the same bits in both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..cuda.exact import EXACT

__all__ = ["FLUSH", "set_options"]

FLUSH = "-ftz=true"
"""The option, as CuPy spells it. A user's own has two dashes (`rtc.options`) and stays."""
_GENERATED = "#include <cupy/"
"""How a text begins that CuPy generates; a user's own kernel is as it was written."""


class _Options(tuple[str, ...]):
    """Compiler options to which CuPy can add all but FLUSH; they are part of a compiled kernel's name on disk."""

    __slots__ = ()

    def __add__(self, more: Iterable[str]) -> _Options:  # type: ignore[override]  # of options alone
        return _Options((*self, *(option for option in more if option != FLUSH)))


def set_options(compiler: Any) -> None:
    """Have CuPy compile with these options from now on.

    Args:
        compiler: `cupy.cuda.compiler`.
    """
    real = getattr(compiler, "_compile_module_with_cache", None)
    if real is None:  # a CuPy that compiles otherwise: by its own options
        return

    def compile_module(source: str, options: Iterable[str] = (), **further: Any) -> Any:
        wanted = (*options, *EXACT) if source.startswith(_GENERATED) else tuple(options)
        return real(source, _Options(dict.fromkeys(wanted)), **further)

    compiler._compile_module_with_cache = compile_module
