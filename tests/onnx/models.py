"""Running a symbol here, as the ONNX model that it becomes, and as the symbol that comes back from that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx.reference import ReferenceEvaluator

import opbox as mx

Arrays = dict[str, np.ndarray[Any, Any]]


def forward(symbol: Any, feeds: Arrays, params: Arrays) -> list[np.ndarray[Any, Any]]:
    """The outputs of the symbol in inference; labels are zeros."""
    known = {**params, **feeds}
    shapes, _, _ = symbol.infer_shape(**{name: known[name].shape for name in symbol.list_inputs() if name in known})
    args = {}
    for name, shape in zip(symbol.list_arguments(), shapes, strict=True):
        values = known.get(name)
        args[name] = mx.nd.zeros(shape) if values is None else mx.nd.array(values, dtype=values.dtype)
    states = {name: mx.nd.array(known[name], dtype=known[name].dtype) for name in symbol.list_auxiliary_states()}
    outputs = symbol.bind(mx.cpu(), args, grad_req="null", aux_states=states).forward(is_train=False)
    return [output.asnumpy() for output in outputs]


def drawn(symbol: Any, **shapes: tuple[int, ...]) -> Arrays:
    """Parameters for a network, positive where they are variances."""
    random = np.random.RandomState(5)
    arguments, _, states = symbol.infer_shape(**shapes)
    names = [*zip(symbol.list_arguments(), arguments, strict=True)]
    names += [*zip(symbol.list_auxiliary_states(), states, strict=True)]
    return {
        name: (random.uniform(0.5, 1.5, shape) if "var" in name else random.uniform(-0.3, 0.3, shape)).astype("float32")
        for name, shape in names
        if name not in shapes and not name.endswith("_label")
    }


def exported(path: Path, feeds: Arrays) -> list[np.ndarray[Any, Any]]:
    """The outputs of the model, as onnx's own evaluator has them."""
    outputs: Any = ReferenceEvaluator(str(path)).run(None, feeds)
    return [np.asarray(output) for output in outputs]


def imported(path: Path, feeds: Arrays) -> list[np.ndarray[Any, Any]]:
    """The outputs of the model as opbox reads it."""
    symbol, arguments, states = mx.onnx.import_model(path)
    params = {name: value.asnumpy() for name, value in {**arguments, **states}.items()}
    return forward(symbol, {name: feeds[name] for name in symbol.list_arguments() if name in feeds}, params)


def same(actual: list[np.ndarray[Any, Any]], expected: list[np.ndarray[Any, Any]], half: bool = False) -> None:
    """Both sum in orders of their own: 1e-4 is some hundred roundings of float32, 5e-3 a few of float16."""
    assert [array.shape for array in actual] == [array.shape for array in expected]
    tolerance = 5e-3 if half else 1e-4
    for got, wanted in zip(actual, expected, strict=True):
        np.testing.assert_allclose(
            got.astype(np.float64), wanted.astype(np.float64), rtol=tolerance, atol=tolerance / 10
        )
