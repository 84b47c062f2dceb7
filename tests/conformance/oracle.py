"""Running operators and graphs in MXNet 1.9.1. Imported by MXNet's own Python only (NumPy 1.23)."""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Callable, Sequence
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
from .timing import least_time  # noqa: E402

__all__ = ["REFUSALS", "call", "first_line", "mx", "run", "run_case", "time_call", "to_nd"]

REFUSALS = (mx.base.MXNetError, TypeError, ValueError, NotImplementedError)
"""What MXNet raises when it does not take something."""


def call(op: str, attrs: dict[str, Any], arguments: Sequence[Any], name: str = "op") -> Any:
    """The symbol of one operator call, by any registered name (`_arange` and other hidden ones too)."""
    handle = ctypes.c_void_p()
    check_call(_LIB.NNGetOpHandle(op.encode(), ctypes.byref(handle)))
    keys = [key.encode() for key in attrs]
    values = [str(value).encode() for value in attrs.values()]
    symbol_handle = ctypes.c_void_p()
    check_call(
        _LIB.MXSymbolCreateAtomicSymbol(
            handle,
            len(keys),
            (ctypes.c_char_p * len(keys))(*keys),
            (ctypes.c_char_p * len(keys))(*values),
            ctypes.byref(symbol_handle),
        )
    )
    symbol = Symbol(symbol_handle)
    symbol._compose(*arguments, name=name)
    return symbol


def to_nd(array: Any) -> Any:
    """An NDArray of the array's own type (mx.nd.array would make it float32)."""
    return mx.nd.array(array, dtype=array.dtype)


def first_line(error: BaseException) -> str:
    """The sentence of an MXNet error, without its stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    messages = [line for line in lines if "Check failed" in line or "rror" in line]
    return (messages or lines or [repr(error)])[-1][:300]


def run(
    symbol: Any,
    values: dict[str, Any],
    wanted: Sequence[str],
    heads: Callable[[int, Any], Any] | None,
    *,
    is_train: bool = True,
    start: float | None = None,
    entry: Entry | None = None,
) -> Entry:
    """Bind, run forward, and backward when gradients are wanted.

    Args:
        symbol: the graph.
        given: host arrays for all arguments and auxiliary states.
        wanted: arguments whose gradients are computed.
        heads: the head gradient for output number and output; None: backward without head gradients (losses).
        is_train: the mode.
        start: what gradients hold before, for backward to add to; None: it writes.
        entry: where the results go.
    """
    entry = entry or Entry("")
    names, states = symbol.list_arguments(), symbol.list_auxiliary_states()
    if set(names) | set(states) != set(values):
        raise ValueError(f"MXNet takes {', '.join(names + states)}, given are {', '.join(values)}")
    args = {name: to_nd(values[name]) for name in names}
    aux = {name: to_nd(values[name]) for name in states}
    grads = {name: mx.nd.full(values[name].shape, start or 0, dtype=values[name].dtype) for name in wanted}
    written = "write" if start is None else "add"
    req = {name: written if name in grads else "null" for name in names}
    executor = symbol.bind(mx.cpu(), args, args_grad=grads, grad_req=req, aux_states=aux)
    mx.random.seed(1)
    outputs = executor.forward(is_train=is_train)
    entry.outputs = [out.asnumpy() for out in outputs]
    entry.aux = {name: array.asnumpy() for name, array in executor.aux_dict.items()}
    if wanted:
        given_heads = None if heads is None else [to_nd(heads(i, out)) for i, out in enumerate(entry.outputs)]
        executor.backward(given_heads, is_train=is_train)
        entry.grads = {name: executor.grad_dict[name].asnumpy() for name in wanted}
        entry.after = {name: array.asnumpy() for name, array in executor.aux_dict.items()}
    mx.nd.waitall()
    return entry


def time_call(symbol: Any, values: dict[str, Any], wanted: Sequence[str], heads: list[Any], seconds: float) -> float:
    """The least time of forward (and backward, when gradients are wanted), as `least_time` has it."""
    names, states = symbol.list_arguments(), symbol.list_auxiliary_states()
    args = {name: to_nd(values[name]) for name in names}
    grads = {name: mx.nd.zeros(values[name].shape, dtype=values[name].dtype) for name in wanted}
    req = {name: "write" if name in grads else "null" for name in names}
    aux = {name: to_nd(values[name]) for name in states}
    executor = symbol.bind(mx.cpu(), args, args_grad=grads, grad_req=req, aux_states=aux)
    head_grads = [to_nd(head) for head in heads]

    def once() -> None:
        executor.forward(is_train=True)
        if wanted:
            executor.backward(head_grads)
        mx.nd.waitall()

    return least_time(once, seconds)


def run_case(case: Case, dtype: str) -> Entry:
    """Outputs, gradients and auxiliary states of a row; or MXNet's refusal."""
    entry = Entry(digest(case, dtype))
    before = mx.util.set_np_shape(case.op.startswith("_np"))  # the operators of mx.np leave arrays without dimensions
    try:
        values = inputs(case, dtype)
        symbol = call(case.op, dict(case.attrs), [mx.sym.Variable(name) for name in values])
        states = set(symbol.list_auxiliary_states())
        wanted = [
            name
            for name, arg in arguments(case).items()
            if case.grad and arg.grad and name not in states and is_float(values[name].dtype)
        ]

        def heads(i: int, out: Any) -> Any:
            return head_gradient(case, i, out.shape, out.dtype)

        return run(symbol, values, wanted, heads, is_train=case.is_train, entry=entry)
    except REFUSALS as error:
        return Entry(entry.digest, first_line(error))
    finally:
        mx.util.set_np_shape(before)


def shapes_of(symbol: Any, shapes: dict[str, Any], *, partial: bool) -> dict[str, Any]:
    """What MXNet infers: 0 is an unknown dimension, () or None nothing known."""
    known_shapes = {name: tuple(dims) for name, dims in shapes.items() if dims is not None}
    inferred = (symbol.infer_shape_partial if partial else symbol.infer_shape)(**known_shapes)
    return dict(zip(("arg_shapes", "out_shapes", "aux_shapes"), inferred, strict=True))


def types_of(symbol: Any, types: dict[str, str], *, partial: bool) -> dict[str, Any]:
    """What MXNet infers: numpy names; None is unknown."""
    rule = symbol.infer_type_partial if partial else symbol.infer_type
    inferred = rule(**{name: np.dtype(dtype).type for name, dtype in types.items()})

    def names(dtypes: Any) -> Any:
        return dtypes and [None if dtype is None else np.dtype(dtype).name for dtype in dtypes]

    return dict(zip(("arg_types", "out_types", "aux_types"), map(names, inferred), strict=True))


def lists_of(symbol: Any) -> dict[str, Any]:
    """Its names, and its JSON."""
    return {
        "arg_names": symbol.list_arguments(),
        "out_names": symbol.list_outputs(),
        "aux_names": symbol.list_auxiliary_states(),
        "json": symbol.tojson(),
    }
