"""Shape and type inference over whole graphs: both directions, partial, trace, errors."""

from __future__ import annotations

import numpy as np
import pytest

from opbox_ops import registry
from opbox_ops.infer import all_same_shape
from opbox_ops.node import Entry, Node
from opbox_ops.params import NoParams
from opbox_ops.registry import Op
from opbox_protocol.errors import BadRequestError, DTypeError, GraphError, ShapeError, UnderdeterminedError
from opbox_service.graph import Graph
from opbox_service.graph.json import load
from opbox_service.graph.passes.fixpoint import Rules
from opbox_service.graph.passes.infer_shape import infer_shape
from opbox_service.graph.passes.infer_type import infer_type
from tests.ops.one_call import call_graph

PLUS = Op("_test_plus", NoParams, ("lhs", "rhs"), ("output",), (), "")
PLUS.infer_shape(all_same_shape)


def mlp(layers=2, hidden=3, data_attrs=None):
    nodes = [{"op": "null", "name": "data", "attrs": data_attrs or {}, "inputs": []}]
    last = 0
    for i in range(layers):
        nodes += [{"op": "null", "name": f"fc{i}_{part}", "inputs": []} for part in ("weight", "bias")]
        attrs = {"num_hidden": str(hidden), "__source__": f"train.py:{i}"}
        inputs = [[last, 0, 0], [len(nodes) - 2, 0, 0], [len(nodes) - 1, 0, 0]]
        nodes.append({"op": "FullyConnected", "name": f"fc{i}", "attrs": attrs, "inputs": inputs})
        last = len(nodes) - 1
    version = {"mxnet_version": ["int", 10901]}
    return load({"nodes": nodes, "arg_nodes": [], "heads": [[last, 0, 0]], "attrs": version})


def chain(length):
    """x0 + x1 + … : the shape of any one settles all the others."""
    total = Entry(Node(None, "x0"))
    for i in range(1, length):
        total = Entry(Node(PLUS, f"plus{i}", {}, NoParams(), (total, Entry(Node(None, f"x{i}")))))
    return Graph([total])


def test_forwards():
    inferred = infer_shape(mlp(), {"data": (5, 7)})
    assert inferred.arg_shapes == [(5, 7), (3, 7), (3,), (3, 3), (3,)]
    assert inferred.out_shapes == [(5, 3)]
    assert inferred.complete


def test_backwards_from_the_last_argument():
    inferred = infer_shape(chain(50), {"x49": (4, 5)})
    assert set(inferred.arg_shapes) == {(4, 5)}


def test_halves_are_put_together():
    inferred = infer_shape(chain(3), {"x0": (4, -1), "x2": (-1, 5)})
    assert inferred.arg_shapes == [(4, 5)] * 3


def test_the_batch_comes_back_from_a_partial_shape():
    inferred = infer_shape(mlp(1), {"data": (-1, 7)}, partial=True)
    assert inferred.arg_shapes == [(-1, 7), (3, 7), (3,)]
    assert inferred.out_shapes == [(-1, 3)]
    assert not inferred.complete


def test_a_shape_attribute_counts_and_zero_is_unknown_there():
    graph = mlp(1, data_attrs={"__shape__": "(0, 7)"})
    assert infer_shape(graph, {"data": (5, -1)}).arg_shapes[0] == (5, 7)
    # MXNet 1.9.1: a shape that is fully known is taken before the attribute, any other after it.
    assert infer_shape(graph, {"data": (5, 8)}).arg_shapes[:2] == [(5, 8), (3, 8)]
    assert infer_shape(graph, {"data": (-1, 8)}, partial=True).arg_shapes[0] == (-1, 7)
    with pytest.raises(GraphError, match="data: expected __shape__ as a tuple of integers, got 'x'"):
        infer_shape(mlp(1, data_attrs={"__shape__": "x"}), {})


def test_an_empty_dimension_is_a_dimension():
    assert infer_shape(mlp(1), {"data": (0, 7)}).out_shapes == [(0, 3)]


def test_a_contradiction_names_the_place():
    message = r"^fc1 \(FullyConnected, train.py:1\): weight: expected \(3, 3\), got \(3, 4\)$"
    with pytest.raises(ShapeError, match=message) as caught:
        infer_shape(mlp(), {"data": (5, 7), "fc1_weight": (3, 4)})
    assert caught.value.node == "fc1"


def test_what_is_missing_and_what_would_help():
    message = r"shapes stay unknown \(first at fc0, FullyConnected, train.py:0\): data, .*; give the shape of data$"
    with pytest.raises(UnderdeterminedError, match=message):
        infer_shape(mlp(), {})


