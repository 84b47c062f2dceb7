"""BatchNorm and ReLU as the last steps of a convolution: the bits of two steps, and only where they alone read it."""

from __future__ import annotations

import json

import numpy as np
import pytest

import opbox as mx
from opbox_ops.cpu.algorithms import blocked_product as products_in_blocks
from opbox_ops.cpu.algorithms import norm_numbers as module
from opbox_ops.cpu.algorithms import winograd as tiled_convolutions
from opbox_ops.cpu.algorithms.norm_numbers import norm_numbers
from opbox_ops.cpu.algorithms.norm_sweeps import BLOCK
from opbox_ops.cpu.computes import blocked_product_kernel, product, winograd_convolution
from opbox_ops.cpu.runtime import c_compiler
from opbox_ops.nn.batch_norm import BatchNormParams
from opbox_ops.nn.normalized_convolution import NORMALIZED_CONVOLUTION
from opbox_service.executor import compile_plan
from opbox_service.executor.passes import PASSES
from opbox_service.executor.passes.normalized_convolutions import normalized_convolutions
from opbox_service.executor.run import BoundPlan
from opbox_service.graph.json import load
from opbox_service.graph.passes.infer_shape import infer_shape
from tests.allocations import counted
from tests.executor.test_parts import CPU, operators
from tests.machine import needs_onednn, needs_vectors
from tests.vectors_of_8 import with_vectors_of_8

WITHOUT = tuple(rewrite for rewrite in PASSES if rewrite is not normalized_convolutions)
SHAPES = {"data": (2, 32, 7, 9)}
BLOCK_BYTES = 2 * 4 * BLOCK
"""What BatchNorm by a batch works in, beside data and out of the convolution: a block of rows, and its sums."""
KINDS = {
    "3 x 3": {},
    "1 x 1": {"kernel": 1, "filters": 44},
    "1 x 1 of narrow panels": {"kernel": 1, "filters": 16},
    "1 x 1 with stride": {"kernel": 1, "stride": (2, 2)},
    "1 x 1 of many terms": {"kernel": 1, "filters": 80, "shape": (2, 1040, 3, 5)},
    "3 x 3 of many tiles": {"shape": (2, 32, 33, 33)},
    "5 x 5": {"kernel": 5},
    "5 x 5 of many tiles, filters that fill no vector": {"kernel": 5, "filters": 50, "shape": (2, 20, 33, 33)},
}

pytestmark = [needs_onednn, needs_vectors]


@pytest.fixture(autouse=True)
def _of_every_size(monkeypatch):
    """Whatever the kernels would take they compute."""
    for limit in ("MIN_MULTIPLICATIONS", "MIN_SIDE", "MIN_ROWS_IN_BLOCKS"):
        monkeypatch.setattr(product, limit, 1)
    monkeypatch.setattr(winograd_convolution, "WORTH", 1e9)


