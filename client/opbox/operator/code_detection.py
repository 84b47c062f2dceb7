"""Detects whether this program uses operators of its own: its sessions then have a process each from the beginning.

Any other session moves to a process of its own when its first code comes, which takes a moment.
"""

from __future__ import annotations

import os
import re

from .custom import get_all_registered_operators
from .program_text import main_program

__all__ = ["operator_was_defined", "will_bring_code"]

_WORDS = re.compile(r"\b(CustomOp|CustomOpProp|NumpyOp|NDArrayOp|CudaModule|rtc|Custom)\b")


_defined = False


def operator_was_defined() -> None:
    """Note that the program has a class of NumpyOp or NDArrayOp: its sessions must take code."""
    global _defined
    _defined = True


def will_bring_code() -> bool:
    """Return whether operators are defined already, or the program's script speaks of them.

    OPBOX_CODE=1 says yes, and OPBOX_CODE=0 no, whatever there is.
    """
    setting = os.environ.get("OPBOX_CODE", "")
    if setting in ("0", "1"):
        return setting == "1"
    if get_all_registered_operators() or _defined:
        return True
    return _WORDS.search(main_program()[1]) is not None
