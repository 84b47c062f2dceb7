"""The table of networks: MXNet's recorded values, derivatives, files, inference, memory."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_ops import registry
from opbox_protocol.symbol_json import content_hash
from opbox_service.executor import bind
from opbox_service.graph.json import dump, load

from .networks import NETWORKS
from .values import CPU, arrays_for, bound, filled, run, symbol

RECORDED = Path(__file__).parents[1] / "conformance" / "recorded" / "control_flow.npz"

every_network = pytest.mark.parametrize("name", NETWORKS)


def _documents(document: Any) -> list[Any]:
    """A graph and all graphs inside it."""
    inside = [graph for node in document["nodes"] for graph in node.get("subgraphs", ())]
    return [document, *(inner for graph in inside for inner in _documents(graph))]


def test_the_table_has_every_operator_with_subgraphs() -> None:
    every = [graph for name in NETWORKS for graph in _documents(json.loads(symbol(name).tojson()))]
    used = {node["op"] for graph in every for node in graph["nodes"]}
    having = {name for name in registry.names() if registry.get(name).get_attr("TSubgraphs")}
    assert {name for name in having if not name.startswith("_backward")} <= used


@pytest.mark.parametrize("name", [name for name, network in NETWORKS.items() if network.oracle in ("all", "forward")])
def test_values_are_mxnets(name: str) -> None:
    ours = run(symbol(name), *arrays_for(name))
    with np.load(RECORDED) as recorded:
        theirs = {key.split("|")[1]: recorded[key] for key in recorded.files if key.startswith(f"{name}|")}
    assert theirs
    for key, value in theirs.items():
        np.testing.assert_allclose(filled(name, key, ours[key]), value, rtol=2e-5, atol=2e-6, err_msg=key)


@pytest.mark.parametrize("name", [name for name, network in NETWORKS.items() if network.numeric])
def test_gradients_are_derivatives(name: str) -> None:
    """Along a random direction, in float64."""
    arguments, heads = arrays_for(name, "float64")
    results = run(symbol(name), arguments, heads)
    draw = np.random.RandomState(0)
    direction = {key: draw.uniform(-1, 1, value.shape) for key, value in arguments.items()}

    def loss(step: float) -> float:
        moved = {key: value + step * direction[key] for key, value in arguments.items()}
        executor, _ = bound(symbol(name), moved, grads=False)
        executor.forward(is_train=True)
        return sum(float(np.vdot(out, head)) for out, head in zip(executor.outputs, heads, strict=True))

    expected = (loss(1e-6) - loss(-1e-6)) / 2e-6
    got = sum(float(np.vdot(results[f"grad:{key}"], direction[key])) for key in arguments)
    assert got == pytest.approx(expected, rel=1e-6, abs=1e-7)


@every_network
def test_gradients_are_added_and_left_out(name: str) -> None:
    net, (arguments, heads) = symbol(name), arrays_for(name, "float64")
    written = run(net, arguments, heads)
    added = run(net, arguments, heads, req="add", start=2.0)
    for key in arguments:
        np.testing.assert_allclose(added[f"grad:{key}"], written[f"grad:{key}"] + 2, rtol=1e-12, err_msg=key)
    graph = load(net.tojson())
    for wanted in arguments:  # each gradient by itself
        alone = _one_gradient(graph, arguments, heads, wanted)
        np.testing.assert_allclose(alone, written[f"grad:{wanted}"], rtol=1e-12, atol=1e-300, err_msg=wanted)


def _one_gradient(graph: Any, arguments: dict[str, Any], heads: list[Any], wanted: str) -> Any:
    grad = CPU.put(np.full_like(arguments[wanted], np.nan))
    args = {key: CPU.put(value) for key, value in arguments.items()}
    executor = bind(graph, args=args, grads={wanted: grad}, backend=CPU, random=CPU.random(1))
    executor.forward(is_train=True)
    executor.backward(heads)
    return grad


@every_network
def test_an_executor_runs_again_as_before(name: str) -> None:
    """Nothing of one run is left for the next, whatever the arena held."""
    arguments, heads = arrays_for(name)
    executor, grads = bound(symbol(name), arguments)
    results = []
    for is_train in (True, False, True):
        executor._arena.fill(0xFF)
        executor.forward(is_train=is_train)
        executor.backward(heads)
        results.append([np.array(array) for array in (*executor.outputs, *grads.values())])
    for again in results[1:]:
        for first, second in zip(results[0], again, strict=True):
            np.testing.assert_array_equal(first, second)


@every_network
def test_inferred_shapes_and_types_are_the_outputs(name: str) -> None:
    net, (arguments, _) = symbol(name), arrays_for(name, "float64")
    shapes = net.infer_shape(**NETWORKS[name].shapes)
    types = net.infer_type(**dict.fromkeys(arguments, "float64"))
    executor, _ = bound(net, arguments, grads=False)
    executor.forward()
    assert shapes[1] == [output.shape for output in executor.outputs]
    assert types[1] == [np.float64] * len(executor.outputs)
    assert dict(zip(net.list_arguments(), shapes[0], strict=True)) == NETWORKS[name].shapes


@every_network
def test_files_are_read_back(name: str) -> None:
    net = symbol(name)
    text = net.tojson()
    assert mx.sym.load_json(text).tojson() == text
    graph = load(text)
    assert content_hash(dump(graph)) == content_hash(dump(load(json.dumps(dump(graph)))))
    assert graph.argument_names == net.list_arguments()
    assert graph.output_names == net.list_outputs()
    assert copy.deepcopy(net).tojson() == text
    assert pickle.loads(pickle.dumps(net)).tojson() == text


def test_another_body_is_another_hash() -> None:
    document = json.loads(symbol("cumulative").tojson())
    before = content_hash(document)
    document["nodes"][-1]["subgraphs"][0]["nodes"][-1]["name"] = "renamed"
    assert content_hash(document) != before
