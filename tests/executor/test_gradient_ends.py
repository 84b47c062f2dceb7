"""When a gradient is final: no call of backward behind its end changes it, and what shares memory has no end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from examples.networks import inception, lenet, lstm, resnet

import opbox as mx
from opbox_ops.backend import backend_for
from opbox_service.executor import BoundPlan, bind
from opbox_service.graph.json import load

CPU = backend_for("cpu")
NETWORKS: dict[str, tuple[Callable[[], Any], dict[str, tuple[int, ...]]]] = {
    "lenet": (lambda: lenet.build(mx), lenet.shapes(4)),
    "resnet": (lambda: resnet.build(mx, 10, (1, 1, 1, 1), 8), resnet.shapes(2, 64)),
    "inception": (lambda: inception.build(mx, 10), inception.shapes(1)),
    "lstm": (lambda: lstm.build(mx, 5, 16), lstm.shapes_by_hand(2, 5, 8, 16)),
}


class Snapshots:
    """Copies of gradients, each made when it is said to be final."""

    def __init__(self, ends: dict[str, int], gradients: dict[str, Any]) -> None:
        self.stops = sorted(set(ends.values()))
        self.copies: dict[str, Any] = {}
        self._ends, self._gradients = ends, gradients

    def reached(self, calls: int) -> None:
        for name, end in self._ends.items():
            if end == calls:
                self.copies[name] = self._gradients[name].copy()


def bound(
    symbol: Any, shapes: dict[str, tuple[int, ...]], gradients: dict[str, Any] | None = None, req: str = "write"
) -> tuple[BoundPlan, dict[str, Any]]:
    """An executor with values, and its gradients: all but those of the inputs by default."""
    args, _, aux = symbol.infer_shape(**shapes)
    rng = np.random.RandomState(0)
    values = {
        name: np.asarray(rng.uniform(-0.3, 0.3, shape), np.float32)
        for name, shape in zip(symbol.list_arguments(), args, strict=True)
    }
    states = {name: np.ones(shape, np.float32) for name, shape in zip(symbol.list_auxiliary_states(), aux, strict=True)}
    if gradients is None:
        gradients = {name: np.zeros_like(value) for name, value in values.items() if name not in shapes}
    executor = bind(
        load(symbol.tojson()),
        args=values,
        grads=gradients,
        grad_req=dict.fromkeys(gradients, req),
        aux=states,
        backend=CPU,
        random=CPU.random(0),
    )
    return executor, gradients


def ends_by_name(executor: BoundPlan, gradients: dict[str, Any]) -> dict[str, int]:
    names = {id(array): name for name, array in gradients.items()}
    return {names[number]: end for number, end in executor.gradient_ends.items()}


@pytest.mark.parametrize("req", ["write", "add"])
@pytest.mark.parametrize("network", NETWORKS)
def test_nothing_changes_a_gradient_behind_its_end(network: str, req: str) -> None:
    build, shapes = NETWORKS[network]
    symbol = build()
    executor, gradients = bound(symbol, with_labels(symbol, shapes), req=req)
    ends = ends_by_name(executor, gradients)
    assert ends.keys() == gradients.keys()
    assert len(set(ends.values())) > len(ends) // 4  # not all at the end
    snapshots = Snapshots(ends, gradients)
    executor.forward(is_train=True)
    executor.backward(follower=snapshots)
    assert snapshots.copies.keys() == gradients.keys()
    for name, copy in snapshots.copies.items():
        np.testing.assert_array_equal(copy, gradients[name], err_msg=name)
    assert any(copy.any() for copy in snapshots.copies.values())


def with_labels(symbol: Any, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    args, _, _ = symbol.infer_shape(**shapes)
    places = zip(symbol.list_arguments(), args, strict=True)
    return {**shapes, **{name: shape for name, shape in places if name.endswith("label")}}


def two_layers() -> Any:
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=4, name="fc1")
    net = mx.sym.FullyConnected(mx.sym.Activation(net, act_type="tanh"), num_hidden=4, name="fc2")
    return mx.sym.MakeLoss(mx.sym.sum(net))


def test_the_last_layer_is_final_first() -> None:
    executor, gradients = bound(two_layers(), {"data": (3, 4)})
    ends = ends_by_name(executor, gradients)
    assert ends["fc2_weight"] < ends["fc1_weight"]


def test_gradients_in_the_memory_of_others_have_no_end() -> None:
    shared = np.zeros((6, 4), np.float32)
    gradients = {
        "fc1_weight": shared[:4],
        "fc2_weight": shared[2:],
        "fc1_bias": np.zeros(8, np.float32)[::2],  # not contiguous
        "fc2_bias": np.zeros(4, np.float32),
    }
    executor, gradients = bound(two_layers(), {"data": (3, 4)}, gradients)
    assert ends_by_name(executor, gradients).keys() == {"fc2_bias"}
