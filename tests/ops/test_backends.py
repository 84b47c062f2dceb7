"""What every device's backend does, on each device that this machine has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops.backend import Backend


@pytest.mark.parametrize("shape", [(), (1,), (3,), (0, 2), (2, 3)])
def test_what_is_put_comes_back(backend: Backend, shape: tuple[int, ...]) -> None:
    host = np.arange(int(np.prod(shape)), dtype="f").reshape(shape) + 1
    assert backend.put(host).shape == shape
    assert backend.get(backend.put(host)).shape == shape
    np.testing.assert_array_equal(backend.get(backend.put(host)), host)


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_writing_casts(backend: Backend, shape: tuple[int, ...], dtype: str) -> None:
    target = backend.empty(shape, dtype)
    backend.write(target, np.full(shape, 3.0, "f"))
    assert target.shape == shape
    np.testing.assert_array_equal(backend.get(target), np.full(shape, 3, dtype))


def test_writing_into_every_second_column(backend: Backend) -> None:
    wide = backend.put(np.zeros((2, 4), "f"))
    backend.write(wide[:, ::2], np.ones((2, 2), "f"))
    assert backend.get(wide).tolist() == [[1, 0, 1, 0]] * 2


@pytest.mark.parametrize("nbytes", [1, 100, 5_000, 1 << 20, 40 << 20])
def test_zeros_are_zeros_in_memory_that_had_other_values(backend: Backend, nbytes: int) -> None:
    for _ in range(10):  # whichever block is taken next
        backend.empty((nbytes,), np.uint8)[...] = 0xA5
    wiped = backend.zeros((nbytes,), np.uint8)
    assert wiped.shape == (nbytes,)
    assert not backend.get(wiped).any()


def test_a_view_of_an_arena(backend: Backend) -> None:
    arena = backend.empty((256,), np.uint8)
    view = backend.view(arena, 64, (2, 3), np.float32)
    view[...] = 1
    assert backend.get(arena[64:88]).view("f").tolist() == [1] * 6


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_uniform_numbers_differ(backend: Backend, dtype: str) -> None:
    out = backend.empty((100, 100), dtype)
    backend.random(3).uniform(out, 2.0, 4.0)
    numbers = backend.get(out).astype("d")
    assert len(np.unique(numbers)) > 500
    assert numbers.min() >= 2
    assert numbers.max() <= 4
    assert abs(numbers.mean() - 3) < 0.05


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_normal_numbers_differ(backend: Backend, dtype: str) -> None:
    out = backend.empty((100, 100), dtype)
    backend.random(3).normal(out, 1.0, 2.0)
    numbers = backend.get(out).astype("d")
    assert len(np.unique(numbers)) > 500
    assert abs(numbers.mean() - 1) < 0.1
    assert abs(numbers.std() - 2) < 0.1


def test_a_seed_repeats_its_numbers(backend: Backend) -> None:
    def drawn(seed: int) -> Any:
        out = backend.empty((8,), "f")
        backend.random(seed).uniform(out)
        return backend.get(out).tolist()

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
