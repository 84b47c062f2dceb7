"""MXNet's symbol JSON: what is read, what is upgraded, what is refused and how that is said."""

from __future__ import annotations

import contextlib
import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opbox_protocol.errors import (
    GraphError,
    LimitError,
    MXNetError,
    ParamError,
    UnknownOperatorError,
    UnsupportedError,
)
from opbox_protocol.symbol_json import content_hash
from opbox_service.graph.json import dump, load

MLP = {
    "nodes": [
        {"op": "null", "name": "data", "attrs": {"__shape__": "(2, 0)", "tag": "kept"}, "inputs": []},
        {"op": "null", "name": "fc1_weight", "attrs": {"num_hidden": "3"}, "inputs": []},
        {"op": "null", "name": "fc1_bias", "inputs": []},
        {
            "op": "FullyConnected",
            "name": "fc1",
            "attrs": {"num_hidden": "3", "__source__": "train.py:12"},
            "inputs": [[0, 0, 0], [1, 0, 0], [2, 0, 0]],
        },
    ],
    "arg_nodes": [0, 1, 2],
    "node_row_ptr": [0, 1, 2, 3, 4],
    "heads": [[3, 0, 0]],
    "attrs": {"mxnet_version": ["int", 10901]},
}


def changed(edit):
    document = copy.deepcopy(MLP)
    edit(document)
    return document


def test_what_is_read_is_written_again():
    graph = load(json.dumps(MLP).encode())
    assert dump(graph) == MLP
    assert graph.nodes[3].source == "train.py:12"
    assert dump(load(dump(graph))) == MLP


def test_the_hash_is_of_the_content_not_of_the_layout():
    text = json.dumps(MLP, indent=3)
    reordered = json.dumps(dict(reversed(MLP.items())))
    assert content_hash(text) == content_hash(reordered) == content_hash(MLP)
    assert content_hash(changed(lambda d: d["nodes"][0].update(name="x"))) != content_hash(MLP)


def test_an_old_file_is_upgraded():
    old = {
        "nodes": [
            {
                "op": "null",
                "param": {},
                "name": "data",
                "inputs": [],
                "backward_source_id": -1,
                "attr": {"lr_mult": "2"},
            },
            {
                "op": "null",
                "param": {},
                "name": "fc1_weight",
                "inputs": [],
                "backward_source_id": -1,
                "attr": {"lr_mult": "3"},
            },
            {
                "op": "FullyConnected",
                "param": {"num_hidden": "3"},
                "name": "fc1",
                "inputs": [[0, 0], [1, 0]],
                "backward_source_id": -1,
                "attr": {"ctx_group": "dev1", "weight_lr_mult": "0.5", "bias_wd_mult": "0"},
            },
        ],
        "arg_nodes": [0, 1],
        "heads": [[2, 0]],
    }
    graph = load(old)
    attrs = {node.name: dict(node.attrs) for node in graph.nodes}
    assert attrs == {
        "data": {"__lr_mult__": "2"},
        "fc1_weight": {"__lr_mult__": "0.5"},
        "fc1_bias": {
            "__ctx_group__": "dev1",
            "__wd_mult__": "0",
        },  # implied: MXNet gives it the hidden attributes of its node
        "fc1": {"num_hidden": "3", "__ctx_group__": "dev1"},
    }


