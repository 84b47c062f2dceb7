"""FullyConnected and its gradients by oneDNN's matmul, and in blocks: NumPy's numbers, whatever the size."""

from __future__ import annotations

import json
import weakref

import numpy as np
import pytest

import opbox as mx
from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_ops.compute import ArraySpec, CallSpec
from opbox_ops.cpu.algorithms import blocked_product
from opbox_ops.cpu.computes import product
from opbox_ops.cpu.computes.blocked_product_kernel import BlockedKernel, blocked_product_kernel
from opbox_ops.nn.shared_product import STACKED, SUMMED
from opbox_service.executor import bind, invoke
from opbox_service.graph.json import load
from tests.allocations import counted
from tests.executor.test_shared_products import HIDDEN, STEPS, WIDTH, both, merged, unrolled
from tests.machine import has_avx512_core, has_onednn, has_vector_kernels

CPU = backend_for("cpu")
NEAR = {"rtol": 1e-4, "atol": 1e-4}
"""float32: sums of up to 400 products of numbers about 1, in another order."""

pytestmark = pytest.mark.usefixtures("product_kernels")


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of every size are large ones."""
    for limit in ("MIN_MULTIPLICATIONS", "MIN_REORDERED_MULTIPLICATIONS", "MIN_SIDE", "MIN_ROWS_IN_BLOCKS"):
        monkeypatch.setattr(product, limit, 1)


CASES = {
    "plain": ((5, 6), 3, {}),
    "no bias": ((5, 6), 3, {"no_bias": True}),
    "flattened": ((4, 3, 2, 5), 7, {}),
    "last axis alone": ((4, 3, 5), 7, {"flatten": False}),
    "one row": ((1, 400), 33, {}),
    "one column": ((70, 1), 1, {}),
    "large": ((96, 300), 200, {}),
    "rows that share sets of the cache": ((24, 512), 40, {}),
}


def arrays_of(shape, hidden, attrs):
    rng = np.random.default_rng(0)
    features = shape[-1] if attrs.get("flatten") is False else int(np.prod(shape[1:]))
    shapes = {"data": shape, "weight": (hidden, features)} | ({} if attrs.get("no_bias") else {"bias": (hidden,)})
    return {name: rng.normal(size=size).astype(np.float32) for name, size in shapes.items()}


def run(args, hidden, attrs, level=None, req="write", head=None):
    """Outputs, gradients, and the levels of the steps' computes."""
    names = {name: mx.sym.Variable(name) for name in args}
    symbol = mx.sym.FullyConnected(**names, num_hidden=hidden, name="fc", **attrs)
    grads = {name: np.ones_like(array) for name, array in args.items()}
    graph, reqs = load(json.loads(symbol.tojson())), dict.fromkeys(grads, req)
    executor = bind(graph, args=args, grads=grads, grad_req=reqs, backend=CPU, random=CPU.random(0), level=level)
    executor.forward(is_train=True)
    out = executor.outputs[0].copy()
    executor.backward([np.cos(out) if head is None else head])
    return executor, out, grads


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("req", ["write", "add"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_numbers_are_those_of_the_reference(case, req):
    _, hidden, attrs = case
    args = arrays_of(*case)
    executor, out, grads = run(args, hidden, attrs, req=req)
    _, expected, others = run(args, hidden, attrs, "reference", req, np.cos(out))
    assert [step.kernel.level for step in executor.plan.steps if step.node.op is not None] == ["library"] * 2
    np.testing.assert_allclose(out, expected, **NEAR)
    for name, grad in grads.items():
        np.testing.assert_allclose(grad, others[name], **NEAR, err_msg=name)


def test_few_rows_are_for_blocks(product_kernels):
    """One row by a weight is NumPy's, and a few by its transpose; a weight's gradient has any number of terms."""
    blocks = product_kernels == "blocks"
    assert product.fast_product((1, 2048, 1000), True, True) is None
    assert (product.fast_product((2, 2048, 1000), True, True) is not None) == blocks
    assert product.fast_product((8, 1000, 2048), False, False) is None
    assert [product.weight_gradient_product(rows, 1000, 2048) is not None for rows in (1, 8)] == [blocks] * 2
    assert product.weight_gradient_product(1, 100, 2048) is None, "a small weight"


def test_the_gradient_of_a_weight_from_one_row_has_the_same_bits_everywhere(monkeypatch):
    args = arrays_of((1, 700), 600, {})
    head = np.cos(np.arange(600, dtype=np.float32))[None]
    _, _, grads = run(args, 600, {}, head=head)
    monkeypatch.setattr(product, "MIN_MULTIPLICATIONS", 1 << 60)
    executor, _, others = run(args, 600, {}, head=head)
    assert [step.kernel.level for step in executor.plan.steps if step.node.op is not None] == ["reference"] * 2
    for of_weight in (grads["weight"], others["weight"]):
        np.testing.assert_array_equal(of_weight, head.T * args["data"])


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_operator_called_by_itself_gives_the_bits_of_a_graph(case):
    _, hidden, attrs = case
    args = arrays_of(*case)
    _, out, _ = run(args, hidden, attrs)
    wide = np.zeros((*args["data"].shape[:-1], 2 * args["data"].shape[-1]), np.float32)
    strided = wide[..., ::2]
    strided[...] = args["data"]
    for data in (args["data"], args["data"], args["data"], strided, args["data"].copy()):
        inputs = [data, *list(args.values())[1:]]
        (single,) = invoke("FullyConnected", {"num_hidden": hidden, **attrs}, inputs, backend=CPU, random=CPU.random(0))
        assert np.array_equal(single, out)


@pytest.mark.parametrize("sides", [(False, True), (True, False)])
@pytest.mark.parametrize("rebound", [False, True])
def test_what_is_written_on_the_way_lives_as_long_as_the_call(sides, rebound, product_kernels):
    """A call by itself leaves nothing else that refers to its temporaries: freed, they would be another array's."""
    if product_kernels == "oneDNN":
        kernel = product.matmul_primitive((70, 33, 17), False, sides, free=not rebound)
    else:
        kernel = blocked_product_kernel((70, 33, 17), False, sides)
    temps = [np.zeros(temp.shape, temp.dtype) for temp in kernel.temps]
    temporaries = list(map(weakref.ref, temps))
    shapes = [
        shape[::-1] if transposed else shape for shape, transposed in zip(((70, 33), (33, 17)), sides, strict=True)
    ]
    a, b, out = (np.ones(shape, np.float32) for shape in (*shapes, (70, 17)))
    call = kernel.rebound(temps) if rebound else kernel.bind(temps, (a, b, out))
    del temps
    assert all(temporary() is not None for temporary in temporaries)
    call((a, b, out)) if rebound else call()
    assert np.all(out == 33)


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize(("bias", "req", "rows"), [(True, "write", 4), (False, "add", 4), (True, "write", 100)])
def test_products_that_share_a_weight(bias, req, rows):
    shapes = {"data": (rows, STEPS, WIDTH), "h": (rows, HIDDEN)}
    (shared, grads), _ = both(unrolled(bias), shapes, req=req)
    common = [step for step in shared.plan.steps if step.node.op in (STACKED, SUMMED)]
    assert {step.kernel.level for step in common} == {"library"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(product, "MIN_MULTIPLICATIONS", 1 << 60)
        (reference, expected), _ = both(unrolled(bias), shapes, req=req)
    assert {step.kernel.level for step in reference.plan.steps if step.node.op in (STACKED, SUMMED)} == {"reference"}
    for name, grad in grads.items():
        np.testing.assert_allclose(grad, expected[name], **NEAR, err_msg=name)


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("rows", [3, 127])
def test_weights_that_share_a_step(rows):
    shapes = {"data": (rows, STEPS, WIDTH), "h": (rows, HIDDEN)}
    ((_, grads), (_, expected)), common = merged(unrolled(), shapes)
    assert [(step.kernel.level, step.node.params.weights) for step in common] == [("library", 2)]
    for name, grad in grads.items():
        np.testing.assert_allclose(grad, expected[name], rtol=1e-4, atol=1e-4 * rows, err_msg=name)  # NEAR, by rows


def test_data_is_reordered_for_a_weights_gradient_where_its_rows_share_sets_of_the_cache(product_kernels):
    if product_kernels != "oneDNN":
        pytest.skip("a product in blocks copies all data")

    def is_reordered(rows, hidden, features):
        kernel = product.weight_gradient_product(rows, hidden, features)
        plain = product.matmul_primitive((hidden, rows, features), False, (True, False))
        assert kernel is not None
        assert plain is not None
        return sum(temp.shape[0] for temp in kernel.temps) > sum(temp.shape[0] for temp in plain.temps)

    assert is_reordered(256, 1024, 256)
    assert not is_reordered(128, 128, 784)
    assert not is_reordered(64, 64, 256)


def test_small_products_and_other_types_stay_with_numpy():
    op = registry.get("FullyConnected")

    def level(rows, features, hidden, dtype="float32"):
        p = op.parse({"num_hidden": str(hidden)})
        ins = [ArraySpec(shape, np.dtype(dtype)) for shape in ((rows, features), (hidden, features), (hidden,))]
        return op.choose(p, CallSpec("cpu", tuple(ins), (ArraySpec((rows, hidden), np.dtype(dtype)),))).level

    assert level(128, 784, 128) == "library"
    assert level(128, 784, 128, "float64") == "reference"
    assert level(128, 64, 10) == "reference"
    assert level(1, 25088, 4096) == "reference"


@pytest.mark.usefixtures("forced")
def test_a_run_allocates_nothing():
    executor, _, _ = run(arrays_of((64, 50), 40, {}), 40, {})
    head = [np.ones((64, 40), np.float32)]

    def step():
        executor.forward(is_train=True)
        executor.backward(head)

    step()
    with counted() as sizes:
        step()
    assert not sizes


@pytest.mark.parametrize("product_kernels", ["blocks"], indirect=True)
def test_large_gradients_of_weights_are_onednns_with_avx512(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it has kernels for that, and no matrix unit; a convolution that wants another product by oneDNN gets it."""
    if not (has_onednn() and has_avx512_core() and has_vector_kernels()):
        pytest.skip("no kernels for AVX-512, or no compiler")

    def kind(kernel: object) -> str:
        return "blocks" if isinstance(kernel, BlockedKernel) else "oneDNN"

    assert kind(product.fast_product((1024, 512, 2048), True, True)) == "blocks"
    assert kind(product.packing_kernel((1024, 512, 2048), True)) == "blocks"
    assert kind(product.packing_kernel((1024, 512, 2048), True, transposed=False)) == "blocks"
    assert kind(product.fast_product((1024, 512, 2048), True, True, in_blocks=False)) == "oneDNN"
    monkeypatch.setattr(blocked_product, "has_matrix_unit", lambda: True)
    assert kind(product.weight_gradient_product(256, 1024, 256)) == "blocks"
    monkeypatch.setattr(blocked_product, "has_matrix_unit", lambda: False)
    assert kind(product.weight_gradient_product(256, 1024, 256)) == "oneDNN"
    assert kind(product.weight_gradient_product(100, 500, 800)) == "blocks"
    monkeypatch.setattr(product, "has_fast_kernels", lambda: False)
    assert kind(product.weight_gradient_product(256, 1024, 256)) == "blocks"
