"""MXNet's Symbol API on a remote operator server.

    import opbox as mx

    data = mx.sym.Variable("data")
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=10), name="softmax")

The names are MXNet's. OPBOX_URL and OPBOX_TOKEN name the server; without them the engine runs in this process, when
opbox-service is installed.
"""

from opbox_protocol import errors

from . import (
    attribute,
    callback,
    context,
    engine,
    executor,
    initializer,
    io,
    lr_scheduler,
    metric,
    model,
    module,
    monitor,
    name,
    ndarray,
    operator,
    optimizer,
    random,
    rnn,
    rtc,
    symbol,
    test_utils,
    visualization,
)
from . import initializer as init
from . import module as mod
from . import monitor as mon
from . import ndarray as nd
from . import optimizer as opt
from . import random as rnd
from . import symbol as sym
from . import visualization as viz
from .attribute import AttrScope
from .base import MXNetError
from .context import Context, cpu, cpu_pinned, current_context, gpu, num_gpus
from .engine import connect, disconnect, refresh_operators
from .ndarray import NDArray, waitall
from .symbol import Symbol

__version__ = "0.1.0"

__all__ = [
    "AttrScope",
    "Context",
    "MXNetError",
    "NDArray",
    "Symbol",
    "attribute",
    "callback",
    "connect",
    "context",
    "cpu",
    "cpu_pinned",
    "current_context",
    "disconnect",
    "engine",
    "errors",
    "executor",
    "gpu",
    "init",
    "initializer",
    "io",
    "lr_scheduler",
    "metric",
    "mod",
    "model",
    "module",
    "mon",
    "monitor",
    "name",
    "nd",
    "ndarray",
    "num_gpus",
    "operator",
    "opt",
    "optimizer",
    "random",
    "refresh_operators",
    "rnd",
    "rnn",
    "rtc",
    "sym",
    "symbol",
    "test_utils",
    "visualization",
    "viz",
    "waitall",
]
