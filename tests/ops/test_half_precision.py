"""float16 and bfloat16 on a CPU: float32's numbers rounded once, or oneDNN's products of bfloat16 within a rounding."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_ops import registry
from opbox_ops.accumulation import NARROW
from opbox_ops.backend import backend_for
from opbox_ops.compute import ArraySpec, CallSpec
from opbox_ops.cpu.computes import by_images, convolution, half_pointwise, half_precision, half_product
from opbox_ops.cpu.computes.half_pointwise import HalfPointwise
from opbox_ops.cpu.onednn.library import library
from opbox_ops.layout import CHANNELS_LAST
from opbox_protocol.mxnet import numpy_dtype
from opbox_service.executor import bind, invoke
from opbox_service.graph.json import load
from tests.allocations import counted
from tests.machine import has_compiler, multiplies_bfloat16
from tests.ops.convolution_layer import Layer
from tests.ops.one_call import call_graph, run_call
from tests.switches import set_c_kernels

CPU = backend_for("cpu")
Arrays = dict[str, Any]
needs_products = pytest.mark.skipif(not multiplies_bfloat16(), reason="a processor that does not multiply bfloat16")
ULP = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
"""From 1 to the next number: results that are rounded once, of sums in another order, differ by that at most."""


@dataclass(frozen=True)
class Case:
    """A call; `rounds` says that its gradient reads outputs of forward, which were rounded."""

    op: str
    shapes: tuple[tuple[int, ...], ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    rounds: bool = False


PAIR = {"kernel": (3, 3), "pad": (1, 1)}
POINT = {"kernel": (1, 1), "layout": "NHWC"}
CASES = {
    "3 x 3": Case("Convolution", ((2, 20, 9, 10), (24, 20, 3, 3), (24,)), {**PAIR, "num_filter": 24}),
    "1 x 1": Case(
        "Convolution", ((2, 32, 8, 8), (16, 32, 1, 1)), {"kernel": (1, 1), "num_filter": 16, "no_bias": True}
    ),
    "groups": Case(
        "Convolution", ((1, 8, 6, 6), (8, 2, 3, 3)), {**PAIR, "num_filter": 8, "num_group": 4, "no_bias": True}
    ),
    "channels last": Case(
        "Convolution", ((1, 6, 6, 8), (8, 3, 3, 8)), {**PAIR, "num_filter": 8, "layout": "NHWC", "no_bias": True}
    ),
    "1 x 1, channels last": Case(
        "Convolution", ((2, 8, 9, 32), (48, 1, 1, 32)), {**POINT, "num_filter": 48, "no_bias": True}
    ),
    "1 x 1 with bias": Case("Convolution", ((1, 6, 5, 24), (40, 1, 1, 24), (40,)), {**POINT, "num_filter": 40}),
    "first version": Case("Convolution_v1", ((1, 8, 6, 6), (8, 8, 3, 3), (8,)), {**PAIR, "num_filter": 8}),
    "deconvolution": Case(
        "Deconvolution", ((1, 8, 6, 6), (8, 4, 4, 4)), {"kernel": (4, 4), "stride": (2, 2), "num_filter": 4}
    ),
    "deconvolution without bias": Case(
        "Deconvolution",
        ((2, 8, 6, 6), (8, 4, 4, 4)),
        {"kernel": (4, 4), "stride": (2, 2), "num_filter": 4, "no_bias": True},
    ),
    "product": Case("FullyConnected", ((70, 96), (80, 96), (80,)), {"num_hidden": 80}),
    "one row": Case("FullyConnected", ((1, 96), (80, 96), (80,)), {"num_hidden": 80}),
    "last axis": Case("FullyConnected", ((3, 4, 9), (5, 9)), {"num_hidden": 5, "no_bias": True, "flatten": False}),
    "products": Case("batch_dot", ((4, 40, 48), (4, 48, 40))),
    "products of turned matrices": Case(
        "batch_dot", ((2, 3, 48, 40), (2, 3, 40, 48)), {"transpose_a": True, "transpose_b": True}
    ),
    "layer norm": Case("LayerNorm", ((40, 64), (64,), (64,)), rounds=True),
    "lrn": Case("LRN", ((2, 12, 9, 9),), {"nsize": 5}, rounds=True),
    "softmax": Case("softmax", ((30, 70),), {"axis": 1}, rounds=True),
    "softmax of columns": Case("log_softmax", ((30, 70),), {"axis": 0, "temperature": 2.0}, rounds=True),
    "softmax output": Case("SoftmaxOutput", ((30, 70), (30,)), rounds=True),
    "group norm": Case("GroupNorm", ((2, 8, 5, 6), (4,), (4,)), {"num_groups": 4}, rounds=True),
    "instance norm": Case("InstanceNorm", ((2, 8, 5, 6), (8,), (8,))),
    "l2": Case("L2Normalization", ((20, 30),), rounds=True),
    "mean": Case("mean", ((20, 30),), {"axis": 1}),
    "largest": Case("max", ((20, 30),), {"axis": (0, 1)}),
    "norm": Case("norm", ((20, 30),), {"axis": 0}, rounds=True),
    "dot": Case("dot", ((20, 30), (30, 20)), {"transpose_a": True, "transpose_b": True}),
    "max": Case("Pooling", ((2, 8, 9, 9),), {"kernel": (3, 3), "stride": (2, 2), "pool_type": "max"}),
}
HALVES = list(NARROW)


@contextmanager
def multiplying(*types: str) -> Iterator[None]:
    """As on a processor that multiplies these types of 16 bits alone, whatever kernels oneDNN has for this one."""
    dnnl = library()
    assert dnnl is not None, "install onednn-cpu-gomp (make test does)"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dnnl, "multiplied_types", frozenset(types))
        patch.setattr(half_product, "MAX_SMALL_MULTIPLICATIONS", 0)
        patch.setattr(half_product, "MAX_SMALL_SIDE", 0)
        half_product.half_product.cache_clear()
        yield
    half_product.half_product.cache_clear()


def arrays_of(case: Case, dtype: Any) -> dict[str, Any]:
    """Values that a number of 16 bits has."""
    rng, half = np.random.default_rng(3), numpy_dtype(dtype)
    names = registry.get(case.op).input_names(parsed(case))
    return {n: rng.normal(size=shape).astype(half) for n, shape in zip(names, case.shapes, strict=True)}


def parsed(case: Case) -> Any:
    return registry.get(case.op).parse({key: str(value) for key, value in case.attrs.items()})


def run(case: Case, arrays: dict[str, Any], dtype: Any, req: str = "write", is_train: bool = True) -> dict[str, Any]:
    graph = call_graph(case.op, case.attrs, list(arrays))

    def heads(k: int, out: Any) -> Any:
        head = np.random.default_rng(7).normal(size=out.shape).astype(numpy_dtype(dtype))
        return head.astype(out.dtype)

    return run_call(graph, arrays, list(arrays) if is_train else [], heads, req=req, is_train=is_train)


@pytest.mark.parametrize("req", ["write", "add"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_numbers_are_float32s_rounded_once(case: Case, dtype: str, req: str) -> None:
    arrays = arrays_of(case, dtype)
    with multiplying():
        results = run(case, arrays, dtype, req)
    wide = run(case, {name: array.astype(np.float32) for name, array in arrays.items()}, dtype, "write")
    for name, array in wide.items():
        got, rounded = results[name].astype("f4"), array.astype(numpy_dtype(dtype))
        if req == "add" and name.startswith("grad"):
            rounded = (rounded.astype("f4") + 2).astype(rounded.dtype)
        if case.rounds and name.startswith("grad"):
            scale = float(np.abs(array).max())  # what was rounded is a mean or a norm of many numbers
            np.testing.assert_allclose(got, rounded.astype("f4"), rtol=4 * ULP[dtype], atol=4 * ULP[dtype] * scale)
        else:
            np.testing.assert_array_equal(got, rounded.astype("f4"), err_msg=name)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_with_the_processors_products_they_are_so_within_a_rounding(case: Case, dtype: str) -> None:
    arrays = arrays_of(case, dtype)
    results = run(case, arrays, dtype)
    with multiplying():
        expected = run(case, arrays, dtype)
    for name, array in results.items():
        # Beside the rounding, sums of up to 200 products of numbers about 1, in another order.
        np.testing.assert_allclose(array.astype("f4"), expected[name].astype("f4"), rtol=ULP[dtype], atol=1e-4)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_float16_where_a_processor_multiplies_it(case: Case) -> None:
    """By oneDNN's kernels of float16, where it has some for this processor; for gradients of weights it has none."""
    arrays = arrays_of(case, "float16")
    with multiplying("float16"):
        results = run(case, arrays, "float16")
    with multiplying():
        expected = run(case, arrays, "float16")
    for name, array in results.items():
        # Beside the rounding, sums of up to 200 products of numbers about 1, in another order.
        np.testing.assert_allclose(array.astype("f4"), expected[name].astype("f4"), rtol=ULP["float16"], atol=1e-4)


