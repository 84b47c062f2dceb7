"""Images on the device: colours change by the CPU's numbers, sizes by its weights, whatever the type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_service.executor import invoke

RANGE = {"min_factor": 0.2, "max_factor": 1.8}
JITTER = {"brightness": 0.5, "contrast": 0.25, "saturation": 0.5, "hue": 0.25}
CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "brightness": ("random_brightness", RANGE),
    "contrast": ("random_contrast", RANGE),
    "saturation": ("random_saturation", RANGE),
    "hue": ("random_hue", {"min_factor": 0, "max_factor": 1}),
    "jitter": ("random_color_jitter", JITTER),
    "jitter without contrast": ("random_color_jitter", {**JITTER, "contrast": 0}),
}
TYPES = ("float32", "float64", "float16", "uint8", "int32")


def image(shape: tuple[int, ...], dtype: str) -> Any:
    return np.random.default_rng(0).uniform(0, 255, shape).astype(dtype)


def on(device: str, op: str, attrs: dict[str, Any], data: Any, seed: int = 0, level: str | None = None) -> Any:
    """The output of an image operator on a device."""
    backend = backend_for(device)
    strings = {key: str(value) for key, value in attrs.items()}
    arrays = [backend.put(data)]
    options: Any = {"backend": backend, "random": backend.random(seed), "level": level}
    return backend.get(invoke(f"_image_{op}", strings, arrays, **options)[0])


def close(got: Any, expected: Any) -> None:
    """Equal but for a rounding of single precision, which whole numbers that are cut off show as 1."""
    assert got.dtype == expected.dtype
    if got.dtype.kind == "f":
        precision = {2: 2e-3, 4: 2e-5, 8: 1e-12}[got.dtype.itemsize]
        np.testing.assert_allclose(got, expected, rtol=precision, atol=100 * precision)
    else:
        apart = np.abs(got.astype("d") - expected)
        assert apart.max() <= 1
        assert (apart > 0).mean() < 0.01


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", CHANGES)
def test_colours_are_those_of_the_cpus_numbers(gpu: Any, name: str, dtype: str, channels: int) -> None:
    op, attrs = CHANGES[name]
    data, shown = image((23, 57, channels), dtype), set()
    for seed in range(5):
        got, expected = (on(device, op, attrs, data, seed) for device in ("gpu:0", "cpu"))
        close(got, expected)
        shown.add(got.tobytes())
    assert len(shown) == (1 if channels == 1 and name in ("saturation", "hue") else 5)


def test_gray_pixels_keep_their_gray(gpu: Any) -> None:
    data = np.repeat(image((4, 5, 1), "float32"), 3, axis=2)
    data[0, 0] = 0
    data[0, 1] = 255
    got, expected = (on(device, *CHANGES["hue"], data) for device in ("gpu:0", "cpu"))
    close(got, expected)
    np.testing.assert_allclose(got, data, rtol=1e-5)


@pytest.mark.parametrize("dtype", TYPES)
def test_light_is_that_of_the_reference(gpu: Any, dtype: str) -> None:
    for channels in (1, 3):
        data = image((23, 57, channels), dtype)
        got, expected = (on("gpu:0", "random_lighting", {"alpha_std": 0.5}, data, 3, x) for x in (None, "reference"))
        close(got, expected)
        assert (got != data).any() == (channels == 3)


@pytest.mark.parametrize("shape", [(2, 40, 30, 3), (31, 52, 1), (20, 24, 4), (20, 24, 2)])
@pytest.mark.parametrize("size", [(26, 15), (12, 10), (70, 45)])
@pytest.mark.parametrize("interp", range(5))
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "uint8"])
def test_sizes_are_the_cpus(gpu: Any, dtype: str, interp: int, size: tuple[int, int], shape: tuple[int, ...]) -> None:
    data, attrs = image(shape, dtype), {"size": size, "interp": interp}
    got, expected = (on(device, "resize", attrs, data) for device in ("gpu:0", "cpu"))
    if dtype == "uint8" or not interp:
        np.testing.assert_array_equal(got, expected)
    else:
        close(got, expected)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_the_nearest_pixel_is_copied_in_any_type(gpu: Any, dtype: str) -> None:
    data = image((7, 9, 3), "float64").astype(dtype)
    got, expected = (on(device, "resize", {"size": (5, 12), "interp": 0}, data) for device in ("gpu:0", "cpu"))
    np.testing.assert_array_equal(got, expected)
