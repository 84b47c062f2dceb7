"""One drawn call in MXNet and here: what each aspect of it came to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from opbox_protocol.errors import MXNetError
from opbox_service.graph.passes.infer_shape import infer_shape
from opbox_service.graph.passes.infer_type import infer_type
from tests.cases.case import Case
from tests.cases.values import arguments, head_gradient, inputs, is_float
from tests.ops.one_call import START, call_graph, run_call

from .drawing import Drawn
from .mxnet import Oracle, OracleDiedError, RefusedError

__all__ = ["ASPECTS", "examine", "wanted_gradients"]

ASPECTS = ("forward", "gradient", "shape", "type", "req", "raises")
SIDES = ("arg", "out", "aux")

# Relative to the largest number of an array: another order of a few dozen operations, and libraries' own functions.
NEAR = {"float16": 3e-2, "float32": 1e-4, "float64": 1e-5}


def examine(oracle: Oracle, drawn: Drawn) -> dict[str, str]:
    """The verdict on each aspect that the call shows.

    Returns:
        By aspect: "same"; "both refuse"; "passed" where MXNet refuses what we take, or does not add where it is to
        (docs/differences.md); or a sentence that says how they differ.
    """
    case, names = drawn.case, list(drawn.case.inputs)
    arrays = inputs(case, drawn.dtype)
    attrs = {key: str(value) for key, value in case.attrs.items()}
    wanted = wanted_gradients(case, arrays)
    empty = any(0 in array.shape or not array.ndim for array in arrays.values())
    ours, refusal = _ours(drawn, arrays, wanted)
    theirs, refused = _theirs(oracle, drawn, arrays, ours, wanted, empty=empty)
    if refused is not None:
        return {"raises": "both refuse" if ours is None else "passed"}
    if ours is None:
        return {"raises": f"MXNet takes it, we say: {refusal}"}
    verdicts = {"raises": "same"}
    if not case.random:
        verdicts |= _compare(drawn, ours, theirs)
        if verdicts.get("req", "same") != "same":
            # Many of MXNet's gradients overwrite where they are to add: then ours is to be its plain gradient, added.
            plain, refused = _theirs(oracle, replace(drawn, req="write"), arrays, ours, wanted, empty=empty)
            added = {key: value + value.dtype.type(START) for key, value in plain.items() if key.startswith("grad:")}
            if refused is None and all(not _differs(ours[key], value) for key, value in added.items()):
                verdicts["req"] = "passed"
    if not empty:
        graph = call_graph(case.op, attrs, names)
        verdicts["shape"] = _shapes(oracle, graph, attrs, case, {n: a.shape for n, a in arrays.items()})
        verdicts["type"] = _types(oracle, graph, attrs, case, {n: a.dtype.name for n, a in arrays.items()})
    return verdicts


def wanted_gradients(case: Case, arrays: dict[str, Any]) -> list[str]:
    """The inputs whose gradients are compared."""
    return [
        name
        for name, arg in arguments(case).items()
        if case.grad and case.oracle and arg.grad and is_float(arrays[name].dtype)
    ]


def _head(case: Case) -> Any:
    return lambda k, out: head_gradient(case, k, out.shape, out.dtype)


def _ours(drawn: Drawn, arrays: dict[str, Any], wanted: list[str]) -> tuple[dict[str, Any] | None, str]:
    case = drawn.case
    try:
        graph = call_graph(case.op, case.attrs, list(arrays))
        wanted[:] = [name for name in wanted if name in graph.argument_names]
        return run_call(graph, arrays, wanted, _head(case), req=drawn.req, is_train=case.is_train), ""
    except MXNetError as error:
        return None, str(error)


def _theirs(
    oracle: Oracle, drawn: Drawn, arrays: dict[str, Any], ours: Any, wanted: list[str], *, empty: bool
) -> tuple[dict[str, Any], str | None]:
    case = drawn.case
    outputs = [(key, out) for key, out in (ours or {}).items() if key.startswith("out:")]
    heads = {f"head:{k}": head_gradient(case, k, out.shape, out.dtype) for k, (_, out) in enumerate(outputs)}
    asked = {
        "op": case.op,
        "attrs": {key: str(value) for key, value in case.attrs.items()},
        "names": list(arrays),
        "wanted": wanted if heads else [],
        "is_train": case.is_train,
        "start": START if drawn.req == "add" else None,
        "np_shape": empty,
    }
    try:
        return oracle.ask("run", {f"arg:{name}": array for name, array in arrays.items()} | heads, **asked)[1], None
    except (RefusedError, OracleDiedError) as error:
        return {}, str(error)


def _compare(drawn: Drawn, ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, str]:
    verdicts = {}
    for key, got in sorted(ours.items(), reverse=True):
        aspect = "forward" if key.startswith("out:") else "req" if drawn.req == "add" else "gradient"
        if key not in theirs:
            verdicts[aspect] = f"{key}: MXNet has no such output"
            continue
        difference = _differs(got, theirs[key])
        if difference or aspect not in verdicts:
            verdicts[aspect] = f"{key}: {difference}" if difference else "same"
        if difference:
            break
    return verdicts


def _differs(got: Any, expected: Any) -> str:
    """How two arrays differ; empty when they do not."""
    if got.dtype != expected.dtype:
        return f"{got.dtype}, MXNet {expected.dtype}"
    if got.shape != expected.shape:
        return f"{got.shape}, MXNet {expected.shape}"
    if not is_float(got.dtype):
        wrong = got != expected
    else:
        with np.errstate(all="ignore"):  # MXNet leaves memory as it was where nothing is computed: signalling NaN too
            a, b = got.astype(np.float64), expected.astype(np.float64)
            finite = np.abs(b[np.isfinite(b)])
            near = NEAR[got.dtype.name] * max(1.0, float(finite.max(initial=0.0)))
            wrong = ~((np.abs(a - b) <= near) | (a == b) | (np.isnan(a) & np.isnan(b)))
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{int(wrong.sum())} of {wrong.size} values; at {at} {got[at]}, MXNet {expected[at]}"


def _shapes(oracle: Oracle, graph: Any, attrs: Any, case: Case, shapes: dict[str, Any]) -> str:
    """From all inputs, and from each one alone: what MXNet finds, where that is true, we find."""
    truth = infer_shape(graph, shapes)
    for known_shapes in (shapes, *({name: shape} for name, shape in shapes.items() if len(shapes) > 1)):
        try:
            theirs = oracle.ask(
                "shapes",
                op=case.op,
                attrs=attrs,
                names=list(shapes),
                shapes=_lists(known_shapes),
                partial=known_shapes is not shapes,
            )[0]
        except (RefusedError, OracleDiedError):
            continue
        try:
            ours = infer_shape(graph, known_shapes, partial=known_shapes is not shapes)
        except MXNetError as error:
            return f"from {known_shapes}: we say: {error}"
        for side in SIDES:
            known = (getattr(ours, f"{side}_shapes"), getattr(truth, f"{side}_shapes"), theirs[f"{side}_shapes"])
            for mine, true, other in zip(*known, strict=True):
                if _lacks(mine, other) and (known_shapes is shapes or not _lacks(true, other)):
                    return f"from {known_shapes}: {side} {mine}, MXNet {tuple(other)}"
    return "same"


def _lists(shapes: dict[str, Any]) -> dict[str, list[int]]:
    return {name: list(shape) for name, shape in shapes.items()}


def _lacks(mine: Any, other: Any) -> bool:
    """Whether we know less than MXNet, or something else."""
    if not other:
        return False
    return mine is None or len(mine) != len(other) or any(b and a != b for a, b in zip(mine, other, strict=True))


def _types(oracle: Oracle, graph: Any, attrs: Any, case: Case, types: dict[str, str]) -> str:
    for known_types in (types, dict(list(types.items())[:1])):
        try:
            theirs = oracle.ask("types", op=case.op, attrs=attrs, names=list(types), types=known_types, partial=True)[0]
        except (RefusedError, OracleDiedError):
            continue
        try:
            ours = infer_type(graph, known_types, partial=True)
        except MXNetError as error:
            return f"from {known_types}: we say: {error}"
        for side in SIDES:
            for mine, other in zip(getattr(ours, f"{side}_types"), theirs[f"{side}_types"] or (), strict=False):
                if other is not None and (None if mine is None else mine.name) != other:
                    return f"from {known_types}: {side} {mine}, MXNet {other}"
    return "same"
