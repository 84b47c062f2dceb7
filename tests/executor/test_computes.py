"""Several computes for one operator: which runs, on what, and with whose temporaries; and the passes over a plan."""

from __future__ import annotations

import numpy as np
import pytest

from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_ops.compute import ArraySpec, CallSpec, Kernel, OpReq, Temp
from opbox_ops.infer import all_same_shape
from opbox_ops.node import Entry, Node
from opbox_ops.params import NoParams
from opbox_ops.registry import Op
from opbox_protocol.errors import BadRequestError, ConflictError, UnsupportedError
from opbox_service.executor import bind, compile_plan, invoke
from opbox_service.executor.passes import PASSES
from opbox_service.graph import Graph

from . import toy_ops as toy

CPU = backend_for("cpu")


def triple(*levels, accepts=None):
    """3 * data + the level's number, so that the result tells which compute ran: 0, 1, 2 by level."""
    op = Op("_toy_triple", NoParams, ("data",), ("output",), (), "")
    op.infer_shape(all_same_shape)
    for number, level in enumerate(("reference", "library", "generated")):
        if level in levels:

            @op.compute("cpu", level=level, accepts=accepts if number else None)
            def _(p, ctx, inputs, outputs, number=number):
                outputs[0][...] = 3 * inputs[0] + number

    return op


def ran(op, array, level=None):
    """The number of the level that ran, imperatively and in a graph."""
    (out,) = invoke(op, {}, [array], backend=CPU, random=CPU.random(0), level=level)
    graph = Graph([toy.call(op, "t", toy.var("x"))])
    executor = bind(graph, args={"x": array}, backend=CPU, random=CPU.random(0), level=level)
    executor.forward()
    np.testing.assert_array_equal(out, executor.outputs[0])
    return int(out.flat[0] - 3 * array.flat[0])


def test_the_highest_level_runs():
    assert ran(triple("reference"), np.ones(2)) == 0
    assert ran(triple("reference", "library"), np.ones(2)) == 1
    assert ran(triple("reference", "library", "generated"), np.ones(2)) == 2


def test_a_level_may_be_forced():
    op = triple("reference", "library", "generated")
    for number, level in enumerate(("reference", "library", "generated")):
        assert ran(op, np.ones(2), level) == number
    assert ran(triple("reference"), np.ones(2), "generated") == 0
    with pytest.raises(BadRequestError, match="expected one of reference, library, generated, got 'fastest'"):
        ran(op, np.ones(2), "fastest")


def test_what_does_not_accept_a_call_is_passed_over():
    def of_floats(p, call):
        return call.inputs[0].dtype == np.float32 and call.inputs[0].shape[0] % 8 == 0

    op = triple("reference", "library", accepts=of_floats)
    assert ran(op, np.ones(8, "f")) == 1
    assert ran(op, np.ones(8)) == 0
    assert ran(op, np.ones(7, "f")) == 0


def test_nothing_accepts_the_call():
    op = triple("library", accepts=lambda p, call: call.inputs[0].dtype == np.float32)
    with pytest.raises(
        UnsupportedError, match=r"_toy_triple: none of the operator's computes for device 'cpu' takes float64 \(2,\)"
    ):
        ran(op, np.ones(2))
    with pytest.raises(UnsupportedError, match=r"t \(_toy_triple, toy.py:1\): none of"):
        compile_plan(Graph([toy.call(op, "t", toy.var("x"))]), {"x": (2,)}, {"x": np.float64}, {})


def test_another_layout_needs_a_compute_that_accepts_it():
    op = triple("reference", "library", accepts=lambda p, call: call.inputs[0].layout == "blocked")
    blocked = ArraySpec((2, 3), np.dtype("f"), "blocked")
    plain = ArraySpec((2, 3), np.dtype("f"))
    assert op.choose(NoParams(), CallSpec("cpu", (blocked,), (blocked,))).level == "library"
    assert op.choose(NoParams(), CallSpec("cpu", (plain,), (plain,))).level == "reference"
    with pytest.raises(UnsupportedError):
        op.choose(NoParams(), CallSpec("cpu", (blocked,), (blocked,)), "reference")


def test_a_compute_joins_from_another_file():
    op = registry.register("_test_levels")
    try:
        op.compute()(lambda p, ctx, inputs, outputs: None)
        registry.extend("_test_levels").compute("cpu", level="library", accepts=lambda p, call: True)(
            lambda p, ctx, inputs, outputs: None
        )
        assert [compute.level for compute in op.computes("cpu")] == ["library", "reference"]
        assert op.json()["levels"] == {"cpu": ["library", "reference"], "gpu": ["reference"]}
        with pytest.raises(ConflictError, match="a reference compute for 'cpu' takes every call already"):
            op.compute("cpu")(lambda p, ctx, inputs, outputs: None)
        op.compute("cpu", level="library")(lambda p, ctx, inputs, outputs: None)
        assert len(op.computes("cpu")) == 3
    finally:
        registry.unregister("_test_levels")


def tripled(p, ctx, inputs, outputs):
    return lambda: np.multiply(inputs[0], 3, out=outputs[0])


