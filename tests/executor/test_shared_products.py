"""Products that share a weight: the same numbers with and without, fewer of them, and nothing that a user could see."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest

import opbox as mx
from opbox_ops.accumulation import NARROW
from opbox_ops.backend import backend_for
from opbox_ops.cpu.computes import product
from opbox_ops.nn.shared_product import ROWS, STACKED, SUMMED
from opbox_protocol.mxnet import numpy_dtype
from opbox_service.executor import bind, compile_plan
from opbox_service.executor.passes import PASSES
from opbox_service.executor.passes.packed_products import packed_products
from opbox_service.executor.passes.shared_products import GROWTH, shared_products
from opbox_service.executor.run import BoundPlan
from opbox_service.graph.json import load
from opbox_service.graph.passes.infer_shape import infer_shape

CPU = backend_for("cpu")
WITHOUT = tuple(rewrite for rewrite in PASSES if rewrite is not shared_products)
NEAR = {"rtol": 1e-4, "atol": 1e-5}
"""float32, sums of up to 60 products in another order, through six steps."""
STEPS, BATCH, WIDTH, HIDDEN = 6, 4, 5, 7


def unrolled(bias=True):
    data = mx.sym.SliceChannel(mx.sym.Variable("data"), num_outputs=STEPS, axis=1, squeeze_axis=True, name="steps")
    weights = {"weight": mx.sym.Variable("w")} | ({"bias": mx.sym.Variable("b")} if bias else {"no_bias": True})
    again = {"weight": mx.sym.Variable("v"), "no_bias": True}
    h = mx.sym.Variable("h")
    for t in range(STEPS):
        x = mx.sym.FullyConnected(data[t], num_hidden=HIDDEN, name=f"in{t}", **weights)
        h = mx.sym.tanh(x + mx.sym.FullyConnected(h, num_hidden=HIDDEN, name=f"back{t}", **again), name=f"h{t}")
    return mx.sym.MakeLoss(mx.sym.sum(h * h), name="loss")


def compiled(symbol, shapes, passes, dtype="float32", req="write", wide=False):
    """An executor and its gradients; `wide` computes in float32 with the numbers that `dtype` has."""
    graph = load(json.loads(symbol.tojson()))
    inferred = infer_shape(graph, shapes)
    rng = np.random.default_rng(0)
    args = {n.name: rng.normal(size=inferred.of(n.entries()[0])).astype(dtype) for n in graph.arguments}
    if wide:
        args = {name: array.astype("float32") for name, array in args.items()}
    reqs = req if isinstance(req, dict) else {name: req for name in args if name != "data"}
    plan = compile_plan(
        graph, {n: a.shape for n, a in args.items()}, {n: a.dtype for n, a in args.items()}, reqs, passes=passes
    )
    grads = {name: np.ones_like(args[name]) for name in reqs}
    return BoundPlan(plan, args, grads, {}, CPU, CPU.random(0)), grads


def with_growth(shared=GROWTH, packed=GROWTH):
    """The passes, two of which may let the memory that is alive at once grow by other factors."""
    factors = {shared_products: shared, packed_products: packed}
    return tuple(partial(rewrite, growth=factors[rewrite]) if rewrite in factors else rewrite for rewrite in PASSES)


def both(symbol, shapes, passes=PASSES, **options):
    executors = [compiled(symbol, shapes, of, **options) for of in (passes, WITHOUT)]
    for executor, _ in executors:
        executor.forward(is_train=True)
        executor.backward()
    return executors


def operators(executor):
    return [step.node.op.name for step in executor.plan.steps if step.node.op is not None]


SHAPES = {"data": (BATCH, STEPS, WIDTH), "h": (BATCH, HIDDEN)}


@pytest.mark.parametrize("req", ["write", "add"])
@pytest.mark.parametrize("bias", [True, False])
def test_one_product_forward_and_one_for_each_weight_gradient(bias, req):
    (shared, grads), (plain, expected) = both(unrolled(bias), SHAPES, req=req)
    names = operators(shared)
    assert names.count(STACKED.name) == 1
    assert names.count(SUMMED.name) == 2
    assert names.count("FullyConnected") == STEPS
    assert names.count("_backward_FullyConnected") == STEPS
    assert operators(plain).count("FullyConnected") == 2 * STEPS
    for _ in range(2):
        for name, array in grads.items():
            np.testing.assert_allclose(array, expected[name], **NEAR, err_msg=name)
        np.testing.assert_allclose(shared.outputs[0], plain.outputs[0], **NEAR)
        for executor in (shared, plain):
            executor.forward(is_train=True)
            executor.backward()


def test_products_of_many_rows_are_cut():
    shapes = {"data": (ROWS // 2 - 1, STEPS, WIDTH), "h": (ROWS // 2 - 1, HIDDEN)}
    (shared, grads), (plain, expected) = both(unrolled(), shapes, dtype="float64")
    assert operators(shared).count(STACKED.name) == STEPS // 2
    for name, array in grads.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-9, err_msg=name)  # float64: as NEAR, fewer bits lost
    np.testing.assert_allclose(shared.outputs[0], plain.outputs[0], rtol=1e-9)


@pytest.mark.parametrize("large", [False, True], ids=["by NumPy", "in blocks"])
@pytest.mark.parametrize("dtype", NARROW)
def test_sums_of_numbers_of_16_bits_are_float32s(dtype, large, monkeypatch):
    for limit in ("MIN_MULTIPLICATIONS", "MIN_SIDE", "MIN_ROWS_IN_BLOCKS") if large else ():
        monkeypatch.setattr(product, limit, 1)
    executors = both(unrolled(), SHAPES, dtype=numpy_dtype(dtype))
    exact = both(unrolled(), SHAPES, dtype=numpy_dtype(dtype), wide=True)[1]
    assert {STACKED.name, SUMMED.name} <= set(operators(executors[0][0]))
    assert not {STACKED.name, SUMMED.name} & set(operators(executors[1][0]))

    def error(executor, grads, name):
        array, expected = (grads[name], exact[1][name]) if name else (executor.outputs[0], exact[0].outputs[0])
        return float(np.sqrt(np.mean((array.astype("f4") - expected) ** 2)))

    for name in ("", "w", "v", "b", "h"):
        shared, plain = (error(*executor, name) for executor in executors)
        # What is not summed is rounded as often as before, in another order.
        assert shared <= 1.25 * plain, name


def test_by_numpy_alone_numbers_of_16_bits_round_after_each_step():
    graph, args = load(json.loads(unrolled().tojson())), compiled(unrolled(), SHAPES, PASSES, dtype="float16")[0]
    arrays = {name: args._external["arg", name] for name in graph.argument_names}
    executor = bind(graph, args=arrays, backend=CPU, random=CPU.random(0), level="reference")
    assert STACKED.name not in operators(executor)


def test_a_monitor_sees_every_product_in_the_order_of_the_graph():
    (shared, _), (plain, _) = both(unrolled(), SHAPES)
    seen: list[list[tuple[str, np.ndarray]]] = [[], []]
    for executor, rows in zip((shared, plain), seen, strict=True):
        executor.forward(is_train=True, monitor=lambda name, array, rows=rows: rows.append((name, array.copy())))
    assert [name for name, _ in seen[0]] == [name for name, _ in seen[1]]
    for (name, array), (_, expected) in zip(*seen, strict=True):
        np.testing.assert_allclose(array, expected, **NEAR, err_msg=name)


def test_an_output_of_the_executor_is_an_array_of_its_own():
    x, w = mx.sym.Variable("x"), mx.sym.Variable("w")
    calls = [mx.sym.FullyConnected(x * k, weight=w, no_bias=True, num_hidden=3, name=f"fc{k}") for k in (1, 2, 3)]
    group = mx.sym.Group([calls[0], calls[1] + calls[2]])
    executor, _ = compiled(group, {"x": (2, 4)}, PASSES)
    executor.forward()
    np.testing.assert_allclose(5 * executor.outputs[0], executor.outputs[1], **NEAR)


def test_the_memory_plan_stays_as_large():
    (shared, _), (plain, _) = both(unrolled(), {"data": (64, STEPS, WIDTH), "h": (64, HIDDEN)})
    assert shared.plan.memory.live_bytes <= GROWTH * plain.plan.memory.live_bytes + shared.memory.temp_bytes


def merged(symbol, shapes, **options):
    """As `both`, where memory is no matter; and the common gradients."""
    executors = both(symbol, shapes, passes=with_growth(shared=10), **options)
    return executors, [step for step in executors[0][0].plan.steps if step.node.op is SUMMED]


def with_biases():
    """A cell whose input and state have biases of their own."""
    weights = [[mx.sym.Variable(name) for name in names] for names in (("w", "b"), ("v", "d"))]
    data = mx.sym.SliceChannel(mx.sym.Variable("data"), num_outputs=STEPS, axis=1, squeeze_axis=True)
    h = mx.sym.Variable("h")
    for t in range(STEPS):
        sums = (mx.sym.FullyConnected(x, *of, num_hidden=HIDDEN) for x, of in zip((data[t], h), weights, strict=True))
        h = mx.sym.tanh(mx.sym.elemwise_add(*sums))
    return mx.sym.MakeLoss(mx.sym.sum(h * h))


@pytest.mark.parametrize("req", ["write", "add"])
@pytest.mark.parametrize("rows", [BATCH, ROWS // 2 - 1])
@pytest.mark.parametrize("symbol", [unrolled(), unrolled(bias=False), with_biases()])
def test_weights_whose_calls_have_the_same_gradients_of_outputs_share_a_step(symbol, rows, req):
    shapes = {"data": (rows, STEPS, WIDTH), "h": (rows, HIDDEN)}
    ((_, grads), (_, expected)), common = merged(symbol, shapes, dtype="float64", req=req)
    assert [step.node.params.weights for step in common] == [2]
    for name, array in grads.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-9, err_msg=name)  # float64: as NEAR, fewer bits lost


def test_gradients_that_are_not_wanted_are_left_out():
    executors, common = merged(with_biases(), SHAPES)
    assert [step.node.params.weights for step in common] == [2]
    reqs = {"w": "null", "v": "write", "b": "write", "d": "null", "h": "null"}
    wanted, _ = merged(with_biases(), SHAPES, req=reqs)
    for (_, grads), (_, expected) in zip(wanted, executors, strict=True):
        for name in ("v", "b"):
            np.testing.assert_allclose(grads[name], expected[name], **NEAR, err_msg=name)
        assert (grads["w"] == 1).all()


def test_a_gradient_that_one_weight_meets_twice_is_its_own():
    """x w + 2x w: both calls have one gradient of their outputs."""
    x, w, v = (mx.sym.Variable(name) for name in "xwv")
    calls = [mx.sym.FullyConnected(x * k, of, no_bias=True, num_hidden=3) for of in (w, v) for k in (1, 2)]
    loss = mx.sym.MakeLoss(mx.sym.sum(mx.sym.add_n(*calls)))
    ((_, grads), (_, expected)), common = merged(loss, {"x": (2, 4)})
    assert {step.node.params.weights for step in common} <= {1}
    for name, array in grads.items():
        np.testing.assert_allclose(array, expected[name], **NEAR, err_msg=name)


@pytest.mark.parametrize("req", ["write", "add"])
@pytest.mark.parametrize("order", [1, -1])
def test_a_weight_that_is_a_sum_with_another_product_s_weight(order, req):
    """x v + x (v + w): the gradient of v + w is w's too, and stays where the sum of both is v's."""
    x, v, w = (mx.sym.Variable(name) for name in "xvw")
    weights = (v, v + w)[::order]
    calls = [mx.sym.FullyConnected(x * k, of, no_bias=True, num_hidden=3) for k, of in enumerate(weights, 1)]
    loss = mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(calls[0]) + calls[1]))
    (_, grads), (_, expected) = both(loss, {"x": (2, 4)}, dtype="float64", req=req)
    for name, array in grads.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-9, err_msg=name)  # float64: as NEAR, fewer bits lost


def test_weights_that_share_a_step_do_so_where_memory_allows():
    (shared, _), (plain, _) = both(with_biases(), {"data": (64, STEPS, WIDTH), "h": (64, HIDDEN)})
    assert shared.plan.memory.live_bytes <= GROWTH * plain.plan.memory.live_bytes + shared.memory.temp_bytes
