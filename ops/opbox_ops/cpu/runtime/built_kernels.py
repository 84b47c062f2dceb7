"""The kernels that were compiled when the distribution was built: one library, for this processor's instruction set.

An installation in place, as `pip install -e` makes one, has none: kernels are compiled when they are asked for, so that
a change of a file is in use at once.
"""

from __future__ import annotations

import ctypes
import logging
from ctypes import byref
from functools import cache
from pathlib import Path
from typing import Any

from . import processor
from .gomp_threads import Threads
from .kernel_build import INSTRUCTION_SETS, UNITS, symbol

__all__ = ["FOLDER", "BuiltKernels", "built_kernels"]

FOLDER = Path(__file__).parents[1] / "built"
"""Where a wheel has the libraries."""

_log = logging.getLogger(__name__)


class BuiltKernels:
    """A library that `kernel_build.build` has written.

    Args:
        path: its file.

    Raises:
        OSError: it cannot be loaded.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))

    def function(self, text: str, name: str) -> Any:
        """Return the function `name` of a `whole` text; None where the library has no function of that text.

        Where the text is one that the library should have, it was built of other sources, which is logged.
        """
        function = getattr(self._library, symbol(text, name), None)
        if function is None and text in _texts():
            _warn_of_other_sources(self.path)
        return function

    def use_threads(self, threads: Threads) -> None:
        """Have kernels run in these threads; before that they run in one."""
        self._library.opbox_use_threads(byref(threads))


@cache
def built_kernels(folder: Path = FOLDER) -> BuiltKernels | None:
    """Return the best library of a folder that this processor runs; None where there is none."""
    flags = processor.flags()
    for instructions in INSTRUCTION_SETS:
        path = folder / instructions.file
        if flags >= instructions.flags and path.is_file():
            try:
                return BuiltKernels(path)
            except OSError as error:
                _log.error("the kernels of this installation cannot be loaded: %s. Install opbox-ops anew", error)
                return None
    return None


@cache
def _texts() -> frozenset[str]:
    return frozenset(unit.text for unit in UNITS)


@cache
def _warn_of_other_sources(path: Path) -> None:
    _log.warning("%s was built of other sources than these, and is used only where they agree: install it anew", path)
