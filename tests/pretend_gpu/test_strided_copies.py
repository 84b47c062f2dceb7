"""Copies of many slices in one launch: any rows and types, and what the kernel does not take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops.cuda.strided_copies import MAX_COPIES, copies
from opbox_protocol.mxnet import numpy_dtype

from .spy import watched

TYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "bool", "int32", "int64")


def run(xp: Any, pairs: list[tuple[Any, Any]]) -> dict[str, int]:
    """What copying did to the device."""
    with watched() as watch:
        copies(xp, pairs)()
    assert not watch.allocations
    return dict(watch.calls)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rows", "widths"), [(1, (1, 2, 3)), (7, (8, 16, 4)), (300, (5, 17, 2)), (3, (4096, 1, 0))])
def test_slices_of_rows(gpu: Any, cupy: Any, dtype: str, rows: int, widths: tuple[int, ...]) -> None:
    rng, kind = np.random.default_rng(0), numpy_dtype(dtype)
    host = rng.integers(0, 2 if dtype == "bool" else 100, (rows, sum(widths))).astype(kind)
    whole = cupy.asarray(host)
    ends = np.cumsum(widths)
    slices = [whole[:, end - width : end] for width, end in zip(widths, ends, strict=True)]
    apart = [cupy.zeros(part.shape, kind) for part in slices]
    joined = cupy.zeros_like(whole)
    run(cupy, list(zip(apart, slices, strict=True)))
    places = [joined[:, end - width : end] for width, end in zip(widths, ends, strict=True)]
    run(cupy, list(zip(places, apart, strict=True)))
    for part, width, end in zip(apart, widths, ends, strict=True):
        np.testing.assert_array_equal(cupy.asnumpy(part), host[:, end - width : end])
    np.testing.assert_array_equal(cupy.asnumpy(joined), host)


def test_many_copies_are_a_launch_for_each_full_table(gpu: Any, cupy: Any) -> None:
    host = np.arange(2 * MAX_COPIES * 40, dtype="f").reshape(5, -1, 8)
    whole = cupy.asarray(host)
    count = whole.shape[1]
    apart = [cupy.zeros((5, 8), "f") for _ in range(count)]
    assert run(cupy, [(part, whole[:, k]) for k, part in enumerate(apart)]) == {"launch": -(-count // MAX_COPIES)}
    np.testing.assert_array_equal(cupy.asnumpy(cupy.stack(apart, axis=1)), host)


def test_what_lies_in_no_rows_is_copied_by_the_library(gpu: Any, cupy: Any) -> None:
    host = np.arange(2 * 4 * 6 * 10, dtype="f").reshape(2, 4, 6, 10)
    whole = cupy.asarray(host)
    for source in (whole.transpose(3, 2, 1, 0), whole[:, ::2, ::2], whole[..., ::2], whole[..., ::-1]):
        target = cupy.zeros(source.shape, "f")
        run(cupy, [(target, source)])
        np.testing.assert_array_equal(cupy.asnumpy(target), cupy.asnumpy(source))
