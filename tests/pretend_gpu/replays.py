"""A network's training as recorded graphs beside the same without: numbers, and what the device is asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops.backend import backend_for
from tests.switches import switch

from .spy import Watch, watched
from .test_plans import executor_of

__all__ = ["replayed_and_eager"]


def replayed_and_eager(model: Any, req: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Watch, Watch]:
    """Return what the third step did to the device, replayed and eager.

    Outputs and gradients are compared to the last bit. Neither step allocates, or calls what a recording refuses; the
    replayed one launches two graphs, the other none.
    """
    backend, arrays, watches = backend_for("gpu:0"), [], []
    for setting, launches in (("1", 2), ("0", 0)):
        switch(monkeypatch, "cuda-graphs", on=setting == "1")
        executor, grads, _ = executor_of(model, "gpu:0", req)
        for _ in range(3):
            with watched() as watch:
                executor.forward(is_train=True)
                executor.backward()
        assert not watch.allocations
        assert not watch.refused
        assert watch.calls["graphLaunch"] == launches
        watches.append(watch)
        arrays.append([backend.get(array).copy() for array in (*executor.outputs, *grads.values())])
    for replayed, eager in zip(*arrays, strict=True):
        np.testing.assert_array_equal(replayed, eager)
    return watches[0], watches[1]
