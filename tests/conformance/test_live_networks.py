"""Whole networks, built by one function with our client and with MXNet: names, shapes, outputs and all gradients.

What our client writes is read by MXNet's own loader, and the other way round; both run on the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import opbox
from opbox_ops.backend import backend_for
from opbox_service.executor import bind
from opbox_service.graph.json import load
from opbox_service.graph.passes.infer_shape import infer_shape

from .mxnet import Oracle

pytestmark = pytest.mark.conformance

SIDES = (("arg_names", "arg_shapes"), ("out_names", "out_shapes"), ("aux_names", "aux_shapes"))


@dataclass(frozen=True)
class Network:
    """A builder of examples/networks with its options.

    Attributes:
        builder, inputs: the functions that build it and that tell its inputs' shapes.
        options, shapes: their keyword arguments, where it is run smaller than its shapes are compared.
        smooth: further options of build for the run in float32.
        doubles: whether it runs in float64 (LSTMCell's first states are float32).
    """

    module: str
    builder: str = "build"
    inputs: str = "shapes"
    options: dict[str, Any] = field(default_factory=dict)
    shapes: dict[str, Any] = field(default_factory=dict)
    smooth: dict[str, Any] = field(default_factory=dict)
    doubles: bool = True

    @property
    def id(self) -> str:
        return f"{self.module}-{self.builder}"

    def shapes_of_inputs(self, **shapes: Any) -> dict[str, tuple[int, ...]]:
        shapes_by_name: dict[str, tuple[int, ...]] = getattr(
            import_module(f"examples.networks.{self.module}"), self.inputs
        )(**shapes)
        return shapes_by_name

    def ours(self, **options: Any) -> Any:
        return getattr(import_module(f"examples.networks.{self.module}"), self.builder)(opbox, **options)


NETWORKS = [
    Network("mlp"),
    Network("lenet", shapes={"batch": 4}),
    Network("resnet", smooth={"act_type": "softrelu"}),
    # Without dropout, whose masks differ; and smaller than 138 million weights.
    Network("vgg", options={"drop": 0, "hidden": 256, "num_classes": 100}, shapes={"size": 64}),
    Network("inception"),
    Network("lstm", inputs="shapes_by_hand", shapes={"batch": 8}),
    Network("lstm", "build_with_cell", shapes={"batch": 8}, doubles=False),
    Network("two_lstm", shapes={"batch": 4}, options={"hidden": 64}, doubles=False),
]
every_network = pytest.mark.parametrize("network", [pytest.param(row, id=row.id) for row in NETWORKS])


@every_network
def test_names_and_shapes(oracle: Oracle, network: Network) -> None:
    """At full size: our client's JSON in MXNet's loader, MXNet's in ours, and each one's own."""
    known_shapes = network.shapes_of_inputs()
    ours, theirs = network.ours(), {"network": network.module, "builder": network.builder}
    lists = oracle.ask("lists", **theirs)[0]
    read = oracle.ask("lists", json=ours.tojson())[0]
    graph, crossed = load(ours.tojson()), load(lists["json"])
    mine = dict(zip(("arg_shapes", "out_shapes", "aux_shapes"), ours.infer_shape(**known_shapes), strict=True))
    want = oracle.ask("shapes", shapes=known_shapes, partial=False, **theirs)[0]
    got = oracle.ask("shapes", json=ours.tojson(), shapes=known_shapes, partial=False)[0]
    names = (ours.list_arguments(), ours.list_outputs(), ours.list_auxiliary_states())
    for listed, (side, shapes) in zip(names, SIDES, strict=True):
        assert listed == lists[side] == read[side]
        assert got[shapes] == want[shapes]
        assert [list(shape) for shape in mine[shapes]] == want[shapes]
        for read_graph in (graph, crossed):
            assert [list(shape) for shape in getattr(infer_shape(read_graph, known_shapes), shapes)] == want[shapes]


def weights(names: list[str], shapes: list[Any], classes: int, seed: int) -> dict[str, Any]:
    """Values under which signals neither vanish nor explode, whatever the depth (He et al., 2015)."""
    rng = np.random.RandomState(seed)
    parameters = {}
    for name, shape in zip(names, shapes, strict=True):
        if name.endswith("label"):
            array = rng.randint(0, classes, shape)
        elif name.endswith("weight"):
            array = rng.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape)
        elif name.endswith(("gamma", "var")):
            array = rng.uniform(0.8, 1.2, shape)
        elif name.endswith(("bias", "beta", "mean")):
            array = rng.normal(0, 0.1, shape)
        else:
            array = rng.normal(0, 1, shape)
        parameters[name] = array.astype(np.float32)
    return parameters


def apart(got: Any, expected: Any) -> float:
    """The largest difference, as a part of the largest value."""
    scale = float(np.abs(expected).max())
    return float(np.abs(got - expected).max()) / scale if scale > 0 else float(np.abs(got).max())


class Side:
    """One network on the same weights: by MXNet and by us, in a type."""

    def __init__(self, network: Network, seed: int, **options: Any) -> None:
        self.symbol, known_shapes = (
            network.ours(**network.options, **options),
            network.shapes_of_inputs(**network.shapes),
        )
        self.graph = load(self.symbol.tojson())
        inferred = infer_shape(self.graph, known_shapes)
        classes = inferred.out_shapes[0][-1]
        self.args = weights(self.graph.argument_names, inferred.arg_shapes, classes, seed)
        self.aux = weights(self.graph.auxiliary_names, inferred.aux_shapes, classes, seed)
        self.wanted = [name for name in self.args if not name.endswith("label")]
        self.head = np.random.RandomState(1).normal(0, 1, inferred.out_shapes[0])

    def theirs(self, oracle: Oracle, dtype: str) -> dict[str, Any]:
        """MXNet's output, gradients and auxiliary states after backward."""
        arrays = {f"arg:{name}": array.astype(dtype) for name, array in (self.args | self.aux).items()}
        results = oracle.ask(
            "run",
            {**arrays, "head:0": self.head.astype(dtype)},
            json=self.symbol.tojson(),
            wanted=self.wanted,
            is_train=True,
        )[1]
        return {key: array for key, array in results.items() if not key.startswith("aux:")}

    def ours(self, dtype: str) -> dict[str, Any]:
        """The same of ours."""
        cpu = backend_for("cpu")
        args = {name: array.astype(dtype) for name, array in self.args.items()}
        aux = {name: array.astype(dtype) for name, array in self.aux.items()}
        grads = {name: np.full_like(args[name], np.nan) for name in self.wanted}
        ex = bind(self.graph, args=args, grads=grads, aux=aux, backend=cpu, random=cpu.random(0))
        ex.forward(is_train=True)
        needed = any(value >= 0 for value in ex.plan.head_grads)
        ex.backward([self.head.astype(dtype)] if needed else [])
        arrays = {"out:0": ex.outputs[0]} | {f"grad:{name}": array for name, array in grads.items()}
        return arrays | {f"after:{name}": array for name, array in aux.items()}


def differences(got: dict[str, Any], expected: dict[str, Any], most: float, what: str) -> dict[str, float]:
    """Output, all gradients and states that are further apart than `most`; tells which is furthest."""
    assert got.keys() == expected.keys()
    off = {key: apart(got[key], expected[key]) for key in expected}
    worst = max(off, key=lambda key: off[key])
    print(f"{what}: of {len(off)} arrays, {worst} is furthest from MXNet's: {off[worst]:.1e}")
    return {key: value for key, value in off.items() if not value < most}


@every_network
def test_outputs_and_gradients(oracle: Oracle, network: Network) -> None:
    """In float32 within 1e-3 of MXNet's.

    A rounding may move the maximum of a pooling window to its neighbour, or an activation across zero, and gradients
    with it by some per cent: for two of eight sets of weights of VGG, for every one of ResNet-50, whose units are
    therefore smooth here. MXNet's float32 is as far from its own float64 then. So: one of three sets of weights has to
    agree.
    """
    for seed in (1, 2, 3):
        side = Side(network, seed, **network.smooth)
        wrong = differences(side.ours("float32"), side.theirs(oracle, "float32"), 1e-3, f"{network.id} in float32")
        if not wrong:
            return
    pytest.fail(f"{len(wrong)} arrays: {wrong}")


@pytest.mark.parametrize("network", [pytest.param(row, id=row.id) for row in NETWORKS if row.doubles])
def test_outputs_and_gradients_in_double_precision(oracle: Oracle, network: Network) -> None:
    """In float64 within 1e-6: MXNet keeps BatchNorm's momentum in float32, all else agrees to 1e-11."""
    side = Side(network, seed=0)
    wrong = differences(side.ours("float64"), side.theirs(oracle, "float64"), 1e-6, f"{network.id} in float64")
    assert not wrong, f"{len(wrong)} arrays"