def convolved(data, name, kernel=3, filters=32, **attrs):
    return mx.sym.Convolution(
        data, kernel=(kernel, kernel), pad=(kernel // 2, kernel // 2), num_filter=filters, name=name, **attrs
    )


def normalized(x, name, **attrs):
    return mx.sym.Activation(mx.sym.BatchNorm(x, name=f"{name}_norm", **attrs), act_type="relu", name=f"{name}_relu")


def network(norm=None, last=None, **attrs):
    """A convolution, which keeps its channels last, behind one with BatchNorm and ReLU of a kind."""
    x = normalized(convolved(mx.sym.Variable("data"), "one", **attrs), "one", **(norm or {}))
    return last(x) if last else convolved(x, "two", 1, 32)


def compiled(symbol, passes=PASSES, shapes=SHAPES, req="null"):
    """An executor whose statistics are no round numbers, and its auxiliary states."""
    graph = load(json.loads(symbol.tojson()))
    inferred = infer_shape(graph, shapes)
    rng = np.random.default_rng(0)
    args = {n.name: rng.normal(size=inferred.of(n.entries()[0])).astype(np.float32) for n in graph.arguments}
    aux = {
        name: rng.uniform(0.5, 1.5, size=shape).astype(np.float32)
        for name, shape in zip(graph.auxiliary_names, inferred.aux_shapes, strict=True)
    }
    arrays = {**args, **aux}
    kinds = {n: a.shape for n, a in arrays.items()}, {n: a.dtype for n, a in arrays.items()}
    plan = compile_plan(graph, *kinds, dict.fromkeys(args, req), passes=passes)
    grads = {name: np.ones_like(array) for name, array in args.items()} if req != "null" else {}
    return BoundPlan(plan, args, grads, aux, CPU, CPU.random(0)), aux


def joined(executor):
    return operators(executor).count(NORMALIZED_CONVOLUTION.name)


def both(*args, **options):
    (tested, states), (plain, others) = (compiled(*args, passes=passes, **options) for passes in (PASSES, WITHOUT))
    assert not joined(plain)
    return tested, plain, states, others


@pytest.mark.parametrize("kernels", ["0", "now"])
@pytest.mark.parametrize("is_train", [False, True], ids=["moving", "batch"])
@pytest.mark.parametrize("norm", [{"fix_gamma": False, "eps": 0.01}, {}, {"use_global_stats": True}], ids=str)
@pytest.mark.parametrize("no_bias", [False, True], ids=["bias", "no bias"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_bits_of_two_steps(monkeypatch, kind, no_bias, norm, is_train, kernels):
    if kernels == "0":
        monkeypatch.setattr("opbox_ops.cpu.algorithms.norm_sweeps._KERNELS", {name: _NeverReady() for name in _NAMES})
    attrs = dict(KINDS[kind])
    shapes = {"data": attrs.pop("shape", SHAPES["data"])}
    tested, plain, states, others = both(network(norm, no_bias=no_bias, **attrs), shapes=shapes)
    assert joined(tested) == 1
    assert tested.memory.arena_bytes <= plain.memory.arena_bytes + BLOCK_BYTES
    for parameters in (None, 1, 1, 2):
        for executor in (tested, plain):
            executor.forward(is_train=is_train, parameters=parameters)
        np.testing.assert_array_equal(tested.outputs[0], plain.outputs[0])
        assert np.ptp(plain.outputs[0]) > 0
        for name, array in states.items():
            np.testing.assert_array_equal(array, others[name])
        for executor, aux in ((tested, states), (plain, others)):
            for array in aux.values():
                array *= np.float32(1.25)
            if parameters != 1:
                executor._external["arg", "one_weight"][...] *= -1
    for key in (("arg", "one_norm_gamma"), ("arg", "one_norm_beta")):
        np.testing.assert_array_equal(tested._external[key], plain._external[key])


_NAMES = ("opbox_norm_forward", "opbox_norm_backward")


class _NeverReady:
    """A kernel that is never compiled: NumPy computes."""

    def asked_by(self, work):
        return lambda: None


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_a_number_stays(kind):
    attrs = dict(KINDS[kind])
    shapes = {"data": attrs.pop("shape", SHAPES["data"])}
    relu = network({"fix_gamma": False}, last=lambda x: convolved(x, "two", 1, 32, no_bias=True), **attrs)
    tested, plain, *_ = both(relu, shapes=shapes)
    for executor in (tested, plain):
        data = executor._external["arg", "data"]
        data[0, 0, 2, 2], data[0, 1, 1, 4] = np.nan, np.inf
        executor.forward()
    np.testing.assert_array_equal(tested.outputs[0], plain.outputs[0])
    assert np.isnan(tested.outputs[0][0]).any()
    assert not np.isnan(tested.outputs[0][1]).any()


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_of_8(monkeypatch, kind):
    """What a processor with AVX2 alone computes: of filters that are no multiple of 16, too."""
    products = products_in_blocks.compiled(with_vectors_of_8(products_in_blocks.TEXT))
    tiles = {taps: tiled_convolutions.compiled(with_vectors_of_8(tiled_convolutions.TEXT), taps) for taps in (3, 5)}
    assert {kernel.width for kernel in tiles.values()} == {8}
    for of in (product, blocked_product_kernel):
        monkeypatch.setattr(of, "blocked_product", lambda: products)
    monkeypatch.setattr(winograd_convolution, "winograd", tiles.get)
    attrs = {**KINDS[kind], "filters": 40}
    shapes = {"data": attrs.pop("shape", SHAPES["data"])}
    tested, plain, *_ = both(network({"fix_gamma": False}, **attrs), shapes=shapes)
    assert joined(tested) == (attrs.get("kernel", 3) > 1)  # panels of 48 columns: 1 x 1 is left to oneDNN
    for executor in (tested, plain):
        executor.forward()
    np.testing.assert_array_equal(tested.outputs[0], plain.outputs[0])


def test_a_chain_is_joined_and_allocates_nothing():
    x = mx.sym.Variable("data")
    for i, kind in enumerate(({}, {"kernel": 1}, {}, {"kernel": 1, "filters": 64})):
        x = normalized(convolved(x, f"conv{i}", **kind), f"conv{i}")
    tested, plain, *_ = both(convolved(x, "last", 1))
    assert joined(tested) == 4
    assert "_normalized_relu" not in operators(tested)
    for executor in (tested, plain):
        executor.forward()
    np.testing.assert_array_equal(tested.outputs[0], plain.outputs[0])
    with counted() as sizes:
        tested.forward()
    assert not sizes


def test_a_monitor_sees_all_steps():
    seen = []
    for executor in both(network())[:2]:
        shown = {}
        executor.forward(monitor=lambda name, array, to=shown: to.update({name: array.copy()}))
        seen.append(shown)
    assert list(seen[0]) == list(seen[1])
    assert {"one_output", "one_norm_output", "one_relu_output"} <= seen[0].keys()
    for name, array in seen[0].items():
        np.testing.assert_array_equal(array, seen[1][name], err_msg=name)


def with_statistics():
    """A network that gives the mean of BatchNorm too."""
    norm = mx.sym.BatchNorm(convolved(mx.sym.Variable("data"), "one"), name="norm", output_mean_var=True)
    relu = mx.sym.Activation(norm[0], act_type="relu", name="relu")
    return mx.sym.Group([convolved(relu, "two", 1), norm[1]])


BEHIND = network()


def read_twice(x):
    return convolved(x, "two", 1, 32) + convolved(x, "three", 1, 32)


@pytest.mark.parametrize(
    ("symbol", "req"),
    [
        (network(), "write"),
        (with_statistics(), "null"),
        (mx.sym.Group([BEHIND, BEHIND.get_internals()["one_output"]]), "null"),
        (network(kernel=7), "null"),
        (network(num_group=2), "null"),
        (convolved(mx.sym.BatchNorm(convolved(mx.sym.Variable("data"), "one"), name="norm"), "two", 1), "null"),
    ],
    ids=["training", "statistics", "read by others", "another kernel", "groups", "no ReLU"],
)
def test_what_stays_apart(symbol, req):
    assert not joined(compiled(symbol, req=req)[0])


def test_joined_where_the_sum_of_two_reads_it():
    tested, plain, *_ = both(network(last=read_twice))
    assert joined(tested) == 1
    for executor in (tested, plain):
        executor.forward()
    np.testing.assert_array_equal(tested.outputs[0], plain.outputs[0])


@pytest.mark.parametrize("fixed", [False, True], ids=["gamma", "fixed gamma"])
@pytest.mark.parametrize("channels", [1, 16, 37])
def test_numbers(monkeypatch, channels, fixed):
    """By C and by NumPy, to the same bits; what is beyond the channels stays."""
    rng, results = np.random.default_rng(0), []
    arrays = [rng.uniform(0.5, 2, channels).astype(np.float32) for _ in range(4)]
    for function in (c_compiler.compiled_function, lambda *_: None):
        monkeypatch.setattr(module, "compiled_function", function)
        inputs, numbers = [array.copy() for array in arrays], np.full((3, 48), 7, np.float32)
        norm_numbers(BatchNormParams(eps=0.01, fix_gamma=fixed), inputs, numbers)()
        assert (numbers[:, channels:] == 7).all()
        results.append((numbers, inputs[0]))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
    numbers, gamma = results[0]
    np.testing.assert_array_equal(gamma, arrays[0])
    expected = [arrays[2], (1 if fixed else gamma) / np.sqrt(arrays[3].astype(np.float64) + 0.01), arrays[1]]
    np.testing.assert_allclose(numbers[:, :channels], expected, rtol=1e-6)  # rounded four times


def test_no_kernel_for_sweeps_leaves_two_steps(monkeypatch):
    monkeypatch.setattr(c_compiler, "has_kernels", lambda: False)
    assert not joined(compiled(network())[0])
