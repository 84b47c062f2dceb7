"""Backward nodes that bring auxiliary states up to date run even when no gradient flows into them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_service.executor import bind
from opbox_service.graph.json import load

CPU = backend_for("cpu")
NAMES = ("data", "gamma", "beta", "mean", "var")
BLOCKED = json.dumps(
    {
        "nodes": [
            *({"op": "null", "name": name, "inputs": []} for name in NAMES),
            {"op": "BatchNorm", "name": "bn", "attrs": {}, "inputs": [[i, 0, 0] for i in range(5)]},
            {"op": "BlockGrad", "name": "block", "inputs": [[5, 0, 0]]},
        ],
        "arg_nodes": [0, 1, 2, 3, 4],
        "heads": [[6, 0, 0]],
    }
)


@pytest.mark.parametrize("wanted", [(), ("gamma",), ("data", "gamma", "beta")])
def test_moving_statistics_before_a_blocked_gradient(wanted: tuple[str, ...]) -> None:
    """As in MXNet: they move when a gradient of the layer is asked for, and that gradient is zero."""
    data = np.random.RandomState(0).normal(3, 1, (8, 2)).astype(np.float32)
    args: dict[str, Any] = {"data": data, "gamma": np.ones(2, np.float32), "beta": np.zeros(2, np.float32)}
    aux = {"mean": np.zeros(2, np.float32), "var": np.ones(2, np.float32)}
    grads = {name: np.full_like(args[name], np.nan) for name in wanted}
    executor = bind(load(BLOCKED), args=args, grads=grads, aux=aux, backend=CPU, random=CPU.random(0))
    executor.forward(is_train=True)
    executor.backward()
    np.testing.assert_allclose(aux["mean"], 0.1 * data.mean(axis=0) if wanted else 0, rtol=1e-5)
    for grad in grads.values():
        np.testing.assert_array_equal(grad, 0)
