"""Steps of many weights in one call on the CPU: the bits of single calls, and what goes one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_ops.update.together import steps_together
from opbox_service.executor.invoke import invoke
from tests.machine import needs_compiler
from tests.switches import set_c_kernels

CPU = backend_for("cpu")
pytestmark = needs_compiler


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_c_kernels(monkeypatch, "now")
    monkeypatch.setenv("OPBOX_CACHE_DIR", str(tmp_path))


def weights(states: int, dtype: str = "float32") -> list[list[Any]]:
    rng = np.random.default_rng(1)
    shapes = [(5, 70), (70,), (1,), (300, 40)]
    return [[abs(rng.normal(size=shape)).astype(dtype) for _ in range(2 + states)] for shape in shapes]


@pytest.mark.parametrize(
    ("name", "states", "attrs"),
    [
        ("sgd_update", 0, {"rescale_grad": 0.5, "clip_gradient": 1.0}),
        ("sgd_mom_update", 1, {"momentum": 0.9}),
        ("adam_update", 2, {}),
        ("rmsprop_update", 1, {}),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_many_steps_give_the_bits_of_single_ones(name: str, states: int, attrs: dict[str, Any], dtype: str) -> None:
    op = registry.get(name)
    one_by_one, together = weights(states, dtype), weights(states, dtype)
    for step in range(3):
        # Rates and decays differ from weight to weight: some formulas lack the decay.
        params = [{**attrs, "lr": 0.1 / (1 + step + k), "wd": 0.01 * (k % 2)} for k in range(4)]
        for arrays, p in zip(one_by_one, params, strict=True):
            invoke(name, p, arrays, backend=CPU, random=CPU.random(0), outputs=[arrays[0]])
        call = steps_together(op, [(arrays, op.parse(p)) for arrays, p in zip(together, params, strict=True)])
        assert call is not None, "they go one after the other"
        call()
    for single, many in zip(one_by_one, together, strict=True):
        for a, b in zip(single, many, strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("case", ["overlap", "shape", "type", "strides", "count", "off"])
def test_what_goes_one_after_the_other(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op, arrays = registry.get("sgd_update"), weights(0)
    if case == "overlap":
        arrays[1][0] = arrays[0][0][0]
        arrays[1][1] = arrays[1][1][:70]
    elif case == "shape":
        arrays[1][1] = arrays[1][1][:7]
    elif case == "type":
        arrays[1][1] = arrays[1][1].astype("float64")
    elif case == "strides":
        arrays[0] = [np.ones((70, 5), "float32").T, arrays[0][1]]
    elif case == "count":
        arrays[2].pop()
    else:
        set_c_kernels(monkeypatch, "0")
    assert steps_together(op, [(inputs, op.parse({"lr": 0.1})) for inputs in arrays]) is None
