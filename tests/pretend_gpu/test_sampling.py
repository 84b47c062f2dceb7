"""Sampling operators on the device: positions all over, all in one cell, far, no numbers, and in graphs."""

from __future__ import annotations

import math
from collections.abc import Set
from typing import Any

import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_ops.cuda import deformable_convolution, spread
from opbox_service.executor import bind
from tests.ops.one_call import call_graph
from tests.switches import switch, switch_off

from .spy import watched

RNG = np.random.default_rng(0)
AFFINE = {"transform_type": "affine", "target_shape": (41, 45)}
MATRICES = np.array([[0.9, 0.15, 0.0625, -0.2, 0.8, 0.11], [1.1, -0.3, 0.21, 0.4, 0.7, -0.13]])
IMAGES = RNG.normal(size=(2, 6, 37, 35))
ALIKE = np.full((2, 2, 40, 45), 0.123)
SCATTERED = RNG.uniform(-1.2, 1.2, (2, 2, 40, 45))

HALF_ALIKE = np.where(RNG.uniform(size=(2, 1, 60, 70)) < 0.5, 0.123, RNG.uniform(-1.2, 1.2, (2, 2, 60, 70)))
"""More positions than are ranked in one launch, of which half are in one cell."""

SMALL = RNG.normal(size=(2, 2, 3, 13, 11))
MET = {"kernel_size": 3, "max_displacement": 4, "stride1": 2, "stride2": 3, "pad_size": 5}
PAIR = {"data1": SMALL[0], "data2": SMALL[1]}
MOVED = {"kernel": (3, 3), "pad": (1, 2), "stride": (1, 2), "dilate": (2, 1)}
GROUPED = {**MOVED, "num_filter": 6, "num_group": 2, "num_deformable_group": 2}
CONVOLVED = {
    "data": RNG.normal(size=(3, 10, 14, 31)),
    "offset": RNG.uniform(-4, 4, (3, 36, 12, 17)),
    "mask": RNG.uniform(0, 1, (3, 18, 12, 17)),
    "weight": RNG.normal(size=(6, 5, 3, 3)),
    "bias": RNG.normal(size=6),
}
UNMASKED = {key: value for key, value in CONVOLVED.items() if key != "mask"}

CALLS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "scattered": ("BilinearSampler", {}, {"data": IMAGES, "grid": SCATTERED}),
    "alike": ("BilinearSampler", {}, {"data": IMAGES, "grid": ALIKE}),
    "half alike": ("BilinearSampler", {}, {"data": IMAGES, "grid": HALF_ALIKE}),
    "affine": ("GridGenerator", AFFINE, {"data": MATRICES}),
    "a line": ("GridGenerator", {**AFFINE, "target_shape": (1, 300)}, {"data": MATRICES}),
    "warp": ("GridGenerator", {"transform_type": "warp"}, {"data": 20 * SCATTERED}),
    "transformer": ("SpatialTransformer", {**AFFINE, "sampler_type": "bilinear"}, {"data": IMAGES, "loc": MATRICES}),
    "correlation": ("Correlation", MET, PAIR),
    "differences": ("Correlation", {**MET, "is_multiply": False, "stride1": 1, "pad_size": 6}, PAIR),
    "deformable": ("_contrib_DeformableConvolution", GROUPED, UNMASKED),
    "modulated": ("_contrib_ModulatedDeformableConvolution", GROUPED, CONVOLVED),
}