def test_a_kernel_is_chosen_once_for_calls_that_are_alike():
    op, asked = triple("reference"), []

    @op.kernel("cpu", level="library", allocates="a reason")
    def _(p, call):
        asked.append(call)
        return Kernel(tripled, (Temp((5,)),)) if call.inputs[0].dtype == np.float32 else None

    entry, params = toy.var("x"), NoParams()
    for number in range(4):
        entry = Entry(Node(op, f"t{number}", {}, params, (entry,)))
    executor = bind(Graph([entry]), args={"x": np.ones(2, "f")}, backend=CPU, random=CPU.random(0))
    for _ in range(2):
        executor.forward()
    np.testing.assert_array_equal(executor.outputs[0], np.full(2, 81, "f"))
    assert len(asked) == 1
    (kernel,) = {step.kernel for step in executor.plan.steps}
    assert (kernel.level, kernel.allocates, kernel.temps) == ("library", "a reason", (Temp((5,)),))
    assert op.find_kernel(params, asked[0], "reference").level == "reference"
    assert ran(op, np.ones(2)) == 0  # of float64, which it does not take


def test_a_compute_that_is_asked_last():
    op = triple("reference")
    op.kernel("cpu", level="library", last=True)(lambda p, call: Kernel(tripled))
    op.kernel("cpu", level="library")(lambda p, call: Kernel.of(lambda p, ctx, inputs, outputs: None))
    call = CallSpec("cpu", (ArraySpec((2,), np.dtype("f")),), (ArraySpec((2,), np.dtype("f")),))
    assert op.choose(NoParams(), call).bind is not tripled
    assert op.computes("cpu")[1].choose(NoParams(), call).bind is tripled


def test_a_choice_takes_parameters_and_call():
    with pytest.raises(ConflictError, match=r"expected a kernel's choice of 2 arguments \(p, call\), got one of 1"):
        triple("reference").kernel("cpu")(lambda call: None)
    with pytest.raises(
        ConflictError, match=r"expected a compute of 4 arguments \(p, ctx, inputs, outputs\), got one of 2"
    ):
        triple("reference").compute("cpu", level="library")(lambda p, call: None)


def test_temporaries_are_those_of_the_compute_that_runs():
    op = triple("reference")
    seen = []

    @op.compute("cpu", level="library", temps=lambda p, call: [Temp(call.outputs[0].shape, np.int16)])
    def _(p, ctx, inputs, outputs):
        seen.append([(temp.shape, temp.dtype) for temp in ctx.temp])
        ctx.temp[0][...] = 1
        np.add(3 * inputs[0], ctx.temp[0], out=outputs[0])

    assert ran(op, np.ones(4)) == 1
    assert seen == [[((4,), np.dtype(np.int16))]] * 2
    graph = Graph([toy.call(op, "t", toy.var("x"))])
    options = {"args": {"x": np.ones(4)}, "backend": CPU, "random": CPU.random(0)}
    assert bind(graph, **options).memory.temp_bytes == 8
    assert bind(graph, **options, level="reference").memory.temp_bytes == 0


def test_a_prepared_call_is_made_once_for_an_executor():
    op = Op("_toy_prepared", NoParams, ("data",), ("output",), (), "")
    op.infer_shape(all_same_shape)
    prepared = []

    @op.compute(prepares=True)
    def _(p, ctx, inputs, outputs):
        prepared.append(outputs[0])
        return lambda: np.negative(inputs[0], out=outputs[0])

    x = np.ones(2)
    executor = bind(Graph([toy.call(op, "t", toy.var("x"))]), args={"x": x}, backend=CPU, random=CPU.random(0))
    for value in (1, 2, 3):
        x[...] = value
        executor.forward()
        assert executor.outputs[0].tolist() == [-value, -value]
    assert len(prepared) == 1
    assert invoke(op, {}, [x], backend=CPU, random=CPU.random(0))[0].tolist() == [-3, -3]


def test_what_is_unwanted_is_none_and_a_request_is_told():
    back = Op("_toy_watch_back", NoParams, ("a", "b"), ("ga", "gb"), (), "").set_attr("TIsBackward", True)
    pair = Op("_toy_pair", NoParams, ("a", "b"), ("output",), (), "")
    pair.infer_shape(all_same_shape)
    pair.compute()(lambda p, ctx, inputs, outputs: np.copyto(outputs[0], inputs[0]))
    pair.gradient(lambda node, ograds: toy._grad(back, node, *node.inputs))
    seen = []

    @back.compute(accumulates=True)
    def _(p, ctx, inputs, outputs):
        seen.append(([out is None for out in outputs], ctx.req))

    graph = Graph([toy.call(pair, "p", toy.var("x"), toy.var("y"))])
    args = {"x": np.ones(2), "y": np.ones(2)}
    executor = bind(graph, args=args, grads={"y": np.ones(2)}, grad_req={"y": "add"}, backend=CPU, random=CPU.random(0))
    executor.forward(is_train=True)
    executor.backward()
    assert seen == [([True, False], (OpReq.NULL, OpReq.ADD))]


def test_passes_rewrite_a_plan_before_its_memory_is_planned():
    x = toy.var("x")
    graph = Graph([toy.call(toy.MUL, "m", x, toy.call(toy.NEG, "n", x))])
    arguments = (graph, {"x": (2,)}, {"x": np.float64}, {"x": "write"})
    seen = []

    def note(plan):
        assert plan.memory is None
        seen.append([step.node.name for step in plan.steps])
        return plan

    plan = compile_plan(*arguments, passes=(note, *PASSES, note))
    before, after = seen
    assert "grad of x" in before
    assert "grad of x" not in after
    assert [name for name in before if name != "grad of x"] == after
    assert plan.values[plan.steps[0].writes[0]].spec == ArraySpec((2,), np.dtype("f8"), "plain")
    assert compile_plan(*arguments, passes=()).memory.arena_bytes >= plan.memory.arena_bytes