REFUSED = [
    ("{", GraphError, "the graph is not JSON"),
    ("[" * 100_000, GraphError, "the graph is not JSON"),
    (b"\xff\xfe\xfd", GraphError, "the graph is not JSON"),
    ("3", GraphError, "the graph: expected a JSON object, got int 3"),
    ({}, GraphError, "nodes: expected a JSON array, got nothing"),
    (changed(lambda d: d.pop("heads")), GraphError, "heads: expected a JSON array"),
    (changed(lambda d: d.update(heads=[])), GraphError, "heads: expected at least one"),
    (changed(lambda d: d["nodes"].insert(0, 5)), GraphError, r"nodes\[0\]: expected a JSON object"),
    (changed(lambda d: d["nodes"][0].pop("name")), GraphError, r"nodes\[0\]: expected op and name as strings"),
    (changed(lambda d: d["nodes"][3].update(inputs=[[3, 0, 0]])), GraphError, "fc1: input 3 is not before node 3"),
    (changed(lambda d: d["nodes"][3]["inputs"].__setitem__(0, [9, 0, 0])), GraphError, "fc1: input 9 is not before"),
    (changed(lambda d: d["nodes"][3]["inputs"].__setitem__(0, [-1, 0])), GraphError, "expected a node number below 3"),
    (
        changed(lambda d: d["nodes"][3]["inputs"].__setitem__(0, [0, 1])),
        GraphError,
        "an output of 'data' below 1, got 1",
    ),
    (changed(lambda d: d["nodes"][3]["inputs"].__setitem__(0, "x")), GraphError, r"expected \[node, output, version\]"),
    (changed(lambda d: d.update(heads=[[4, 0]])), GraphError, r"heads\[0\]: expected a node number below 4, got 4"),
    (changed(lambda d: d.update(heads=[[True, 0]])), GraphError, r"expected \[node, output, version\]"),
    (
        changed(lambda d: d.update(arg_nodes=[44])),
        GraphError,
        r"arg_nodes\[0\]: expected a node number below 4, got 44",
    ),
    (changed(lambda d: d["nodes"][0].update(inputs=[[0, 0]])), GraphError, "data: input 0 is not before node 0"),
    (changed(lambda d: d["nodes"][1].update(inputs=[[0, 0]])), GraphError, "expected a variable to have no inputs"),
    (changed(lambda d: d["nodes"][1].update(name="data")), GraphError, "argument names must differ, got 'data'"),
    (changed(lambda d: d["nodes"][0].update(attrs={"a": 1})), GraphError, "attribute 'a': expected a string, got int"),
    (changed(lambda d: d["nodes"][0].update(attrs=[1])), GraphError, "data.attrs: expected a JSON object"),
    (
        changed(lambda d: d["nodes"][3].update(inputs=[[0, 0], [1, 0]])),
        GraphError,
        "expected 3 inputs, got 2: bias missing",
    ),
    (
        changed(lambda d: d["nodes"][3].update(inputs=[[0, 0], [1, 0], [2, 0], [2, 0]])),
        GraphError,
        r"fc1 \(FullyConnected, train.py:12\): expected 3 inputs \(data, weight, bias\), got 4",
    ),
    (
        changed(lambda d: d["nodes"][3].update(op="FullyConected")),
        UnknownOperatorError,
        r"fc1 \(FullyConected, train.py:12\): .*did you mean FullyConnected",
    ),
    (changed(lambda d: d["nodes"][3]["attrs"].update(num_hidden="x")), ParamError, "fc1 .*'num_hidden'.*got 'x'"),
    (changed(lambda d: d["nodes"][3]["attrs"].update(depth="1")), ParamError, "fc1 .*unknown parameter 'depth'"),
    (changed(lambda d: d.update(attrs={"mxnet_version": "x"})), GraphError, "attrs.mxnet_version"),
    (changed(lambda d: d["nodes"][3].update(subgraphs=[{}])), UnsupportedError, "fc1 .*subgraphs"),
]


@pytest.mark.parametrize(("document", "error", "message"), REFUSED)
def test_bad_documents_are_refused_with_a_reason(document, error, message):
    with pytest.raises(error, match=message):
        load(document)


def test_the_number_of_nodes_is_limited():
    with pytest.raises(LimitError, match="4 nodes: expected at most 3"):
        load(MLP, max_nodes=3)
    assert load(MLP, max_nodes=4)


JSONISH = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.sampled_from(["null", "FullyConnected", "data", "", "(2,)"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["op", "name", "attrs", "inputs", "nodes", "heads", "num_hidden"]), inner, max_size=5
        )
    ),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_graph_is_loaded_or_refused_but_never_crashes(data):
    document = copy.deepcopy(MLP)
    place = document
    for _ in range(data.draw(st.integers(0, 4))):
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        inner = [k for k in keys if isinstance(place[k], dict | list)]
        if not inner:
            break
        place = place[data.draw(st.sampled_from(inner))]
    keys = list(place) if isinstance(place, dict) else list(range(len(place)))
    if keys:
        place[data.draw(st.sampled_from(keys))] = data.draw(JSONISH)
    with contextlib.suppress(MXNetError):
        dump(load(document))
