"""The network of an executor as data to be drawn: blocks that repeat are told as the drawing of a Symbol folds them."""

from __future__ import annotations

import json

import numpy as np

import opbox as mx
from opbox_ops.backend import backend_for
from opbox_service.executor import bind, network
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
    drawn = network(bound.plan)
    (blocks,) = drawn["repeats"]
    names = [[drawn["nodes"][number]["name"] for number in block] for block in blocks]
    assert names == [[f"fc{i}", f"relu{i}", f"sum{i}"] for i in range(5)]
