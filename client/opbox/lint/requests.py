"""Checks of `req`: gradients, and a CustomOp's outputs, are written, added to or left alone as requested."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .. import ndarray, random
from ..test_utils import default_context
from .comparing import close
from .report import Verdict
from .running import SEED, Trial

__all__ = ["requests"]

BEFORE = 3.0
"""Value of outputs before the operator writes them."""


def requests(trial: Trial) -> Verdict:
    """Through a graph, and called with every request as a graph may."""
    if trial.has_backward:
        _of_a_graph(trial)
    elif trial.subject.prop is None:
        return Verdict("skip", "it has no backward")
    if trial.subject.prop is not None:
        _of_calls(trial)
    return Verdict("pass")


def _of_a_graph(trial: Trial) -> None:
    by_request: dict[str, dict[str, Any]] = {}
    for request, before in (("write", 7.0), ("again", 9.0), ("add", 7.0), ("null", 7.0)):
        bound = trial.bind(grad_req="write" if request == "again" else request, before=before)
        bound.forward()
        by_request[request] = bound.backward()
    for name in trial.differentiable():
        write = by_request["write"][name]
        left = (write == 7.0) & (by_request["again"][name] == 9.0)
        assert not left.any(), f"gradient of {name}: {int(left.sum())} of {left.size} elements are not written"
        close(f"gradient of {name}: req 'add' does not add", by_request["add"][name], write + 7.0)
        assert (by_request["null"][name] == 7.0).all(), f"gradient of {name}: req 'null' is written to"


def _of_calls(trial: Trial) -> None:
    want, _ = _call(trial, ["write"] * len(trial.outputs), None)
    for asked in _mixed(len(trial.outputs)):
        got, _ = _call(trial, asked, None)
        for name, request, value, plain in zip(trial.outputs, asked, got, want, strict=True):
            hint = f"forward does not keep to req {request!r} (self.assign(out_data[i], req[i], …) does)"
            close(f"{name}: {hint}", value, _expected(request, plain))
    if not trial.has_backward:
        return
    every = ["write"] * len(trial.outputs)
    _, want = _call(trial, every, ["write"] * len(trial.arguments))
    for asked in _mixed(len(trial.arguments)):
        _, got = _call(trial, every, asked)
        for name, request, value, plain in zip(trial.arguments, asked, got, want, strict=True):
            if name in trial.differentiable():
                hint = f"backward does not keep to req {asked} (self.assign(in_grad[i], req[i], …) does)"
                close(f"gradient of {name}: {hint}", value, _expected(request, plain))


def _expected(request: str, plain: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if request == "null":
        return np.full_like(plain, BEFORE)
    return np.asarray(plain + plain.dtype.type(BEFORE)) if request == "add" else plain


def _mixed(count: int) -> Iterator[list[str]]:
    """Every request for all arrays; then each one alone left out, and alone wanted."""
    for request in ("null", "write", "inplace", "add"):
        yield [request] * count
    for place in range(count if count > 1 else 0):
        yield ["null" if i == place else "write" for i in range(count)]
        yield ["add" if i == place else "null" for i in range(count)]


def _call(trial: Trial, outputs: Sequence[str], gradients: Sequence[str] | None) -> tuple[list[Any], list[Any]]:
    """A new CustomOp's outputs and gradients, of one forward and, where gradients are asked for, one backward."""
    context = default_context()
    types = trial.types(np.float32)
    data = [ndarray.array(trial.values[name], context, types[name]) for name in trial.arguments]
    aux = [ndarray.array(value, context, np.float32) for value in trial.state_values().values()]
    out_types = trial.output_types(types)
    out = [
        ndarray.array(np.full(shape, BEFORE), context, dtype)
        for shape, dtype in zip(trial.output_shapes.values(), out_types, strict=True)
    ]
    grads = [ndarray.array(np.full(array.shape, BEFORE), context, array.dtype) for array in data]
    operator = trial.custom_op()
    random.seed(SEED)
    operator.forward(is_train=True, req=list(outputs), in_data=data, out_data=out, aux=aux)
    if gradients is not None:
        heads = [ndarray.array(head, context, head.dtype) for head in trial.heads(out)]
        operator.backward(req=list(gradients), out_grad=heads, in_data=data, out_data=out, in_grad=grads, aux=aux)
    return [array.asnumpy() for array in out], [array.asnumpy() for array in grads]
