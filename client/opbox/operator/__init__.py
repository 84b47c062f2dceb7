"""Operators that users write in Python, and how their source travels.

CustomOp, CustomOpProp and register; NumpyOp and NDArrayOp; `bundle(path)` names files that travel along. What composes
them is `mx.sym.Custom`, `mx.nd.Custom`, and calling an instance. They run on the engine, in the session that uses them.
"""

from .bundle import SourceError
from .custom import CustomOp, CustomOpProp, get_all_registered_operators, register
from .modules import bundle
from .native import NDArrayOp, NumpyOp, PythonOp

__all__ = [
    "CustomOp",
    "CustomOpProp",
    "NDArrayOp",
    "NumpyOp",
    "PythonOp",
    "SourceError",
    "bundle",
    "get_all_registered_operators",
    "register",
]
