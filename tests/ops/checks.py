"""What is checked of a compute, beside its values: requests, layouts, empty batches; and how near is near enough."""

from __future__ import annotations

from typing import Any

import numpy as np

from opbox_ops.compute import OpReq
from tests.cases.case import Case
from tests.cases.values import is_float

from .harness import Call, inplace_pairs

__all__ = ["check_inplace", "check_requests", "close", "same", "tolerance"]

NULL, WRITE, INPLACE, ADD = OpReq.NULL, OpReq.WRITE, OpReq.INPLACE, OpReq.ADD

# Relative and absolute, by the type computed in. float32 against MXNet's float32: sums of some dozens of products, in
# another order, lose a few ulp (1.2e-7 each). float64 is compared with MXNet's float32 values, so it is float32's own
# error that shows. float16 has 11 bits (ulp 1e-3): inputs are exact in it, and a few roundings follow.
NEAR = {"float32": (1e-5, 1e-6), "float64": (1e-5, 1e-6), "float16": (1e-2, 5e-3), "bfloat16": (5e-2, 3e-2)}
# A gradient is a longer computation than the value.
NEAR_GRADIENT = {"float32": (1e-4, 1e-5), "float64": (1e-4, 1e-5), "float16": (3e-2, 1e-2), "bfloat16": (1e-1, 5e-2)}


def tolerance(case: Case, dtype: str, *, gradient: bool = False) -> tuple[float, float]:
    """(rtol, atol) for a row computed in `dtype`; the row's own in float32 and float64 if it has them."""
    rtol, atol = (NEAR_GRADIENT if gradient else NEAR).get(dtype, NEAR["float32"])
    if dtype in ("float32", "float64"):
        rtol = max(rtol, case.rtol or 0.0) if gradient else (case.rtol if case.rtol is not None else rtol)
        atol = max(atol, case.atol or 0.0) if gradient else (case.atol if case.atol is not None else atol)
    return rtol, atol


def close(got: Any, expected: Any, near: tuple[float, float], what: str) -> None:
    """Equal shapes, and values within (rtol, atol); integers must be equal."""
    assert tuple(got.shape) == tuple(expected.shape), f"{what}: shape {got.shape}, expected {expected.shape}"
    if not is_float(got.dtype):
        np.testing.assert_array_equal(got, expected, err_msg=what)
        return
    rtol, atol = near
    np.testing.assert_allclose(
        got.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=atol, equal_nan=True, err_msg=what
    )


def same(call: Call, got: Any, expected: Any, what: str) -> None:
    """Equal to what the plain call wrote: another code path may round otherwise, by an ulp or two of the type."""
    get = call.run.backend.get
    got, expected = get(got), get(expected)
    if not is_float(got.dtype):
        np.testing.assert_array_equal(got, expected, err_msg=what)
        return
    ulp = {"float64": 1e-15, "float32": 1e-6, "float16": 2e-3}.get(got.dtype.name, 2e-2)
    got, expected = got.astype(np.float64), expected.astype(np.float64)
    finite = np.abs(expected[np.isfinite(expected)])
    scale = max(float(finite.max()), 1.0) if finite.size else 1.0
    np.testing.assert_allclose(
        got,
        expected,
        rtol=4 * ulp,
        atol=4 * ulp * scale,
        equal_nan=True,
        err_msg=f"{call.node.op.name}: {what}",
    )


def unmodified(call: Call, arrays: list[Any], what: str, but: frozenset[int] = frozenset()) -> None:
    """Inputs that a compute may not write are as before."""
    get = call.run.backend.get
    for i, (after, before) in enumerate(zip(arrays, call.inputs, strict=True)):
        if i not in call.mutated and i not in but:
            np.testing.assert_array_equal(
                get(after), get(before), err_msg=f"{call.node.op.name}: {what}: input {i} was changed"
            )


def check_requests(call: Call) -> None:
    """null leaves memory untouched, write overwrites, add accumulates: each output alone, and all together."""
    backend, count = call.run.backend, len(call.shapes)
    choices = [[NULL] * count, [ADD] * count]
    if count > 1:
        for k in range(count):
            choices.append([NULL if other == k else WRITE for other in range(count)])
            choices.append([WRITE if other == k else NULL for other in range(count)])
            choices.append([ADD if other == k else WRITE for other in range(count)])
    for req in choices:
        outs = call.empty()
        for k, out in enumerate(outs):
            if req[k] == ADD:
                out[...] = np.dtype(out.dtype).type(1) if out.dtype.kind == "b" else 2
        before = [backend.get(out).copy() for out in outs]
        ins = call.fresh()
        call.compute(ins, req, outs)
        requests = ",".join(request.name.lower() for request in req)
        unmodified(call, ins, f"req {requests}")
        for k, out in enumerate(outs):
            if req[k] == NULL:
                np.testing.assert_array_equal(
                    backend.get(out), before[k], err_msg=f"{call.node.op.name}: req {requests}: output {k} was written"
                )
            elif req[k] == WRITE:
                same(call, out, call.outputs[k], f"req {requests}: output {k}")
            elif out.dtype.kind == "b":
                same(call, out, call.outputs[k] | True, f"req {requests}: output {k}")
            else:
                same(call, out, call.outputs[k] + call.outputs[k].dtype.type(2), f"req {requests}: output {k}")


def check_inplace(call: Call) -> None:
    """Each pair of FInplaceOption with the output in the input's memory; then as many at once as fit."""
    pairs = [
        (i, o)
        for i, o in inplace_pairs(call.node)
        if i < len(call.inputs)
        and o < len(call.shapes)
        and call.inputs[i].dtype == call.dtypes[o]
        and call.inputs[i].size == int(np.prod(call.shapes[o], dtype=int))
    ]
    together: list[tuple[int, int]] = []
    for i, o in pairs:
        if all(i != a and o != b for a, b in together):
            together.append((i, o))
    for chosen in [[pair] for pair in pairs] + ([together] if len(together) > 1 else []):
        ins, outs = call.fresh(), call.empty()
        req = [WRITE] * len(outs)
        for i, o in chosen:
            outs[o] = ins[i].reshape(call.shapes[o])
            req[o] = INPLACE
        call.compute(ins, req, outs)
        unmodified(call, ins, f"inplace {chosen}", but=frozenset(i for i, _ in chosen))
        for k, out in enumerate(outs):
            same(call, out, call.outputs[k], f"inplace {chosen}: output {k}")
