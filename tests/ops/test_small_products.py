"""FullyConnected by NumPy, prepared once for a plan: the bits of the plain compute, whatever its arrays are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_ops.compute import ArraySpec, CallSpec, OpContext

CPU = backend_for("cpu")
CASES: dict[str, tuple[tuple[int, ...], int, dict[str, Any]]] = {
    "plain": ((12, 64), 10, {}),
    "no bias": ((12, 64), 10, {"no_bias": True}),
    "flattened": ((4, 3, 5), 7, {}),
    "last axis": ((4, 3, 5), 7, {"flatten": False}),
    "one row": ((1, 9), 5, {}),
    "one class": ((6, 9), 1, {}),
    "one feature": ((6, 1), 4, {}),
    "nothing": ((0, 9), 4, {}),
}


def compute_all(op: str, p: Any, inputs: list[Any], shapes: list[tuple[int, ...]], pick: int) -> list[Any]:
    """The outputs by the first (0) or the last (-1) compute that takes the call, run twice."""
    outputs = [np.full(shape, np.nan, inputs[0].dtype) for shape in shapes]
    specs = [tuple([ArraySpec(a.shape, a.dtype) for a in arrays]) for arrays in (inputs, outputs)]
    call = CallSpec("cpu", *specs)
    kernels = [c.choose(p, call) for c in registry.get(op).computes("cpu") if c.rank == 0]
    kernel = [one for one in kernels if one is not None][pick]
    temps = tuple([np.empty(t.shape, t.dtype) for t in kernel.temps])
    context = OpContext(np, CPU.special, None, CPU, temp=temps, call=call)
    bound = kernel.bind(p, context, inputs, outputs)
    bound()
    for array in inputs:
        array += 1  # what is bound reads its arrays as they are when it runs
    bound()
    return outputs


def same_strides(array: Any) -> Any:
    """A copy that lies as the array does: every second element of its last axis, or all."""
    step = 1 if array.flags.c_contiguous else 2
    copy = np.empty((*array.shape[:-1], step * array.shape[-1]), array.dtype)[..., ::step]
    copy[...] = array
    return copy


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_prepared_has_the_bits_of_the_plain_compute(case: Any, strided: bool, dtype: str) -> None:
    shape, hidden, attrs = case
    p = registry.get("FullyConnected").parse({"num_hidden": str(hidden), **{k: str(v) for k, v in attrs.items()}})
    flat = attrs.get("flatten", True)
    features = int(np.prod(shape[1:])) if flat else shape[-1]
    out = (shape[0], hidden) if flat else (*shape[:-1], hidden)

    def numbers(size: tuple[int, ...], seed: int) -> Any:
        wide = np.random.default_rng(seed).normal(size=(*size[:-1], 2 * size[-1])).astype(dtype)
        return wide[..., ::2] if strided else wide[..., ::2].copy()

    for op, first, shapes in (
        ("FullyConnected", [numbers(shape, 0), numbers((hidden, features), 1)], [out]),
        (
            "_backward_FullyConnected",
            [numbers(out, 3), numbers(shape, 0), numbers((hidden, features), 1)],
            [shape, (hidden, features), (hidden,)],
        ),
    ):
        if attrs.get("no_bias"):
            shapes = shapes[:2]
        elif op == "FullyConnected":
            first = [*first, numbers((hidden,), 2)]
        by = [compute_all(op, p, list(map(same_strides, first)), shapes, pick) for pick in (0, -1)]
        for one, other in zip(*by, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_small_product_of_a_plan_is_prepared() -> None:
    """Float16, which is summed in float32, and outer products are not."""

    def prepares(dtype: str, features: int) -> bool:
        op = registry.get("FullyConnected")
        p = op.parse({"num_hidden": "3"})
        specs = [ArraySpec(shape, np.dtype(dtype)) for shape in ((4, features), (3, features), (3,))]
        call = CallSpec("cpu", tuple(specs), (ArraySpec((4, 3), np.dtype(dtype)),))
        return op.choose(p, call, level="reference").run is None

    assert prepares("float32", 8)
    assert prepares("float64", 8)
    assert not prepares("float16", 8)
    assert not prepares("float32", 1)
