"""The convolutional cells of mx.rnn: names, shapes, outputs and gradients of real MXNet 1.9.1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opbox as mx

TANH = {"activation": "tanh", "i2h_stride": (2, 1), "h2h_kernel": (5, 3), "h2h_dilate": (1, 2), "prefix": "c_"}
CASES: list[tuple[str, dict[str, Any], list[float], list[float]]] = [
    ("ConvRNNCell", {}, [90.0381, 166.0625, 341.1378], [1202.037, 7474.223, 1202.037, 1203.233]),
    ("ConvRNNCell", TANH, [7.404, 12.4095, 14.1678], [256.063, 820.497, 256.063, 244.245]),
    ("ConvLSTMCell", {}, [9.672, 12.1142, 12.3651], [145.105, 113.97, 145.105, 180.013]),
    ("ConvLSTMCell", TANH, [6.5631, 11.831, 15.2207], [119.005, 166.749, 119.005, 111.924]),
    ("ConvGRUCell", {}, [21.9099, 24.5241, 23.0856], [159.858, 294.672, 251.806, 221.433]),
    ("ConvGRUCell", TANH, [-7.0446, -12.383, -11.2733], [130.162, 348.824, 225.945, 231.928]),
]
"""Cell, options, MXNet's sums of outputs, and of absolute gradients: h2h bias and weight, i2h bias and weight."""
SHAPES = {"NCHW": (2, 3, 6, 5), "NHWC": (2, 6, 5, 3)}
INPUTS = ["t0", "t1", "t2"]


def unrolled(kind: str, layout: str = "NCHW", **options: Any) -> tuple[Any, Any]:
    cell = getattr(mx.rnn, kind)(input_shape=SHAPES[layout], num_hidden=4, conv_layout=layout, **options)
    outputs, _ = cell.unroll(3, inputs=[mx.sym.Variable(name) for name in INPUTS], merge_outputs=False)
    return cell, mx.sym.Group(list(outputs))


@pytest.mark.parametrize(("kind", "options", "sums", "gradients"), CASES)
def test_numbers_are_mxnets(kind: str, options: dict[str, Any], sums: list[float], gradients: list[float]) -> None:
    cell, net = unrolled(kind, **options)
    bound = net.simple_bind(mx.cpu(), **dict.fromkeys(INPUTS, SHAPES["NCHW"]))
    random = np.random.RandomState(0)
    for name, array in sorted(bound.arg_dict.items()):
        if "begin" not in name:
            array[:] = random.rand(*array.shape).astype("f") - 0.5
    outputs = bound.forward(is_train=True)
    bound.backward([mx.nd.ones(output.shape) for output in outputs])
    # Sums of hundreds of float32 numbers, recorded to four and three digits behind the point.
    np.testing.assert_allclose([output.asnumpy().sum() for output in outputs], sums, rtol=1e-5, atol=1e-3)
    names = [f"{cell._prefix}{group}_{part}" for group in ("h2h", "i2h") for part in ("bias", "weight")]
    got = [np.abs(bound.grad_dict[name].asnumpy()).sum() for name in names]
    np.testing.assert_allclose(got, gradients, rtol=1e-5, atol=1e-3)
    parameters = {name: bound.arg_dict[name] for name in names}
    unpacked = cell.unpack_weights(parameters)
    gates = {"ConvRNNCell": [""], "ConvLSTMCell": ["_i", "_f", "_c", "_o"], "ConvGRUCell": ["_r", "_z", "_o"]}[kind]
    assert [name for name in unpacked if "i2h" in name and "bias" in name] == [
        f"{cell._prefix}i2h{gate}_bias" for gate in gates
    ]
    for name, array in cell.pack_weights(unpacked).items():
        np.testing.assert_array_equal(array.asnumpy(), parameters[name].asnumpy())


def test_names_and_states_are_mxnets() -> None:
    cell, net = unrolled("ConvLSTMCell")
    assert [name for name in net.list_arguments() if name not in INPUTS] == [
        "ConvLSTM_i2h_weight",
        "ConvLSTM_i2h_bias",
        "ConvLSTM_h2h_weight",
        "ConvLSTM_h2h_bias",
    ]
    assert net.list_outputs() == [f"ConvLSTM_t{i}_out_output" for i in range(3)]
    assert cell.state_info == [{"shape": (0, 4, 6, 5), "__layout__": "NCHW"}] * 2
    assert mx.rnn.ConvRNNCell((2, 3, 6, 5), 4, i2h_stride=(2, 1)).state_shape == [(0, 4, 3, 5)]


@pytest.mark.parametrize("kind", ["ConvRNNCell", "ConvLSTMCell", "ConvGRUCell"])
def test_channels_last_give_the_same(kind: str) -> None:
    """MXNet cannot run these on a CPU: its numbers for channels second, with axes moved, are the reference."""
    values, outputs = {}, []
    for layout, axes in (("NCHW", (0, 1, 2, 3)), ("NHWC", (0, 2, 3, 1))):
        _, net = unrolled(kind, layout)
        bound = net.simple_bind(mx.cpu(), grad_req="null", **dict.fromkeys(INPUTS, SHAPES[layout]))
        random = np.random.RandomState(0)
        for name, array in sorted(bound.arg_dict.items()):
            if "begin" in name:
                continue
            if layout == "NCHW":
                values[name] = random.rand(*array.shape).astype("f") - 0.5
            array[:] = values[name].transpose(axes) if array.ndim == 4 else values[name]
        result = [output.asnumpy() for output in bound.forward()]
        outputs.append([one if layout == "NCHW" else one.transpose(0, 3, 1, 2) for one in result])
    for second, last in zip(*outputs, strict=True):
        np.testing.assert_allclose(last, second, rtol=1e-4, atol=1e-5)  # other orders of sums of 36 products


def test_wrong_arguments() -> None:
    with pytest.raises(AssertionError, match=r"ConvRNNCell: h2h_kernel: expected odd sizes, .*, got \(2, 3\)"):
        mx.rnn.ConvRNNCell((2, 3, 6, 5), 4, h2h_kernel=(2, 3))
    with pytest.raises(mx.MXNetError, match="layout"):
        mx.rnn.ConvLSTMCell((2, 3, 6, 5), 4, conv_layout="CHWN")
    cell = mx.rnn.ConvLSTMCell((2, 3, 6, 5), 4)
    with pytest.raises(ValueError, match="ConvLSTMCell: states: expected 2, got 1"):
        cell(mx.sym.Variable("data"), [mx.sym.Variable("h")])


def test_rnn_unroll_is_unroll() -> None:
    cell = mx.rnn.RNNCell(4)
    with pytest.warns(UserWarning, match=r"rnn_unroll is an old name: call cell\.unroll"):
        outputs, _ = mx.rnn.rnn_unroll(cell, 2)
    names = [name for output in outputs for name in output.list_arguments()]
    assert {"t0_data", "t1_data"} <= set(names)
