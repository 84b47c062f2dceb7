"""The texts of kernels in C, from the files of `kernels`, as one text that needs no other file."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

__all__ = ["kernel_text"]

_INCLUDE = re.compile(r'^#include "([a-z_0-9]+\.h)"$', re.MULTILINE)
_FOLDER = Path(__file__).parents[1] / "kernels"
_ONCE = "#pragma once\n"


def kernel_text(name: str, **definitions: str | int) -> str:
    """Return the text of a file of `kernels`, each header that it includes in its first place.

    Args:
        name: the file's, such as "winograd.c".
        definitions: what the compiler is told with -D: macros by name, which stand in front of the text.

    Raises:
        FileNotFoundError: there is no such file.

    Example:
        >>> kernel_text("winograd.c", TAPS=3).startswith("#define TAPS 3\\n")
        True
    """
    lines = [f"#define {macro} {value}\n" for macro, value in definitions.items()]
    return "".join(lines) + _included(name, set())


def _included(name: str, known: set[str]) -> str:
    def text_of(match: re.Match[str]) -> str:
        header = match[1]
        if header in known:
            return ""
        known.add(header)
        return _included(header, known)

    return _INCLUDE.sub(text_of, _file(name))


@cache
def _file(name: str) -> str:
    return (_FOLDER / name).read_text("utf-8").replace(_ONCE, "")
