"""Three steps of a small network on a GPU: as CUDA graphs and one call at a time, bit for bit, and against NumPy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from opbox_ops import registry, switches
from opbox_ops.backend import Backend
from opbox_ops.compute import LEVELS
from opbox_ops.node import Entry, Node

from ..executor.bind import bind
from ..executor.replay import GRAPHS
from ..graph.ir import Graph

__all__ = ["compare"]

BATCH, STEPS, RATE, SEED = 9, 3, 0.5, 7
TOLERANCE = 2e-3
"""Relative to the largest number: sums of hundreds of products in another order, divided by deviations of as few."""

Values = list[np.ndarray[Any, Any]]


def compare(device: Backend, host: Backend) -> dict[str, str]:
    """What is wrong with CUDA graphs, and with the network as a whole ("*"); empty where nothing is.

    Args:
        device, host: the backends of the GPU and of NumPy.
    """
    recorded = _trained(device, None)
    with _switched_off(GRAPHS):
        eager = _trained(device, None)
    expected = _trained(host, LEVELS[0])
    same = all(one.tobytes() == other.tobytes() for one, other in zip(recorded, eager, strict=True))
    near = all(_near(want, got) for want, got in zip(expected, eager, strict=True))
    return {
        GRAPHS: "" if same else "a small network gives other bits than without CUDA graphs",
        "*": "" if near else "a small network differs from NumPy after three steps",
    }


def _near(wanted: Any, got: Any) -> bool:
    return bool(np.abs(wanted - got).max() <= TOLERANCE * np.abs(wanted).max())


@contextmanager
def _switched_off(name: str) -> Iterator[None]:
    before = os.environ.get(switches.VARIABLE)
    os.environ[switches.VARIABLE] = ",".join(filter(None, (before, name)))
    try:
        yield
    finally:
        if before is None:
            del os.environ[switches.VARIABLE]
        else:
            os.environ[switches.VARIABLE] = before


def _call(op: str, name: str, inputs: list[Entry], **attrs: object) -> Entry:
    """An operator's call; the inputs that are missing become variables."""
    definition = registry.get(op)
    text = {key: str(value) for key, value in attrs.items()}
    params = definition.parse(text)
    missing = definition.input_names(params)[len(inputs) :]
    variables = [Entry(Node(None, f"{name}_{argument}")) for argument in missing]
    return Entry(Node(definition, name, text, params, (*inputs, *variables)))


def _network() -> Graph:
    """A convolution, normalization, pooling and two layers: with what a plan fuses, and without random numbers."""
    out = _call("Convolution", "conv", [Entry(Node(None, "data"))], kernel=(3, 3), num_filter=5, pad=(1, 1))
    out = _call("BatchNorm", "norm", [out], fix_gamma=False)
    out = _call("Activation", "relu", [out], act_type="relu")
    out = _call("Pooling", "pool", [out], kernel=(2, 2), stride=(2, 2), pool_type="avg")
    out = _call("FullyConnected", "one", [out], num_hidden=17)
    out = _call("tanh", "tanh", [out])
    out = _call("FullyConnected", "two", [out], num_hidden=10)
    return Graph((_call("SoftmaxOutput", "softmax", [out]),))


SHAPES = {
    "data": (BATCH, 3, 8, 6),
    "conv_weight": (5, 3, 3, 3),
    "conv_bias": (5,),
    "norm_gamma": (5,),
    "norm_beta": (5,),
    "one_weight": (17, 60),
    "one_bias": (17,),
    "two_weight": (10, 17),
    "two_bias": (10,),
    "softmax_label": (BATCH,),
}
STATES = {"norm_moving_mean": np.zeros(5, "f"), "norm_moving_var": np.ones(5, "f")}


def _trained(backend: Backend, level: str | None) -> Values:
    """The outputs of each step, and the weights behind the last."""
    rng = np.random.default_rng(SEED)
    values = {name: rng.normal(0, 0.4, shape).astype("f") for name, shape in SHAPES.items()}
    values["softmax_label"] = np.arange(BATCH, dtype="f")
    with backend.scope(), np.errstate(all="ignore"):
        args = {name: backend.put(value) for name, value in values.items()}
        grads = {n: backend.put(v * 0) for n, v in values.items() if n not in ("data", "softmax_label")}
        executor = bind(
            _network(),
            args=args,
            grads=grads,
            aux={name: backend.put(value.copy()) for name, value in STATES.items()},
            backend=backend,
            random=backend.random(SEED),
            level=level,
        )
        outputs: Values = []
        for _ in range(STEPS):
            executor.forward(is_train=True)
            executor.backward()
            outputs.append(np.array(backend.get(executor.outputs[0])))
            for name, grad in grads.items():
                weight = values[name] = np.asarray(values[name] - np.float32(RATE / BATCH) * backend.get(grad))
                backend.write(args[name], weight)
        backend.synchronize()
    return [*outputs, *(values[name] for name in grads)]
