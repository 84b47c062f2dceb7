"""Finds the text of code that is in no file of its own: in an archive, after `python -c`, or from standard input."""

from __future__ import annotations

import contextlib
import linecache
import os
import stat
import sys
import types
from collections.abc import Mapping
from functools import cache
from typing import Any

__all__ = ["NOWHERE", "main_program", "text_of"]

NOWHERE = {"<stdin>": "it came by a pipe on standard input", "<string>": "it was run from a string"}
"""Why source is missing, by the file name in its code objects."""
_TAKE_VALUES = "WXm"
"""Python's options that take a value, beside -c."""


def text_of(path: str, namespace: Mapping[str, Any], code: types.CodeType | None = None) -> str:
    """The text of a module of the user's, "" if it cannot be had.

    Args:
        path: what its code objects call the file.
        namespace: the module's, whose loader knows what is in an archive.
        code: of one of its functions, which the text is to have where it is not known to be that module's.
    """
    text = "".join(linecache.getlines(path, dict(namespace)))
    if text or namespace.get("__name__") != "__main__":
        return text
    name, text = main_program()
    if name != path or not text:
        return ""
    return text if code is None or _has(compile(text, path, "exec", dont_inherit=True), code) else ""


def main_program() -> tuple[str, str]:
    """The file that code of the main program names, and the program's text; "" for each that cannot be had."""
    namespace = vars(sys.modules["__main__"])
    path = namespace.get("__file__")
    if path is not None and path not in NOWHERE:  # Python calls standard input a file
        return path, "".join(linecache.getlines(path, namespace))
    if sys.argv[:1] == ["-c"]:
        return "<string>", _given_command()
    return ("<stdin>", _redirected_input()) if sys.argv[:1] in (["-"], [""]) else ("", "")


def _given_command() -> str:
    """The program that `python -c` was given."""
    arguments = iter(sys.orig_argv[1:])
    for argument in arguments:
        if argument.startswith("--") or not argument.startswith("-"):
            continue
        for at, option in enumerate(argument[1:], 2):
            if option == "c":
                return argument[at:] or next(arguments, "")
            if option in _TAKE_VALUES:
                if at == len(argument):
                    next(arguments, "")
                break
    return ""


@cache
def _redirected_input() -> str:
    """The program that Python has read from standard input, if that is a file (`python < train.py`)."""
    with contextlib.suppress(OSError, ValueError):
        status = os.fstat(0)
        if stat.S_ISREG(status.st_mode):
            return os.pread(0, status.st_size, 0).decode()
    return ""


def _has(whole: types.CodeType, code: types.CodeType) -> bool:
    """Return whether a code object is among those within another."""
    return whole == code or any(_has(one, code) for one in whole.co_consts if isinstance(one, types.CodeType))
