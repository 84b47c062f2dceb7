"""Running a row of the table in MXNet 1.9.1. Imported by MXNet's own Python only (NumPy 1.23)."""

from __future__ import annotations

import ctypes
import os
import warnings
from typing import Any

warnings.simplefilter("ignore")
# Not a line in the log for each graph.
os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")

import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402
from mxnet.base import _LIB, check_call  # noqa: E402
from mxnet.symbol.symbol import Symbol  # noqa: E402

from ..cases.case import Case  # noqa: E402
from ..cases.values import arguments, head_gradient, inputs, is_float  # noqa: E402
from .recording import Entry, digest  # noqa: E402

__all__ = ["call", "first_line", "run_case", "to_nd"]


def call(op: str, attrs: dict[str, Any], arguments: list[Any], name: str = "op") -> Any:
    """The symbol of one operator call, by any registered name (`_arange` and other hidden ones too)."""
    handle = ctypes.c_void_p()
    check_call(_LIB.NNGetOpHandle(op.encode(), ctypes.byref(handle)))
    keys = [key.encode() for key in attrs]
    values = [str(value).encode() for value in attrs.values()]
    made = ctypes.c_void_p()
    check_call(
        _LIB.MXSymbolCreateAtomicSymbol(
            handle,
            len(keys),
            (ctypes.c_char_p * len(keys))(*keys),
            (ctypes.c_char_p * len(keys))(*values),
            ctypes.byref(made),
        )
    )
    symbol = Symbol(made)
    symbol._compose(*arguments, name=name)
    return symbol


def to_nd(array: Any) -> Any:
    """An NDArray of the array's own type (mx.nd.array would make it float32)."""
    return mx.nd.array(array, dtype=array.dtype)


def first_line(error: BaseException) -> str:
    """The sentence of an MXNet error, without its stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "Check failed" in line or "rror" in line]
    return (told or lines or [repr(error)])[-1][:300]


def run_case(case: Case, dtype: str) -> Entry:
    """Outputs, gradients and auxiliary states of a row; or MXNet's refusal."""
    entry = Entry(digest(case, dtype))
    try:
        _run(case, dtype, entry)
    except (mx.base.MXNetError, TypeError, ValueError) as error:
        entry.error = first_line(error)
        entry.outputs, entry.grads, entry.aux = [], {}, {}
    return entry


def _run(case: Case, dtype: str, entry: Entry) -> None:
    given = inputs(case, dtype)
    symbol = call(case.op, dict(case.attrs), [mx.sym.Variable(name) for name in given])
    states = symbol.list_auxiliary_states()
    names = symbol.list_arguments()
    if set(names) | set(states) != set(given):
        raise ValueError(f"MXNet takes {', '.join(names + states)}, the row gives {', '.join(given)}")
    args = {name: to_nd(given[name]) for name in names}
    aux = {name: to_nd(given[name]) for name in states}
    wanted = [
        name
        for name, arg in arguments(case).items()
        if case.grad and arg.grad and name in args and is_float(given[name].dtype)
    ]
    grads = {name: mx.nd.zeros(given[name].shape, dtype=given[name].dtype) for name in wanted}
    req = {name: "write" if name in grads else "null" for name in names}
    executor = symbol.bind(mx.cpu(), args, args_grad=grads, grad_req=req, aux_states=aux)
    mx.random.seed(1)
    outputs = executor.forward(is_train=case.is_train)
    entry.outputs = [out.asnumpy() for out in outputs]
    entry.aux = {name: array.asnumpy() for name, array in executor.aux_dict.items()}
    if wanted:
        heads = [to_nd(head_gradient(case, i, o.shape, o.dtype)) for i, o in enumerate(entry.outputs)]
        executor.backward(heads, is_train=case.is_train)
        entry.grads = {name: executor.grad_dict[name].asnumpy() for name in wanted}
    mx.nd.waitall()
    if np.dtype(dtype).kind == "f" and case.random:
        entry.outputs = []
