"""Symbols run forward and backward, and compared with what is expected or with each other."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import ndarray
from .comparing import assert_almost_equal, host
from .gradients import _only_dense
from .location import as_array, by_name, parse_aux_states, parse_location
from .surroundings import default_context

__all__ = ["check_speed", "check_symbolic_backward", "check_symbolic_forward", "simple_forward"]


def simple_forward(sym: Any, ctx: Any = None, is_train: bool = False, **inputs: Any) -> Any:
    """The outputs of a symbol, as numpy arrays: a list, or the array when there is one.

    Args:
        ctx: the device; `default_context()` when None.
        is_train: whether the run trains.
        inputs: values of all arguments by name.
    """
    ctx = ctx or default_context()
    executor = sym.bind(ctx, args={name: as_array(value, ctx, np.float32) for name, value in inputs.items()})
    executor.forward(is_train=is_train)
    outputs = [output.asnumpy() for output in executor.outputs]
    return outputs[0] if len(outputs) == 1 else outputs


def check_symbolic_forward(
    sym: Any,
    location: Any,
    expected: Any,
    rtol: Any = None,
    atol: Any = None,
    aux_states: Any = None,
    ctx: Any = None,
    equal_nan: bool = False,
    dtype: Any = np.float32,
) -> list[Any]:
    """AssertionError unless a symbol's outputs are the expected ones.

    Args:
        location, aux_states: values of all arguments and states: lists in the symbol's order, or dicts.
        expected: the outputs, likewise.
        rtol, atol, equal_nan: as in `assert_almost_equal`.
        ctx: the device; `default_context()` when None.
        dtype: the arguments' element type; "asnumpy" keeps that of each value.

    Returns:
        The outputs.

    Example:
        >>> lhs, rhs = mx.sym.Variable("lhs"), mx.sym.Variable("rhs")
        >>> check_symbolic_forward(mx.sym.dot(lhs, rhs), [np.eye(2), np.eye(2)], [np.eye(2)])
    """
    ctx = ctx or default_context()
    names = sym.list_outputs()
    wanted = expected if isinstance(expected, Mapping) else by_name("expected", names, expected)
    executor = sym.bind(
        ctx,
        args=parse_location(sym, location, ctx, dtype),
        aux_states=parse_aux_states(sym, aux_states, ctx, dtype),
    )
    executor.forward(is_train=False)
    for name, got in zip(names, executor.outputs, strict=True):
        assert_almost_equal(wanted[name], got, rtol, atol, (f"EXPECTED_{name}", f"FORWARD_{name}"), equal_nan)
    outputs: list[Any] = executor.outputs
    return outputs


def check_symbolic_backward(
    sym: Any,
    location: Any,
    out_grads: Any,
    expected: Any,
    rtol: Any = None,
    atol: Any = None,
    aux_states: Any = None,
    grad_req: Any = "write",
    ctx: Any = None,
    grad_stypes: Mapping[str, str] | None = None,
    equal_nan: bool = False,
    dtype: Any = np.float32,
) -> dict[str, Any]:
    """AssertionError unless a symbol's gradients are the expected ones.

    Args:
        location, aux_states: values of all arguments and states: lists in the symbol's order, or dicts.
        out_grads: gradients of the outputs, likewise; None for losses.
        expected: gradients of the arguments, likewise; a dict may leave some out.
        grad_req: "write", "add" (what was there before is taken off) or "null" (the gradient must not have been
            touched), for all or by argument.
        rtol, atol, equal_nan: as in `assert_almost_equal`.
        ctx: the device; `default_context()` when None.
        grad_stypes: storage types; all arrays are dense, so anything but "default" is refused.
        dtype: the arguments' element type; "asnumpy" keeps that of each value.

    Returns:
        The gradients by argument.
    """
    ctx = ctx or default_context()
    _only_dense(grad_stypes)
    names = sym.list_arguments()
    wanted = dict(expected) if isinstance(expected, Mapping) else by_name("expected", names, expected)
    if isinstance(grad_req, str):
        requests = dict.fromkeys(names, grad_req)
    else:
        requests = dict(grad_req) if isinstance(grad_req, Mapping) else dict(zip(names, grad_req, strict=True))
    arrays = parse_location(sym, location, ctx, dtype)
    # What is there before shows whether a request is kept to.
    before = {name: np.random.normal(size=arrays[name].shape).astype(arrays[name].dtype) for name in wanted}
    grads = {name: ndarray.array(value, ctx=ctx, dtype=value.dtype) for name, value in before.items()}
    executor = sym.bind(
        ctx,
        args=arrays,
        args_grad=grads,
        grad_req=requests,
        aux_states=parse_aux_states(sym, aux_states, ctx, dtype),
    )
    executor.forward(is_train=True)
    executor.backward(_heads(sym, out_grads, ctx, dtype))
    for name, want in wanted.items():
        labels = (f"EXPECTED_{name}", f"BACKWARD_{name}")
        got = grads[name].asnumpy()
        if requests[name] == "null":
            assert_almost_equal(before[name], got, rtol, atol, labels, equal_nan)
        else:
            added = got - before[name] if requests[name] == "add" else got
            assert_almost_equal(want, added, rtol, atol, labels, equal_nan)
    return grads


def _heads(sym: Any, out_grads: Any, ctx: Any, dtype: Any) -> Any:
    if out_grads is None:
        return None
    heads = [out_grads[name] for name in sym.list_outputs()] if isinstance(out_grads, Mapping) else list(out_grads)
    return [as_array(head, ctx, dtype) for head in heads]


def check_speed(
    sym: Any,
    location: Mapping[str, Any] | None = None,
    ctx: Any = None,
    N: int = 20,
    grad_req: Any = None,
    typ: str = "whole",
    **kwargs: Sequence[int],
) -> float:
    """Seconds of a run, the mean of `N` after one to warm up.

    Args:
        location: values of the arguments by name; normal numbers when None.
        ctx: the device; `default_context()` when None.
        grad_req: "write" when None.
        typ: "whole" (forward and backward) or "forward".
        kwargs: shapes of arguments, when there is no location.
    """
    if typ not in ("whole", "forward"):
        raise ValueError(f"typ: expected 'whole' or 'forward', got {typ!r}")
    ctx = ctx or default_context()
    shapes = kwargs if location is None else {name: np.shape(value) for name, value in location.items()}
    executor = sym.simple_bind(ctx, grad_req=grad_req or "write", **shapes)
    for name, array in executor.arg_dict.items():
        array[:] = np.random.normal(size=array.shape) if location is None else host(location[name])

    def run() -> None:
        executor.forward(is_train=typ == "whole")
        if typ == "whole":
            executor.backward(executor.outputs)

    run()
    ndarray.waitall()
    begun = time.perf_counter()
    for _ in range(N):
        run()
    ndarray.waitall()
    return (time.perf_counter() - begun) / N
