"""How a process ended, in words."""

from __future__ import annotations

import signal

__all__ = ["ending_of"]


def ending_of(code: int) -> str:
    """An exit status in words.

    Args:
        code: as subprocess has it: a signal's number is negative.

    Example:
        >>> ending_of(-9), ending_of(3)
        ('killed by SIGKILL', 'exit status 3')
    """
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
