"""Detects whether this program uses operators of its own: its sessions then get a process each.

A session's process is chosen when it opens, which may be long before the first operator is used.
"""

from __future__ import annotations

import os
import re
import sys

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
    """Return whether operators are defined already, the program is typed in as it runs, or its script speaks of them.

    OPBOX_CODE=1 says yes, and OPBOX_CODE=0 no, whatever there is.
    """
    setting = os.environ.get("OPBOX_CODE", "")
    if setting in ("0", "1"):
        return setting == "1"
    if get_all_registered_operators() or _defined or hasattr(sys, "ps1"):
        return True
    if "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None:
        return True
    return _WORDS.search(main_program()[1]) is not None
