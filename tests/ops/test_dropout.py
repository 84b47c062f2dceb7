"""Dropout: how much is dropped, that backward drops the same, and that nothing is dropped outside training."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from opbox_ops.backend import Backend, backend_for
from opbox_ops.infer import numpy_dtype
from opbox_service.executor import invoke
from tests.cases.case import Arg, Case

from .harness import Run

SIZE = 200_000


def _run(attrs: dict[str, Any], shape: tuple[int, ...] = (SIZE,), is_train: bool = True) -> Run:
    case = Case("Dropout", {"data": Arg(shape, low=1.0, high=2.0)}, attrs, is_train=is_train)
    return Run(case, "float32", backend_for("cpu"))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_share_that_is_dropped(p: float) -> None:
    """Of n independent draws, the share differs from p by more than 5 sqrt(p (1 - p) / n) once in two million runs."""
    run = _run({"p": p})
    out, mask = run.forward()
    dropped = float((out == 0).mean())
    assert abs(dropped - p) < 5 * math.sqrt(p * (1 - p) / SIZE)
    survivors = out != 0
    np.testing.assert_allclose(out[survivors], run.arrays["data"][survivors] / np.float32(1 - p), rtol=1e-6)
    np.testing.assert_array_equal(mask != 0, survivors)


def test_neighbours_are_independent() -> None:
    """Both of two neighbours are dropped with probability p squared."""
    dropped = _run({"p": 0.5}).forward()[0] == 0
    both = float((dropped[::2] & dropped[1::2]).mean())
    assert abs(both - 0.25) < 5 * math.sqrt(0.25 * 0.75 / (SIZE // 2))


def test_backward_drops_the_same() -> None:
    run = _run({"p": 0.3})
    grad = run.backward()["data"]
    out, mask = run.calls[0].outputs
    np.testing.assert_array_equal(grad == 0, out == 0)
    np.testing.assert_array_equal(grad, run.heads()[0] * mask)


def test_axes_are_dropped_together() -> None:
    out, mask = _run({"axes": (1, 2)}, (50, 4, 5, 6)).forward()
    assert mask.shape == (50, 1, 1, 6)
    dropped = out == 0
    np.testing.assert_array_equal(dropped, np.broadcast_to(dropped[:, :1, :1], dropped.shape))
    assert 0 < dropped.mean() < 1


def test_outside_training_nothing_is_dropped() -> None:
    run = _run({"p": 0.5}, is_train=False)
    np.testing.assert_array_equal(run.forward()[0], run.arrays["data"])


def test_mode_always_drops_outside_training() -> None:
    out, _ = _run({"p": 0.5, "mode": "always"}, is_train=False).forward()
    assert 0.4 < (out == 0).mean() < 0.6


def test_all_and_nothing() -> None:
    run = _run({"p": 1.0}, (10,))
    np.testing.assert_array_equal(run.forward()[0], np.zeros(10, "f"))
    np.testing.assert_array_equal(run.backward()["data"], np.zeros(10, "f"))
    run = _run({"p": 0.0}, (10,))
    np.testing.assert_array_equal(run.forward()[0], run.arrays["data"])


def test_seeds_repeat_the_draw() -> None:
    first, again = _run({"p": 0.5}).forward()[0], _run({"p": 0.5}).forward()[0]
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "bfloat16"])
@pytest.mark.parametrize("size", [1, 3, 8, 9, 2055])
def test_every_device_drops_the_same(backend: Backend, size: int, dtype: str) -> None:
    """To the last bit, with the output and the mask."""
    data = np.linspace(-3, 3, size).astype(numpy_dtype(dtype))
    results = []
    for device in (backend_for("cpu"), backend):
        outputs = invoke(
            "Dropout", {"p": "0.3"}, [device.put(data)], backend=device, random=device.random(5), is_train=True
        )
        results.append([device.get(out) for out in outputs])
    for expected, result in zip(*results, strict=True):
        np.testing.assert_array_equal(result, expected)
        assert result.dtype == expected.dtype


def test_a_view_that_begins_anywhere_is_dropped_from(backend: Backend) -> None:
    data = np.arange(1, 101, dtype="f")
    [whole], [part] = (
        invoke("Dropout", {"p": "0.5"}, [array], backend=backend, random=backend.random(5), is_train=True)[:1]
        for array in (backend.put(data[1:]), backend.put(data)[1:])
    )
    np.testing.assert_array_equal(backend.get(part), backend.get(whole))
