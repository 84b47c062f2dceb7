"""Reductions by kernels of our own: NumPy's values at sizes around a block and beyond, the same bits in each run."""

from __future__ import annotations

import importlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_ops.compute import ArraySpec
from opbox_ops.cuda.fold import FOLDED, Fold, How, groups_of
from opbox_ops.cuda.kernel import WHOLE, computed_type
from opbox_ops.cuda.search import Search
from opbox_ops.cuda.stream_scratch import SCRATCH_BYTES
from opbox_protocol.errors import QuotaError
from opbox_service.executor import invoke
from tests.cases.case import Case
from tests.ops.harness import Run

SHAPES = [
    ((7,), (0,)),
    ((1024 * 4 + 1,), (0,)),
    ((8 * 4096 + 4,), (0,)),
    ((70_001,), (0,)),
    ((300, 257), (1,)),
    ((3, 5000), (1,)),
    ((3, 9001), (1,)),
    ((1000, 6), (1,)),
    ((257, 3), (0,)),
    ((5003, 16), (0,)),
    ((2048, 33), (0,)),
    ((3, 700, 20), (1,)),
    ((4, 900, 3), (1,)),
    ((6, 3, 1024), (0, 2)),
    ((40, 3, 77), (0, 2)),
    ((5, 6, 7, 8), (0, 2)),
    ((5, 6, 7, 8), (1, 3)),
    ((5, 6, 7, 80), (0, 1, 3)),
    ((2, 3, 1, 400, 8), (0, 3)),
]
"""Shapes and axes: less than a vector, a block and one more, several slices, odd runs, columns of each width."""


def numbers(shape: tuple[int, ...], dtype: Any) -> Any:
    """Numbers whose sums are exact in the type that they are added up in, some of them missing."""
    rng = np.random.default_rng(sum(shape))
    whole = rng.integers(0 if dtype in ("uint8", "bool") else -3, 4, shape)
    return whole.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


EXPECTED = {
    How.SUM: lambda x, axes: x.sum(axes),
    How.MAX: lambda x, axes: x.max(axes),
    How.MIN: lambda x, axes: x.min(axes),
    How.LARGEST: lambda x, axes: abs(x).max(axes),
    How.ABSOLUTES: lambda x, axes: abs(x).sum(axes),
    How.ANY: lambda x, axes: (x != 0).any(axes),
    How.ALL: lambda x, axes: (x != 0).all(axes),
}


@pytest.mark.parametrize(
    ("shape", "axes", "dtype"),
    [
        *((shape, axes, "float32") for shape, axes in SHAPES),
        *((*call, dtype) for dtype in FOLDED for call in (SHAPES[2], SHAPES[6], SHAPES[9], SHAPES[-2])),
    ],
    ids=str,
)
def test_axes_of_every_kind_and_type(gpu: Any, cupy: Any, shape: Any, axes: Any, dtype: str) -> None:
    x = numbers(shape, dtype)
    wide = x.astype(computed_type(x.dtype))
    fold = Fold.of(shape, axes, x.dtype)
    assert fold is not None
    data = cupy.asarray(x)
    parts = cupy.empty(fold.parts.shape, fold.parts.dtype)
    for how, expected in EXPECTED.items():
        answers = []
        for target in (x.dtype, wide.dtype) if how == How.MAX else (wide.dtype,):
            out = cupy.empty(fold.results, target)
            fold.bind(cupy, how, data, out, parts)()
            answers.append(out.get().astype(wide.dtype))
        for answer in answers:
            np.testing.assert_array_equal(answer, expected(wide, axes).reshape(-1).astype(wide.dtype), err_msg=how.name)


