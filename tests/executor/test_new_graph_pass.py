"""A new graph pass takes one file and its call in compile.py: then no plan has what the pass takes out of a graph."""

from __future__ import annotations

import json
from pathlib import Path

from tests.added_source import run_with

PASS = '''
"""Without double negatives: -(-x) is x."""

from dataclasses import replace

from opbox_ops.node import Entry, Node

from opbox_service.graph.ir import Graph

__all__ = ["without_double_negatives"]


def without_double_negatives(graph: Graph) -> Graph:
    """A graph that reads x where `graph` reads the negative of its negative."""
    new: dict[Node, Node] = {}

    def instead(entry: Entry) -> Entry:
        node = new[entry.node]
        if node.op is None or node.op.name != "negative":
            return Entry(node, entry.index)
        inner = node.inputs[0].node
        return inner.inputs[0] if inner.op is not None and inner.op.name == "negative" else Entry(node)

    for node in graph.nodes:
        new[node] = replace(node, inputs=tuple(map(instead, node.inputs))) if node.inputs else node
    return Graph([instead(head) for head in graph.heads])
'''
CALL = """
from ..graph.passes.double_negatives import without_double_negatives

class _PlanCompiler(_PlanCompiler):
    def __init__(self, graph, *further):
        super().__init__(without_double_negatives(graph), *further)
"""
PROGRAM = """
import json
import opbox as mx
from opbox_service.executor.compile import compile_plan
from opbox_service.graph.json import load

x = mx.sym.Variable("x")
net = mx.sym.exp(mx.sym.negative(mx.sym.negative(x, name="first"), name="second"), name="third")
graph = load(net.tojson())
plan = compile_plan(graph, {"x": (2,)}, {}, {}, passes=())
steps = [step.node.name for step in plan.steps]

executor = net.simple_bind(mx.cpu(), x=(2,))
out = executor.forward(is_train=True, x=mx.nd.array([0, 1]))[0].asnumpy()
executor.backward(mx.nd.ones((2,)))
expected, gradient = mx.nd.exp(mx.nd.array([0, 1])).asnumpy(), executor.grad_dict["x"].asnumpy()
same = [bool((value == out).all()) for value in (expected, gradient)]
print(json.dumps([steps, [node.name for node in graph.nodes], same]))
"""
NODES = ["x", "first", "second", "third"]


def test_a_file_and_a_call_are_a_pass(tmp_path: Path) -> None:
    file = tmp_path / "double_negatives.py"
    file.write_text(PASS)
    new = {"opbox_service.graph.passes.double_negatives": file}
    steps, nodes, same = json.loads(run_with({"opbox_service.executor.compile": CALL}, new, PROGRAM))
    assert steps == ["third"]
    assert nodes == NODES, "a pass leaves the graph that it reads as it is"
    assert same == [True, True], "executors go the same way, and gradients are those of the new graph"


def test_the_pass_is_not_there_without_its_call() -> None:
    assert json.loads(run_with({}, {}, PROGRAM)) == [NODES[1:], NODES, [True, True]]
