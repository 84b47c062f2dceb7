"""Ends a program's sessions on a server when SIGTERM ends the program: they would stay for their time to live.

The program dies of the signal as ever, and its parent sees that. Nothing is installed where the program, or a library
of its own, has a handler for it, or ignores it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

__all__ = ["end_at_sigterm"]

PATIENCE_S = 5.0
"""Seconds that a server has to answer."""


def end_at_sigterm(end: Callable[[], object]) -> None:
    """On SIGTERM call `end` in a thread, then let the process die of the signal.

    Only the main thread can see to it: called by another, it does nothing.
    """
    global _end
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return
    _end = end
    signal.signal(signal.SIGTERM, _die)


_end: Callable[[], object] | None = None


def _die(number: int, frame: FrameType | None) -> None:
    # By a thread, for this one may be in the midst of anything.
    ending = threading.Thread(target=_end, name="opbox-sigterm", daemon=True)
    ending.start()
    ending.join(PATIENCE_S)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
