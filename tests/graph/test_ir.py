"""Order, names and checks of Graph."""

from __future__ import annotations

import pytest

from opbox_ops import registry
from opbox_ops.node import Entry, Node
from opbox_protocol.errors import GraphError
from opbox_service.graph import Graph


def var(name):
    return Entry(Node(None, name))


def fully_connected(name, *inputs):
    op = registry.get("FullyConnected")
    attrs = {"num_hidden": "3"}
    return Entry(Node(op, name, attrs, op.parse(attrs), inputs))


def test_arguments_come_in_post_order():
    a, w1, b1, w2, b2 = (var(n) for n in ("a", "w1", "b1", "w2", "b2"))
    one = fully_connected("one", a, w1, b1)
    two = fully_connected("two", one, w2, b2)
    graph = Graph([two, one])
    assert graph.argument_names == ["a", "w1", "b1", "w2", "b2"]
    assert graph.output_names == ["two_output", "one_output"]
    assert [node.name for node in graph.nodes] == ["a", "w1", "b1", "one", "w2", "b2", "two"]
    assert graph.row_ptr == [0, 1, 2, 3, 4, 5, 6, 7]


def test_a_variable_may_be_a_head_and_a_head_may_be_there_twice():
    x = var("x")
    graph = Graph([x, x])
    assert graph.output_names == ["x", "x"]
    assert graph.argument_names == ["x"]


def test_a_deep_graph_needs_no_recursion():
    entry = var("x")
    for i in range(5000):
        entry = fully_connected(f"fc{i}", entry, var(f"w{i}"), var(f"b{i}"))
    assert len(Graph([entry]).arguments) == 10_001


def test_two_variables_of_one_name_are_refused():
    with pytest.raises(GraphError, match="argument names must differ, got 'w'"):
        Graph([fully_connected("fc", var("x"), var("w"), var("w"))])
