"""`mx.contrib`: MXNet's names for the operators whose names begin with `_contrib_`: `mx.contrib.sym`, `mx.contrib.nd`.

from opbox.contrib.nd import arange_like

`mx.contrib.onnx` is the older name of `mx.onnx`.
"""

import sys
from typing import TYPE_CHECKING

from .._lazy import attach
from ..ndarray import contrib as nd
from ..ndarray import contrib as ndarray
from ..symbol import contrib as sym
from ..symbol import contrib as symbol

if TYPE_CHECKING:
    from . import onnx, svrg_optimization, text

__all__ = ["nd", "ndarray", "onnx", "svrg_optimization", "sym", "symbol", "text"]

sys.modules.update({f"{__name__}.{name}": globals()[name] for name in __all__ if name in globals()})
__getattr__, __dir__ = attach(__name__, __all__, modules={}, homes={})
