"""Operators that users write in Python, and how their source travels.

CustomOp, CustomOpProp and register; NumpyOp and NDArrayOp; `bundle(path)` names files that travel along. What composes
them is `mx.sym.Custom`, `mx.nd.Custom`, and calling an instance. They run on the engine, in the session that uses them.
"""

from typing import TYPE_CHECKING

from .._lazy import attach
from .modules import bundle  # at once: there is a module of this name too

if TYPE_CHECKING:
    from .bundle import SourceError
    from .custom import CustomOp, CustomOpProp, get_all_registered_operators, register
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

# On first use: sessions look for operators in the modules below, and symbols stand between those and `native`.
__getattr__, __dir__ = attach(
    __name__,
    __all__,
    modules={},
    homes={
        "CustomOp": "custom",
        "CustomOpProp": "custom",
        "NDArrayOp": "native",
        "NumpyOp": "native",
        "PythonOp": "native",
        "SourceError": "bundle",
        "get_all_registered_operators": "custom",
        "register": "custom",
    },
)
