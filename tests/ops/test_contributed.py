"""Operators of `contrib` that MXNet has on GPUs or arrays alone, mixed precision's types, what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_protocol.errors import MXNetError
from opbox_service.executor.invoke import invoke
from tests.cases.case import Arg, Case

from .harness import Run, infer_types

CPU = backend_for("cpu")


def call(name: str, arrays: list[Any], **attrs: Any) -> np.ndarray:
    inputs = [np.asarray(array, getattr(array, "dtype", "float32")) for array in arrays]
    return invoke(name, attrs, inputs, backend=CPU, random=CPU.random(0))[0]


def test_a_transform_is_numpys() -> None:
    data = np.random.default_rng(1).normal(size=(2, 3, 5)).astype("float32")
    pairs = call("_contrib_fft", [data])
    np.testing.assert_allclose(pairs[..., 0::2] + 1j * pairs[..., 1::2], np.fft.fft(data), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(call("_contrib_ifft", [pairs]) / 5, data, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["_contrib_fft", "_contrib_ifft"])
def test_the_gradient_of_a_transform_is_its_transpose(name: str) -> None:
    """Linear: <f(x), g> = <x, gradient of g> for all x and g."""
    run = Run(Case(name, {"data": (3, 8)}), "float32", CPU)
    grad = run.backward()["data"]
    (out,), (head,) = run.calls[0].outputs, run.heads()
    assert (out * head).sum() == pytest.approx((run.arrays["data"] * grad).sum(), rel=1e-4)


def test_a_sketch_sums_with_signs() -> None:
    data = np.arange(8, dtype="float32").reshape(2, 4)
    got = call("_contrib_count_sketch", [data, [[0, 2, 0, 1]], [[1, -1, 1, -1]]], out_dim=3)
    assert got.tolist() == [[2, -3, -1], [10, -7, -5]]


def test_old_element_operators() -> None:
    """What MXNet 1.9.1 gives for these arrays."""
    ones = call("_onehot_encode", [[1, 5, -1], np.zeros((3, 4), "float32")])
    assert ones.tolist() == [[0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    filled = call("fill_element_0index", [np.arange(12.0, dtype="float32").reshape(3, 4), [9, 8, 7], [1, 0, 3]])
    assert filled.tolist() == [[0, 9, 2, 3], [8, 5, 6, 7], [8, 9, 10, 7]]


def test_set_value_takes_the_outputs_shape_and_type() -> None:
    target = np.zeros((2, 3), "int32")
    invoke("_set_value", {"src": 2.5}, [], backend=CPU, random=CPU.random(0), outputs=[target])
    assert (target == 2).all()


def test_rows_by_a_mask() -> None:
    data = np.arange(6, dtype="float32").reshape(3, 2)
    for mask, rows in (([0, 1, 2], [1, 2]), ([0, 0, 0], []), ([1, 1, 1], [0, 1, 2])):
        assert call("_contrib_boolean_mask", [data, mask]).tolist() == data[rows].tolist()


MULTICAST = [
    ({"num_outputs": 2}, ["float16", "float32"], ["float32", "float32"]),
    ({"num_outputs": 3}, ["float32", "float16", "float64"], ["float64"] * 3),
    ({"num_outputs": 2, "cast_narrow": True}, ["float32", "float16"], ["float16"] * 2),
    ({"num_outputs": 3}, ["float16", "int32", "float16"], ["float16", "int32", "float16"]),
    ({"num_outputs": 2}, ["bfloat16", "float16"], ["float32"] * 2),
    ({"num_outputs": 2}, ["int8", "int32"], ["int8", "int32"]),
]


@pytest.mark.parametrize(("attrs", "in_types", "expected"), MULTICAST)
def test_the_common_type_of_mixed_precision(attrs: dict[str, Any], in_types: list[str], expected: list[str]) -> None:
    case = Case("amp_multicast", {f"data_{i}": Arg((2,), dtype=dtype) for i, dtype in enumerate(in_types)}, attrs)
    run = Run(case, "float32", CPU)
    types = infer_types(run.node, [np.dtype(array.dtype) for array in run.arrays.values()], [None] * len(in_types))
    assert [dtype.name for dtype in types[1]] == expected
    assert [out.dtype.name for out in run.forward()] == expected


REFUSED: list[tuple[str, list[Any], dict[str, Any], str]] = [
    ("_contrib_boolean_mask", [np.ones((3, 2)), np.ones(2)], {}, "expected (2, 2), got (3, 2)"),
    ("_contrib_boolean_mask", [np.ones((3, 2)), np.ones(3)], {"axis": 1}, "parameter 'axis': expected 0, got 1"),
    ("_contrib_index_array", [np.ones((3, 2))], {"axes": (2,)}, "axes: expected between -2 and 1"),
    ("_contrib_index_copy", [np.ones((3, 2)), np.ones(2), np.ones((2, 3))], {}, "expected (2, 2), got (2, 3)"),
    ("_contrib_index_copy", [np.ones((3, 2)), np.full(1, 3.0), np.ones((1, 2))], {}, "positions from 0 to 2, got 3"),
    ("_contrib_div_sqrt_dim", [np.ones(())], {}, "expected at least 1 dimension, got ()"),
    ("_contrib_allclose", [np.ones(2), np.ones(3)], {}, "expected (2,), got (3,)"),
    ("all_finite", [np.ones(2, "int32")], {}, "expected a float type, got int32"),
    ("_contrib_quantize", [np.ones(2), np.ones(2), np.ones(1)], {}, "expected (1,), got (2,)"),
    ("_contrib_quantize", [np.ones(2, "float16"), np.ones(1), np.ones(1)], {}, "expected type float32, got float16"),
    ("_contrib_dequantize", [np.ones(2), np.ones(1), np.ones(1)], {}, "expected int8 or uint8, got float32"),
    ("_contrib_ifft", [np.ones((2, 3))], {}, "expected pairs of numbers on the last axis, got (2, 3)"),
    (
        "_contrib_count_sketch",
        [np.ones((2, 1)), np.full((1, 1), 3.0), np.ones((1, 1))],
        {"out_dim": 3},
        "h: expected pos",
    ),
    ("_contrib_interleaved_matmul_selfatt_qk", [np.ones((2, 1, 8))], {"heads": 2}, "a multiple of 3 * 2 heads"),
    ("_contrib_interleaved_matmul_selfatt_qk", [np.ones((2, 6))], {"heads": 2}, "expected 3 dimensions, got (2, 6)"),
    (
        "_contrib_interleaved_matmul_encdec_valatt",
        [np.ones((3, 2, 8)), np.ones((3, 1, 3))],
        {"heads": 2},
        "expected a multiple of 2 heads on the first axis, got (3, 1, 3)",
    ),
    ("_set_value", [], {"src": 1}, "_set_value: the shapes of its outputs stay unknown"),
    ("fill_element_0index", [np.ones((3, 2)), np.ones(3), np.ones(2)], {}, "expected (3,), got (2,)"),
]


@pytest.mark.parametrize(("name", "arrays", "attrs", "sentence"), REFUSED)
def test_what_is_refused(name: str, arrays: list[Any], attrs: dict[str, Any], sentence: str) -> None:
    narrow = [array.astype("float32") if array.dtype == np.float64 else array for array in arrays]
    with pytest.raises(MXNetError) as caught:
        call(name, narrow, **attrs)
    assert sentence in str(caught.value)


def test_names_in_files_are_kept() -> None:
    assert registry.get("_scatter_plus_scalar").name == "_scatter_plus_scalar"
