"""exp and tanh of float32 in C: NumPy's numbers to the last bit, and NumPy's loops where that is not so."""

from __future__ import annotations

import ctypes
from ctypes import c_long, c_void_p
from pathlib import Path

import numpy as np
import pytest

from opbox_ops.compute import Array
from opbox_ops.cpu.runtime import c_compiler
from opbox_ops.cpu.runtime.processor import has_avx512
from opbox_ops.expression import numpy_loops, vector_loops
from opbox_ops.expression.numpy_loops import Loop, loop_of
from tests.machine import needs_vectors

FLOAT32 = np.dtype("float32")
NAMES = list(vector_loops.NAMES)


def own_loop(name: str) -> Loop | None:
    return numpy_loops._vector_loop(name, getattr(np, name), FLOAT32)


NAMES_HERE = ["exp"] if has_avx512() else NAMES
"""With AVX-512 tanh is NumPy's."""


@needs_vectors
def test_what_there_is() -> None:
    assert [name for name in NAMES if own_loop(name) is not None] == NAMES_HERE


def run(loop: Loop, data: Array, out: Array) -> None:
    """Run the loop over data, which may be one number for all, and `out`."""
    places = (c_void_p * 2)(data.ctypes.data, out.ctypes.data)
    steps = (c_long * 2)(data.strides[0] if data.size > 1 else 0, out.strides[0])
    kind = ctypes.CFUNCTYPE(None, *[c_void_p] * 4)
    kind(loop.function)(places, (c_long * 1)(out.size), steps, loop.data)


def numpys(name: str, data: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(getattr(np, name)(data))


@needs_vectors
@pytest.mark.parametrize("name", NAMES_HERE)
def test_numbers_of_all_bits_are_numpys(name: str) -> None:
    loop = loop_of(name, FLOAT32)
    assert loop is not None
    data = np.arange(0, 1 << 32, 509, dtype=np.uint64).astype(np.uint32).view(FLOAT32)
    out = np.empty_like(data)
    run(loop, data, out)
    assert out.tobytes() == numpys(name, data).tobytes()


@needs_vectors
@pytest.mark.parametrize("name", NAMES_HERE)
@pytest.mark.parametrize("size", [1, 7, 8, 9, 15, 16, 17, 31, 100])
def test_rows_of_any_length_and_step(name: str, size: int) -> None:
    loop = own_loop(name)
    assert loop is not None
    numbers = np.linspace(-120, 120, 3 * size + 1, dtype=FLOAT32)
    for data in (numbers[1 : size + 1], numbers[: 3 * size : 3], numbers[size - 1 :: -1][:size], numbers[:1]):
        padded = np.full(2 * size + 2, 7, FLOAT32)
        for out in (padded[1 : size + 1], padded[1 : 2 * size + 1 : 2]):
            padded[:] = 7
            run(loop, data, out)
            assert out.tobytes() == np.broadcast_to(numpys(name, data), out.shape).tobytes()
            assert padded[0] == padded[-1] == 7, "a number beside the row was written"


@needs_vectors
@pytest.mark.parametrize("name", NAMES_HERE)
def test_a_row_may_be_written_where_it_lies(name: str) -> None:
    loop = own_loop(name)
    assert loop is not None
    data = np.linspace(-9, 9, 77, dtype=FLOAT32)
    expected = numpys(name, data)
    run(loop, data, data)
    assert data.tobytes() == expected.tobytes()


@needs_vectors
@pytest.mark.parametrize("name", NAMES_HERE)
def test_loops_that_differ_in_a_bit_are_left_to_numpy(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPBOX_CACHE_DIR", str(tmp_path))
    digits = "5.082762527590693718096e-04f" if name == "exp" else "0x3f7fb78c"
    other = "5.083e-04f" if name == "exp" else "0x3f7fb78d"  # of one of tanh's 32 rows
    assert vector_loops.TEXT.count(digits) == 1
    monkeypatch.setattr(numpy_loops, "TEXT", vector_loops.TEXT.replace(digits, other))
    assert own_loop(name) is None
    loop = loop_of.__wrapped__(name, FLOAT32)
    assert loop is not None
    data, out = np.linspace(-9, 9, 77, dtype=FLOAT32), np.empty(77, FLOAT32)
    run(loop, data, out)
    assert out.tobytes() == numpys(name, data).tobytes()


def test_other_functions_and_types_have_numpys_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_compiler, "compiled_function", lambda *_, **__: pytest.fail("something was compiled"))
    for name, work in (("exp", "float64"), ("tanh", "float64"), ("log", "float32"), ("sin", "float32")):
        assert loop_of.__wrapped__(name, np.dtype(work)) is not None


def test_without_a_compiler_loops_are_numpys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_compiler, "compiled_function", lambda *_, **__: None)
    for name in NAMES:
        assert own_loop(name) is None
        assert loop_of.__wrapped__(name, FLOAT32) is not None
