"""Formulas on the device: the CPU's numbers for any size, where the last vector is cut off, for unaligned arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops.expression.cuda import CudaFormula, formula_kernel
from opbox_ops.expression.language import read
from opbox_ops.expression.program import Target, compile_terms


def kernel(cupy: Any, narrow: bool) -> CudaFormula:
    """max(a + 2 b, 0) in float32."""
    target = Target(read("maximum(a + 2 * b, 0)", ("a", "b")), narrow)
    convert = frozenset(("a", "b") if narrow else ())
    program = compile_terms([target], {"a": 0, "b": 1}, convert=convert, singles=True)
    formula = formula_kernel(program, np.dtype("float32"), cupy)
    assert formula is not None
    return formula


@pytest.mark.parametrize("start", [0, 1, 8])
@pytest.mark.parametrize("size", [1, 7, 8, 9, 2047, 4099, 135_171])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_last_vector_may_be_cut_off(gpu: Any, cupy: Any, dtype: str, size: int, start: int) -> None:
    a, b = (np.random.default_rng(seed).integers(-9, 9, start + size).astype(dtype) for seed in (0, 1))
    arrays = [cupy.asarray(array)[start:] for array in (a, b)]
    out = cupy.full(start + size + 8, 77, dtype)
    formula = kernel(cupy, dtype == "float16")
    formula.bind(arrays, [np.float32(value) for value in (2, 0)], [out[start : start + size]])()
    expected = np.full(start + size + 8, 77, dtype)
    expected[start : start + size] = np.maximum(a + 2 * b, 0)[start:]
    np.testing.assert_array_equal(cupy.asnumpy(out), expected)


def test_few_elements_are_shared_out_among_all_processors(gpu: Any, cupy: Any) -> None:
    """The gates of a step of an LSTM: with eight elements a thread, four of 132 processors would compute them."""
    arrays, out = [cupy.zeros((32, 256), "float16") for _ in range(2)], cupy.zeros((32, 256), "float16")
    call: Any = kernel(cupy, True).bind(arrays, [np.float32(value) for value in (2, 0)], [out])
    (blocks,), (threads,), _ = call.args
    assert blocks >= 132
    assert blocks * threads == out.size