@pytest.mark.parametrize(("shape", "axes"), [((70_001,), (0,)), ((5003, 16), (0,)), ((300, 257), (1,))], ids=str)
def test_sums_are_near_and_the_same_bits_in_each_run(gpu: Any, cupy: Any, shape: Any, axes: Any) -> None:
    x = np.random.default_rng(0).normal(size=shape).astype("f")
    fold = Fold.of(shape, axes, x.dtype)
    assert fold is not None
    runs = []
    for _ in range(2):
        out, parts = cupy.empty(fold.results, "f"), cupy.full(fold.parts.shape, 7, "f")
        fold.bind(cupy, How.SUM, cupy.asarray(x), out, parts)()
        runs.append(out.get())
    assert runs[0].tobytes() == runs[1].tobytes()
    # Numbers near 1 are added by threads, then by pairs: some roundings of a sum near the root of their count.
    np.testing.assert_allclose(runs[0], x.astype("d").sum(axes).reshape(-1), rtol=0, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("shape", "axes"), [((70_001,), (0,)), ((5003, 16), (0,)), ((300, 257), (1,))], ids=str)
def test_lengths_whose_squares_leave_the_types_range(gpu: Any, cupy: Any, shape: Any, axes: Any, dtype: str) -> None:
    x = np.random.default_rng(0).normal(size=shape).astype(dtype)
    limits = np.finfo(dtype)
    for unit in (1, np.sqrt(limits.max), limits.max / 2**16, limits.tiny, 0):
        arrays = {"data": x * limits.dtype.type(unit)}
        (out,) = Run(Case("norm", {"data": shape}, {"axis": axes}), dtype, backend_for("gpu:0"), arrays).forward()
        expected = unit * np.sqrt((x.astype("d") ** 2).sum(axes))
        np.testing.assert_allclose(out.get().reshape(expected.shape), expected, rtol=1e-5)


@pytest.mark.parametrize(("shape", "axes"), [((8 * 4096 + 4,), (0,)), ((5003, 16), (0,)), ((300, 256), (1,))], ids=str)
def test_an_array_at_an_odd_address(gpu: Any, cupy: Any, shape: Any, axes: Any) -> None:
    x = numbers(shape, "float32")
    memory = cupy.empty(x.size + 1, "f")
    data = memory[1:].reshape(shape)
    data[...] = cupy.asarray(x)
    fold = Fold.of(shape, axes, x.dtype)
    assert fold is not None
    out = cupy.empty(fold.results, "f")
    fold.bind(cupy, How.SUM, data, out, cupy.empty(fold.parts.shape, "f"))()
    np.testing.assert_array_equal(out.get(), x.sum(axes).reshape(-1))


