"""MXNet's Symbol API on a remote operator server.

    import opbox as mx

    data = mx.sym.Variable("data")
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=10), name="softmax")

The names are MXNet's. OPBOX_URL and OPBOX_TOKEN name the server; without them the engine runs in this process, when
opbox-service is installed. A name's module is imported when the name is first used.
"""

import sys as _sys
from typing import TYPE_CHECKING

from opbox_protocol.idle_threads import let_blas_threads_sleep as _let_blas_threads_sleep

from ._lazy import AbsentModules, attach
from .script_errors import install as _install_script_errors

if TYPE_CHECKING:
    from opbox_protocol import errors

    from . import (
        aio,
        attribute,
        callback,
        connection,
        context,
        contrib,
        datasets,
        dist,
        engine,
        executor,
        executor_manager,
        image,
        initializer,
        io,
        kvstore,
        libinfo,
        lr_scheduler,
        metric,
        misc,
        model,
        module,
        monitor,
        name,
        ndarray,
        onnx,
        operator,
        optimizer,
        profiler,
        random,
        recordio,
        rnn,
        rtc,
        runtime,
        serve,
        symbol,
        test_utils,
        util,
        visualization,
    )
    from . import image as img
    from . import initializer as init
    from . import kvstore as kv
    from . import module as mod
    from . import monitor as mon
    from . import ndarray as nd
    from . import optimizer as opt
    from . import random as rnd
    from . import symbol as sym
    from . import visualization as viz
    from .attribute import AttrScope
    from .base import MXNetError
    from .connection import connect, disconnect, refresh_operators
    from .context import Context, cpu, cpu_pinned, current_context, gpu, num_gpus
    from .ndarray import NDArray, waitall
    from .numpy_mode import is_np_shape, np_shape, set_np_shape, use_np_shape
    from .symbol import Symbol
    from .util import is_np_array, np_array, use_np, use_np_array

_let_blas_threads_sleep()  # before NumPy is imported

__version__ = "0.1.0"

__all__ = [
    "AttrScope",
    "Context",
    "MXNetError",
    "NDArray",
    "Recovery",
    "Symbol",
    "aio",
    "attribute",
    "callback",
    "connect",
    "connection",
    "context",
    "contrib",
    "cpu",
    "cpu_pinned",
    "current_context",
    "datasets",
    "disconnect",
    "dist",
    "engine",
    "errors",
    "executor",
    "executor_manager",
    "gpu",
    "image",
    "img",
    "init",
    "initializer",
    "io",
    "is_np_array",
    "is_np_shape",
    "kv",
    "kvstore",
    "libinfo",
    "lr_scheduler",
    "metric",
    "misc",
    "mod",
    "model",
    "module",
    "mon",
    "monitor",
    "name",
    "nd",
    "ndarray",
    "np_array",
    "np_shape",
    "num_gpus",
    "onnx",
    "operator",
    "opt",
    "optimizer",
    "profiler",
    "random",
    "recordio",
    "refresh_operators",
    "rnd",
    "rnn",
    "rtc",
    "runtime",
    "serve",
    "set_np_shape",
    "sym",
    "symbol",
    "test_utils",
    "use_np",
    "use_np_array",
    "use_np_shape",
    "util",
    "visualization",
    "viz",
    "waitall",
]

__getattr__, __dir__ = attach(
    __name__,
    __all__,
    modules={
        "errors": "opbox_protocol.errors",
        "img": "image",
        "init": "initializer",
        "kv": "kvstore",
        "mod": "module",
        "mon": "monitor",
        "nd": "ndarray",
        "opt": "optimizer",
        "rnd": "random",
        "sym": "symbol",
        "viz": "visualization",
    },
    homes={
        "AttrScope": "attribute",
        "Context": "context",
        "MXNetError": "base",
        "NDArray": "ndarray",
        "Recovery": "recovery",
        "Symbol": "symbol",
        "connect": "connection",
        "cpu": "context",
        "cpu_pinned": "context",
        "current_context": "context",
        "disconnect": "connection",
        "gpu": "context",
        "is_np_array": "util",
        "is_np_shape": "numpy_mode",
        "np_array": "util",
        "np_shape": "numpy_mode",
        "num_gpus": "context",
        "refresh_operators": "connection",
        "set_np_shape": "numpy_mode",
        "use_np": "util",
        "use_np_array": "util",
        "use_np_shape": "numpy_mode",
        "waitall": "ndarray",
    },
)

if AbsentModules not in _sys.meta_path:
    _sys.meta_path.append(AbsentModules)

_install_script_errors()
if "IPython" in _sys.modules:
    from .notebook import install as _install_notebook_errors

    _install_notebook_errors()
