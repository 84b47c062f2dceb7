"""Operators that users bring as Python source: Custom, _NumpyOp and _NDArrayOp.

`definitions` holds a session's sources and runs them, `description` asks a Prop or an instance for names, shapes and
types, `operator` registers them, `instance` calls forward and backward, and `local_session` is what `mx.nd` means
meanwhile. User code runs nowhere else.
"""

from . import operator
from .definitions import Definitions

__all__ = ["Definitions", "operator"]
