"""Sweeps of batch normalisation with ReLU: beside the definition in float64, and the kernels' bits beside NumPy's."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbox_ops.cpu.algorithms import norm_sweeps
from opbox_ops.cpu.algorithms.norm_sweeps import Norm, NormSweeps
from opbox_ops.cpu.onednn.library import library
from tests.allocations import counted
from tests.machine import needs_compiler, needs_onednn
from tests.switches import set_c_kernels

SHAPES = [(1, 2), (5, 3), (40, 64), (40, 70), (333, 130), (3000, 33), (9, 2048), (65, 256)]
LARGE = "#define LARGE (3 << 20)"
NORMS = [Norm(1e-5, 0.9, False), Norm(2e-3, 0.25, True)]


def matrices(shape: tuple[int, int], wild: bool = False) -> dict[str, Any]:
    """Data far from 0, its gradient, and numbers for each channel; NaN, infinities and zeros among them if `wild`."""
    rng = np.random.default_rng(shape[0])
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name in "xg"}
    arrays["x"] += np.float32(3)
    for name in ("mean", "scale", "shift", "share", "less"):
        arrays[name] = rng.normal(size=shape[1]).astype(np.float32)
    if wild:
        for array in arrays.values():
            places = rng.permutation(array.size)[: array.size // 9]
            array.reshape(-1)[places] = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], places.size)
    return arrays


def aligned(shape: tuple[int, int]) -> Any:
    """An array that begins where a line of the cache does."""
    scratch = np.full(shape[0] * shape[1] + 16, 17, np.float32)
    first = -scratch.ctypes.data % 64 // 4
    return scratch[first : first + shape[0] * shape[1]].reshape(shape)


def swept(shape: tuple[int, int], arrays: dict[str, Any]) -> dict[str, Any]:
    """What every sweep writes, by NumPy."""
    sweeps = NormSweeps(*shape)
    temps = tuple(np.full(temp.shape, 17, temp.dtype) for temp in sweeps.temps)
    out = {name: np.full(shape[1], 17, np.float32) for name in ("means", "variances", "gbeta", "ggamma")}
    x, g = arrays["x"], arrays["g"]
    for name in ("y", "of_batch", "of_all"):
        out[name] = np.full(shape, 17, np.float32)
    numbers = arrays["mean"], arrays["scale"], arrays["shift"]
    with np.errstate(all="ignore"):
        sweeps.statistics(x, out["means"], out["variances"], temps)
        sweeps.normalize(x, out["y"], numbers, temps)
        sweeps.sums(x, g, numbers, out["gbeta"], out["ggamma"], temps)
        for name in ("of_batch", "of_all"):
            further = arrays["share"], arrays["less"], name == "of_batch"
            sweeps.gradient((x, g, None), out[name], numbers, *further, temps)
    return out


def computed(
    shape: tuple[int, int],
    arrays: dict[str, Any],
    norm: Norm,
    of_batch: bool,
    inplace: bool = False,
    less: bool = False,
    adds: str = "",
    other_mode: bool = False,
) -> dict[str, Any]:
    """What forward and backward write.

    inplace: gx is g. less: no gradient but that of beta is wanted. adds: there is an addend, "there" where gx is.
    other_mode: backward takes the statistics that forward did not take.
    """
    sweeps = NormSweeps(*shape)
    temps = tuple(np.full(temp.shape, 17, temp.dtype) for temp in sweeps.temps)
    scratches = [np.full(shape[1], 17, np.float32) for _ in range(7)]
    names = ("mean", "inverse", "ggamma", "gbeta")
    out = {name: np.full(shape[1], 17, np.float32) for name in names}
    out |= {name: arrays[name].copy() for name in ("scale", "share", "less")}
    out |= {name: aligned(shape) for name in ("y", "gx")}
    x, g = arrays["x"], arrays["g"].copy()
    if inplace:
        out["gx"] = g
    addend = x * np.float32(0.5) if adds else None
    if adds == "there":
        out["gx"] = addend
    gamma, moving = out["scale"], (out["share"], out["less"])
    inputs, results = (gamma, arrays["shift"], *moving), (out["mean"], out["inverse"], *scratches[:2])
    forward = sweeps.forward(norm, x, out["y"], inputs, results, temps)
    backward = sweeps.backward(
        norm,
        (x, g, addend, None if less else out["gx"]),
        (*inputs, out["mean"], out["inverse"]),
        (None if less else out["ggamma"], out["gbeta"]),
        scratches[2:],
        temps,
    )
    with np.errstate(all="ignore"):
        forward(of_batch)
        backward(of_batch != other_mode)
    return out


def fresh(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    set_c_kernels(monkeypatch, mode)
    monkeypatch.setattr(norm_sweeps, "_KERNELS", norm_sweeps.new_kernels())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_definition(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]) -> None:
    """In float64, float32's rounding beside it: sums of a few thousand numbers of about 3."""
    fresh(monkeypatch, "0")
    monkeypatch.setattr(norm_sweeps, "BLOCK", 512)
    arrays = matrices(shape)
    out = swept(shape, arrays)
    x, g, mean, scale, share, less = (
        arrays[name].astype(np.float64) for name in ("x", "g", "mean", "scale", "share", "less")
    )
    # Which side of 0 a value is on is decided in float32.
    centred = arrays["x"] - arrays["mean"]
    value = centred * arrays["scale"] + arrays["shift"]
    gated = np.where(value > 0, g, 0)
    near = {"rtol": 2e-5, "atol": 2e-5}
    np.testing.assert_allclose(out["means"], x.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(out["variances"], x.var(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(out["y"], np.maximum(value, 0))
    scatter = np.sqrt(shape[0]) * 1e-5  # sums whose parts cancel
    np.testing.assert_allclose(out["gbeta"], gated.sum(axis=0), rtol=1e-5, atol=scatter)
    np.testing.assert_allclose(out["ggamma"], (gated * (x - mean)).sum(axis=0), rtol=1e-5, atol=4 * scatter)
    np.testing.assert_allclose(out["of_batch"], ((x - mean) * share + gated - less) * scale, **near)
    np.testing.assert_allclose(out["of_all"], gated * share, **near)


@needs_compiler
@pytest.mark.parametrize("block", [norm_sweeps.BLOCK, 512])
@pytest.mark.parametrize("wild", [False, True], ids=["tame", "wild"])
@pytest.mark.parametrize("past", [False, True], ids=["through the caches", "past the caches"])
def test_kernels_give_numpys_bits(
    monkeypatch: pytest.MonkeyPatch, folder: Path, past: bool, wild: bool, block: int
) -> None:
    """Whatever the number of rows, of channels and of blocks, in place too; and nothing is allocated meanwhile."""
    monkeypatch.setenv("OPBOX_CACHE_DIR", str(folder))
    text = norm_sweeps.TEXT.replace(LARGE, "#define LARGE 0" if past else LARGE)
    assert (text != norm_sweeps.TEXT) == past
    monkeypatch.setattr(norm_sweeps, "TEXT", text)
    monkeypatch.setattr(norm_sweeps, "BLOCK", block)
    for shape, norm, of_batch in itertools.product(SHAPES, NORMS, (True, False)):
        arrays = matrices(shape, wild)
        for options in (
            {},
            {"inplace": True},
            {"less": True},
            {"adds": "apart"},
            {"adds": "there"},
            {"other_mode": True},
        ):
            fresh(monkeypatch, "0")
            expected = computed(shape, arrays, norm, of_batch, **options)
            fresh(monkeypatch, "now")
            result = computed(shape, arrays, norm, of_batch, **options)
            assert all(kernel.function is not None for kernel in norm_sweeps._KERNELS.values())
            for name, array in expected.items():
                np.testing.assert_array_equal(result[name], array, err_msg=f"{name} {shape}")
                signs = (np.signbit(np.nan_to_num(values, nan=1)) for values in (result[name], array))
                np.testing.assert_array_equal(*signs, err_msg=f"{name} {shape}")


def test_an_addend_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh(monkeypatch, "0")
    arrays = matrices((333, 130))
    for of_batch in (True, False):
        alone = computed((333, 130), arrays, NORMS[0], of_batch)["gx"]
        for adds in ("apart", "there"):
            total = computed((333, 130), arrays, NORMS[0], of_batch, adds=adds)["gx"]
            np.testing.assert_array_equal(total, alone + arrays["x"] * np.float32(0.5))


@needs_compiler
@needs_onednn
def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("OPBOX_CACHE_DIR", str(folder))
    fresh(monkeypatch, "now")
    monkeypatch.setattr(norm_sweeps, "BLOCK", 512)
    arrays = matrices((333, 130))
    dnnl = library()
    assert dnnl is not None
    several = computed((333, 130), arrays, NORMS[0], True)
    with dnnl.single_thread():
        single = computed((333, 130), arrays, NORMS[0], True)
    for name, array in single.items():
        np.testing.assert_array_equal(several[name], array, err_msg=name)


@pytest.mark.parametrize("mode", ["0", pytest.param("now", marks=needs_compiler)])
def test_sweeps_allocate_nothing(monkeypatch: pytest.MonkeyPatch, folder: Path, mode: str) -> None:
    monkeypatch.setenv("OPBOX_CACHE_DIR", str(folder))
    fresh(monkeypatch, mode)
    arrays, sweeps = matrices((300, 40)), NormSweeps(300, 40)
    temps = tuple(np.empty(temp.shape, temp.dtype) for temp in sweeps.temps)
    scratches = np.ones((13, 40), np.float32)
    x, g = arrays["x"], arrays["g"]
    forward = sweeps.forward(NORMS[0], x, x, scratches[:4], scratches[4:8], temps)
    backward = sweeps.backward(
        NORMS[0], (x, g, None, g), scratches[:6], (scratches[6], scratches[7]), scratches[8:], temps
    )
    for _ in range(2):
        with counted() as sizes:
            forward(True)
            backward(True)
    assert not sizes
