"""Regions of channels last on the pretend device: the plain plan's numbers, few reorders, nothing that a user sees."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import opbox as mx
from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_ops.compute import PLAIN, ArraySpec, CallSpec, Mode, OpContext, highest_level
from opbox_ops.cuda.channel_rows import MAX_SLICES, slices_of
from opbox_ops.layout import CHANNELS_LAST, logical, physical_shape
from opbox_ops.nn import batch_norm, pooling
from opbox_service.executor import bind, compile_plan, invoke
from opbox_service.executor.copying import reorder_step
from opbox_service.executor.passes import PASSES
from opbox_service.executor.passes.channels_last import channels_last
from opbox_service.executor.plan import Plan, Value
from opbox_service.executor.run import BoundPlan
from opbox_service.graph.json import load
from opbox_service.graph.passes.infer_shape import infer_shape
from opbox_service.graph.passes.infer_type import infer_type
from tests.switches import switch, switch_off

from .spy import watched

registry.load()  # the families' files add their computes
WITHOUT = tuple(rewrite for rewrite in PASSES if rewrite is not channels_last)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
HALF = np.dtype(np.float16)
SINGLE = np.dtype(np.float32)
NEAR = {HALF: 4e-3, BFLOAT16: 3e-2, SINGLE: 2e-3}
"""Of the largest number of an array: some rounds of half precision, bfloat16, or TF32, which have 11, 8 and 11 bits."""


def lenet() -> Any:
    x = mx.sym.Convolution(mx.sym.Variable("data"), kernel=(5, 5), num_filter=8, name="conv1")
    x = mx.sym.Pooling(mx.sym.Activation(x, act_type="tanh"), kernel=(2, 2), stride=(2, 2), pool_type="max", name="p1")
    x = mx.sym.Convolution(x, kernel=(3, 3), num_filter=16, name="conv2")
    x = mx.sym.Pooling(mx.sym.Activation(x, act_type="tanh"), kernel=(2, 2), stride=(2, 2), pool_type="avg", name="p2")
    x = mx.sym.Activation(mx.sym.FullyConnected(mx.sym.Flatten(x), num_hidden=12, name="fc1"), act_type="tanh")
    return mx.sym.FullyConnected(x, num_hidden=5, name="fc2")


def normed(x: Any, name: str, **attrs: Any) -> Any:
    x = mx.sym.Convolution(x, no_bias=True, name=name, **attrs)
    return mx.sym.BatchNorm(x, fix_gamma=False, name=f"{name}_norm")


def block(x: Any, name: str, filters: int, stride: int) -> Any:
    y = normed(x, f"{name}_a", kernel=(3, 3), pad=(1, 1), stride=(stride, stride), num_filter=filters)
    y = normed(mx.sym.Activation(y, act_type="relu"), f"{name}_b", kernel=(1, 1), num_filter=filters)
    if stride > 1:
        x = normed(x, f"{name}_short", kernel=(1, 1), stride=(stride, stride), num_filter=filters)
    return mx.sym.Activation(y + x, act_type="relu", name=f"{name}_relu")


def resnet() -> Any:
    x = normed(mx.sym.Variable("data"), "first", kernel=(3, 3), pad=(1, 1), num_filter=40)
    x = mx.sym.Activation(x, act_type="relu")
    x = mx.sym.Pooling(x, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="max", name="pool0")
    x = block(block(x, "one", 40, 1), "two", 8, 2)
    x = mx.sym.Pooling(x, global_pool=True, kernel=(7, 7), pool_type="avg", name="pool1")
    return mx.sym.FullyConnected(mx.sym.Flatten(x), num_hidden=5, name="fc")


def head_within_the_region() -> Any:
    x = mx.sym.Convolution(mx.sym.Variable("data"), kernel=(3, 3), num_filter=8, name="a")
    return mx.sym.Group(
        [mx.sym.relu(x), mx.sym.sum(mx.sym.Convolution(x, kernel=(2, 2), num_filter=4, name="b"), axis=1)]
    )


def three_dimensions() -> Any:
    x = mx.sym.Convolution(mx.sym.Variable("data"), kernel=(2, 2, 2), num_filter=4, num_group=1, name="a")
    return mx.sym.Pooling(mx.sym.relu(x), kernel=(2, 2, 2), pool_type="lp", p_value=2, name="pool")


NETWORKS = {
    lenet: (2, 1, 20, 18),
    resnet: (2, 3, 14, 12),
    head_within_the_region: (2, 3, 8, 6),
    three_dimensions: (2, 3, 5, 6, 5),
}
"""And the shape of the data. LeNet's is one where no window has two largest values that a rounding decides between."""