def test_loops_without_vectors_are_none() -> None:
    """oneDNN 3.2 has no other kernel for the gradient of a weight in float16."""
    layer = Layer((1, 9, 9, 16), 32, stride=(1, 1))
    data, weight, out = (replace(memory, dtype="float16") for memory in layer.memories)
    kernel = convolution.backward_weight_kernel(out, data, weight, layer.window)
    assert kernel is None or not kernel.implementation.startswith("ref")


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_no_call_is_left_to_numpys_products(case: Case, dtype: str) -> None:
    """Each has a compute above the reference's, forward and gradient, with the processor's products or without."""
    if case.op in ("LayerNorm", "LRN") and not has_compiler():
        pytest.skip("no compiler: these are in C")
    arrays, half = arrays_of(case, dtype), numpy_dtype(dtype)
    graph = call_graph(case.op, case.attrs, list(arrays))
    grads = {name: np.zeros_like(array) for name, array in arrays.items()}

    def levels() -> set[str]:
        reqs = dict.fromkeys(grads, "write")
        executor = bind(graph, args=arrays, grads=grads, grad_req=reqs, backend=CPU, random=CPU.random(0))
        ops = [step for step in executor.plan.steps if step.node.op is not None]
        assert all(array.dtype == half for array in executor.outputs)
        return {step.kernel.level for step in ops if "Convolution_v1" not in str(step.node.op)}

    assert levels() <= {"library"}
    with multiplying():
        assert levels() <= {"library"}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("shape", [(2, 20, 1, 1), (2, 20, 9, 9)], ids=["one position", "many"])
