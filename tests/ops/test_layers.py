"""What the operator table cannot say of the layers: other layouts, blocks, large numbers, states, head gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_ops.nn import columns, taps
from tests.cases.case import Arg, Case

from .harness import Run
from .one_call import call_graph, run_call


def _run(
    op: str, inputs: dict[str, Any], attrs: dict[str, Any], values: dict[str, Any] | None = None, **options: Any
) -> Run:
    return Run(Case(op, inputs, attrs, **options), "float64", backend_for("cpu"), values)


def _convolution(values: dict[str, Any], attrs: dict[str, Any]) -> list[Any]:
    run = _run("Convolution", {name: array.shape for name, array in values.items()}, attrs, values)
    out = run.forward()[0]
    return [out, *run.backward().values(), run.heads()[0]]


def test_convolution_in_a_channels_last_layout() -> None:
    rng = np.random.default_rng(0)
    attrs = {"kernel": (3, 2), "num_filter": 6, "num_group": 2, "stride": (2, 1), "pad": (1, 0)}
    data, weight, bias = rng.normal(size=(2, 7, 5, 4)), rng.normal(size=(6, 3, 2, 2)), rng.normal(size=6)
    last = _run(
        "Convolution",
        {"data": data.shape, "weight": weight.shape, "bias": bias.shape},
        {**attrs, "layout": "NHWC"},
        {"data": data, "weight": weight, "bias": bias},
    )
    to_first = lambda array: np.ascontiguousarray(array.transpose(0, 3, 1, 2))  # noqa: E731
    values = {"data": to_first(data), "weight": to_first(weight), "bias": bias}
    first = _run("Convolution", {name: array.shape for name, array in values.items()}, attrs, values)
    np.testing.assert_allclose(to_first(last.forward()[0]), first.forward()[0], rtol=1e-12)
    head = last.heads()[0]
    first.heads = lambda: [to_first(head)]  # type: ignore[method-assign]  # another run's heads
    grads, expected = last.backward(), first.backward()
    for name in ("data", "weight"):
        np.testing.assert_allclose(to_first(grads[name]), expected[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", [1, 3000, 40000])
def test_convolution_in_blocks(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One output row at a time, some rows of one sample, some samples: all give what one block gives."""
    rng = np.random.default_rng(0)
    shape = {"data": (3, 4, 9, 8), "weight": (6, 2, 3, 3), "bias": (6,)}
    values = {name: rng.normal(size=dims) for name, dims in shape.items()}
    attrs = {"kernel": (3, 3), "num_filter": 6, "num_group": 2, "stride": (2, 1), "pad": (2, 1), "dilate": (1, 2)}
    whole = _convolution(values, attrs)
    monkeypatch.setattr(columns, "COLUMN_BYTES", size)
    for got, expected in zip(_convolution(values, attrs), whole, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("pool_type", ["max", "avg", "lp"])
def test_pooling_in_tiles(pool_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attrs = {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1), "pool_type": pool_type, "p_value": 2}
    run = _run("Pooling", {"data": (3, 5, 9, 8)}, attrs)
    out, grad = run.forward()[0], run.backward()["data"]
    for size in (1, 60):
        monkeypatch.setattr(taps, "WINDOW_TILE", size)
        again = _run("Pooling", {"data": (3, 5, 9, 8)}, attrs)
        np.testing.assert_array_equal(again.forward()[0], out)
        np.testing.assert_array_equal(again.backward()["data"], grad)


def test_pooling_same() -> None:
    data = np.arange(1.0, 8.0).reshape(1, 1, 7)
    attrs = {"kernel": (3,), "stride": (2,), "pooling_convention": "same"}
    run = _run("Pooling", {"data": data.shape}, attrs, {"data": data})
    np.testing.assert_array_equal(run.forward()[0], [[[3, 5, 7, 7]]])


def test_max_pooling_keeps_infinite_gradients_in_their_place() -> None:
    data = np.array([[[1.0, 2.0, 4.0, 3.0]]])
    run = _run("Pooling", {"data": data.shape}, {"kernel": (2,), "stride": (2,)}, {"data": data})
    run.heads = lambda: [np.array([[[np.inf, 1.0]]])]  # type: ignore[method-assign]  # another run's heads
    np.testing.assert_array_equal(run.backward()["data"], [[[0, np.inf, 1, 0]]])


@pytest.mark.parametrize("op", ["Activation", "Pooling", "softmax"])
def test_nan_passes_through(op: str) -> None:
    attrs = {"Activation": {"act_type": "relu"}, "Pooling": {"kernel": (2,), "stride": (2,)}, "softmax": {}}[op]
    data = np.array([[[1.0, np.nan], [2.0, 3.0]]])
    out = _run(op, {"data": data.shape}, attrs, {"data": data}).forward()[0]
    assert np.isnan(out[0, 0]).any()
    assert not np.isnan(out[0, 1]).any()


def test_large_numbers_do_not_overflow() -> None:
    data = np.array([[-1000.0, 0.0, 1000.0]])
    for op, attrs, expected in (
        ("softmax", {}, [[0, 0, 1]]),
        ("log_softmax", {}, [[-2000, -1000, 0]]),
        ("Activation", {"act_type": "sigmoid"}, [[0, 0.5, 1]]),
        ("Activation", {"act_type": "softrelu"}, [[0, np.log(2), 1000]]),
    ):
        run = _run(op, {"data": data.shape}, attrs, {"data": data})
        np.testing.assert_allclose(run.forward()[0], expected, atol=1e-300)
        assert np.isfinite(run.backward()["data"]).all()


# -- BatchNorm ---------------------------------------------------------------------------------------------------------


def _batch_norm(attrs: dict[str, Any], *, is_train: bool = True) -> Run:
    rng = np.random.default_rng(0)
    values = {
        "data": rng.normal(1.0, 2.0, (6, 3, 5)),
        "gamma": np.array([2.0, 3.0, 4.0]),
        "beta": np.zeros(3),
        "moving_mean": np.ones(3),
        "moving_var": np.full(3, 2.0),
    }
    return _run("BatchNorm", {name: array.shape for name, array in values.items()}, attrs, values, is_train=is_train)


def test_batch_norm_sets_a_fixed_gamma_to_one() -> None:
    run = _batch_norm({})
    out = run.forward()[0]
    np.testing.assert_array_equal(run.values[run.node.inputs[1]], np.ones(3))
    np.testing.assert_allclose(out.std(axis=(0, 2)), 1, rtol=1e-3)
    np.testing.assert_array_equal(run.backward()["gamma"], np.zeros(3))


def test_batch_norm_takes_a_fixed_gamma_that_cannot_be_written() -> None:
    run = _batch_norm({})
    expected = run.forward()[0]
    call = run.calls[0]
    ins, outs = call.fresh(), call.empty()
    ins[1].flags.writeable = False
    call.compute(ins, [1, 1, 1], outs)
    np.testing.assert_array_equal(outs[0], expected)


def test_batch_norm_moves_its_statistics_in_backward() -> None:
    run = _batch_norm({"momentum": 0.9})
    run.forward()
    data = run.arrays["data"]
    moving = [run.values[entry] for entry in run.node.inputs[3:]]
    np.testing.assert_array_equal(moving[0], np.ones(3))
    run.backward()
    call = run.calls[1]
    ins = call.fresh()
    call.compute(ins, [1, 1, 1], call.empty())
    np.testing.assert_allclose(ins[5], 0.9 + 0.1 * data.mean(axis=(0, 2)))
    np.testing.assert_allclose(ins[6], 0.9 * 2 + 0.1 * data.var(axis=(0, 2)), rtol=1e-6)


def test_batch_norm_leaves_its_statistics_with_global_ones() -> None:
    run = _batch_norm({"use_global_stats": True})
    run.backward()
    call = run.calls[1]
    ins = call.fresh()
    call.compute(ins, [1, 1, 1], call.empty())
    np.testing.assert_array_equal(ins[5], np.ones(3))
    np.testing.assert_array_equal(ins[6], np.full(3, 2.0))


# -- losses ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("SoftmaxOutput", {}),
        ("LinearRegressionOutput", {}),
        ("LogisticRegressionOutput", {}),
        ("MAERegressionOutput", {}),
        ("SVMOutput", {}),
        ("MakeLoss", {}),
        ("MakeLoss", {"normalization": "valid"}),
    ],
)
def test_losses_read_no_head_gradient(op: str, attrs: dict[str, Any]) -> None:
    inputs: dict[str, Any] = {"data": (4, 3)}
    if op != "MakeLoss":
        inputs["label"] = Arg((4, 3) if "Regression" in op else (4,), grad=False)
    run = _run(op, inputs, attrs)
    run.forward()
    grads, heads = run.gradient_entries()
    assert grads[0] is not None
    assert all(entry.node not in heads for entry in grads[0].node.inputs)
    assert grads[1:] == [None] * (len(inputs) - 1)