def test_a_partly_known_shape_is_shown():
    with pytest.raises(UnderdeterminedError, match=r"data \(\?, 7\); give the shape of data"):
        infer_shape(mlp(1), {"data": (-1, 7)})


def test_a_wrong_name_is_told_with_the_nearest():
    with pytest.raises(
        BadRequestError, match="'fc0_weigth' is not an argument of the graph: did you mean 'fc0_weight'"
    ):
        infer_shape(mlp(), {"fc0_weigth": (3, 7)})


def test_bad_dimensions_are_refused():
    with pytest.raises(ShapeError, match=r"data: expected dimensions of -1 \(unknown\), 0 or more, got \(-2, 3\)"):
        infer_shape(mlp(), {"data": (-2, 3)})


def test_the_trace_tells_what_each_rule_learnt():
    trace = []
    infer_shape(mlp(1), {"data": (-1, 7)}, partial=True, trace=trace)
    assert trace[0]["node"] == "fc0"
    assert trace[0]["op"] == "FullyConnected"
    assert trace[0]["source"] == "train.py:0"
    assert trace[0]["learnt"] == {"weight": [3, 7], "bias": [3], "output": [-1, 3]}
    assert trace[0]["known"] == {"data": [-1, 7]}
    assert trace[-1]["unknown"] == {"data": [-1, 7], "output": [-1, 3]}


@pytest.mark.parametrize("argument", ["x0", "x1499", "x2999"])
def test_the_work_is_linear_in_both_directions(argument, monkeypatch):
    visits, run = [], Rules.run
    monkeypatch.setattr(Rules, "run", lambda *a: (visits.append(1), run(*a))[1])
    infer_shape(chain(3000), {argument: (4, 5)})
    operators = 3000 - 1
    assert operators <= len(visits) < 4 * operators


def test_types_go_both_ways_and_default_to_float32():
    graph = chain(4)
    assert infer_type(graph, {}).arg_types == [np.float32] * 4
    assert infer_type(graph, {"x3": "float16"}).arg_types == [np.float16] * 4
    assert infer_type(graph, {}, partial=True).arg_types == [None] * 4
    # numpy takes None for float64; inference must not.
    assert infer_type(graph, {"x1": np.float64}).out_types == [np.float64]


def test_type_contradictions_name_the_place():
    with pytest.raises(
        DTypeError, match=r"fc0 \(FullyConnected, train.py:0\): weight: expected type float32, got float64"
    ):
        infer_type(mlp(1), {"data": np.float32, "fc0_weight": np.float64})
    with pytest.raises(DTypeError, match="data: expected a numpy type name, got 'floaty'"):
        infer_type(mlp(1), {"data": "floaty"})


def test_a_dtype_attribute_counts_where_the_caller_says_nothing():
    graph = mlp(1, data_attrs={"__dtype__": "2"})
    assert infer_type(graph, {}).out_types == [np.float16]
    assert infer_type(graph, {"data": "float32"}).out_types == [np.float32]
    with pytest.raises(DTypeError, match="weight: expected type float16, got float32"):
        infer_type(graph, {"fc0_weight": "float32"})


def test_a_rule_that_breaks_is_told_of_its_node():
    broken = Op("_test_broken", NoParams, ("data",), ("output",), (), "")
    broken.infer_shape(lambda p, ins, outs: outs.merge(0, ins[0][5:3:0]))
    graph = Graph([Entry(Node(broken, "b", {}, NoParams(), (Entry(Node(None, "x")),), source="a.py:3"))])
    with pytest.raises(
        ShapeError, match=r"b \(_test_broken, a.py:3\): the operator's rule failed on \[2\], None: ValueError"
    ):
        infer_shape(graph, {"x": (2,)})


@pytest.fixture
def counted():
    """An operator and the list of calls of its shape rule."""
    calls = []
    op = Op("_test_counted", NoParams, ("x",), ("output",), (), "")

    @op.infer_shape
    def _(p, ins, outs):
        calls.append(tuple(ins))
        all_same_shape(p, ins, outs)

    return op, calls


def row_of(op, length):
    entry, params = Entry(Node(None, "x")), NoParams()
    for i in range(length):
        entry = Entry(Node(op, f"n{i}", {}, params, (entry,)))
    return Graph([entry])


def test_nodes_that_are_alike_run_their_rule_once(counted):
    op, calls = counted
    assert infer_shape(row_of(op, 50), {"x": (2, 3)}).out_shapes == [(2, 3)]
    assert calls == [((2, 3),)] * len(calls)
    assert len(calls) <= 2  # before and after the output is known


