"""One reader of symbol JSON: what the client makes of a file and what the engine makes of it are the same graph."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

import opbox as mx
from opbox_protocol.errors import GraphError, MXNetError, ParamError, UnsupportedError
from opbox_service.graph.json import dump, load


def variable(name: str, **attrs: str) -> dict[str, Any]:
    return {"op": "null", "name": name, "attr": attrs, "inputs": [], "backward_source_id": -1}


def node(op: str, name: str, inputs: list[list[int]], param: dict[str, str], **attrs: str) -> dict[str, Any]:
    return {"op": op, "name": name, "param": param, "attr": attrs, "inputs": inputs, "backward_source_id": -1}


OLD = {  # as MXNet 0.8 wrote it
    "nodes": [
        variable("data", lr_mult="2"),
        variable("bn_gamma", ctx_group="dev1"),
        variable("bn_beta"),
        node("BatchNorm", "bn", [[0, 0], [1, 0], [2, 0]], {"eps": "0.01"}, beta_wd_mult="0", gamma_lr_mult="0.1"),
        variable("fc_weight"),
        node("FullyConnected", "fc", [[3, 0], [4, 0]], {"num_hidden": "3", "no_bias": "True"}, mirror_stage="1"),
        node("argmax", "top", [[5, 0]], {"axis": "-1"}),
        node("argmin", "bottom", [[5, 0]], {"axis": "-1"}),
        node("argmin", "rows", [[5, 0]], {"axis": "0"}),
    ],
    "arg_nodes": [0, 1, 2, 4],
    "heads": [[6, 0], [7, 0], [8, 0]],
}


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    document = copy.deepcopy(OLD)
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return document


def test_an_old_file_is_the_same_graph_on_both_sides() -> None:
    ours, theirs = mx.sym.load_json(json.dumps(OLD))._document(), dump(load(OLD))
    for row in (*ours["nodes"], *theirs["nodes"]):
        row.get("attrs", {}).pop("__source__", None)
    assert ours == theirs
    attrs = {row["name"]: row.get("attrs", {}) for row in ours["nodes"]}
    assert attrs["data"] == {"__lr_mult__": "2"}
    assert attrs["bn_gamma"] == {"__ctx_group__": "dev1", "__lr_mult__": "0.1"}
    assert attrs["bn_moving_var"] == {"__init__": '["one", {}]'}
    assert attrs["fc"] == {"num_hidden": "3", "no_bias": "True", "__mirror_stage__": "1"}
    assert attrs["bn_moving_mean"] == {"__init__": '["zero", {}]'}
    assert attrs["top"] == attrs["bottom"] == {}
    assert attrs["rows"] == {"axis": "0"}


@pytest.mark.parametrize(("version", "axis"), [(904, None), (905, "-1")])
@pytest.mark.parametrize("op", ["argmax", "argmin"])
def test_the_last_axis_was_all_axes_up_to_a_version(op: str, version: int, axis: str | None) -> None:
    document = {
        "nodes": [variable("data"), {"op": op, "name": "top", "attr": {"axis": "-1"}, "inputs": [[0, 0, 0]]}],
        "arg_nodes": [0],
        "heads": [[1, 0, 0]],
        "attrs": {"mxnet_version": ["int", version]},
    }
    (top,) = (row for row in dump(load(document))["nodes"] if row["name"] == "top")
    assert top.get("attrs", {}).get("axis") == axis


@pytest.mark.parametrize(("version", "is_annotated"), [(903, True), (904, False)])
def test_states_have_initializers_up_to_a_version(version: int, is_annotated: bool) -> None:
    document = {
        "nodes": [*map(variable, ("x", "g", "b", "mean", "var"))],
        "arg_nodes": [0, 1, 2, 3, 4],
        "heads": [[5, 0, 0]],
        "attrs": {"mxnet_version": ["int", version]},
    }
    document["nodes"].append({"op": "BatchNorm", "name": "bn", "inputs": [[k, 0, 0] for k in range(5)]})
    rows = {row["name"]: row.get("attrs", {}) for row in dump(load(document))["nodes"]}
    expected = {"mean": '["zero", {}]', "var": '["one", {}]'} if is_annotated else {}
    assert {name: rows[name]["__init__"] for name in rows if "__init__" in rows[name]} == expected


WRONG = [
    (changed(("nodes", 5, "inputs"), [[3, 0]] * 3), GraphError, r"fc .*expected 2 inputs \(data, weight\), got 3"),
    (changed(("nodes", 5, "inputs"), [[3, 9], [4, 0]]), GraphError, "an output of 'bn' below 3, got 9"),
    (changed(("nodes", 5, "attr"), {"bias_lr_mult": "1"}), ParamError, "fc .*unknown parameter 'bias_lr_mult'"),
    (changed(("nodes", 5, "subgraphs"), [{}]), UnsupportedError, "fc .*subgraphs"),
    (changed(("nodes", 3, "attr"), {"gamma_lr_mult": 1}), GraphError, "attribute 'gamma_lr_mult': expected a string"),
    (changed(("heads",), [[9, 0]]), GraphError, r"heads\[0\]: expected a node number below 9, got 9"),
]


@pytest.mark.parametrize(("document", "kind", "message"), WRONG)
def test_both_sides_refuse_with_one_reason(document: Any, kind: type[MXNetError], message: str) -> None:
    for read in (load, lambda graph: mx.sym.load_json(json.dumps(graph))):
        with pytest.raises(kind, match=message):
            read(document)
