"""Nothing is allocated while a plan runs: every row of the operator table, and whole plans.

An operator that does says so (`compute(allocates=…)`), and stands below with the reason. The lists may only shrink: an
operator in them that declares nothing, or whose rows allocate nothing, fails here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_service.executor import bind
from opbox_service.graph.json import load
from tests.allocations import counted
from tests.cases import all_cases
from tests.cases.case import Case
from tests.control_flow.networks import NETWORKS
from tests.control_flow.values import arrays_for, bound, symbol
from tests.ops.harness import Call, Run

CPU = backend_for("cpu")
CASES = all_cases()

NO_OUTPUT_ARGUMENT = frozenset(
    [
        "_backward_linalg_det",
        "_backward_linalg_gelqf",
        "_backward_linalg_potrf",
        "_backward_linalg_potri",
        "_backward_linalg_slogdet",
        "_backward_linalg_syevd",
        "_backward_linalg_trsm",
        "_linalg_det",
        "_linalg_gelqf",
        "_linalg_inverse",
        "_linalg_potrf",
        "_linalg_potri",
        "_linalg_slogdet",
        "_linalg_syevd",
        "_linalg_trsm",
        "_random_generalized_negative_binomial",
        "_random_generalized_negative_binomial_like",
        "_random_negative_binomial",
        "_random_negative_binomial_like",
        "_random_poisson",
        "_random_poisson_like",
        "_random_randint",
        "_sample_gamma",
        "_sample_generalized_negative_binomial",
        "_sample_negative_binomial",
        "_sample_poisson",
    ]
)
"""What computes these takes no array to write to: LAPACK's factorisations and solvers as NumPy calls them (SciPy's
bindings would take one matrix a call, where NumPy's take a batch), NumPy's generators for whole numbers and Poisson's
distribution, and for gamma's the check of parameters that are arrays."""

SIZED_BY_VALUES = frozenset(
    [
        "ROIPooling",
        "_backward_ROIPooling",
        "_backward_contrib_box_nms",
        "_contrib_MultiBoxDetection",
        "_contrib_MultiBoxTarget",
        "_contrib_MultiProposal",
        "_contrib_Proposal",
        "_contrib_bipartite_matching",
        "_contrib_boolean_mask",
        "_contrib_box_nms",
        "_sample_unique_zipfian",
    ]
)
"""How much memory these need follows from the values of inputs, which no plan knows: rows that a mask leaves, draws
that repeat, boxes that remain, the parts of a region."""

ALLOCATE = NO_OUTPUT_ARGUMENT | SIZED_BY_VALUES
"""The operators whose compute says that it allocates; `allocates=` there says what."""


def _calls(case: Case, dtype: str) -> list[Call]:
    """The row's calls, run a second time: what is made once for a shape has been made."""
    for _ in range(2):
        run = Run(case, dtype, CPU)
        run.forward()
        if case.grad and run.wanted():
            run.backward()
    return run.calls


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES])
def test_a_row_allocates_nothing(case: Case) -> None:
    for dtype in case.dtypes:
        for call in _calls(case, dtype):
            if not call.chosen().allocates:
                assert call.allocated == [], f"{call.node.op.name} in {dtype}: declare temps for what it needs"


def _declared() -> set[str]:
    registry.load()
    every = {op.name: op for op in map(registry.find, registry._names) if op is not None}
    return {name for name, op in every.items() if any(compute.allocates for compute in op.computes("cpu"))}


def test_the_list_is_what_is_declared() -> None:
    declared = {name for name in _declared() if not registry.get(name).get_attr("TUserCode")}
    assert declared == ALLOCATE, "an operator that allocates is new, or one no longer does: change the list"


def test_what_is_in_the_list_allocates() -> None:
    allocating: set[str] = set()
    for case in CASES:
        if case.op in ALLOCATE or f"_backward_{case.op}" in ALLOCATE:
            for dtype in case.dtypes:
                allocating.update(call.node.op.name for call in _calls(case, dtype) if call.allocated)
    idle = {name for name in ALLOCATE if name not in allocating and not name.startswith("_backward")}
    assert not idle, f"these say that they allocate, and do not: {', '.join(sorted(idle))}"


def lenet() -> tuple[Any, dict[str, tuple[int, ...]]]:
    net = mx.sym.Variable("data")
    for filters in (8, 16):
        net = mx.sym.Convolution(net, kernel=(5, 5), num_filter=filters)
        net = mx.sym.Pooling(mx.sym.Activation(net, act_type="tanh"), kernel=(2, 2), stride=(2, 2), pool_type="max")
    net = mx.sym.Activation(mx.sym.FullyConnected(mx.sym.Flatten(net), num_hidden=50), act_type="tanh")
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(net, num_hidden=10), name="softmax")
    return net, {"data": (4, 1, 28, 28)}


def residual() -> tuple[Any, dict[str, tuple[int, ...]]]:
    data = mx.sym.Variable("data")
    net = mx.sym.BatchNorm(data, fix_gamma=False)
    net = mx.sym.Convolution(mx.sym.Activation(net, act_type="relu"), kernel=(3, 3), pad=(1, 1), num_filter=8)
    net = mx.sym.Dropout(mx.sym.Activation(mx.sym.BatchNorm(net), act_type="relu"), p=0.3)
    net = mx.sym.Convolution(net, kernel=(3, 3), pad=(1, 1), num_filter=8, no_bias=True) + data
    net = mx.sym.Pooling(net, global_pool=True, pool_type="avg", kernel=(1, 1))
    net = mx.sym.FullyConnected(mx.sym.Flatten(net), num_hidden=5)
    return mx.sym.SoftmaxOutput(net, name="softmax"), {"data": (4, 8, 14, 14)}


