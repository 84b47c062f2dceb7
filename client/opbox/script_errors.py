"""A script that ends in an error shows the script's own lines and the error, and not this package's lines.

    Traceback (most recent call last):
      File "train.py", line 6, in <module>
        mod.fit(it, num_epoch=1)
    opbox_protocol.errors.TransportError: http://127.0.0.1:8000: nothing listens there; start …
    (15 lines of opbox's own left out: OPBOX_DEBUG=1 shows all)

This holds for every exception, Ctrl-C too, in the main thread and in others. Python itself reports what passed no line
of this package, and everything with OPBOX_DEBUG set; a program that reports errors in a way of its own is left alone.
`import opbox` loads this module: what it needs, it loads when there is an error.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from types import TracebackType

__all__ = ["install"]


def install() -> None:
    """Report errors in short, if Python itself reports them so far."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _report
        atexit.register(_end_as_interrupted)  # registered first, it runs last
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _report_of_thread


def _report(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
    text = _short_text(error, tb)
    if text is None:
        sys.__excepthook__(kind, error, tb)
    else:
        print(text, end="", file=sys.stderr)
    if isinstance(error, KeyboardInterrupt):
        global _was_interrupted
        _was_interrupted = True


_was_interrupted = False


def _end_as_interrupted() -> None:
    """End the process as if by SIGINT, so that a shell ends its loop too.

    Python notes it when a text of source ends so, and forgets it at the next text: what runs at the exit has run some.
    """
    if _was_interrupted:
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


def _report_of_thread(failure: threading.ExceptHookArgs) -> None:
    error = failure.exc_value
    text = None if error is None or isinstance(error, SystemExit) else _short_text(error, failure.exc_traceback)
    if text is None:
        threading.__excepthook__(failure)
    else:
        name = failure.thread.name if failure.thread is not None else threading.get_ident()
        print(f"Exception in thread {name}:\n{text}", end="", file=sys.stderr)


def _short_text(error: BaseException, tb: TracebackType | None) -> str | None:
    """Return what to print instead of Python's report; None to keep Python's."""
    if os.environ.get("OPBOX_DEBUG"):
        return None
    from opbox_protocol.errors import InternalError

    from .user_frames import without_our_frames

    if isinstance(error, InternalError) and error.__cause__ is not None:
        return None  # of the engine in this process, which has no log that would have the reason
    return without_our_frames(error, tb)
