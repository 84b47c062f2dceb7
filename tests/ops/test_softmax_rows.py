"""softmax of rows that no number has the sum of: NaN throughout, by whichever compute."""

from __future__ import annotations

import numpy as np
import pytest

from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_service.executor import bind
from opbox_service.executor.prepared_call import prepare

from .one_call import call_graph

CPU = backend_for("cpu")


@pytest.mark.parametrize("level", ["reference", "library"])
@pytest.mark.parametrize("op", ["softmax", "SoftmaxActivation", "SoftmaxOutput"])
@pytest.mark.parametrize("width", [4, 40])
def test_a_row_with_nan_or_infinity_is_nan_throughout(op: str, level: str, width: int) -> None:
    data = np.zeros((5, width), np.float32)
    data[0, 1], data[2, -1], data[3, 0], data[4] = np.nan, np.inf, -np.inf, -np.inf
    arrays = {"data": data, "label": np.zeros(5, np.float32)}
    names = ["data", "label"] if op == "SoftmaxOutput" else ["data"]
    args = {name: arrays[name] for name in names}
    executor = bind(call_graph(op, {}, names), args=args, backend=CPU, random=CPU.random(0), level=level)
    executor.forward()
    (out,) = executor.outputs
    assert np.isnan(out[[0, 2, 4]]).all()
    np.testing.assert_allclose(out[1], 1 / width, rtol=1e-6)
    np.testing.assert_allclose(out[3], [0, *[1 / (width - 1)] * (width - 1)], rtol=1e-6)
    (step,) = executor.plan.steps
    assert step.compute.level == level


@pytest.mark.parametrize("op", ["softmax", "LayerNorm"])
def test_an_operator_called_by_itself_is_numpys(op: str) -> None:
    """Binding oneDNN's recipe takes six times as long as NumPy takes over 32 rows of 10."""
    names = {"softmax": ["data"], "LayerNorm": ["data", "gamma", "beta"]}[op]
    arrays = [np.ones((32, 10) if name == "data" else 10, np.float32) for name in names]
    call = prepare(registry.get(op), registry.get(op).parse({}), arrays, "cpu", None, None)
    assert call.compute.level == "reference"
