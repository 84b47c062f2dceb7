"""The modules of operators have MXNet's functions: those recorded in namespaces.json, but for what is named here."""

from __future__ import annotations

import json
import math
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest

import opbox as mx

RECORDED: dict[str, list[str]] = json.loads(
    Path(__file__).with_name("recorded").joinpath("namespaces.json").read_text(encoding="utf-8")
)

ABSENT = {
    "arrays are dense": "SparseEmbedding _square_sum cast_storage getnnz",
    "graph sampling on sparse arrays": "dgl_adjacency dgl_csr_neighbor_non_uniform_sample "
    "dgl_csr_neighbor_uniform_sample dgl_graph_compact dgl_subgraph edge_id",
    "8-bit networks": "calibrate_entropy quantize_asym quantize_v2 quantized_act quantized_batch_norm quantized_concat "
    "quantized_conv quantized_elemwise_add quantized_elemwise_mul quantized_embedding quantized_flatten "
    "quantized_fully_connected quantized_pooling quantized_rnn requantize",
    "no operators of the list": "cumsum hawkesll imdecode round_ste sign_ste _imdecode",
    "memory of other libraries": "to_dlpack_for_write",
    "control flow": "cond foreach while_loop _cond _foreach _while_loop",
    "in the module above": "Custom",
    "MXNet's own workings": "check_call current_context get_indexing_dispatch_code get_oshape_of_gather_nd_op "
    "indexing_key_expand_implicit_axes _CachedOp _CachedOpThreadSafe _CrossDeviceCopy _CustomFunction _NDArray _Native "
    "_NoGradient _broadcast_backward _imperative_invoke _set_ndarray_class _set_np_ndarray_class _set_np_symbol_class "
    "_set_symbol_class _split_v2_backward _symbol_creator _zeros_without_dtype",
}
"""What is not there, by the reason."""


@pytest.mark.parametrize("module", RECORDED)
def test_every_function_of_mxnet_is_there(module: str) -> None:
    absent = {name for names in ABSENT.values() for name in names.split()}
    here = attrgetter(module)(mx)
    assert [name for name in RECORDED[module] if not hasattr(here, name) and name not in absent] == []


@pytest.mark.parametrize("package", ["nd", "sym"])
def test_functions_written_by_hand_are_listed(package: str) -> None:
    module = getattr(mx, package).contrib
    assert {"rand_zipfian", "adamw_update", "box_nms"} <= set(dir(module)) & set(module.__all__)
    assert module.rand_zipfian is getattr(mx.contrib, package).rand_zipfian


# -- functions that are more than one operator ------------------------------------------------------------------------


def _expected(classes: np.ndarray, count: int, classes_at_most: int) -> np.ndarray:
    return count * np.log((classes + 2.0) / (classes + 1.0)) / math.log(classes_at_most + 1)


def test_rand_zipfian_follows_its_distribution() -> None:
    mx.random.seed(7)
    draws, classes = 20_000, 6
    samples, true_counts, sample_counts = mx.nd.contrib.rand_zipfian(mx.nd.array([0, 5]), draws, classes)
    assert (samples.shape, samples.dtype) == ((draws,), np.int64)
    assert true_counts.dtype == sample_counts.dtype == np.float64
    values = samples.asnumpy()
    np.testing.assert_allclose(true_counts.asnumpy(), _expected(np.array([0, 5]), draws, classes))
    np.testing.assert_allclose(sample_counts.asnumpy(), _expected(values, draws, classes))
    counts, expected = np.bincount(values, minlength=classes), _expected(np.arange(classes), draws, classes)
    # Chi-square with 5 degrees of freedom: above 20.5 once in a thousand seeds.
    assert len(counts) == classes
    assert ((counts - expected) ** 2 / expected).sum() < 20.5


def test_rand_zipfian_as_symbols() -> None:
    symbols = mx.sym.contrib.rand_zipfian(mx.sym.Variable("classes"), 8, 5)
    samples, true_counts, sample_counts = mx.sym.Group(symbols).eval(classes=mx.nd.array([3]))
    assert (samples.shape, samples.dtype) == ((8,), np.int64)
    np.testing.assert_allclose(true_counts.asnumpy(), _expected(np.array([3]), 8, 5))
    np.testing.assert_allclose(sample_counts.asnumpy(), _expected(samples.asnumpy(), 8, 5))


def test_rand_zipfian_refuses_what_is_no_symbol() -> None:
    with pytest.raises(TypeError, match="true_classes: expected a Symbol, got int"):
        mx.sym.contrib.rand_zipfian(3, 4, 5)


