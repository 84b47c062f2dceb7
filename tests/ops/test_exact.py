"""Each step of a formula rounds by itself on a GPU, alone and fused, and numbers below 2^-126 are not 0.

`tests/nvrtc/test_arithmetic.py` reads the compiler's instructions without a GPU.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_ops.cuda import kernel
from opbox_ops.cuda.exact import EXACT
from opbox_ops.cuda.softmax import FORWARD
from opbox_ops.cuda.triangular import SOLVE_BLOCK
from opbox_ops.expression.cuda import formula_kernel
from opbox_ops.expression.language import read
from opbox_ops.expression.program import Target, compile_terms
from tests.switches import switch_off

CLOSE = np.float32(1 + 2.0**-12)
"""Its square is no float32: rounded before it is taken from itself, it leaves 0; rounded after, -2^-24."""


def test_formulas_are_compiled_with_the_option() -> None:
    program = compile_terms([Target(read("a * b", ("a", "b")))], {"a": 0, "b": 1}, singles=True)
    recorder = SimpleNamespace(ElementwiseKernel=lambda *texts, preamble, options: options)
    formula: Any = formula_kernel.__wrapped__(program, np.dtype("float32"), recorder)
    assert (formula.by_elements, formula.by_vectors.options) == (EXACT, EXACT)


def test_kernels_are_compiled_with_it_unless_arithmetic_takes_the_time() -> None:
    recorder = SimpleNamespace(RawKernel=lambda source, name, options: options)
    for template, options in ((FORWARD, EXACT), (SOLVE_BLOCK, ())):
        seen: Any = kernel._compiled.__wrapped__(recorder, template, "float32", None)
        assert seen == options


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["gpu"], indirect=True)
@pytest.mark.parametrize("fused", [True, False])
def test_a_difference_of_products(device: str, fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not fused:
        switch_off(monkeypatch, "fusion")
    a, b, c = (mx.sym.Variable(name) for name in "abc")
    out = mx.sym.sqrt(a * b - c * c)
    arrays = {name: mx.nd.full((5,), float(CLOSE), mx.gpu(0)) for name in "abc"}
    np.testing.assert_array_equal(out.bind(mx.gpu(0), arrays).forward()[0].asnumpy(), 0)


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["gpu"], indirect=True)
@pytest.mark.parametrize("function", [np.maximum, np.minimum])
@pytest.mark.parametrize("dtype", ["int32", "int8"])
def test_a_negated_number_among_three(device: str, function: np.ufunc, dtype: str) -> None:
    """CUDA's assembler makes one instruction of it, and loses the sign of `-b` (tests/nvrtc/test_machine_code.py)."""
    a, b, c = np.array([[1, 1, -5, 3], [7, -7, 4, 100], [2, 2, -9, 1]], dtype)
    x, y, z = (mx.sym.Variable(name) for name in "abc")
    operator = getattr(mx.sym, function.__name__)
    arrays = {name: mx.nd.array(array, mx.gpu(0), dtype) for name, array in zip("abc", (a, b, c), strict=True)}
    out = operator(operator(x, -y), z).bind(mx.gpu(0), arrays).forward()[0]
    assert out.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(out.asnumpy(), function(function(a, -b), c))


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["gpu"], indirect=True)
def test_numbers_below_the_smallest_normal_one(device: str) -> None:
    tiny = np.array([1e-40, 3e-42, 1.1754942e-38], "f")
    x = mx.nd.array(tiny, mx.gpu(0))
    np.testing.assert_array_equal(x.asnumpy(), tiny)
    # CUDA's logarithm is within a unit in the last place.
    np.testing.assert_allclose(mx.nd.log(x).asnumpy(), np.log(tiny), rtol=3e-7)
    np.testing.assert_array_equal((x * 2.0**20).asnumpy(), tiny * np.float32(2.0**20))
    np.testing.assert_array_equal((x + x).asnumpy(), tiny + tiny)
    np.testing.assert_array_equal(mx.nd.sum(x, axis=0).asnumpy(), tiny.sum())
    np.testing.assert_array_equal(mx.nd.max(x, axis=0).asnumpy(), tiny.max())
