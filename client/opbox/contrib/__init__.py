"""`mx.contrib`: MXNet's names for the operators whose names begin with `_contrib_`: `mx.contrib.sym`, `mx.contrib.nd`.

from opbox.contrib.nd import arange_like
"""

import sys

from ..absent import module_getattr
from ..ndarray import contrib as nd
from ..ndarray import contrib as ndarray
from ..symbol import contrib as sym
from ..symbol import contrib as symbol

__all__ = ["nd", "ndarray", "sym", "symbol"]

sys.modules.update({f"{__name__}.{name}": globals()[name] for name in __all__})
__getattr__ = module_getattr(__name__, __all__)