def test_checks_of_numbers() -> None:
    x = mx.nd.array([math.nan, math.inf, -math.inf, 1, 0])
    assert mx.nd.contrib.isnan(x).asnumpy().tolist() == [1, 0, 0, 0, 0]
    assert mx.nd.contrib.isinf(x).asnumpy().tolist() == [0, 1, 1, 0, 0]
    assert mx.nd.contrib.isfinite(x).asnumpy().tolist() == [0, 0, 0, 1, 1]


def _arrays(dtype: str = "float32") -> list[mx.nd.NDArray]:
    """weight, gradient, mean, var."""
    values = ([1.0, -2.0], [0.5, 0.25], [0.1, 0.2], [0.3, 0.4])
    return [mx.nd.array(x, dtype=dtype if k < 2 else "float32") for k, x in enumerate(values)]


def _adamw(scale: float = 2.0) -> np.ndarray:
    weight, grad, mean, var = (x.asnumpy() for x in _arrays())
    mean = 0.9 * mean + 0.1 * scale * grad
    var = 0.999 * var + 0.001 * (scale * grad) ** 2
    return weight - 0.5 * (0.1 * mean / (np.sqrt(var) + 1e-8) + 0.01 * weight)


@pytest.mark.parametrize("scale", [2.0, "an array"])
def test_adamw_takes_a_number_for_its_factor(scale: float | str) -> None:
    factor = mx.nd.array([2.0]) if scale == "an array" else scale
    weight, *others = _arrays()
    mx.nd.contrib.adamw_update(weight, *others, factor, 0.1, 0.5, wd=0.01, out=weight)
    np.testing.assert_allclose(weight.asnumpy(), _adamw(), rtol=1e-6)
    weight, *others = _arrays()
    mx.nd.contrib.multi_adamw_update(*([x] for x in (weight, *others)), factor, [0.1], [0.01], [0.5], out=[weight])
    np.testing.assert_allclose(weight.asnumpy(), _adamw(), rtol=1e-6)


def test_adamw_of_half_precision() -> None:
    weight, *others = _arrays("float16")
    weight32 = weight.astype("float32")
    mx.nd.contrib.mp_adamw_update(weight, *others, weight32, 2.0, 0.1, 0.5, wd=0.01, out=weight)
    np.testing.assert_allclose(weight32.asnumpy(), _adamw(), rtol=1e-6)
    weight, *others = _arrays("float16")
    weight32 = weight.astype("float32")
    arrays = ([x] for x in (weight, *others, weight32))
    mx.nd.contrib.multi_mp_adamw_update(*arrays, 2.0, [0.1], [0.01], [0.5], out=[weight])
    np.testing.assert_allclose(weight32.asnumpy(), _adamw(), rtol=1e-6)
    np.testing.assert_array_equal(weight.asnumpy(), weight32.asnumpy().astype("float16"))


def test_adamw_as_a_symbol() -> None:
    names = ("weight", "grad", "mean", "var")
    step = mx.sym.contrib.adamw_update(*map(mx.sym.Variable, names), 2.0, 0.1, 0.5, wd=0.01, name="step")
    assert (step.list_arguments(), step.list_auxiliary_states()) == (["weight", "grad"], ["mean", "var"])
    values = dict(zip(names, _arrays(), strict=True))
    executor = step.bind(mx.cpu(), {k: values[k] for k in names[:2]}, aux_states={k: values[k] for k in names[2:]})
    np.testing.assert_allclose(executor.forward()[0].asnumpy(), _adamw(), rtol=1e-6)


def test_lamb_of_many_is_lamb() -> None:
    def step(function: str, dtype: str) -> np.ndarray:
        weight, *others = _arrays(dtype)
        copies = [[weight.astype("float32")]] if "mp" in function else []
        arrays = [[x] for x in (weight, *others)] + copies
        getattr(mx.nd.contrib, function)(*arrays, [3], [0.1], [0.01], out=[weight])
        return (copies[0][0] if copies else weight).asnumpy()

    weight, grad, mean, var = _arrays()
    g = mx.nd.lamb_update_phase1(weight, grad, mean, var, t=3, wd=0.01)
    expected = mx.nd.lamb_update_phase2(weight, g, weight.norm(), g.norm(), lr=0.1).asnumpy()
    np.testing.assert_allclose(step("multi_lamb_update", "float32"), expected, rtol=1e-5)
    np.testing.assert_allclose(step("multi_mp_lamb_update", "float16"), expected, rtol=1e-5)


def test_rows_in_another_order_as_a_symbol() -> None:
    out = mx.sym.random.shuffle(mx.sym.Variable("x"), name="order").eval(x=mx.nd.array([[1, 2], [3, 4], [5, 6]]))[0]
    assert sorted(out.asnumpy().tolist()) == [[1, 2], [3, 4], [5, 6]]