def bound(network: Any, dtype: Any, passes: Any = PASSES, req: str = "write") -> Any:
    """A bound plan on the device, and its arrays by name."""
    backend = backend_for("gpu:0")
    with mx.name.NameManager():
        graph = load(json.loads(network().tojson()))
    shapes = infer_shape(graph, {"data": NETWORKS[network]})
    types = infer_type(graph, {"data": dtype})
    rng = np.random.default_rng(3)
    names = [*graph.argument_names, *graph.auxiliary_names]
    sizes = dict(zip(names, [*shapes.arg_shapes, *shapes.aux_shapes], strict=True))
    kinds = dict(zip(names, [*types.arg_types, *types.aux_types], strict=True))
    args = {n: backend.put((rng.normal(size=sizes[n]) / 3).astype(kinds[n])) for n in graph.argument_names}
    grads = {n: backend.put(np.full(sizes[n], 0.5, kinds[n])) for n in graph.argument_names}
    aux = {n: backend.put(np.ones(sizes[n], kinds[n])) for n in graph.auxiliary_names}
    plan = compile_plan(graph, sizes, kinds, dict.fromkeys(grads, req), passes=passes, device="gpu")
    executor = BoundPlan(plan, args, grads, aux, backend, backend.random(0))
    return executor, {**{f"gradient of {n}": g for n, g in grads.items()}, **aux}


def run(network: Any, dtype: Any, passes: Any = PASSES, *, times: int = 3, req: str = "write") -> Any:
    """The plan that ran, and what it left: outputs, gradients, states."""
    backend = backend_for("gpu:0")
    executor, arrays = bound(network, dtype, passes, req)
    heads = [backend.put(np.ones(out.shape, out.dtype)) for out in executor.outputs]
    for _ in range(times):
        executor.forward(is_train=True)
        executor.backward(heads)
    arrays |= {f"output {k}": out for k, out in enumerate(executor.outputs)}
    return executor.plan, {name: backend.get(array).astype("f") for name, array in arrays.items()}


def reorders(plan: Any) -> list[Any]:
    """The shapes that are reordered, with their layout before."""
    return [
        (step.call.inputs[0].shape, step.call.inputs[0].layout)
        for step in plan.steps
        if step.node.op is None and step.call.inputs and step.call.inputs[0].layout != step.call.outputs[0].layout
    ]


def inside(plan: Any) -> list[str]:
    """The operators that compute on channels last."""
    steps = [one for step in plan.steps for one in step.members or (step,)]
    return [
        step.node.op.name
        for step in steps
        if step.node.op is not None and (step.takes_physical or any(s.layout != PLAIN for s in step.call.inputs))
    ]


