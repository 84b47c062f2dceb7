"""2-bit gradient compression: MXNet 1.9.1's own numbers, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opbox as mx

CONTEXTS = [mx.cpu(0), mx.cpu(1)]
GRADIENT = np.array([0.1, 0.5, -0.5, 1.3, -0.3], "f")


def store(**params: Any) -> Any:
    kv = mx.kv.create("device")
    kv.set_gradient_compression({"type": "2bit", **params})
    kv.init("w", mx.nd.zeros((5,)))
    return kv


def pushed(kv: Any, *gradients: np.ndarray) -> list[float]:
    """The stored value after a push of gradients, one a device."""
    arrays = [mx.nd.array(gradient, mx.cpu(number)) for number, gradient in enumerate(gradients)]
    kv.push("w", arrays if len(arrays) > 1 else arrays[0])
    out = mx.nd.zeros((5,))
    kv.pull("w", out=out)
    values: list[float] = out.asnumpy().tolist()
    return values


def test_two_devices_keep_a_residual_each() -> None:
    kv = store(threshold=0.5)
    sums = [pushed(kv, GRADIENT, -2 * GRADIENT) for _ in range(4)]
    assert sums == [[0, 0, 0, 0, 0.5], [0] * 5, [-0.5, 0, 0, 0, 0.5], [0] * 5]


def test_a_single_gradient_is_compressed_too() -> None:
    kv = store()
    assert [pushed(kv, GRADIENT) for _ in range(2)] == [[0, 0.5, -0.5, 0.5, 0], [0, 0.5, -0.5, 0.5, -0.5]]


def test_nan_is_never_sent_and_infinity_always() -> None:
    kv = store()
    values = np.array([np.nan, np.inf, -np.inf, 0, 1], "f")
    assert [pushed(kv, values, 0 * GRADIENT) for _ in range(2)] == [[0, 0.5, -0.5, 0, 0.5]] * 2


def test_another_threshold_finds_what_waits() -> None:
    """Residuals stay when parameters change, and a device that joins begins with none."""
    kv = store(threshold=1)
    assert pushed(kv, GRADIENT * 0.8) == [0, 0, 0, 1, 0]
    kv.set_gradient_compression({"type": "2bit", "threshold": "0.375", "other": 1})
    assert pushed(kv, 0 * GRADIENT, GRADIENT * 0.8) == [0, 0.75, -0.75, 0.375, 0]


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"type": "1bit"}, mx.MXNetError, "type: expected '2bit', got '1bit'"),
        ({"threshold": 0.5}, mx.MXNetError, "type: expected '2bit', got none"),
        ({"type": None}, mx.MXNetError, "type: expected '2bit', got None"),
        (None, AssertionError, r"expected a dict such as \{'type': '2bit'\}, got None"),
        ("2bit", AssertionError, "expected a dict such as .*, got '2bit'"),
        *(
            ({"type": "2bit", "threshold": value}, mx.MXNetError, f"threshold: expected a float32 number.*, got {text}")
            for value, text in ((0, "0"), (-1, "-1"), ("x", "'x'"), (None, "None"), (True, "True"), (1e-50, "1e-50"))
        ),
        ({"type": "2bit", "threshold": float("nan")}, mx.MXNetError, "got nan"),
    ],
)
def test_wrong_parameters_are_refused(params: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        mx.kv.create("device").set_gradient_compression(params)
    assert "\n" not in str(caught.value)


def test_gradients_of_other_types_are_refused() -> None:
    kv = mx.kv.create("device")
    kv.set_gradient_compression({"type": "2bit"})
    kv.init("w", mx.nd.zeros((5,), dtype="float64"))
    kv.push("w", mx.nd.zeros((5,), dtype="float64"))
    with pytest.raises(mx.MXNetError, match="2-bit compression: gradient: expected float32, got float64"):
        mx.nd.waitall()


@pytest.mark.parametrize(
    "command",
    [
        ({"threshold": 0}, "threshold: expected a finite number above 0, got 0"),
        ({"calls": [{"gradient": 1, "residual": 1}]}, "out: expected an integer"),
    ],
)
def test_wrong_commands_are_refused(command: tuple[dict[str, Any], str]) -> None:
    session = mx.cpu().session
    fields: Any = {"do": "compress", "threshold": 0.5, "calls": [], **command[0]}
    session.record(fields)
    with pytest.raises(mx.MXNetError, match=command[1]):
        mx.nd.waitall()
