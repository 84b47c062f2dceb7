"""A script that ends in an error of opbox shows the script's own lines and the error, and not this package's lines.

    Traceback (most recent call last):
      File "train.py", line 6, in <module>
        mod.fit(it, num_epoch=1)
    opbox_protocol.errors.TransportError: http://127.0.0.1:8000: nothing listens there; start …
    (15 lines of opbox's own left out: OPBOX_DEBUG=1 shows all)

Errors of other classes are Python's own affair, as are all with OPBOX_DEBUG set, and those of a program that reports
errors in a way of its own. `import opbox` loads this module: what it needs, it loads when there is an error.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType

__all__ = ["install"]


def install() -> None:
    """Report errors in short, if Python itself reports them so far."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _report


def _report(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
    from opbox_protocol.errors import MXNetError

    if isinstance(error, MXNetError) and not os.environ.get("OPBOX_DEBUG"):
        from .user_frames import without_our_frames

        text = without_our_frames(error, tb)
        if text is not None:
            print(text, end="", file=sys.stderr)
            return
    sys.__excepthook__(kind, error, tb)
