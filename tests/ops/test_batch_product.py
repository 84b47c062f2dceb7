"""batch_dot and its gradients as products in blocks, beside those of NumPy."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_ops.backend import backend_for
from opbox_ops.compute import Array
from opbox_ops.cpu.computes import batch_product
from opbox_service.executor import bind
from opbox_service.graph.json import load
from tests.machine import needs_vectors

pytestmark = needs_vectors

CPU = backend_for("cpu")
SIDES = [(False, False), (False, True), (True, False), (True, True)]


@pytest.fixture(autouse=True)
def _of_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("MIN_MULTIPLICATIONS", "MIN_SIDE"):
        monkeypatch.setattr(batch_product, limit, 1)


def arrays_of(batch: tuple[int, ...], m: int, k: int, n: int, sides: tuple[bool, bool]) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    shapes = {"lhs": (k, m) if sides[0] else (m, k), "rhs": (n, k) if sides[1] else (k, n)}
    return {name: rng.standard_normal((*batch, *shape)).astype(np.float32) for name, shape in shapes.items()}


def run(
    args: dict[str, Array], sides: tuple[bool, bool], level: str | None = None, req: str = "write"
) -> tuple[list[str], list[Array]]:
    """The levels of the computes, and out with the gradients."""
    symbol = mx.sym.batch_dot(
        mx.sym.Variable("lhs"), mx.sym.Variable("rhs"), transpose_a=sides[0], transpose_b=sides[1]
    )
    grads = {name: np.ones_like(array) for name, array in args.items()}
    graph, reqs = load(json.loads(symbol.tojson())), dict.fromkeys(grads, req)
    options: Any = {"backend": CPU, "random": CPU.random(0), "level": level}
    executor = bind(graph, args=args, grads=grads, grad_req=reqs, **options)
    executor.forward(is_train=True)
    executor.backward([np.cos(executor.outputs[0])])
    levels = [step.kernel.level for step in executor.plan.steps if step.node.op is not None]
    return levels, [executor.outputs[0].copy(), *grads.values()]


@pytest.mark.parametrize("req", ["write", "add"])
@pytest.mark.parametrize("sides", SIDES, ids=str)
@pytest.mark.parametrize("shape", [((3,), 5, 7, 9), ((2, 4), 33, 40, 70), ((1,), 1, 20, 65)], ids=str)
def test_numbers_are_those_of_numpy(shape: Any, sides: tuple[bool, bool], req: str) -> None:
    args = arrays_of(*shape, sides)
    levels, results = run(args, sides, req=req)
    assert levels == ["library"] * 2
    for result, expected in zip(results, run(args, sides, "reference", req)[1], strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=5e-5)  # sums of up to 70 products, about 10


def test_arrays_that_do_not_lie_in_order() -> None:
    args = arrays_of((3,), 16, 20, 24, (False, False))
    strided = {name: np.repeat(array, 2, axis=-1)[..., ::2] for name, array in args.items()}
    assert not any(array.flags.c_contiguous for array in strided.values())
    for result, expected in zip(run(strided, (False, False))[1], run(args, (False, False))[1], strict=True):
        np.testing.assert_array_equal(result, expected)


def test_small_products_are_left_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    args = arrays_of((3,), 16, 20, 24, (False, False))
    monkeypatch.setattr(batch_product, "MIN_SIDE", 17)
    assert run(args, (False, False))[0] == ["reference"] * 2
    monkeypatch.setattr(batch_product, "MIN_SIDE", 1)
    monkeypatch.setattr(batch_product, "MIN_MULTIPLICATIONS", 3 * 16 * 20 * 24 + 1)
    assert run(args, (False, False))[0] == ["reference"] * 2
