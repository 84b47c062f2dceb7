"""Concat and its gradient as copies of rows: NumPy's numbers, by the kernel and without one, along any axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops import registry
from opbox_ops.compute import PLAIN, ArraySpec, CallSpec, OpContext
from opbox_ops.layout import CHANNELS_LAST, logical, physical
from opbox_ops.shape import joined_rows
from tests.machine import has_compiler
from tests.switches import set_c_kernels

SIZES = (3, 0, 1, 70, 3)
"""Of the arrays along the axis."""


@pytest.fixture(params=["now", "0"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    set_c_kernels(monkeypatch, request.param)
    monkeypatch.setattr(joined_rows, "_KERNEL", joined_rows.new_kernel())
    if request.param == "now" and not has_compiler():
        pytest.skip("no compiler")
    return str(request.param)


def run(name: str, params: dict[str, Any], inputs: list[Any], outputs: list[Any], layout: str = PLAIN) -> None:
    """Run the library's compute twice, as a plan does; an output may be None."""
    op = registry.get(name)
    p = op.parse(params)
    like = [np.empty(1, np.float32) if array is None else array for array in outputs]
    specs = [tuple(ArraySpec(array.shape, array.dtype, layout) for array in side) for side in (inputs, like)]
    call = CallSpec("cpu", *specs)
    kernel = op.choose(p, call)
    assert kernel.level == "library"
    bound = kernel.bind(p, OpContext(np, None, None, None, call=call), inputs, outputs)
    bound()
    bound()


def parts(axis: int, dtype: str) -> list[np.ndarray[Any, Any]]:
    shape, rng = [2, 40, 5], np.random.default_rng(0)
    return [rng.integers(0, 99, (*shape[:axis], size, *shape[axis + 1 :])).astype(dtype) for size in SIZES]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "float64"])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_any_axis(mode: str, axis: int, dtype: str) -> None:
    arrays = parts(axis % 3, dtype)
    expected = np.concatenate(arrays, axis)
    out = np.zeros_like(expected)
    run("Concat", {"num_args": len(arrays), "dim": axis}, arrays, [out])
    np.testing.assert_array_equal(out, expected)
    back = [np.zeros_like(array) for array in arrays]
    run("_backward_Concat", {"num_args": len(arrays), "dim": axis}, [out], back)
    for array, other in zip(back, arrays, strict=True):
        np.testing.assert_array_equal(array, other)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "float64"])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("squeeze", [False, True])
def test_parts_along_any_axis(mode: str, axis: int, dtype: str, squeeze: bool) -> None:
    """Of SliceChannel; of one that nobody wants nothing is written."""
    data = np.random.default_rng(0).integers(0, 99, (6, 60, 12)).astype(dtype)
    count = data.shape[axis] if squeeze else 6
    params = {"num_outputs": count, "axis": axis, "squeeze_axis": squeeze}
    expected = [part.squeeze(axis) if squeeze else part for part in np.split(data, count, axis)]
    outs: list[Any] = [np.zeros_like(part) for part in expected]
    outs[2] = None
    run("SliceChannel", params, [data], outs)
    for out, part in zip(outs, expected, strict=True):
        assert out is None or np.array_equal(out, part)
    back = np.zeros_like(data)
    run("_backward_SliceChannel", params, expected, [back])
    np.testing.assert_array_equal(back, data)


def test_parts_of_any_size_and_arrays_that_do_not_lie_in_order(mode: str) -> None:
    data, params = np.arange(600, dtype=np.float32).reshape(4, 50, 3), {"indices": (0, 10, 11, 40), "axis": 1}
    expected = np.split(data, (10, 11, 40), 1)
    transposed = data.transpose(2, 1, 0).copy().transpose(2, 1, 0)
    for source in (data, transposed):
        outs = [np.zeros_like(part) for part in expected]
        run("_split_v2", params, [source], outs)
        for out, part in zip(outs, expected, strict=True):
            np.testing.assert_array_equal(out, part)
        back = np.zeros_like(source)
        run("_backward__split_v2", params, expected, [back])
        np.testing.assert_array_equal(back, data)


def test_channels_that_lie_last_in_threads(mode: str) -> None:
    rng = np.random.default_rng(1)
    arrays = [logical(rng.normal(size=(3, 50, 40, n)).astype(np.float32), CHANNELS_LAST) for n in (5, 17, 32)]
    expected = np.concatenate(arrays, 1)
    out = logical(np.zeros((3, 50, 40, 54), np.float32), CHANNELS_LAST)
    run("Concat", {"num_args": 3}, arrays, [out], CHANNELS_LAST)
    np.testing.assert_array_equal(out, expected)
    assert physical(out, CHANNELS_LAST).flags.c_contiguous


def test_an_array_that_does_not_lie_in_order(mode: str) -> None:
    wide = np.arange(240, dtype=np.float32).reshape(4, 60)
    arrays, out = [wide[:, ::2], wide[:, 1::2]], np.zeros((4, 60), np.float32)
    run("Concat", {"num_args": 2}, arrays, [out])
    np.testing.assert_array_equal(out, np.concatenate(arrays, 1))
