"""Random documents at the graph loader: a Graph that is sound, or a domain error in one sentence."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from opbox_protocol.errors import MXNetError
from opbox_service.graph.ir import Graph
from opbox_service.graph.json import load
from opbox_service.graph.passes.infer_shape import infer_shape
from tests.contract.live import FC, symbol, var
from tests.fuzzing import FUZZ

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.text(max_size=6) | st.just("null"),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=6) | st.sampled_from(["op", "name", "attrs", "inputs"]), inner, max_size=4)
    ),
    max_leaves=10,
)
NODE = st.fixed_dictionaries(
    {},
    optional={
        "op": st.sampled_from(["null", "FullyConnected", "Activation", "elemwise_add", "Nonsense"]) | JSON,
        "name": st.sampled_from(["a", "b", "c", ""]) | JSON,
        "attrs": st.dictionaries(
            st.sampled_from(["num_hidden", "act_type", "__shape__", "lr_mult", "x"]),
            st.sampled_from(["1", "relu", "(2, 0)", "None", "", "-1"]) | JSON,
            max_size=3,
        )
        | JSON,
        "inputs": st.lists(st.lists(st.integers(-2, 6), max_size=4) | JSON, max_size=4) | JSON,
    },
)
DOCUMENT = st.fixed_dictionaries(
    {},
    optional={
        "nodes": st.lists(NODE, max_size=6) | JSON,
        "heads": st.lists(st.lists(st.integers(-1, 6), max_size=4) | JSON, max_size=3) | JSON,
        "arg_nodes": st.lists(st.integers(-1, 6), max_size=4) | JSON,
        "attrs": st.dictionaries(st.just("mxnet_version"), JSON, max_size=1) | JSON,
    },
)
NET = symbol(
    var("x", __shape__="(2, 3)"),
    var("w"),
    var("b"),
    ("FullyConnected", "fc1", {"num_hidden": "5"}, [0, 1, 2]),
    ("Activation", "act", {"act_type": "relu"}, [3]),
    var("w2"),
    ("FullyConnected", "fc2", {"num_hidden": "2", "no_bias": "True"}, [4, 5]),
    ("elemwise_add", "sum", {}, [6, 6]),
)


def one_sentence(text: str) -> None:
    assert text
    assert "\n" not in text
    assert len(text) < 2000


def loaded(document: Any) -> Graph | None:
    try:
        graph = load(document, max_nodes=1000)
    except MXNetError as error:
        one_sentence(error.message)
        return None
    for node in graph.nodes:
        for entry in node.inputs:
            assert graph.index[entry.node] < graph.index[node]
            assert 0 <= entry.index < entry.node.num_outputs
    return graph


@settings(max_examples=300 * FUZZ, deadline=None)
@given(DOCUMENT | JSON)
def test_any_document(document: Any) -> None:
    loaded(document)
    loaded(json.dumps(document))


@settings(max_examples=100 * FUZZ, deadline=None)
@given(st.text(max_size=60) | st.binary(max_size=60))
def test_any_text(text: str | bytes) -> None:
    loaded(text)


@settings(max_examples=300 * FUZZ, deadline=None)
@given(st.sampled_from([FC, NET]), st.data())
def test_a_graph_with_one_place_changed(graph: dict[str, Any], data: st.DataObject) -> None:
    changed = copy.deepcopy(graph)
    place: Any = changed
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or data.draw(st.integers(0, 3)) == 0:
            break
        place = place[key]
    if data.draw(st.booleans()):
        place[key] = data.draw(JSON)
    else:
        del place[key]
    changed_graph = loaded(changed)
    if changed_graph is None:
        return
    try:
        infer_shape(changed_graph, {"x": (2, 3)} if "x" in changed_graph.argument_names else {}, partial=True)
    except MXNetError as error:
        one_sentence(error.message)


@settings(max_examples=60 * FUZZ, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=40))
def test_sums_of_anything_before_load_and_infer(pairs: list[tuple[int, int]]) -> None:
    nodes: list[Any] = [var("x")]
    for i, (a, b) in enumerate(pairs):
        nodes.append(("elemwise_add", f"n{i}", {}, [a % len(nodes), b % len(nodes)]))
    graph = loaded(symbol(*nodes))
    assert graph is not None
    assert infer_shape(graph, {"x": (2, 3)}).out_shapes == [(2, 3)]