@pytest.mark.parametrize("shape", [(9000,), (2, 5000), (5000, 3)], ids=str)
def test_a_missing_number_wins_extremes_and_is_left_out_where_asked(gpu: Any, cupy: Any, shape: Any) -> None:
    x = np.ones(shape, "f")
    x.reshape(-1)[x.size // 2] = np.nan
    fold = Fold.of(shape, tuple(range(x.ndim)), x.dtype)
    assert fold is not None
    expected = {How.MAX: np.nan, How.MIN: np.nan, How.SUM: np.nan, How.SUM_WITHOUT_NAN: x.size - 1}
    for how, value in {**expected, How.PRODUCT_WITHOUT_NAN: 1, How.PRODUCT: np.nan}.items():
        out = cupy.empty(1, "f")
        fold.bind(cupy, how, cupy.asarray(x), out, cupy.empty(fold.parts.shape, "f"))()
        np.testing.assert_array_equal(out.get(), [value], err_msg=how.name)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "int64", "uint8"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        *(((7,), 0), ((8193,), 0), ((70_001,), 0), ((300, 257), 1), ((300, 256), 1), ((3, 9001), 1), ((3, 9008), 1)),
        *(((5003, 16), 0), ((3, 700, 20), 1)),
    ],
    ids=str,
)
def test_positions_are_the_first_ones(gpu: Any, cupy: Any, shape: Any, axis: int, dtype: str) -> None:
    x = numbers(shape, dtype)
    if dtype not in WHOLE:
        np.moveaxis(x, axis, -1).reshape(-1, shape[axis])[-1] = -np.inf
        np.moveaxis(x, axis, -1).reshape(-1, shape[axis])[0, shape[axis] // 2] = np.nan
    search = Search.of(axis, ArraySpec(shape, x.dtype))
    for greatest in (True, False):
        out = cupy.empty(search.results, np.int64)
        parts = [cupy.empty(temp.shape, temp.dtype) for temp in search.parts]
        search.bind(cupy, cupy.asarray(x), out, parts, greatest=greatest)()
        wide = x.astype(computed_type(x.dtype))
        np.testing.assert_array_equal(out.get(), (np.argmax if greatest else np.argmin)(wide, axis).reshape(-1))


def test_slices_never_begin_behind_the_end() -> None:
    for n in (32 * 1024 + 1, 33_000, 65_537, 1_000_003, 2**30 - 3):
        for sizes in ((1, n, 1, 1, 1), (1, n, 1, 1, 32), (1, n, 1, 1, 3), (7, n // 7, 1, 1, 1)):
            fold = Fold(sizes, np.dtype("f"))
            assert (fold.slices - 1) * fold._chunk < fold.n <= fold.slices * fold._chunk


@pytest.mark.parametrize(
    ("shape", "axes", "sizes"),
    [
        ((4, 5), (0, 1), (1, 20, 1, 1, 1)),
        ((4, 5), (1,), (4, 5, 1, 1, 1)),
        ((4, 5), (0,), (1, 4, 1, 1, 5)),
        ((4, 5, 6), (1,), (4, 5, 1, 1, 6)),
        ((4, 5, 6), (0, 2), (1, 4, 5, 6, 1)),
        ((4, 1, 6), (0, 2), (1, 24, 1, 1, 1)),
        ((4, 5, 6, 7), (0, 2), (1, 4, 5, 6, 7)),
        ((4, 5, 6, 7), (1, 3), (4, 5, 6, 7, 1)),
        ((4, 5), (), (20, 1, 1, 1, 1)),
        ((2, 2, 2, 2, 2, 2), (1, 3, 5), None),
    ],
    ids=str,
)
def test_axes_are_joined(shape: Any, axes: Any, sizes: Any) -> None:
    assert groups_of(shape, axes) == sizes


ROWS = [
    Case("sum", {"data": (70_000,)}, {}),
    Case("mean", {"data": (1, 70_000)}, {"axis": 1}),
    Case("norm", {"data": (70_000,)}, {}),
    Case("norm", {"data": (5003, 16)}, {"axis": 0, "ord": 1}),
    Case("nansum", {"data": (5003, 16)}, {"axis": 0}),
    Case("max", {"data": (5003, 16)}, {"axis": 0}),
    Case("argmax", {"data": (5003, 16)}, {"axis": 0}),
    Case("argmin", {"data": (9001,)}, {}),
    Case("moments", {"data": (6, 3, 1024)}, {"axes": (0, 2)}),
    Case("_npi_std", {"a": (6, 3, 1024)}, {"axis": (0, 2), "ddof": 1}),
    Case("_npi_var", {"a": (9001,)}, {"dtype": "float64"}),
    Case("broadcast_mul", {"lhs": (700, 64), "rhs": (1, 64)}, {}),
    Case("FullyConnected", {"data": (2048, 4), "weight": (16, 4), "bias": (16,)}, {"num_hidden": 16}),
]
"""Operators of many elements and few results."""


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("case", ROWS, ids=lambda case: case.id)
def test_operators_of_many_elements(gpu: Any, case: Case, dtype: str) -> None:
    results = []
    for device in ("cpu", "gpu:0", "gpu:0"):
        run = Run(case, dtype, backend_for(device))
        arrays = [*run.forward(), *(run.backward().values() if run.wanted() else ())]
        results.append([run.backend.get(array) for array in arrays])
    for expected, first, second in zip(*results, strict=True):
        assert first.tobytes() == second.tobytes()
        # Tens of thousands of numbers below 1 in another order; half precision is rounded at the end.
        rtol = 2e-3 if dtype == "float16" else 2e-5
        np.testing.assert_allclose(
            first.astype("d"), expected.astype("d"), rtol=rtol, atol=rtol * max(1, abs(expected.astype("d")).max())
        )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("shape", "axes"), SHAPES, ids=str)
def test_gradients_of_sums_are_repeated(gpu: Any, shape: Any, axes: Any, dtype: str) -> None:
    for op, terms in (("sum", 1), ("mean", np.prod([shape[axis] for axis in axes]))):
        run = Run(Case(op, {"data": shape}, {"axis": axes, "keepdims": True}), dtype, backend_for("gpu:0"))
        gradients = run.backward()
        assert run.calls[1].chosen().level == "generated"
        head = run.backend.get(run.values[run.calls[1].node.inputs[0]])
        expected = np.broadcast_to((head.astype("f") / np.float32(terms)).astype(dtype), shape)
        np.testing.assert_array_equal(run.backend.get(gradients["data"]), expected)


@pytest.mark.parametrize("dtype", ["int8", "int32", "bool"])
def test_whole_numbers_are_added_up_exactly(gpu: Any, dtype: str) -> None:
    backend = backend_for("gpu:0")
    x = np.full((70_000, 3), 1 if dtype == "bool" else 101, dtype)
    [mean] = invoke("_npi_mean", {"axis": "0"}, [backend.put(x)], backend=backend, random=backend.random(0))
    assert mean.dtype == np.float32
    np.testing.assert_array_equal(backend.get(mean), [x[0, 0]] * 3)
    for kind in ("float32", "int64"):
        attrs = {"axis": "0", "dtype": kind}
        [total] = invoke("_np_sum", attrs, [backend.put(x)], backend=backend, random=backend.random(0))
        assert total.dtype == kind
        np.testing.assert_array_equal(backend.get(total), x.sum(0, dtype=np.int64))


def test_a_view_is_reduced_as_it_is_seen(gpu: Any) -> None:
    backend = backend_for("gpu:0")
    x = np.random.default_rng(0).integers(0, 9, (300, 400)).astype("f")
    view = backend.put(x).T[::2]
    for op, expected in (("sum", x.T[::2].sum(1)), ("argmax", x.T[::2].argmax(1))):
        [out] = invoke(op, {"axis": "1"}, [view], backend=backend, random=backend.random(0))
        np.testing.assert_array_equal(backend.get(out), expected)


@pytest.mark.parametrize(
    ("dtype", "added", "results"), [("bool", "float64", 1), ("int32", "float32", 3), ("bool", "int64", 3)]
)
def test_counts_in_a_larger_compute(gpu: Any, cupy: Any, dtype: str, added: str, results: int) -> None:
    x = numbers((20_000, 3), dtype)
    axis = 0 if results == 3 else None
    xp = backend_for("gpu:0").xp
    out = cupy.empty(x.sum(axis).shape, added)
    device: Any = importlib.import_module("pretend_gpu.device")
    with device.recorded() as calls:
        xp.sum(cupy.asarray(x), axis=axis, dtype=added, out=out)
    assert {"opbox_fold_rows", "opbox_fold_columns"} & {name for kind, name in calls.events if kind == "launch"}
    np.testing.assert_array_equal(out.get(), x.sum(axis, dtype=np.int64))


def test_a_quota_that_is_short_of_scratch_leaves_sums_to_cupy(gpu: Any) -> None:
    asked: list[int] = []

    def refuse(nbytes: int, on_device: bool) -> None:
        asked.append(nbytes)
        raise QuotaError("no")

    backend = backend_for("gpu:0").for_session(refuse)
    with backend.scope():
        x, out = backend.xp.ones((70_000, 2), "f"), backend.xp.empty((2,), "f")
        backend.xp.sum(x, axis=0, out=out)
        assert out.get().tolist() == [70_000, 70_000]
    backend.close()
    assert asked == [SCRATCH_BYTES]


def test_scratch_is_counted_once_and_goes_with_the_session(gpu: Any) -> None:
    counted: list[int] = []
    backend = backend_for("gpu:0").for_session(lambda nbytes, on_device: counted.append(nbytes))
    with backend.scope():
        x, out = backend.xp.ones((70_000, 2), "f"), backend.xp.empty((2,), "f")
        for _ in range(3):
            backend.xp.sum(x, axis=0, out=out)
        assert out.get().tolist() == [70_000, 70_000]
    backend.close()
    assert counted == [SCRATCH_BYTES]