def allowed(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let single precision be rounded to TF32, where it is single."""
    monkeypatch.setenv("OPBOX_ALLOW_TF32", str(int(dtype == SINGLE)))


@pytest.mark.parametrize("req", ["write", "add"])
@pytest.mark.parametrize("dtype", [HALF, SINGLE, BFLOAT16], ids=str)
@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.__name__)
def test_numbers_are_the_plain_plans(
    gpu: Any, network: Any, dtype: Any, req: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed(dtype, monkeypatch)
    plan, arrays = run(network, dtype, req=req)
    assert inside(plan)
    plain, expected = run(network, dtype, WITHOUT, req=req)
    assert not inside(plain)
    for name, array in expected.items():
        near = NEAR[dtype] * max(1, np.abs(array).max())
        np.testing.assert_allclose(arrays[name], array, rtol=0, atol=near, err_msg=name)


# -- where regions are ------------------------------------------------------------------------------------------------


def test_reorders_stand_at_the_edges_alone(gpu: Any) -> None:
    """Beside weights of more than one position, which are reordered once, and their gradients."""
    plan, _ = run(resnet, HALF, times=0)
    weights = [(40, 3, 3, 3), (40, 40, 3, 3), (8, 40, 3, 3)]
    edges = [edge for edge in reorders(plan) if edge[0] not in weights]
    # Data before, what is flattened behind; in backward what pools all, whose gradient is of no layout, and data's.
    assert edges == [
        ((2, 3, 14, 12), PLAIN),
        ((2, 8, 1, 1), CHANNELS_LAST),
        ((2, 8, 4, 3), PLAIN),
        ((2, 3, 14, 12), CHANNELS_LAST),
    ]
    for layout in (PLAIN, CHANNELS_LAST):
        assert sorted(shape for shape, before in reorders(plan) if before == layout and shape in weights) == sorted(
            weights
        )
    forward = [step for step in plan.steps[: plan.forward_steps] if step.node.op is None]
    assert len(forward) == len(weights) + 2, "backward reads the weights that forward has reordered"


@pytest.mark.parametrize("dtype", [HALF, BFLOAT16], ids=str)
def test_convolutions_and_what_stands_between_them_are_inside(gpu: Any, dtype: Any) -> None:
    plan, _ = run(resnet, dtype, times=0)
    names = ("Convolution", "BatchNorm", "_backward_BatchNorm", "_backward_Convolution")
    assert {name: inside(plan).count(name) for name in names} == dict.fromkeys(names, 6)
    assert {"Activation", "elemwise_add", "Pooling", "_backward_Pooling"} <= set(inside(plan))


def test_weights_of_one_channel_are_not_reordered(gpu: Any) -> None:
    plan, _ = run(lenet, HALF, times=0)
    assert (6, 1, 5, 5) not in [shape for shape, _ in reorders(plan)]


@pytest.mark.parametrize("setting", ["single precision", "no cuDNN", "the reference", "cudnn_off"])
def test_elsewhere_there_are_none(gpu: Any, setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def network() -> Any:
        x = mx.sym.Convolution(mx.sym.Variable("data"), kernel=(3, 3), num_filter=4, cudnn_off=setting == "cudnn_off")
        return mx.sym.relu(x)

    monkeypatch.setitem(NETWORKS, network, (2, 3, 6, 5))
    assert setting == "cudnn_off" or inside(run(network, HALF, times=0)[0])
    if setting == "no cuDNN":
        switch_off(monkeypatch, "cudnn")
    if setting == "the reference":
        monkeypatch.setenv("OPBOX_COMPUTE_LEVEL", "reference")
        highest_level.cache_clear()
    plan, _ = run(network, SINGLE if setting == "single precision" else HALF, times=1)
    highest_level.cache_clear()
    assert not inside(plan)
    assert not reorders(plan)


def test_regions_need_no_measuring(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPBOX_CUDNN_TUNE", "off")
    _, arrays = run(resnet, HALF)
    _, expected = run(resnet, HALF, WITHOUT)
    for name, array in expected.items():
        near = NEAR[HALF] * max(1, np.abs(array).max())
        np.testing.assert_allclose(arrays[name], array, rtol=0, atol=near, err_msg=name)


@pytest.mark.parametrize(
    ("channels", "filters", "last"),
    [(8, 8, True), (3, 64, True), (1, 8, True), (20, 48, False), (1, 20, False), (64, 20, False), (64, 3, True)],
)
def test_channels_that_tensor_cores_do_not_load_whole_stay_second(
    gpu: Any, channels: int, filters: int, last: bool
) -> None:
    x = mx.sym.Convolution(mx.sym.Variable("data"), kernel=(3, 3), num_filter=filters, name="a")
    graph = load(x.tojson())
    shapes = infer_shape(graph, {"data": (2, channels, 6, 6)})
    sizes = dict(zip(graph.argument_names, shapes.arg_shapes, strict=True))
    plan = compile_plan(
        graph, sizes, dict.fromkeys(sizes, HALF), dict.fromkeys(sizes, "write"), passes=PASSES, device="gpu"
    )
    assert inside(plan) == (["Convolution", "_backward_Convolution"] if last else [])


# -- what a user sees -------------------------------------------------------------------------------------------------


def test_a_monitor_is_shown_channels_second(gpu: Any) -> None:
    backend = backend_for("gpu:0")

    def watched_by(passes: Any) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        executor, _ = bound(resnet, HALF, passes)
        executor.forward(True, lambda name, array: seen.setdefault(name, backend.get(array).astype("f")))
        return seen

    shown, expected = watched_by(PASSES), watched_by(WITHOUT)
    assert list(shown) == list(expected)
    for name, array in expected.items():
        near = NEAR[HALF] * max(1, np.abs(array).max())
        np.testing.assert_allclose(shown[name], array, rtol=0, atol=near, err_msg=name)


@pytest.mark.parametrize("graphs", ["1", "0"])
@pytest.mark.parametrize("network", [lenet, resnet], ids=lambda network: network.__name__)
def test_a_run_is_two_graphs_and_allocates_nothing(
    gpu: Any, network: Any, graphs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch(monkeypatch, "cuda-graphs", on=graphs == "1")
    backend = backend_for("gpu:0")
    executor, _ = bound(network, HALF)
    heads = [backend.put(np.ones(out.shape, out.dtype)) for out in executor.outputs]
    for _ in range(3):
        with watched() as watch:
            executor.forward(is_train=True)
            executor.backward(heads)
    assert not watch.allocations
    assert not watch.refused
    assert (watch.calls["graphLaunch"] == 2) == (graphs == "1")


@pytest.mark.parametrize("network", [lenet, resnet], ids=lambda network: network.__name__)
def test_graphs_and_repeated_runs_have_the_same_bits(gpu: Any, network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    for graphs, times in (("1", 3), ("0", 3), ("0", 3)):
        switch(monkeypatch, "cuda-graphs", on=graphs == "1")
        shown.append(run(network, HALF, times=times)[1])
    for name, array in shown[0].items():
        for other in shown[1:]:
            np.testing.assert_array_equal(other[name], array, err_msg=name)


def test_inference_has_the_plain_plans_numbers(gpu: Any) -> None:
    """With the moving statistics, and a weight that is written to between two runs."""
    backend, shown = backend_for("gpu:0"), []
    for passes in (PASSES, WITHOUT):
        executor, _ = bound(resnet, HALF, passes)
        outputs = []
        for step in range(3):
            weight = executor._external["arg", "one_a_weight"]
            weight *= step + 1
            executor.forward()
            outputs.append(backend.get(executor.outputs[0]).astype("f"))
        assert not np.array_equal(outputs[0], outputs[2])
        shown.append(outputs)
    for array, expected in zip(*shown, strict=True):
        np.testing.assert_allclose(array, expected, rtol=0, atol=NEAR[HALF] * np.abs(expected).max())


def test_an_argument_may_be_no_contiguous_array(gpu: Any, cupy: Any) -> None:
    """As a slice of a larger one: it is copied before it is reordered."""
    backend = backend_for("gpu:0")
    x = mx.sym.Convolution(
        mx.sym.Variable("data"), mx.sym.Variable("weight"), kernel=(3, 3), num_filter=8, no_bias=True
    )
    rng = np.random.default_rng(0)
    data, weight = (rng.normal(size=shape).astype(HALF) for shape in ((2, 3, 8, 6), (8, 3, 3, 3)))
    outputs = []
    for strided in (True, False):
        wide = backend.put(np.repeat(data, 2, axis=-1) if strided else data)
        args = {"data": wide[..., ::2] if strided else wide, "weight": backend.put(weight)}
        executor = bind(load(x.tojson()), args=args, backend=backend, random=backend.random(0))
        assert inside(executor.plan)
        executor.forward()
        outputs.append(backend.get(executor.outputs[0]))
    np.testing.assert_array_equal(*outputs)


# -- kernels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", BFLOAT16, "int32"], ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 33, 7, 9), (3, 70, 1, 65), (2, 1, 40), (2, 64, 2, 4, 4)])
def test_reorders_move_every_element(gpu: Any, shape: tuple[int, ...], dtype: Any) -> None:
    """By tiles where the type has a kernel, else by a copy."""
    backend, dtype = backend_for("gpu:0"), np.dtype(dtype)
    values = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    for before, after in ((PLAIN, CHANNELS_LAST), (CHANNELS_LAST, PLAIN)):
        plan = Plan(load(mx.sym.Variable("x").tojson()), "gpu")
        source, target = (plan.add(Value(ArraySpec(shape, dtype, layout))) for layout in (before, after))
        step = reorder_step(plan, "reorder", source, target)
        assert (step.kernel.level == "generated") == (dtype.name != "int32")
        arrays = []
        for layout in (before, after):
            physical = backend.empty(physical_shape(ArraySpec(shape, dtype, layout)), dtype)
            arrays.append(logical(physical, layout))
        arrays[0][...] = backend.put(values)
        context = OpContext(backend.xp, backend.special, backend.random(0), backend, call=step.call, req=step.req)
        step.kernel.bind(None, context, arrays[:1], arrays[1:])()
        np.testing.assert_array_equal(backend.get(arrays[1]).astype("d"), values.astype("d"))


@pytest.mark.parametrize("rows", [1, 7, 64, 1000, 20_000])
@pytest.mark.parametrize("channels", [1, 31, 32, 100])
def test_batch_norms_rows_are_in_one_slice_each(rows: int, channels: int) -> None:
    slices = slices_of(rows, channels)
    assert 1 <= slices <= MAX_SLICES
    assert slices == 1 or rows // slices >= 64


def normalized(layout: str, shape: tuple[int, ...], dtype: str, attrs: Any, *, training: bool, wants: bool) -> Any:
    """BatchNorm, then its gradient, by the computes for arrays that lie so; `wants`: all outputs."""
    backend, rng, (_, channels, *_) = backend_for("gpu:0"), np.random.default_rng(0), shape
    params = batch_norm.op.parse({"eps": 1e-3, "momentum": 0.5, **attrs})
    image, number = ArraySpec(shape, np.dtype(dtype), layout), ArraySpec((channels,), SINGLE)

    def put(spec: ArraySpec, low: float, high: float) -> Any:
        physical = backend.put(np.empty(physical_shape(spec), spec.dtype))
        array = logical(physical, spec.layout)
        array[...] = backend.put(rng.uniform(low, high, spec.shape).astype(spec.dtype))
        return array

    data, gout = put(image, 100, 101), put(image, -1, 1)
    gamma, beta, mean, variance = (put(number, low, low + 1) for low in (0.5, -1, 100, 0.5))
    results = []

    def call(op: Any, specs: list[ArraySpec], arrays: list[Any], outs: list[ArraySpec]) -> list[Any]:
        unwanted = frozenset() if wants else frozenset((0, 2) if op is batch_norm.backward else (1, 2))
        spec = CallSpec("gpu", tuple(specs), tuple(outs), unwanted)
        kernel = op.choose(params, spec)
        assert kernel.level == "generated"
        temps = tuple([backend.empty(temp.shape, temp.dtype) for temp in kernel.temps])
        targets = [None if k in unwanted else put(out, 7, 8) for k, out in enumerate(outs)]
        mode = Mode(is_train=training)
        context = OpContext(backend.xp, backend.special, backend.random(0), backend, mode, temps, call=spec)
        kernel.bind(params, context, arrays, targets)()
        results.extend(targets)
        return targets

    statistics = [number, number]
    arrays = [data, gamma, beta, mean, variance]
    out = call(batch_norm.op, [image, *statistics, *statistics], arrays, [image, *statistics])
    saved = out[1:] if wants else [put(number, 100.5, 100.6), put(number, 1, 2)]
    inputs = [gout, data, gamma, *saved, mean, variance]
    call(batch_norm.backward, [image, image, *[number] * 5], inputs, [image, *statistics])
    return [None if array is None else backend.get(array).astype("f") for array in (*results, gamma, mean, variance)]


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (8, 40, 16, 16), (1, 33, 1, 1), (3, 64, 30)])
@pytest.mark.parametrize("attrs", [{}, {"fix_gamma": False}, {"fix_gamma": False, "use_global_stats": True}], ids=str)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("wants", [True, False])
def test_batch_norm_of_channels_last_is_that_of_channels_second(
    gpu: Any, shape: tuple[int, ...], dtype: str, attrs: Any, training: bool, wants: bool
) -> None:
    """Means are large beside variances: statistics come from one pass, by Welford's recurrence."""
    choices: Any = {"training": training, "wants": wants}
    arrays, plain = (normalized(layout, shape, dtype, attrs, **choices) for layout in (CHANNELS_LAST, PLAIN))
    for array, expected in zip(arrays, plain, strict=True):
        assert (array is None) == (expected is None)
        if expected is not None:
            # Sums in another order, of numbers that differ from their mean in the last digits that half has at 100.
            near = {"float32": 2e-4}.get(dtype, NEAR[np.dtype(dtype)]) * max(1, np.abs(expected).max())
            np.testing.assert_allclose(array, expected, rtol=0, atol=near)


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
@pytest.mark.parametrize(("axis", "ndim", "last"), [(-1, 4, True), (2, 3, True), (-1, 2, True), (1, 4, False)])
def test_batch_norm_along_the_last_axis_has_the_same_kernels(
    gpu: Any, axis: int, ndim: int, last: bool, dtype: str
) -> None:
    rng, shape = np.random.default_rng(0), (6, 5, 7, 40)[:ndim]
    channels = shape[axis]
    values = [rng.normal(size=shape).astype(dtype), *(np.ones(channels, "f") for _ in range(4))]
    outputs = []
    for device in ("gpu:0", "cpu"):
        backend = backend_for(device)
        arrays = [backend.put(array.copy()) for array in values]
        attrs = {"axis": axis, "fix_gamma": False}
        with watched() as watch:
            out, *_ = invoke("BatchNorm", attrs, arrays, backend=backend, random=backend.random(0), is_train=True)
        outputs.append(backend.get(out).astype("f"))
        if device != "cpu":
            kernels = {str(name) for kind, name in watch.calls.events if kind == "launch"}
            assert ("opbox_batch_norm_last" in kernels) == last
            assert ("opbox_batch_norm" in kernels) != last
    np.testing.assert_allclose(*outputs, rtol=0, atol=NEAR[np.dtype(dtype)])


POOLINGS = [
    {"kernel": (2, 2), "stride": (2, 2), "pool_type": "max"},
    {"kernel": (3, 2), "stride": (2, 1), "pad": (1, 1), "pool_type": "max", "pooling_convention": "full"},
    {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1), "pool_type": "avg"},
    {"kernel": (3, 3), "pad": (1, 1), "pool_type": "avg", "count_include_pad": False},
    {"kernel": (2, 2), "pool_type": "sum"},
    {"kernel": (2, 2), "pool_type": "lp", "p_value": 3},
    {"kernel": (1, 1), "global_pool": True, "pool_type": "max"},
    {"kernel": (1, 1), "global_pool": True, "pool_type": "avg"},
]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("attrs", POOLINGS, ids=str)
def test_pooling_of_channels_last_is_that_of_channels_second(gpu: Any, attrs: Any, dtype: str) -> None:
    """By the operator's own layout, in the same kernels as a region's."""
    rng = np.random.default_rng(0)
    values = rng.integers(1, 9, (2, 5, 7, 6)).astype(dtype)
    shown = []
    for layout in ("NCHW", "NHWC"):
        order = (0, 2, 3, 1) if layout == "NHWC" else (0, 1, 2, 3)
        back = (0, 3, 1, 2) if layout == "NHWC" else (0, 1, 2, 3)
        data = mx.nd.array(np.ascontiguousarray(values.transpose(order)), ctx=mx.gpu(0), dtype=dtype)
        executor = mx.sym.Pooling(mx.sym.Variable("data"), layout=layout, **attrs).bind(
            mx.gpu(0), {"data": data}, {"data": mx.nd.zeros(data.shape, ctx=mx.gpu(0), dtype=dtype)}
        )
        executor.forward(is_train=True)
        out = executor.outputs[0].asnumpy()
        head = np.arange(out.size).reshape(out.transpose(back).shape).transpose(order).astype(dtype) % 7
        executor.backward(mx.nd.array(head, ctx=mx.gpu(0), dtype=dtype))
        shown.append([array.transpose(back) for array in (out, executor.grad_dict["data"].asnumpy())])
    for array, expected in zip(*shown, strict=True):
        np.testing.assert_allclose(array, expected, rtol={"float16": 2e-3}.get(dtype, 1e-6))


def test_pooling_by_its_own_layout_has_a_kernel(gpu: Any) -> None:
    spec = ArraySpec((2, 7, 6, 5), HALF)
    params = pooling.op.parse({"kernel": (2, 2), "stride": (2, 2), "layout": "NHWC"})
    call = CallSpec("gpu", (spec,), (ArraySpec((2, 3, 3, 5), HALF),))
    assert pooling.op.choose(params, call).level == "generated"