def test_a_layout_that_float32_does_not_take_is_none_of_16_bits(shape: tuple[int, ...], dtype: str) -> None:
    """Deconvolution of one position is NumPy's, on arrays as they were, between others whose channels lie last."""
    x = mx.sym.Convolution(mx.sym.Variable("data", dtype=dtype), num_filter=24, kernel=(1, 1), name="before")
    for k in range(2):
        x = mx.sym.Deconvolution(x, num_filter=16, kernel=(4, 4), stride=(2, 2), pad=(1, 1), name=f"up{k}")
    x = mx.sym.mean(mx.sym.Convolution(x, num_filter=8, kernel=(1, 1), name="after"))
    shapes, _, _ = x.infer_shape(data=shape)
    rng, half = np.random.default_rng(0), numpy_dtype(dtype)
    args = {n: rng.normal(size=s).astype(half) for n, s in zip(x.list_arguments(), shapes, strict=True)}
    results = []
    for level in (None, "reference"):
        grads = {name: np.zeros_like(array) for name, array in args.items()}
        reqs = dict.fromkeys(grads, "write")
        executor = bind(
            load(json.loads(x.tojson())),
            args=args,
            grads=grads,
            grad_req=reqs,
            backend=CPU,
            random=CPU.random(0),
            level=level,
        )
        executor.forward(is_train=True)
        executor.backward([np.ones_like(executor.outputs[0])])
        results.append({"out": executor.outputs[0], **grads})
    for name, array in results[0].items():
        expected = results[1][name].astype("f4")
        scale = float(np.abs(expected).max())
        # Through four layers: each rounds once more.
        np.testing.assert_allclose(array.astype("f4"), expected, rtol=8 * ULP[dtype], atol=8 * ULP[dtype] * scale)


