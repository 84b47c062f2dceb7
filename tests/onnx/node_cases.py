"""ONNX's own test cases of single operators, read and run by opbox."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from google.protobuf.message import Message

import onnx
import opbox as mx
from onnx import numpy_helper
from opbox_protocol.errors import MXNetError

__all__ = ["FED", "Fed", "Outcome", "outcome", "cases"]

Fed = Literal["every input", "the first input", "no input"]
FED: tuple[Fed, ...] = ("every input", "the first input", "no input")
"""What a case feeds; its other inputs are constants of the model, which is how most models have them."""
Outcome = Literal["equal", "refused", "refused at run", "left out"]
NEWEST = 22
"""The opset that cases of later ones are run in, if their operator is in it as they call it."""


@functools.cache
def cases() -> list[Any]:
    """All cases."""
    with warnings.catch_warnings():  # NumPy's, of infinities and NaN that are meant
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        return list(collect_testcases(None))


def outcome(case: Any, fed: Fed, path: Path) -> Outcome:
    """What opbox makes of a case.

    Raises:
        AssertionError: it converts the case, and gives other numbers, or numbers of another type.
        Exception: any other than MXNetError that importing and running raises.
    """
    inputs, outputs = ([_array(value) for value in values] for values in case.data_sets[0])
    model = _model(case)
    names = [value.name for value in model.graph.input]
    feeds = dict(zip(names, inputs, strict=True))
    fixed = names[{"every input": len(names), "the first input": 1, "no input": 0}[fed] :]
    if fed != "every input" and (not fixed or any(feeds[name] is None for name in fixed)):
        return "left out"
    for name in fixed:
        model.graph.initializer.append(numpy_helper.from_array(feeds.pop(name), name))
    left = [value for value in model.graph.input if value.name in feeds]
    del model.graph.input[:]
    model.graph.input.extend(left)
    path.write_bytes(model.SerializeToString())
    try:
        symbol, arguments, states = mx.onnx.import_model(path)
    except MXNetError as error:
        if not str(error).startswith("import_model: "):
            raise AssertionError(f"expected an error of import_model, got {error}") from error
        return "refused"
    params = {**arguments, **states}
    try:
        arrays = {name: params[name] if name in params else _fed(feeds[name]) for name in symbol.list_inputs()}
        states = {name: arrays.pop(name) for name in symbol.list_auxiliary_states()}
        results = symbol.bind(mx.cpu(), arrays, grad_req="null", aux_states=states).forward(is_train=False)
        numbers = [result.asnumpy() for result in results]
    except MXNetError:
        return "refused at run"
    for number, expected in zip(numbers, outputs, strict=True):
        _compare(number, expected, case)
    return "equal"


def _model(case: Any) -> Any:
    """A copy of the case's model, in an opset that opbox reads if there is one."""
    whole, older = onnx.ModelProto(), onnx.ModelProto()
    whole.CopyFrom(case.model)
    older.CopyFrom(case.model)
    for entry in older.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = min(entry.version, NEWEST)
    try:
        onnx.checker.check_model(older)
    except onnx.checker.ValidationError:
        return whole
    return older


def _array(value: Any) -> np.ndarray[Any, Any] | None:
    """A value of a case; None for sequences and optional ones."""
    if isinstance(value, Message):
        return np.asarray(numpy_helper.to_array(value)) if isinstance(value, onnx.TensorProto) else None
    return None if value is None or isinstance(value, Sequence) else np.asarray(value)


def _fed(values: np.ndarray[Any, Any] | None) -> Any:
    """An array of MXNet, which has at least one dimension."""
    assert values is not None, "an input that is no array was taken"
    return mx.nd.array(np.atleast_1d(values), dtype=values.dtype)


def _compare(actual: np.ndarray[Any, Any], expected: np.ndarray[Any, Any] | None, case: Any) -> None:
    """Compare with ONNX's tolerances of the case; truths are numbers."""
    assert expected is not None
    expected = np.atleast_1d(expected)
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype or expected.dtype == np.bool_, (actual.dtype, expected.dtype)
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_allclose(actual, expected, rtol=case.rtol, atol=case.atol)
