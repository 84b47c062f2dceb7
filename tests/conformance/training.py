"""A short training by one function, with our client's `mx` and with MXNet's: the loss of each step."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["losses"]

RATE = 0.02
MOMENTUM = 0.9


def losses(mx: Any, text: str, values: dict[str, Any], data: Any, labels: Any) -> Any:
    """Train the network of symbol JSON `text` with momentum, a step for each batch.

    Args:
        mx: opbox, or mxnet.
        text: ends in a SoftmaxOutput named softmax.
        values: all arguments and auxiliary states at the start, but for data and softmax_label.
        data, labels: (steps, batch, …), (steps, batch).

    Returns:
        The mean cross-entropy of each step's batch, before its update.
    """
    symbol = mx.sym.load_json(text)
    shapes = {"data": data.shape[1:], "softmax_label": labels.shape[1:]}
    req = {name: "null" if name in shapes else "write" for name in symbol.list_arguments()}
    executor = symbol.simple_bind(mx.cpu(), grad_req=req, **shapes)
    arrays = {**executor.arg_dict, **executor.aux_dict}
    for name, value in values.items():
        arrays[name][:] = mx.nd.array(value)
    weights = {name: executor.arg_dict[name] for name in req if req[name] == "write"}
    moments = {name: mx.nd.zeros(weight.shape) for name, weight in weights.items()}
    scale = 1 / data.shape[1]
    curve = []
    for batch, classes in zip(data, labels, strict=True):
        arrays["data"][:] = mx.nd.array(batch)
        arrays["softmax_label"][:] = mx.nd.array(classes)
        probabilities = executor.forward(is_train=True)[0].asnumpy()
        executor.backward()
        for name, weight in weights.items():
            gradient = executor.grad_dict[name]
            mx.nd.sgd_mom_update(
                weight, gradient, moments[name], lr=RATE, momentum=MOMENTUM, rescale_grad=scale, out=weight
            )
        chosen = probabilities[np.arange(len(classes)), classes.astype(int)]
        curve.append(-np.log(np.maximum(chosen, 1e-30)).mean())
    return np.array(curve)
