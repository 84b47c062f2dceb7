"""Formulas over arrays that lie in rows: vectors, their ends, rows of other arrays, and arrays that do not lie so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops.backend import Backend
from opbox_ops.infer import numpy_dtype
from opbox_service.executor import invoke

SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 1023, 1024, 1025, 4096 + 3]
BROADCAST = [
    ((6, 8), (1, 8)),
    ((6, 8), (6, 1)),
    ((6, 7), (1, 7)),
    ((1, 1), (1, 1)),
    ((3, 4, 5, 8), (3, 4, 1, 1)),
    ((3, 4, 5, 8), (1, 4, 1, 1)),
    ((3, 4, 5, 8), (1, 4, 1, 8)),
    ((3, 1, 5, 1), (1, 4, 1, 8)),
    ((2, 3, 1, 5, 4), (2, 1, 7, 1, 4)),
]


def called(backend: Backend, op: str, arrays: list[Any], **attrs: str) -> Any:
    [out] = invoke(op, attrs, arrays, backend=backend, random=backend.random(0))
    return backend.get(out)


def numbers(shape: tuple[int, ...], dtype: Any = "f", seed: int = 0) -> Any:
    return (np.random.default_rng(seed).integers(-50, 50, shape) / 8).astype(dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "uint8", "bfloat16"])
@pytest.mark.parametrize("size", SIZES)
def test_the_last_vector_ends_where_the_array_ends(backend: Backend, size: int, dtype: str) -> None:
    x = np.abs(numbers((size,), "f")).astype(numpy_dtype(dtype))
    whole = backend.put(np.concatenate([x, x]))
    # What lies behind the target stays as it was.
    np.testing.assert_array_equal(called(backend, "elemwise_add", [whole[:size], whole[:size]]), x + x)
    np.testing.assert_array_equal(backend.get(whole), np.concatenate([x, x]))


@pytest.mark.parametrize("shapes", BROADCAST)
@pytest.mark.parametrize("swapped", [False, True])
def test_arrays_are_broadcast(backend: Backend, shapes: tuple[Any, Any], swapped: bool) -> None:
    a, b = (numbers(shape, seed=k) for k, shape in enumerate(shapes))
    if swapped:
        a, b = b, a
    np.testing.assert_array_equal(called(backend, "broadcast_sub", [backend.put(a), backend.put(b)]), a - b)


@pytest.mark.parametrize("start", [0, 1, 2, 4])
@pytest.mark.parametrize("step", [1, 2, -1])
def test_arrays_may_begin_anywhere_and_have_gaps(backend: Backend, start: int, step: int) -> None:
    x = numbers((40, 16))
    parts = (np.s_[start : start + 16, start : start + 8], np.s_[::step, start : start + 4], np.s_[start, ::step])
    for part in parts:
        a = backend.put(x)[part]
        np.testing.assert_array_equal(called(backend, "elemwise_mul", [a, a]), x[part] * x[part])


def test_types_are_mixed(backend: Backend) -> None:
    x = numbers((33,))
    for source in ("float16", "int8", "bool", "float64"):
        for target in ("float32", "float16", "int32"):
            typed = np.abs(x).astype(source)
            result = called(backend, "Cast", [backend.put(typed)], dtype=target)
            np.testing.assert_array_equal(result, typed.astype(target))
