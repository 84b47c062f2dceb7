"""Steps of many weights: what is refused, and what MXNet cannot be compared in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_protocol.errors import MXNetError
from opbox_service.executor.invoke import invoke

CPU = backend_for("cpu")


def call(name: str, arrays: list[np.ndarray], **attrs: Any) -> list[np.ndarray]:
    return invoke(name, attrs, arrays, backend=CPU, random=CPU.random(0))


def test_lambs_second_half_keeps_its_copy() -> None:
    """The new weights are MXNet's; its weight32 stays behind, so that the next step would start from the old one."""
    copy = np.array([1, 2, 3], "float32")
    ones = np.ones(3, "float32")
    inputs = [copy.astype("float16"), ones, np.array([2], "float32"), np.array([1], "float32"), copy]
    (new,) = call("mp_lamb_update_phase2", inputs, lr=0.1)
    np.testing.assert_allclose(new, [0.8, 1.8, 2.8], rtol=1e-3)
    np.testing.assert_allclose(copy, [0.8, 1.8, 2.8], rtol=1e-6)


@pytest.mark.parametrize("scale", [0.0, np.inf, np.nan])
def test_a_step_without_a_finite_scale_is_left_out(scale: float) -> None:
    weight, grad, mean, var = (np.full(3, value, "float32") for value in (1, 2, 3, 4))
    inputs = [weight, grad, mean, var, np.array([scale], "float32")]
    (new,) = call("_multi_adamw_update", inputs, lrs=(0.1,), wds=(0.1,), etas=(1,))
    assert (new == 1).all()
    assert (mean == 3).all()
    assert (var == 4).all()


def test_a_group_has_one_history() -> None:
    """AdaGrad by rows: history grows by the mean of the row's squares."""
    weight, grad = np.ones((2, 2), "float32"), np.array([[3, 4], [0, 0]], "float32")
    history = np.zeros((2, 1), "float32")
    (new,) = call("_contrib_group_adagrad_update", [weight, grad, history], lr=1, epsilon=0.5)
    assert history.tolist() == [[12.5], [0]]
    np.testing.assert_allclose(new, 1 - grad / np.sqrt([[13], [0.5]]), rtol=1e-6)


def test_arrays_are_reset() -> None:
    arrays = [np.ones((2, 3), "float32"), np.ones(4, "int32")]
    assert call("reset_arrays", arrays, num_arrays=2) == []
    assert not any(array.any() for array in arrays)


REFUSED: list[tuple[str, list[Any], dict[str, Any], str]] = [
    ("multi_sgd_update", [(2,), (2,)], {"lrs": (1, 2), "wds": (0,)}, "parameter 'lrs': expected 1 numbers, got 2"),
    ("multi_sgd_update", [(2,), (3,)], {"lrs": (1,), "wds": (0,)}, "grad_0: expected (2,), got (3,)"),
    ("multi_sgd_update", [(2,)], {"lrs": (1,), "wds": (0,)}, "expected 2 inputs (weight_0, grad_0), got 1"),
    ("preloaded_multi_sgd_update", [(2,), (2,), (2,), (1,)], {}, "lrs: expected (1,), got (2,)"),
    ("_multi_lamb_update", [(2,)] * 4, {"learning_rates": (1,), "wds": (0,), "step_count": ()}, "'step_count'"),
    ("_contrib_group_adagrad_update", [(2, 3), (2, 3), (2, 3)], {"lr": 1}, "history: expected (2, 1), got (2, 3)"),
    (
        "lamb_update_phase1",
        [(2,)] * 4,
        {"t": 0, "wd": 0},
        "parameter 't': expected a number greater than or equal to 1",
    ),
    ("lamb_update_phase2", [(2,), (2,), (2,), (1,)], {"lr": 1}, "r1: expected (1,), got (2,)"),
]


@pytest.mark.parametrize(("name", "shapes", "attrs", "sentence"), REFUSED)
def test_what_is_refused(name: str, shapes: list[Any], attrs: dict[str, Any], sentence: str) -> None:
    with pytest.raises(MXNetError) as caught:
        call(name, [np.ones(shape, "float32") for shape in shapes], **attrs)
    assert sentence in str(caught.value)
