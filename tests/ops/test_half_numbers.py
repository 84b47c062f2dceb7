"""Numbers of 16 bits in C: NumPy's to the last bit, all of them, and float32 of every size rounded to them."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbox_ops.cpu.runtime import c_compiler
from opbox_ops.cpu.runtime.kernel_text import kernel_text
from opbox_ops.expression.functions import ROUNDING, resolve
from opbox_protocol.mxnet import numpy_dtype
from tests.machine import has_half_type, needs_compiler

pytestmark = needs_compiler

HALVES = {
    "the processor's": kernel_text("half_numbers.h"),
    "vectors of 8": kernel_text("half_numbers.h").replace("defined(__AVX512F__)", "0"),
    "one at a time": kernel_text("half_numbers.h")
    .replace("defined(__AVX512F__)", "0")
    .replace("defined(__F16C__)", "0"),
}
FUNCTIONS = """
void widen(float *to, const unsigned short *from, long n) { widen_TYPE(to, from, n); }
void narrow(unsigned short *to, const float *from, long n) { narrow_TYPE(to, from, n); }
void rounded(float *to, const float *from, long n) { for (long i = 0; i < n; i++) to[i] = round_TYPE(from[i]); }
"""


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("OPBOX_CACHE_DIR", str(folder))


def called(kind: str, dtype: str, name: str, data: Any, out: Any) -> Any:
    """`out`, which the C function has written."""
    if kind == "one at a time" and not has_half_type():
        pytest.skip("a compiler without _Float16")
    text = HALVES[kind] + FUNCTIONS.replace("TYPE", dtype)
    function = c_compiler.compiled_function(text, name)
    assert function is not None
    place = ctypes.c_void_p
    function.argtypes, function.restype = [place, place, ctypes.c_long], None
    function(out.ctypes.data, data.ctypes.data, data.size)
    return out


def all_floats() -> Any:
    """Numbers of all sizes, NaN, infinities and denormal numbers, and those half-way between two of 16 bits."""
    bits = np.arange(0, 1 << 32, 1021, dtype=np.uint64)
    half_way = np.arange(0, 1 << 32, 1 << 12, dtype=np.uint64)
    return np.concatenate([bits, half_way, half_way + 1, half_way[1:] - 1]).astype(np.uint32).view(np.float32)


def same(one: Any, other: Any) -> None:
    """Equal to the last bit, NaN where the other is."""
    with np.errstate(all="ignore"):
        nan = np.isnan(other.astype("f4"))
        assert np.array_equal(np.isnan(one.astype("f4")), nan)
    assert one[~nan].tobytes() == other[~nan].tobytes()


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("kind", HALVES)
def test_every_number_of_16_bits(kind: str, dtype: str) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(numpy_dtype(dtype))
    same(called(kind, dtype, "widen", halves, np.empty(halves.size, np.float32)), halves.astype(np.float32))


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("kind", HALVES)
def test_floats_are_rounded_as_numpy_rounds_them(kind: str, dtype: str) -> None:
    floats = all_floats()
    with np.errstate(all="ignore"):
        expected = floats.astype(numpy_dtype(dtype))
    same(called(kind, dtype, "narrow", floats, np.empty_like(expected)), expected)
    same(called(kind, dtype, "rounded", floats, np.empty_like(floats)), expected.astype(np.float32))


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("kind", HALVES)
def test_a_row_of_any_length_is_written_to_its_end(kind: str, dtype: str) -> None:
    for n in range(35):
        halves = np.arange(n + 1).astype(numpy_dtype(dtype))
        out = np.full(n + 1, -1, np.float32)
        called(kind, dtype, "widen", halves[:n], out)
        assert out.tolist() == [*range(n), -1]
        back = np.full(n + 1, -1).astype(halves.dtype)
        called(kind, dtype, "narrow", out[:n], back)
        assert back.astype(int).tolist() == [*range(n), -1]


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("shape", [(), (7,), (3, 5)])
def test_numpys_rounding_is_the_arrays(dtype: str, shape: tuple[int, ...]) -> None:
    rounded = resolve(ROUNDING[dtype], np, None)
    data = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    out, expected = np.array(data), data.astype(numpy_dtype(dtype)).astype(np.float32)
    rounded(out, np.empty_like(out), out=out)
    assert np.array_equal(out, expected)
