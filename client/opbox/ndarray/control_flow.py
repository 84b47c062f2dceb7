"""Loops and branches on arrays, in Python: `mx.nd.contrib.foreach`, `while_loop`, `cond`.

They take and return what the functions of `mx.sym.contrib` do; a decision waits for its value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..base import value_text
from ..nesting import flatten, pair, regroup
from .array import NDArray
from .creation import zeros
from .invocation import imperative

__all__ = ["cond", "foreach", "while_loop"]


def foreach(body: Callable[..., Any], data: Any, init_states: Any) -> tuple[Any, Any]:
    """Run `out, states = body(slice, states)` over the first axis of data.

    Args:
        body: takes a slice of data, in data's lists, and the states; returns outputs, an NDArray or nested lists of
            them, and the new states.
        data: an NDArray (T, …), or nested lists of them, of one length T.
        init_states: the first states: an NDArray, or nested lists of them.

    Returns:
        The outputs of all steps, stacked along a new first axis (T, …), and the last states.

    Raises:
        TypeError: something else than NDArrays among data, states or outputs.
        ValueError: the lengths of data differ, or a step returns another number of outputs than the first.

    Example:
        >>> outputs, last = mx.nd.contrib.foreach(lambda x, s: (x + s, x + s), mx.nd.ones((3, 2)), mx.nd.zeros((2,)))
    """
    inputs, layout = flatten(data, NDArray, "foreach: data")
    flatten(init_states, NDArray, "foreach: init_states")
    lengths = {array.shape[0] if array.shape else -1 for array in inputs}
    if len(lengths) != 1 or -1 in lengths:
        raise ValueError(f"foreach: data: expected arrays of one length, got shapes {[a.shape for a in inputs]}")
    states = init_states
    steps: list[list[NDArray]] = []
    out_layout: Any = []
    for t in range(lengths.pop()):
        outputs, states = pair(body(regroup([array[t] for array in inputs], layout), states), "foreach: body")
        step, out_layout = flatten(outputs, NDArray, "foreach: the outputs of body")
        _same_number(steps, step, "foreach")
        steps.append(step)
    stacked = [imperative("stack", list(column), {"num_args": len(steps)}) for column in zip(*steps, strict=True)]
    return regroup(stacked, out_layout), states


def while_loop(
    cond: Callable[..., Any], func: Callable[..., Any], loop_vars: Any, max_iterations: int | None = None
) -> tuple[Any, Any]:
    """Run `out, loop_vars = func(*loop_vars)` while `cond(*loop_vars)` is not zero.

    Args:
        cond: takes the loop variables, returns an NDArray of one element, or a number.
        func: takes the loop variables; returns outputs (an NDArray, nested lists of them, or None) and the new loop
            variables.
        loop_vars: an NDArray, or a list of them.
        max_iterations: the most steps.

    Returns:
        The outputs of the steps, stacked along a new first axis (max_iterations, …), with zeros where there were fewer
        steps, and the last loop variables. Without a single step the outputs are an empty list.

    Raises:
        TypeError: something else than NDArrays among the outputs.
        ValueError: max_iterations is missing or no number, there are no loop variables or func returns another number
            of them, a step returns another number of outputs, outputs change their shape, or cond is no number.

    Example:
        >>> squares, (last,) = mx.nd.contrib.while_loop(
        ...     lambda i: i < 5, lambda i: (i * i, [i + 1]), [mx.nd.zeros((1,))], max_iterations=9)
    """
    if max_iterations is None:
        raise ValueError("while_loop: max_iterations: expected the most steps that it may take, got none")
    most = _number(max_iterations, int, "while_loop: max_iterations")
    if len(loop_vars) == 0:
        raise ValueError("while_loop: loop_vars: expected one loop variable or more, got none")
    alone = isinstance(loop_vars, NDArray)
    current = [loop_vars] if alone else list(loop_vars)
    steps: list[list[NDArray]] = []
    out_layout: Any = []
    while len(steps) < most and _number(cond(*current), bool, "while_loop: the return value of cond"):
        outputs, changed = pair(func(*current), "while_loop: func")
        changed = [] if changed is None else [changed] if isinstance(changed, NDArray) else list(changed)
        if len(changed) != len(current):
            raise ValueError(f"while_loop: func: expected {len(current)} loop variables back, got {len(changed)}")
        current = changed
        step, out_layout = flatten([] if outputs is None else outputs, NDArray, "while_loop: the outputs of func")
        _same_number(steps, step, "while_loop")
        steps.append(step)
    stacked = [_padded(k, column, most) for k, column in enumerate(zip(*steps, strict=True))]
    return regroup(stacked, out_layout), current[0] if alone else current


def cond(pred: Any, then_func: Callable[[], Any], else_func: Callable[[], Any]) -> Any:
    """Call `then_func()` where `pred` is not zero, and `else_func()` where it is; return the result.

    Args:
        pred: an NDArray of one element, or a number.
        then_func, else_func: without arguments; only one of them is called.

    Raises:
        ValueError: pred is no single number.

    Example:
        >>> mx.nd.contrib.cond(a < b, lambda: b * 2, lambda: a * 2)
    """
    return then_func() if _number(pred, bool, "cond: pred") else else_func()


def _number(value: Any, kind: type, what: str) -> Any:
    try:
        return kind(value.asscalar() if hasattr(value, "asscalar") else value)
    except (TypeError, ValueError):
        raise ValueError(f"{what}: expected a single number, got {value_text(value)}") from None


def _same_number(steps: Sequence[Sequence[NDArray]], step: Sequence[NDArray], what: str) -> None:
    if steps and len(step) != len(steps[0]):
        raise ValueError(
            f"{what}: expected {len(steps[0])} outputs of every step, got {len(step)} of step {len(steps)}"
        )


def _padded(number: int, column: Sequence[NDArray], rows: int) -> NDArray:
    """The outputs of all steps as one array, zeros after the last."""
    shapes = {array.shape for array in column}
    if len(shapes) != 1:
        raise ValueError(
            f"while_loop: output {number}: expected one shape in every step, got {' and '.join(map(str, shapes))}"
        )
    stacked: NDArray = imperative("stack", list(column), {"num_args": len(column)})
    if rows > len(column):
        rest = zeros((rows - len(column), *stacked.shape[1:]), ctx=stacked.context, dtype=stacked.dtype)
        stacked = imperative("concat", [stacked, rest], {"num_args": 2, "dim": 0})
    return stacked
