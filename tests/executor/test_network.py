"""The network of an executor as data, and its drawing: blocks that repeat are folded as in the drawing of a Symbol."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import opbox as mx
from opbox_ops.backend import backend_for
from opbox_protocol.errors import LimitError
from opbox_service.executor import bind, drawing, network, variables_of
from opbox_service.executor.network import LARGEST_DRAWING
from opbox_service.graph.json import load

CPU = backend_for("cpu")


def test_blocks_that_repeat() -> None:
    net = mx.sym.Variable("data")
    for i in range(5):
        branch = mx.sym.FullyConnected(net, num_hidden=4, name=f"fc{i}")
        net = mx.sym.elemwise_add(mx.sym.Activation(branch, act_type="relu", name=f"relu{i}"), net, name=f"sum{i}")
    net = mx.sym.FullyConnected(net, num_hidden=3, name="last")
    shapes = dict(zip(net.list_arguments(), net.infer_shape(data=(2, 4))[0], strict=True))
    args = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    bound = bind(load(json.loads(net.tojson())), args=args, backend=CPU, random=CPU.random(0))
    graph, variables = bound.plan.graph, variables_of(bound.plan)
    rows = network(graph, variables)["nodes"]
    names = [[rows[number]["name"] for number in nodes] for nodes in drawn_nodes(drawing(graph, variables))]
    assert names == [["data"], *([f"{kind}{i}" for i in range(5)] for kind in ("fc", "relu", "sum")), ["last"]]
    whole = drawn_nodes(drawing(graph, variables, fold=False, parameters=True))
    assert sorted(whole) == [[number] for number in range(len(rows))]


def test_names_of_users_are_text_in_the_drawing() -> None:
    name = "<script>alert(1)</script>\"'&"
    net = mx.sym.Activation(mx.sym.Variable("data"), act_type="relu", name=name)
    args = {"data": np.zeros((2, 4), np.float32)}
    plan = bind(load(json.loads(net.tojson())), args=args, backend=CPU, random=CPU.random(0)).plan
    root = ET.fromstring(drawing(plan.graph, variables_of(plan)))
    assert not [element for element in root.iter() if element.tag.endswith("script")]
    assert name in "".join(root.itertext())


def test_a_drawing_too_large_is_refused() -> None:
    net = mx.sym.Variable("data")
    for i in range(LARGEST_DRAWING + 1):
        net = net + i
    args = {"data": np.zeros((2, 4), np.float32)}
    plan = bind(load(json.loads(net.tojson())), args=args, backend=CPU, random=CPU.random(0)).plan
    with pytest.raises(LimitError, match=f"expected at most {LARGEST_DRAWING} boxes, got {LARGEST_DRAWING + 2}"):
        drawing(plan.graph, variables_of(plan), fold=False)


def drawn_nodes(svg: str) -> list[list[int]]:
    """The numbers of the nodes that each row of a drawing stands for."""
    rows = [element.get("data-nodes") for element in ET.fromstring(svg).iter()]
    return [[int(number) for number in row.split()] for row in rows if row]