def network(dtype: str) -> Any:
    x = mx.sym.Cast(mx.sym.Variable("data"), dtype=dtype)
    for k in range(2):
        x = mx.sym.Convolution(x, num_filter=24, name=f"conv{k}", no_bias=True, **PAIR)
        x = mx.sym.Activation(mx.sym.BatchNorm(x, name=f"bn{k}"), act_type="relu")
    x = mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max")
    return mx.sym.FullyConnected(x, num_hidden=10, name="fc")


def bound(
    dtype: str, level: str | None = None, train: bool = True, size: int = 8
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    symbol, rng = network(dtype), np.random.default_rng(0)
    shapes, _, states = symbol.infer_shape(data=(2, 20, size, size))
    types, _, _ = symbol.infer_type(data=np.float32)
    args = {
        name: rng.normal(size=shape).astype(kind) / max(1, np.prod(shape[1:])) ** 0.5
        for name, shape, kind in zip(symbol.list_arguments(), shapes, types, strict=True)
    }
    args = {name: array.astype(kind) for (name, array), kind in zip(args.items(), types, strict=True)}
    aux = {name: np.ones(shape, np.float32) for name, shape in zip(symbol.list_auxiliary_states(), states, strict=True)}
    grads = {name: np.zeros_like(array) for name, array in args.items() if train}
    reqs = dict.fromkeys(grads, "write")
    graph = load(json.loads(symbol.tojson()))
    executor = bind(
        graph, args=args, grads=grads, grad_req=reqs, aux=aux, backend=CPU, random=CPU.random(0), level=level
    )
    return executor, args, grads


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("own", [True, False], ids=["the processor's products", "none"])
def test_a_network_with_its_channels_last(dtype: str, own: bool) -> None:
    reference, _, expected = bound(dtype, "reference")
    if own:
        executor, _, grads = bound(dtype)
    else:
        with multiplying():
            executor, _, grads = bound(dtype)
    last = [step for step in executor.plan.steps if any(s.layout == CHANNELS_LAST for s in step.call.outputs)]
    assert {"Convolution", "BatchNorm", "Pooling"} <= {step.node.op.name for step in last if step.node.op is not None}
    for one in (executor, reference):
        one.forward(is_train=True)
        one.backward([np.ones_like(out) for out in one.outputs])
    # Through eight layers: each rounds once more.
    for got, want in zip(executor.outputs, reference.outputs, strict=True):
        np.testing.assert_allclose(got.astype("f4"), want.astype("f4"), rtol=16 * ULP[dtype], atol=8 * ULP[dtype])
    for name, grad in grads.items():
        scale = float(np.abs(expected[name].astype("f4")).max())
        off = np.abs(grad.astype("f4") - expected[name].astype("f4"))
        # A number near 0 is cut off in one and not in the other: few are far off.
        assert float(np.sqrt(np.mean(off**2))) <= 8 * ULP[dtype] * scale, name


@pytest.mark.parametrize("dtype", HALVES)
def test_a_packed_weight_is_widened_when_it_has_been_written_to(dtype: str) -> None:
    with multiplying():
        executor, args, _ = bound(dtype, train=False, size=24)
    assert sum(bool(step.packed) for step in executor.plan.steps) >= 2
    weight = args["conv1_weight"]
    before = np.array(weight)
    outs = []
    for value, number in ((before, 1), (before * 2, 1), (before * 2, 2), (before, 3)):
        weight[...] = value
        executor.forward(parameters=number)
        outs.append(executor.outputs[0].astype("f4"))
    np.testing.assert_array_equal(outs[0], outs[1])
    assert not np.array_equal(outs[0], outs[2])
    np.testing.assert_array_equal(outs[0], outs[3])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["3 x 3", "deconvolution", "channels last"])