def recurrent() -> tuple[Any, dict[str, tuple[int, ...]]]:
    words = mx.sym.Embedding(mx.sym.Variable("data"), input_dim=50, output_dim=16)
    outputs, _ = mx.rnn.LSTMCell(num_hidden=24, prefix="lstm_").unroll(6, inputs=words, merge_outputs=True)
    net = mx.sym.FullyConnected(mx.sym.Reshape(outputs, shape=(-1, 24)), num_hidden=50)
    label = mx.sym.Reshape(mx.sym.Variable("softmax_label"), shape=(-1,))
    return mx.sym.SoftmaxOutput(net, label, name="softmax"), {"data": (4, 6), "softmax_label": (4, 6)}


def packed() -> tuple[Any, dict[str, tuple[int, ...]]]:
    """The recurrent network with one operator for both directions of two layers."""
    words = mx.sym.Embedding(mx.sym.Variable("data"), input_dim=50, output_dim=16)
    words = mx.sym.SwapAxis(words, dim1=0, dim2=1)
    attrs = {"mode": "lstm", "state_size": 24, "num_layers": 2, "bidirectional": True, "p": 0.3}
    outputs = mx.sym.RNN(words, name="lstm", **attrs)
    net = mx.sym.FullyConnected(mx.sym.Reshape(outputs, shape=(-1, 48)), num_hidden=50)
    label = mx.sym.Reshape(mx.sym.Variable("softmax_label"), shape=(-1,))
    return mx.sym.SoftmaxOutput(net, label, name="softmax"), {"data": (4, 6), "softmax_label": (4, 6)}


@pytest.mark.parametrize("req", ["write", "add"])
@pytest.mark.parametrize("model", [lenet, residual, recurrent, packed])
def test_a_whole_plan_allocates_nothing(model: Any, req: str) -> None:
    symbol, data_shapes = model()
    shapes, _, states = symbol.infer_shape(**data_shapes)
    rng = np.random.default_rng(0)
    args = {
        name: CPU.put(rng.uniform(0, 1, shape).astype("f"))
        for name, shape in zip(symbol.list_arguments(), shapes, strict=True)
    }
    aux = {
        name: CPU.put(np.ones(shape, "f")) for name, shape in zip(symbol.list_auxiliary_states(), states, strict=True)
    }
    grads = {name: CPU.put(np.zeros_like(a)) for name, a in args.items() if name not in data_shapes}
    executor = bind(
        load(symbol.tojson()),
        args=args,
        grads=grads,
        grad_req=dict.fromkeys(grads, req),
        aux=aux,
        backend=CPU,
        random=CPU.random(0),
    )
    for _ in range(2):
        with counted() as forward:
            executor.forward(is_train=True)
        with counted() as backward:
            executor.backward()
    assert forward == []
    assert backward == []


@pytest.mark.parametrize("req", ["write", "add"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_plan_with_loops_allocates_nothing(name: str, req: str) -> None:
    """The operators with subgraphs have no rows in the table: their networks are run, bodies and all."""
    arguments, heads = arrays_for(name)
    executor, _ = bound(symbol(name), arguments, req=req)
    for _ in range(2):
        with counted() as forward:
            executor.forward(is_train=True)
        with counted() as backward:
            executor.backward(heads)
    assert forward == []
    assert backward == []


def _integer_norm(out_dtype: str | None) -> Any:
    """The gradient of norm of integers, on arrays of its own, and what it is to be."""
    x = np.array([[3, -4, 12, -7, 5], [0, 0, 0, 0, 0], [-8, 15, 1, -1, 2]], np.int32)
    attrs = {"ord": "2", "axis": "1", **({} if out_dtype is None else {"out_dtype": out_dtype})}
    norm = mx.sym.norm(mx.sym.Variable("x"), **attrs)
    gradient, head = np.empty_like(x), np.array([2, 3, -5], out_dtype or np.int32)
    executor = bind(
        load(norm.tojson()), args={"x": x}, grads={"x": gradient}, backend=CPU, random=CPU.random(0), level="reference"
    )
    lengths = np.trunc(np.sqrt((x.astype("f8") ** 2).sum(1, keepdims=True))).astype("i8")
    quotients = np.divide(x, lengths, out=np.zeros(x.shape), where=lengths != 0)
    return executor, head, gradient, np.trunc(quotients) * head[:, None]


@pytest.mark.parametrize("out_dtype", [None, "int64"])
def test_the_gradient_of_an_integer_norm_allocates_nothing(out_dtype: str | None) -> None:
    executor, head, gradient, expected = _integer_norm(out_dtype)
    for _ in range(2):
        executor.forward(is_train=True)
        executor.backward([head])
    np.testing.assert_array_equal(gradient, expected)
    executor.forward(is_train=True)
    with counted() as sizes:
        executor.backward([head])
    assert not sizes


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_the_mean_of_integers_allocates_nothing(dtype: str) -> None:
    x = np.array([[3, 4, 12, 7, 6], [0, 0, 0, 0, 0], [8, 15, 1, 1, 2]], dtype)
    gradient, head = np.empty_like(x), np.array([5, 10, 254], dtype)
    mean = mx.sym.mean(mx.sym.Variable("x"), axis=1)
    executor = bind(load(mean.tojson()), args={"x": x}, grads={"x": gradient}, backend=CPU, random=CPU.random(0))
    for _ in range(2):
        with counted() as sizes:
            executor.forward(is_train=True)
            executor.backward([head])
    assert sizes == []
    np.testing.assert_array_equal(executor.outputs[0], [6, 0, 5])
    np.testing.assert_array_equal(gradient, np.repeat([[1], [2], [50]], 5, 1))
