"""Unrolled recurrent networks on the device: slices in place and fused formulas have the bits of steps on their own."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_ops.backend import backend_for
from opbox_protocol.mxnet import numpy_dtype
from opbox_service.executor import compile_plan
from opbox_service.executor.passes import PASSES, PlanPass
from opbox_service.executor.passes.fusion import fusion
from opbox_service.executor.passes.parts import parts
from opbox_service.executor.passes.shared_products import shared_products
from opbox_service.executor.run import BoundPlan
from opbox_service.graph.json import load
from opbox_service.graph.passes.infer_shape import infer_shape
from tests.executor.test_parts import along_rows, gru, lstm, of_uneven_sizes
from tests.executor.test_shared_products import BATCH, HIDDEN, STEPS, WIDTH
from tests.executor.test_shared_products import unrolled as unrolled_dense
from tests.switches import switch_off

from .spy import Watch, watched


def unrolled() -> tuple[Any, dict[str, tuple[int, ...]]]:
    return unrolled_dense(), {"data": (BATCH, STEPS, WIDTH), "h": (BATCH, HIDDEN)}


WITHOUT = tuple(rewrite for rewrite in PASSES if rewrite not in (parts, fusion))


def step(network: Any, dtype: str, passes: Sequence[PlanPass]) -> tuple[list[Any], Watch]:
    """The outputs and gradients of a network's second step, and what that did to the device."""
    symbol, shapes = network()
    graph = load(json.loads(symbol.tojson()))
    inferred, backend = infer_shape(graph, shapes), backend_for("gpu:0")
    rng = np.random.default_rng(0)
    kind = numpy_dtype(dtype)
    args = {n.name: backend.put(rng.normal(size=inferred.of(n.entries()[0])).astype(kind)) for n in graph.arguments}
    kinds = {n: a.shape for n, a in args.items()}, {n: a.dtype for n, a in args.items()}
    plan = compile_plan(graph, *kinds, dict.fromkeys(args, "write"), passes=passes, device="gpu")
    grads = {name: backend.put(np.ones(array.shape, kind)) for name, array in args.items()}
    executor = BoundPlan(plan, args, grads, {}, backend, backend.random(0))
    for _ in range(2):
        with watched() as watch:
            executor.forward(is_train=True)
            executor.backward()
    return [backend.get(array) for array in (*executor.outputs, *grads.values())], watch


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("network", [lstm, gru, of_uneven_sizes, along_rows])
def test_the_same_to_the_last_bit(gpu: Any, network: Any, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    switch_off(monkeypatch, "cuda-graphs")
    (expected, before), (results, after) = (step(network, dtype, passes) for passes in (WITHOUT, PASSES))
    for array, other in zip(results, expected, strict=True):
        np.testing.assert_array_equal(array.astype("f"), other.astype("f"))
    assert after.calls["launch"] < before.calls["launch"]
    assert not after.allocations


@pytest.mark.parametrize(("dtype", "near"), [("float32", 1e-5), ("float16", 4e-3), ("bfloat16", 3e-2)])
def test_products_that_share_a_weight_agree_with_those_on_their_own(
    gpu: Any, dtype: str, near: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch_off(monkeypatch, "cuda-graphs")
    alone = tuple(rewrite for rewrite in PASSES if rewrite is not shared_products)
    (expected, before), (results, after) = (step(unrolled, dtype, passes) for passes in (alone, PASSES))
    for array, other in zip(results, expected, strict=True):
        # Four roundings to the type, of sums of 24 products in another order.
        scale = np.abs(other.astype("f")).max()
        np.testing.assert_allclose(array.astype("f"), other.astype("f"), rtol=near, atol=near * scale)
    assert after.calls["product"] < before.calls["product"]
    assert not after.allocations


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_step_of_an_unrolled_network_launches_little(gpu: Any, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    networks = importlib.import_module("peer_networks")
    steps, hidden = 9, 32
    symbol = mx.sym.load_json(json.dumps(networks.lstm(steps, hidden)))
    shapes = {"data": (2, steps, 16), "h": (2, hidden), "c": (2, hidden), "softmax_label": (2,)}
    switch_off(monkeypatch, "cuda-graphs")
    _, watch = step(lambda: (symbol, shapes), dtype, PASSES)
    # A step of time is a product and the gates each way, and the gradient of its data; some 20 are for all of them.
    assert watch.calls["launch"] <= 2 * steps + 25
    assert watch.calls["product"] <= 3 * steps + 8
    assert not watch.calls["copy"], "slices are copied one by one"