def test_images_that_leave_no_room_are_computed_one_by_one(
    name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    arrays = arrays_of(case, dtype)
    first = next(iter(arrays))
    arrays[first] = np.concatenate([arrays[first]] * 3)
    graph, results, counts = call_graph(case.op, case.attrs, list(arrays)), [], []
    with multiplying():
        for nbytes in (1 << 30, 1):
            monkeypatch.setattr(half_precision, "SCRATCH_BYTES", nbytes)
            executor = bind(graph, args=arrays, backend=CPU, random=CPU.random(0))
            executor.forward()
            results.append(executor.outputs[0].astype("f4"))
            (step,) = [step for step in executor.plan.steps if step.node.op is not None]
            counts.append(step.temps[0].shape[0])
    assert counts == [len(arrays[first]), 1]
    np.testing.assert_allclose(*results, rtol=ULP[dtype], atol=1e-4)  # sums in another order, rounded


@pytest.mark.parametrize("dtype", HALVES)
def test_images_of_no_channels(dtype: str) -> None:
    case = Case("Convolution", ((4, 0, 5, 5), (6, 0, 3, 3), (6,)), {**PAIR, "num_filter": 6})
    arrays = arrays_of(case, dtype)
    out = run(case, arrays, dtype, is_train=False)["out:0"]
    bias = list(arrays.values())[2]
    np.testing.assert_array_equal(out.astype("f4"), np.broadcast_to(bias.astype("f4")[:, None, None], out.shape))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["3 x 3", "deconvolution", "1 x 1", "product", "softmax", "max", "layer norm"])
def test_a_batch_of_none(name: str, dtype: str) -> None:
    case = CASES[name]
    arrays = arrays_of(case, dtype)
    first = next(iter(arrays))
    arrays[first] = arrays[first][:0]
    assert run(case, arrays, dtype)["out:0"].size == 0


def kernels_of(batch: int, size: int, channels: int, filters: int, stride: int = 1) -> list[Any]:
    """Of a convolution of 1 x 1 of bfloat16, its gradient of data and that of its weight."""
    layer = Layer((batch, size, size, channels), filters, (1, 1), (stride, stride), pad=(0, 0))
    data, weight, out = (replace(memory, dtype="bfloat16") for memory in layer.memories)
    return [
        convolution.forward_by_images(data, weight, None, out, layer.window),
        convolution.backward_data_kernel(out, weight, data, layer.window),
        convolution.backward_weight_kernel(out, data, weight, layer.window),
    ]


@needs_products
def test_which_convolutions_of_1_x_1_are_products() -> None:
    """Over few positions, of which the gradient of a weight wants some; never where windows jump over positions."""
    by_product = {
        "few": kernels_of(1, 14, 64, 96),
        "very few": kernels_of(1, 7, 64, 96),
        "many": kernels_of(1, 56, 64, 96),
        "jumping": kernels_of(1, 14, 64, 96, 2),
    }
    products = HalfPointwise | half_product.HalfProduct
    kinds = {name: [isinstance(kernel, products) for kernel in three] for name, three in by_product.items()}
    assert kinds == {
        "few": [True, True, True],
        "very few": [True, True, False],
        "many": [False, False, True],
        "jumping": [False, False, False],
    }


@needs_products
def test_products_of_some_images_are_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long batch is cut, and the gradient of a weight added up."""
    case = CASES["1 x 1, channels last"]
    arrays = arrays_of(case, "bfloat16")
    expected = run(case, arrays, "bfloat16")
    monkeypatch.setattr(half_pointwise, "MIN_TERMS", 1)
    monkeypatch.setattr(by_images, "MAX_PIECE_MULTIPLICATIONS", 1)
    for name, array in run(case, arrays, "bfloat16").items():
        # The two images' gradients of the weight are rounded before they are added.
        wanted = expected[name].astype("f4")
        np.testing.assert_allclose(
            array.astype("f4"), wanted, rtol=ULP["bfloat16"], atol=ULP["bfloat16"] * float(np.abs(wanted).max())
        )


@needs_products
def test_a_convolution_of_1_x_1_is_packed_for_inference() -> None:
    """Then oneDNN's convolution computes it, with the weight that it has laid out once."""
    case = CASES["1 x 1 with bias"]
    arrays = arrays_of(case, "bfloat16")
    expected = run(case, arrays, "bfloat16")["out:0"]
    graph = call_graph(case.op, case.attrs, list(arrays))
    executor = bind(graph, args=arrays, backend=CPU, random=CPU.random(0))
    assert [bool(step.packed) for step in executor.plan.steps if step.node.op is not None] == [True]
    outs, weight = [], list(arrays.values())[1]
    for number, factor in ((1, 1), (1, 2), (2, 1)):
        weight *= weight.dtype.type(factor)
        executor.forward(parameters=number)
        outs.append(executor.outputs[0].astype("f4"))
    np.testing.assert_allclose(outs[0], expected.astype("f4"), rtol=ULP["bfloat16"], atol=1e-4)
    np.testing.assert_array_equal(outs[0], outs[1])
    assert not np.array_equal(outs[1], outs[2])


