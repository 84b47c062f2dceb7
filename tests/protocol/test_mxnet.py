"""MXNet's facts: numbers, hidden keys, attribute text."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import opbox as mx
from opbox_ops.params import Params, Shape
from opbox_protocol import mxnet
from opbox_protocol.mxnet import attribute_text, attribute_value, tuple_parts, type_number
from opbox_protocol.shapes import from_mxnet, shape_from_text, to_mxnet

NUMBERS = {
    "float32": 0,
    "float64": 1,
    "float16": 2,
    "uint8": 3,
    "int32": 4,
    "int8": 5,
    "int64": 6,
    "bool": 7,
    "int16": 8,
    "uint16": 9,
    "uint32": 10,
    "uint64": 11,
    "bfloat16": 12,
}


@pytest.mark.parametrize(("name", "number"), NUMBERS.items())
def test_an_element_type_that_a_variable_declares_reaches_the_engine(name: str, number: int) -> None:
    assert type_number(name) == number
    x = mx.sym.Variable("x", dtype=name)
    assert x.attr("__dtype__") == str(number)
    types = mx.sym.identity(x).infer_type()[1]
    assert types == [mxnet.numpy_dtype(name).type]


def test_a_type_that_mxnet_has_no_number_for() -> None:
    with pytest.raises(ValueError, match=r"expected one of float32, float64, .*, got complex64"):
        type_number(np.complex64)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((np.int64(2), 2), "(2, 2)"),
        ([np.float32(0.5)], "[0.5]"),
        (np.array([1, 2]), "(1, 2)"),
        (np.float16, "float16"),
        (np.dtype("int8"), "int8"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (np.bool_(True), "True"),
        (None, "None"),
        ("as it is", "as it is"),
    ],
)
def test_values_as_text(value: Any, text: str) -> None:
    assert attribute_text(value) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3L", 3),
        (" -2 ", -2),
        ("true", True),
        ("None", None),
        ("1e-3", 0.001),
        ("(2, 0.5)", (2, 0.5)),
        ("[1,2,]", (1, 2)),
        ("()", ()),
        ("relu", "relu"),
    ],
)
def test_text_as_values(text: str, value: Any) -> None:
    assert attribute_value(text) == value
    assert type(attribute_value(text)) is type(value)


def test_tuples_are_read_alike_by_client_and_operators() -> None:
    class P(Params):
        shape: Shape = ()

    for text in ("(2, 3)", "[2, 3]", "2, 3", "(2,3,)", "( 2L, 3 )"):
        assert P.parse("op", {"shape": text}).shape == shape_from_text(text) == (2, 3)
        assert [int(part.rstrip("L")) for part in tuple_parts(text)] == [2, 3]
    with pytest.raises(ValueError, match="expected a tuple of integers, got '\\(2, x\\)'"):
        shape_from_text("(2, x)")


def test_unknown_shapes_in_mxnets_terms() -> None:
    assert (from_mxnet((2, 0)), from_mxnet(())) == ((2, -1), None)
    assert (to_mxnet((2, -1)), to_mxnet(None)) == ((2, 0), ())