def test_what_was_inferred_last_is_not_inferred_again(counted):
    op, calls = counted
    graph = row_of(op, 3)
    before = infer_shape(graph, {"x": (2, 3)})
    calls.clear()
    assert infer_shape(graph, {"x": (2, 3)}) == before
    assert not calls
    assert infer_shape(graph, {"x": (4, 3)}).out_shapes == [(4, 3)]
    assert calls


@pytest.mark.parametrize("again", [False, True], ids=["new", "inferred before"])
def test_a_given_head_is_checked_and_used(again):
    graph = mlp(1)
    graph = Graph([*graph.heads, Entry(graph.arguments[0])])
    shapes = dict(zip(graph.argument_names, [(5, 7), (3, 7), (3,)], strict=True))
    types = dict.fromkeys(shapes, "float64")
    if again:
        assert infer_shape(graph, shapes).complete
        assert infer_type(graph, types).complete
    assert infer_shape(graph, shapes, outs=[(5, -1), (-1, 7)]).out_shapes == [(5, 3), (5, 7)]
    assert infer_shape(graph, {}, outs=[(5, 3), (-1, 7)]).arg_shapes == [(5, 7), (3, 7), (3,)]
    with pytest.raises(ShapeError, match=r"fc0 \(FullyConnected.*expected \(5, 3\), got \(4, 3\)"):
        infer_shape(graph, shapes, outs=[(4, 3)])
    with pytest.raises(ShapeError, match=r"expected \(5, 6\), got \(5, 7\)"):
        infer_shape(graph, shapes, outs=[None, (5, 6)])
    assert infer_type(graph, types, outs=[np.dtype("float64")]).out_types == [np.dtype("float64")] * 2
    for outs in ([np.dtype("float32")], [None, np.dtype("float32")]):
        with pytest.raises(DTypeError, match=r"expected type float\d\d, got float\d\d"):
            infer_type(graph, types, outs=outs)


def test_an_unknown_type_is_not_taken_for_the_one_before():
    graph = mlp(1)
    assert infer_type(graph, dict.fromkeys(graph.argument_names, "float64")).out_types == [np.dtype("float64")]
    assert infer_type(graph, dict.fromkeys(graph.argument_names)).out_types == [np.dtype("float32")]


def test_parameters_of_calls_that_are_alike_are_one_object():
    calls = [node for node in mlp(3).nodes if node.op is not None]
    assert len({id(node.params) for node in calls}) == 1


@pytest.mark.parametrize(
    ("op", "attrs", "shapes", "args", "outs"),
    [
        ("Pooling", {"kernel": (2, 2)}, {}, [None], [None]),
        ("Pooling", {"kernel": (2, 2)}, {"data": (-1, 3, 8, -1)}, [(-1, 3, 8, -1)], [(-1, 3, 7, -1)]),
        ("max", {"axis": 1}, {"data": (2, -1)}, [(2, -1)], [None]),
        ("sum", {"axis": 1}, {"data": (2, -1)}, [(2, -1)], [(2,)]),
        (
            *(
                "FullyConnected",
                {"num_hidden": 5, "no_bias": True, "flatten": False},
                {"data": (2, -1), "weight": (5, 4)},
            ),
            *([(2, -1), (5, 4)], [(2, 5)]),
        ),
        ("broadcast_add", {}, {"lhs": (4, -1), "rhs": (1, 3)}, [(4, -1), (1, 3)], [(4, -1)]),
        ("batch_dot", {}, {"lhs": (2, 3, 4)}, [(2, 3, 4), None], [None]),
        ("stack", {"num_args": 2}, {"arg0": (2, 3)}, [(2, 3), None], [(2, 2, 3)]),
        ("pick", {}, {"data": (-1, 4), "index": (3,)}, [(-1, 4), (3,)], [(-1,)]),
        ("_linalg_potrf", {}, {"A": (2, -1, 3)}, [(2, -1, 3)], [(2, -1, 3)]),
        ("elemwise_add", {}, {"lhs": (4, -1), "rhs": (-1, 3)}, [(4, 3), (4, 3)], [(4, 3)]),
    ],
)
def test_as_much_as_mxnet_infers_in_part(op, attrs, shapes, args, outs):
    names = registry.get(op).input_names(registry.get(op).parse({key: str(value) for key, value in attrs.items()}))
    inferred = infer_shape(call_graph(op, attrs, names), shapes, partial=True, as_mxnet=True)
    assert (inferred.arg_shapes, inferred.out_shapes) == (args, outs)


def test_a_label_that_contradicts_is_refused_in_part_too():
    graph = call_graph("SVMOutput", {}, ["data", "label"])
    with pytest.raises(ShapeError, match=r"label: expected \(5,\), got \(4,\)"):
        infer_shape(graph, {"data": (5, -1), "label": (4,)}, partial=True, as_mxnet=True)
