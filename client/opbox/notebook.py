"""In a notebook or at IPython's prompt: errors are shown with the user's own lines, and not with this package's.

    Cell In[9], line 1
    ----> 1 mx.nd.dot(a, a).asnumpy()

    ShapeError: dot: rhs: expected (3, 3), got (2, 3) (Cell In[8], line 2)

Errors in which no line of this package has a part are IPython's own affair. With OPBOX_DEBUG set, all are.
"""

from __future__ import annotations

import linecache
import os
import sys
import traceback
from types import TracebackType
from typing import Any

from .base import cell_name
from .user_frames import is_ours, is_the_users

__all__ = ["install", "short_traceback"]


def install() -> None:
    """Show errors in short at the shell that runs, if one does and nobody shows them in a way of their own there."""
    shell = sys.modules["IPython"].get_ipython()
    if shell is not None and not shell.custom_exceptions:
        shell.set_custom_exc((Exception, KeyboardInterrupt), _show)


def _show(shell: Any, kind: type[BaseException], error: BaseException, tb: Any, tb_offset: int | None = None) -> Any:
    lines = None if os.environ.get("OPBOX_DEBUG") else short_traceback(error, tb)
    if lines is None:
        lines = shell.InteractiveTB.structured_traceback(kind, error, tb, tb_offset=tb_offset)
    shell._showtraceback(kind, error, lines)
    return lines


def short_traceback(error: BaseException, tb: TracebackType | None) -> list[str] | None:
    """The user's own lines and the error; None when no line of this package has a part in it.

    Args:
        error: what was raised.
        tb: where.
    """
    frames = list(traceback.walk_tb(tb))
    mine = [is_ours(frame.f_code.co_filename) for frame, _ in frames]
    cells = [i for i, (frame, _) in enumerate(frames) if cell_name(frame.f_code.co_filename) is not None]
    if not cells or True not in mine[cells[0] :]:
        return None
    shown = [
        _described(frame.f_code.co_filename, line, frame.f_code.co_name)
        for (frame, line), ours in list(zip(frames, mine, strict=True))[cells[0] :]
        if not ours and is_the_users(frame.f_code.co_filename)
    ]
    kind = type(error).__name__
    notes = [note for text in getattr(error, "__notes__", ()) for note in text.rstrip("\n").splitlines()]
    return [*shown, "", f"{kind}: {error}" if str(error) else kind, *notes]


def _described(file: str, line: int, function: str) -> str:
    cell = cell_name(file)
    place = f"{cell}, line {line}" if cell is not None else f"File {os.path.abspath(file)}:{line}"
    if function != "<module>":
        place += f", in {function}"
    return f"{place}\n----> {line} {linecache.getline(file, line).strip()}"