def results(
    name: str, device: str, dtype: str, runs: int = 1, unwanted: Set[str] = frozenset()
) -> tuple[dict[str, Any], dict[str, int]]:
    """Outputs and gradients (but for the `unwanted`) of a call's last run, and what that did to the device."""
    op, attrs, inputs = CALLS[name]
    backend = backend_for(device)
    with backend.scope():
        args = {key: backend.put(value.astype(dtype)) for key, value in inputs.items()}
        wanted = [key for key in inputs if key not in unwanted]
        grads = {key: backend.put(np.full(inputs[key].shape, np.nan, dtype)) for key in wanted}
        graph = call_graph(op, attrs, list(inputs))
        options: Any = {"backend": backend, "random": backend.random(0)}
        executor = bind(graph, args=args, grads=grads, grad_req=dict.fromkeys(grads, "write"), **options)
        executor.forward(is_train=True)
        head = backend.put(np.random.default_rng(1).normal(size=executor.outputs[0].shape).astype(dtype))
        executor.backward([head])
        counted: dict[str, int] = {}
        for _ in range(runs - 1):
            with watched() as watch:
                executor.forward(is_train=True)
                executor.backward([head])
            counted = {"allocations": watch.allocations, **watch.refused, "graphs": watch.calls["graphLaunch"]}
        arrays = {"out": executor.outputs[0], **grads}
        return {key: backend.get(array).copy() for key, array in arrays.items()}, counted


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CALLS)
def test_numbers_are_the_cpus(gpu: Any, name: str, dtype: str) -> None:
    on_device, on_cpu = (results(name, device, dtype)[0] for device in ("gpu:0", "cpu"))
    for key, expected in on_cpu.items():
        # Sums of up to 1,800 products of numbers around 1, in another order.
        scale = 1e-12 if dtype == "float64" else 1e-4
        np.testing.assert_allclose(on_device[key], expected, rtol=scale, atol=10 * scale, err_msg=key)


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("name", ["deformable", "modulated"])
def test_a_few_samples_at_a_time(
    gpu: Any, name: str, dtype: str, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = results(name, "gpu:0", dtype)
    itemsize = 8 if dtype == "float64" else 4
    monkeypatch.setattr(deformable_convolution, "GPU_COLUMN_BYTES", samples * itemsize * 10 * 9 * 12 * 17)
    got, _ = results(name, "gpu:0", dtype)
    for key, expected in whole.items():
        # The products of the weight's gradient are added up in another order.
        scale = 1e-12 if dtype == "float64" else 2e-3
        np.testing.assert_allclose(got[key], expected, rtol=scale, atol=scale, err_msg=key)


@pytest.mark.parametrize("unwanted", ["data", "offset", "mask", "weight", "bias"])
def test_a_gradient_that_nobody_wants(gpu: Any, unwanted: str) -> None:
    whole, _ = results("modulated", "gpu:0", "float32")
    got, _ = results("modulated", "gpu:0", "float32", unwanted={unwanted})
    assert got.keys() == whole.keys() - {unwanted}
    for key, array in got.items():
        np.testing.assert_array_equal(array, whole[key], err_msg=key)


@pytest.mark.parametrize("name", CALLS)
def test_a_recorded_graph_has_the_eager_numbers(gpu: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    switch_off(monkeypatch, "cuda-graphs")
    eager, _ = results(name, "gpu:0", "float32")
    switch(monkeypatch, "cuda-graphs", on=True)
    recorded, counted = results(name, "gpu:0", "float32", runs=4)
    assert counted == {"allocations": 0, "graphs": 2}
    for key, expected in eager.items():
        np.testing.assert_array_equal(recorded[key], expected, err_msg=key)


@pytest.mark.parametrize("far", [np.nan, np.inf, -np.inf, 1e30, -1e30])
def test_a_position_that_is_nowhere_reads_nothing(gpu: Any, far: float, monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.where(np.arange(9).reshape(1, 1, 3, 3) == 0, np.inf, 1.0)
    grid = np.full((1, 2, 1, 2), 0.5)
    grid[:, :, 0, 1] = far
    monkeypatch.setitem(CALLS, "far", ("BilinearSampler", {}, {"data": data, "grid": grid}))
    got, _ = results("far", "gpu:0", "float32")
    assert got["out"][0, 0, 0, 0] == 1
    np.testing.assert_array_equal(got["out"][0, 0, 0, 1], np.nan if np.isnan(far) else 0)
    assert np.isfinite(got["data"]).all()


@pytest.mark.parametrize("name", ["half alike", "modulated"])
def test_every_run_has_the_same_bits(gpu: Any, name: str) -> None:
    first, second = (results(name, "gpu:0", "float32")[0] for _ in range(2))
    for key, expected in first.items():
        np.testing.assert_array_equal(second[key], expected, err_msg=key)


def test_positions_that_are_nowhere_spread_nothing(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = HALF_ALIKE.copy()
    far = RNG.uniform(size=grid.shape[2:]) < 0.3
    grid[:, :, far] = np.where(np.arange(np.count_nonzero(far)) % 3, np.nan, np.inf)
    grid[:, 1, 0] = -1 - 2 / 36  # a whole cell above the image: the weight of its first row is 0
    monkeypatch.setitem(CALLS, "nowhere", ("BilinearSampler", {}, {"data": IMAGES, "grid": grid}))
    got, _ = results("nowhere", "gpu:0", "float64", unwanted={"grid"})
    monkeypatch.setitem(CALLS, "outside", ("BilinearSampler", {}, {"data": IMAGES, "grid": np.nan_to_num(grid, nan=9)}))
    expected, _ = results("outside", "cpu", "float64", unwanted={"grid"})
    # Sums of up to 2,000 products of numbers around 1, in another order.
    np.testing.assert_allclose(got["data"], expected["data"], rtol=1e-12, atol=1e-11)


def test_a_random_grid_costs_what_its_samples_do() -> None:
    """No thread goes through all positions: at most two windows of each of four cells, and sums of windows."""
    for n in (3136, 512 * 512, 1 << 24):
        window = spread._window(n)
        assert window <= 4096
        assert n // window <= 4096
    temps = spread.spread_temps((32, 64, 512, 512), 512 * 512, "float32")
    sizes = [math.prod(temp.shape) * np.dtype(temp.dtype).itemsize for temp in temps]
    # Beside samples of 2 GiB: 16 bytes a position, 4 a cell, counts, and sums of windows.
    assert sum(sizes) < 250 << 20