@pytest.mark.parametrize("kernels", ["0", "now"])
@pytest.mark.parametrize("types", [(), ("bfloat16",)], ids=["none multiplied", "bfloat16 multiplied"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_nothing_is_allocated_in_a_run(
    case: Case, dtype: str, types: tuple[str, ...], kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_c_kernels(monkeypatch, kernels)
    arrays = arrays_of(case, dtype)
    graph = call_graph(case.op, case.attrs, list(arrays))
    grads = {name: np.zeros_like(array) for name, array in arrays.items()}
    with multiplying(*types):
        reqs = dict.fromkeys(grads, "write")
        executor = bind(graph, args=arrays, grads=grads, grad_req=reqs, backend=CPU, random=CPU.random(0))
    heads = [np.ones_like(out) for out in executor.outputs]
    for _ in range(2):
        with counted() as allocated:
            executor.forward(is_train=True)
            executor.backward(heads)
    assert not allocated


def test_a_call_with_float64_is_numpys() -> None:
    types = ("float16", "float64", "float16")
    specs = [ArraySpec(shape, np.dtype(dtype)) for shape, dtype in zip(((9, 8), (7, 8), (7,)), types, strict=True)]
    op = registry.get("FullyConnected")
    call = CallSpec("cpu", tuple(specs), (ArraySpec((9, 7), np.dtype("float16")),))
    assert op.choose(op.parse({"num_hidden": "7"}), call).level == "reference"


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    "name", ["product", "last axis", "one row", "products", "softmax", "softmax output", "dot", "max"]
)
def test_a_call_without_a_graph_gives_the_bits_of_one(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is kept, with arrays of its own, and called again with others."""
    case = CASES[name]
    arrays = arrays_of(case, dtype)
    inputs = list(arrays.values())
    for most in (0, 1 << 20):
        monkeypatch.setattr(half_precision, "MAX_COPIED_NUMBERS", most)
        for scale in (1, 2, 2, -1):
            scaled = [array * scale for array in inputs[:1]] + inputs[1:]
            expected = run(case, dict(zip(arrays, scaled, strict=True)), dtype, is_train=False)["out:0"]
            out, *_ = invoke(case.op, case.attrs, scaled, backend=CPU, random=CPU.random(0))
            assert out.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", HALVES)
def test_nan_and_infinity_stay(dtype: str) -> None:
    case = CASES["product"]
    arrays = arrays_of(case, dtype)
    first = next(iter(arrays))
    arrays[first][0, 0], arrays[first][1, 0] = np.nan, np.inf
    out = run(case, arrays, dtype, is_train=False)["out:0"].astype("f4")
    assert np.isnan(out[0]).all()
    assert not np.isfinite(out[1]).any()
    assert np.isfinite(out[2:]).all()


def test_what_is_too_large_for_float16_is_infinite() -> None:
    case = Case("FullyConnected", ((4, 64), (3, 64)), {"num_hidden": 3, "no_bias": True})
    arrays = {name: np.full_like(array, 100) for name, array in arrays_of(case, "float16").items()}
    assert np.isinf(run(case, arrays, "float16", is_train=False)["out:0"]).all()
