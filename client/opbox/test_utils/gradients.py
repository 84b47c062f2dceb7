"""Gradients against finite differences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import ndarray, symbol
from .comparing import assert_almost_equal
from .location import parse_aux_states, parse_location
from .surroundings import default_context
from .tolerances import default_numeric_eps, get_tolerance

__all__ = ["check_numeric_gradient", "numeric_grad"]

_PROJECTION = "__random_proj"
_FLOATS = (np.float16, np.float32, np.float64)


def numeric_grad(
    executor: Any,
    location: Mapping[str, np.ndarray[Any, Any]],
    aux_states: Mapping[str, np.ndarray[Any, Any]] | None = None,
    eps: float = 1e-4,
    use_forward_train: bool = True,
    dtype: Any = np.float32,
) -> dict[str, np.ndarray[Any, Any]]:
    """Central differences of the sum of an executor's first output.

    Args:
        executor: a bound symbol.
        location: values of its arguments by name; gradients are worked out for those of floating type.
        aux_states: values of its auxiliary states, which are set again before each run.
        eps: the step: the output is taken at eps / 2 on either side.
        use_forward_train: whether the runs train.
        dtype: the element type of what is written.

    Returns:
        An array for each argument, of its shape.
    """
    if dtype not in _FLOATS:
        raise ValueError(f"numeric_grad: dtype: expected float16, float32 or float64, got {dtype}")

    def total() -> float:
        for name, value in (aux_states or {}).items():
            executor.aux_dict[name][:] = value
        executor.forward(is_train=use_forward_train)
        # A sum of many float32 loses the difference that is looked for.
        return float(executor.outputs[0].asnumpy().sum(dtype=np.float64))

    for name, value in location.items():
        executor.arg_dict[name][:] = np.asarray(value)
    gradients = {}
    for name, value in location.items():
        array = np.array(value, order="C")
        gradients[name] = np.zeros(array.shape, dtype)
        if array.dtype.kind != "f":
            continue
        flat, slopes = array.reshape(-1), gradients[name].reshape(-1)
        for i in range(array.size):
            old = flat[i]
            flat[i] = old + eps / 2
            executor.arg_dict[name][:] = array
            above = total()
            flat[i] = old - eps / 2
            executor.arg_dict[name][:] = array
            slopes[i] = (above - total()) / eps
            flat[i] = old
        executor.arg_dict[name][:] = array
    return gradients


def check_numeric_gradient(
    sym: Any,
    location: Any,
    aux_states: Any = None,
    numeric_eps: Any = None,
    rtol: Any = None,
    atol: Any = None,
    grad_nodes: Any = None,
    use_forward_train: bool = True,
    ctx: Any = None,
    grad_stype_dict: Mapping[str, str] | None = None,
    dtype: Any = np.float32,
) -> None:
    """AssertionError unless a symbol's gradients agree with finite differences.

    The symbol's one output is multiplied with random weights and summed; the gradients of that are compared.

    Args:
        sym: a symbol with one output.
        location: values of all arguments: a list in the order of `list_arguments`, or a dict.
        aux_states: values of its auxiliary states, likewise.
        numeric_eps: the step; by element type when None.
        rtol, atol: as in `assert_almost_equal`.
        grad_nodes: names of the arguments whose gradients are checked (all), or a dict of their requests: "write",
            "add" (what was there before is taken off) or "null" (the gradient must not have been touched).
        use_forward_train: whether the runs for the differences train.
        ctx: the device; `default_context()` when None.
        grad_stype_dict: storage types; all arrays are dense, so anything but "default" is refused.
        dtype: float16, float32 or float64.

    Example:
        >>> x = mx.sym.Variable("x")
        >>> check_numeric_gradient(mx.sym.tanh(x), [np.random.rand(3, 4)])
    """
    if dtype not in _FLOATS:
        raise ValueError(f"check_numeric_gradient: dtype: expected float16, float32 or float64, got {dtype}")
    _only_dense(grad_stype_dict)
    ctx = ctx or default_context()
    arrays = parse_location(sym, location, ctx, dtype)
    states = parse_aux_states(sym, aux_states, ctx, dtype)
    requests = _requests(sym, grad_nodes)
    _, [out_shape, *others], _ = sym.infer_shape(**{name: array.shape for name, array in arrays.items()})
    if others:
        raise ValueError(f"check_numeric_gradient: expected a symbol with one output, got {1 + len(others)}")
    weighed = symbol.make_loss(symbol.broadcast_mul(sym, symbol.Variable(_PROJECTION)))
    arrays[_PROJECTION] = ndarray.array(np.random.rand(*out_shape) + 0.1, ctx=ctx, dtype=dtype)
    before = {name: np.random.normal(0, 0.01, arrays[name].shape).astype(arrays[name].dtype) for name in requests}
    executor = weighed.bind(
        ctx,
        grad_req=requests,
        args=arrays,
        args_grad={name: ndarray.array(value, ctx=ctx, dtype=value.dtype) for name, value in before.items()},
        aux_states=states,
    )
    state_values = {name: array.asnumpy() for name, array in (states or {}).items()}
    executor.forward(is_train=True)
    executor.backward()
    slopes = {name: grad.asnumpy() for name in requests if (grad := executor.grad_dict[name]) is not None}
    eps = get_tolerance(executor.outputs[0], numeric_eps, default_numeric_eps())
    values = {name: arrays[name].asnumpy() for name, request in requests.items() if request != "null"}
    differences = numeric_grad(executor, values, state_values or None, eps, use_forward_train, dtype)
    for name, request in requests.items():
        names = (f"NUMERICAL_{name}", f"BACKWARD_{name}")
        if request == "null":
            assert_almost_equal(before[name], slopes[name], rtol, atol, names)
        else:
            taken = before[name] if request == "add" else 0
            assert_almost_equal(differences[name], (slopes[name] - taken).astype(dtype), rtol, atol, names)


def _requests(sym: Any, grad_nodes: Any) -> dict[str, str]:
    if grad_nodes is None:
        return dict.fromkeys(sym.list_arguments(), "write")
    requests = dict(grad_nodes) if isinstance(grad_nodes, Mapping) else dict.fromkeys(grad_nodes, "write")
    for name, request in requests.items():
        if request not in ("write", "add", "null"):
            raise ValueError(f"grad_nodes: {name}: expected 'write', 'add' or 'null', got {request!r}")
    return requests


def _only_dense(stypes: Mapping[str, str] | None) -> None:
    for name, stype in (stypes or {}).items():
        if stype not in (None, "default"):
            raise ValueError(f"storage type of {name}: expected 'default', got {stype!r}: all arrays are dense")
