"""Errors of user code: one sentence with the user's line, and the user's own traceback."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import opbox
import opbox_ops
import opbox_protocol
from opbox.base import cell_name
from opbox.operator.bundle import shown_name
from opbox_protocol.errors import MXNetError, UserCodeError
from opbox_protocol.signal_shield import calls_user_code

from ..commands.array_table import WRITES_TO_INPUT

__all__ = ["READ_ONLY", "call", "user_error"]

_FILES = (opbox_protocol.__file__, opbox.__file__, opbox_ops.__file__, str(Path(__file__).parent))
_OURS = tuple(str(Path(file).parent) + "/" for file in _FILES if file)
READ_ONLY = ("assignment destination is read-only", "output array is read-only")
"""NumPy's messages for an array that may not be written to."""
MESSAGE = 10_000
"""Maximum number of characters of an exception's own message."""
LINE = 300
"""Maximum number of characters of a line of the user's, of which a traceback may have a thousand."""


@calls_user_code
def call(what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call user code.

    Raises:
        UserCodeError: it raised; says `what` was called, and where it failed.
    """
    try:
        return function(*args, **kwargs)
    except BaseException as error:
        raise user_error(what, error) from error


def user_error(what: str, error: BaseException) -> UserCodeError:
    """The error for an exception from calling `what`; Ctrl-C at an engine in one's own process passes through."""
    if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise error
    frames = _frames(error.__traceback__)
    where = f" ({_place(frames[-1])})" if frames else ""
    said = error.message if isinstance(error, MXNetError) else _said(error)
    if isinstance(error, ValueError) and any(phrase in said for phrase in READ_ONLY):
        return _user_code_error(what, "", WRITES_TO_INPUT, where, frames, error)
    kind = "" if type(error).__module__.startswith("opbox") else type(error).__name__
    return _user_code_error(what, kind, said, where, frames, error)


def _said(error: BaseException) -> str:
    try:
        return str(error).strip()
    except BaseException as another:
        return f"its message cannot be had: {type(another).__name__} in its __str__"


def _user_code_error(
    what: str, kind: str, said: str, where: str, frames: list[traceback.FrameSummary], error: BaseException
) -> UserCodeError:
    if len(said) > MESSAGE:
        said = f"{said[:MESSAGE]}… ({len(said)} characters)"
    sentence = ": ".join(part for part in (what, kind, said) if part)
    return UserCodeError(sentence + where, detail={"traceback": _text(frames, error)})


def _frames(trace: TracebackType | None) -> list[traceback.FrameSummary]:
    """The frames of the user's own code and of the libraries that it called, not those of ours."""
    return [
        traceback.FrameSummary(_shown(f.filename), f.lineno, f.name, lookup_line=False, line=(f.line or "")[:LINE])
        for f in traceback.extract_tb(trace)
        if not f.filename.startswith((*_OURS, "<frozen"))
    ]


def _shown(filename: str) -> str:
    """A file as the user knows it: nothing of this machine's folders."""
    for part in ("site-packages/", "dist-packages/"):
        if part in filename:
            return filename.partition(part)[2]
    return cell_name(filename) or Path(shown_name(filename)).name


def _place(frame: traceback.FrameSummary) -> str:
    """A frame's line as the client says it: "train.py:12", or "Cell In[9], line 1" of a notebook."""
    separator = ":" if Path(frame.filename).suffix else ", line "
    return f"{frame.filename}{separator}{frame.lineno}"


def _text(frames: list[traceback.FrameSummary], error: BaseException) -> str:
    lines = ["Traceback (most recent call last):\n"] if frames else []
    if isinstance(error, SyntaxError) and error.filename:
        error.filename = _shown(error.filename)
    last = "".join(traceback.format_exception_only(error))
    return "".join([*lines, *traceback.format_list(frames), last[: 2 * MESSAGE]]).rstrip()
