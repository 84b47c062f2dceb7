"""The guide's `row_product` (docs/writing-operators.md): its copy of a weight stays as long as the page says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_ops.compute import CallSpec, Kernel
from opbox_ops.node import Entry, Node
from opbox_service.executor import BoundPlan, bind, invoke
from opbox_service.graph import Graph

PAGE = Path(__file__).parents[2] / "docs" / "writing-operators.md"
NAMES = ("scaled_shift", "_backward_scaled_shift", "row_product")
CPU = backend_for("cpu")


@pytest.fixture
def guide() -> Iterator[None]:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    exec("\n".join(blocks[:2]), {"__name__": "guide"})
    yield
    for name in NAMES:
        registry.unregister(name)


def bound(data: np.ndarray, weight: np.ndarray) -> BoundPlan:
    op = registry.get("row_product")
    inputs = (Entry(Node(None, "data")), Entry(Node(None, "weight")))
    graph = Graph([Entry(Node(op, "product", {}, op.parse({}), inputs))])
    return bind(graph, args={"data": data, "weight": weight}, backend=CPU, random=CPU.random(0))


@pytest.mark.usefixtures("guide")
def test_a_packed_weight_stays_as_long_as_the_number_does() -> None:
    data, weight = np.eye(3, dtype="f"), np.arange(6, dtype="f").reshape(2, 3)
    plan = bound(data, weight)
    assert [array is weight for array in plan.packed] == [True]
    plan.forward(parameters=1)
    first = weight.T.copy()
    weight += 1
    plan.forward(parameters=1)  # says that nobody has written to it
    np.testing.assert_array_equal(plan.outputs[0], first)
    plan.forward(parameters=2)
    np.testing.assert_array_equal(plan.outputs[0], weight.T)
    weight += 1
    plan.forward()
    np.testing.assert_array_equal(plan.outputs[0], weight.T)


@pytest.mark.usefixtures("guide")
def test_a_weight_that_others_read_is_not_packed() -> None:
    both = np.arange(9, dtype="f").reshape(3, 3)
    op, x = registry.get("row_product"), Entry(Node(None, "x"))
    graph = Graph([Entry(Node(op, "product", {}, op.parse({}), (x, x)))])
    plan = bind(graph, args={"x": both}, backend=CPU, random=CPU.random(0))
    assert plan.packed == []
    plan.forward(parameters=1)
    np.testing.assert_array_equal(plan.outputs[0], both @ both.T)


@pytest.mark.usefixtures("guide")
def test_imperative_calls_are_given_their_arrays() -> None:
    op = registry.get("row_product")
    reference = op.computes("cpu")[-1]
    calls = []

    @op.kernel("cpu", level="generated")
    def _(p: Any, call: CallSpec) -> Kernel:
        kernel = reference.choose(p, call)
        assert kernel is not None
        rebind = kernel.rebind
        assert rebind is not None

        def count(*arguments: Any) -> Any:
            calls.append(1)
            return rebind(*arguments)

        return replace(kernel, rebind=count)

    for start in (0, 1, 2, 3):
        data, weight = np.ones((4, 3), "f"), np.arange(start, start + 6, dtype="f").reshape(2, 3)
        (out,) = invoke("row_product", {}, [data, weight], backend=CPU, random=CPU.random(0))
        np.testing.assert_array_equal(out, data @ weight.T)
    assert calls == [1]