def test_softmax_output_with_out_grad_multiplies_by_the_head_gradient() -> None:
    values = {"data": np.random.default_rng(0).normal(size=(4, 3)), "label": np.array([0.0, 2, 1, 1])}
    shapes = {"data": (4, 3), "label": Arg((4,), grad=False)}
    plain = _run("SoftmaxOutput", shapes, {}, values).backward()["data"]
    run = _run("SoftmaxOutput", shapes, {"out_grad": True}, values)
    np.testing.assert_allclose(run.backward()["data"], plain * run.heads()[0])


def test_softmax_output_ignores_rows_without_numbers() -> None:
    data = np.array([[np.nan, 1.0], [0.0, 0.0]])
    values = {"data": data, "label": np.array([-1.0, 1.0])}
    shapes = {"data": (2, 2), "label": Arg((2,), grad=False)}
    run = _run("SoftmaxOutput", shapes, {"use_ignore": True, "normalization": "valid"}, values)
    np.testing.assert_array_equal(run.backward()["data"], [[0, 0], [0.5, -0.5]])


@pytest.mark.parametrize(("kernel", "pad"), [((3, 3), (1, 1)), ((1, 1), (0, 0))])
def test_a_convolution_of_no_channels_is_its_bias(kernel: tuple[int, ...], pad: tuple[int, ...]) -> None:
    attrs = {"kernel": kernel, "pad": pad, "num_filter": 4}
    arrays = {"data": np.ones((2, 0, 5, 6)), "weight": np.ones((4, 0, *kernel)), "bias": np.arange(4.0)}
    results = run_call(call_graph("Convolution", attrs, list(arrays)), arrays, list(arrays), lambda k, out: out)
    assert (results["out:0"] == arrays["bias"][:, None, None]).all()
    assert results["grad:bias"].tolist() == [0, 60, 120, 180]
    assert results["grad:data"].shape == (2, 0, 5, 6)
