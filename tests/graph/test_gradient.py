"""The gradient pass: sums, lazy zeros, dead code, required head gradients."""

from __future__ import annotations

import pytest

from opbox_ops.node import Entry, Node
from opbox_ops.params import NoParams
from opbox_ops.registry import Op
from opbox_protocol.errors import UnsupportedError
from opbox_service.graph import Graph
from opbox_service.graph.passes.gradient import gradient


def op(name, inputs=("data",), outputs=("output",), rule=None, backward=False):
    definition = Op(name, NoParams, inputs, outputs, (), "")
    if rule is not None:
        definition.set_attr("FGradient", rule)
    if backward:
        definition.set_attr("TIsBackward", True)
    return definition


def var(name):
    return Entry(Node(None, name))


def call(kind, name, *inputs, forward=None):
    return Entry(Node(kind, name, {}, NoParams(), inputs, forward=forward))


def backward_of(kind, node, *inputs):
    backward = Node(kind, f"{node.name}_backward", {}, NoParams(), inputs, forward=node)
    return [Entry(backward, i) for i in range(len(node.inputs))]


LINEAR_BACK = op("_t_linear_back", ("g",), backward=True)
LINEAR = op("_t_linear", rule=lambda node, g: backward_of(LINEAR_BACK, node, g[0]))
LOSS_BACK = op("_t_loss_back", ("out",), backward=True)
LOSS = op("_t_loss", rule=lambda node, g: backward_of(LOSS_BACK, node, node.entries()[0]))
BLOCK = op("_t_block", rule=lambda node, g: [None])
PLUS = op("_t_plus", ("a", "b"), rule=lambda node, g: [g[0], g[0]])
PAIR_BACK = op("_t_pair_back", ("gl", "gr"), backward=True)
PAIR = op("_t_pair", outputs=("l", "r"), rule=lambda node, g: backward_of(PAIR_BACK, node, *g))
OPAQUE = op("_t_opaque")


def kinds(backward):
    return [node.op.name for node in backward.nodes]


def test_a_chain_is_walked_backwards():
    graph = Graph([call(LINEAR, "b", call(LINEAR, "a", var("x")))])
    backward = gradient(graph, ["x"])
    assert [node.name for node in backward.nodes] == ["b_backward", "a_backward"]
    assert backward.grads["x"].node is backward.nodes[-1]
    assert backward.needed == (0,)


def test_gradients_that_meet_are_added():
    x = var("x")
    graph = Graph([call(PLUS, "p", call(LINEAR, "a", x), call(LINEAR, "b", x))])
    backward = gradient(graph, ["x"])
    assert kinds(backward) == ["_t_linear_back", "_t_linear_back", "_grad_add"]


def test_a_loss_needs_no_head_gradient():
    assert gradient(Graph([call(LOSS, "l", var("x"))]), ["x"]).needed == ()


def test_a_loss_gives_its_gradient_behind_a_block_as_in_mxnet():
    graph = Graph([call(BLOCK, "b", call(LOSS, "l", var("x")))])
    backward = gradient(graph, ["x"])
    assert kinds(backward) == ["_t_loss_back"]
    assert backward.needed == ()


def test_nothing_flows_through_a_block():
    graph = Graph([call(BLOCK, "b", call(LINEAR, "a", var("x")))])
    backward = gradient(graph, ["x"])
    assert backward.grads == {"x": None}
    assert backward.nodes == ()


def test_a_missing_gradient_beside_a_real_one_is_zeros():
    pair = call(PAIR, "p", var("x"))
    backward = gradient(Graph([call(LINEAR, "a", Entry(pair.node, 1))]), ["x"])
    assert kinds(backward) == ["_t_linear_back", "_zero_grad", "_t_pair_back"]
    assert backward.nodes[1].inputs == (pair,)


def test_only_what_the_wanted_arguments_need_is_kept():
    graph = Graph([call(PLUS, "p", call(LINEAR, "a", var("x")), call(LINEAR, "b", var("y")))])
    assert [node.name for node in gradient(graph, ["y"]).nodes] == ["b_backward"]
    assert gradient(graph, []).nodes == ()


def test_a_head_may_be_a_variable_and_heads_may_repeat():
    x = var("x")
    backward = gradient(Graph([x, x]), ["x"])
    assert kinds(backward) == ["_grad_add"]
    assert backward.needed == (0, 1)


def test_an_operator_without_gradient_is_told():
    graph = Graph([call(LINEAR, "a", call(OPAQUE, "o", var("x")))])
    with pytest.raises(UnsupportedError, match=r"o \(_t_opaque\): the operator has no gradient: use BlockGrad"):
        gradient(graph, ["x"])
    assert gradient(Graph([call(BLOCK, "b", call(OPAQUE, "o", var("x")))]), ["x"]).grads == {"x": None}
