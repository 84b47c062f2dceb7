"""Parameters: MXNet's strings and Python's values read alike, and a sentence for what cannot be read."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opbox_ops.params import (
    AnyDType,
    Bool,
    Float,
    FloatTuple,
    Int,
    NonNegativeInt,
    NoParams,
    OptBool,
    OptFloat,
    OptInt,
    OptInts,
    OptShape,
    Params,
    PositiveInt,
    Shape,
    is_hidden,
)
from opbox_protocol.errors import ParamError


class All(Params):
    integer: Int = 0
    positive: PositiveInt = 1
    natural: NonNegativeInt = 0
    real: Float = 0.0
    truth: Bool = False
    shape: Shape = ()
    ints: OptInts = ()
    reals: FloatTuple = ()
    maybe_int: OptInt = None
    maybe_real: OptFloat = None
    maybe_truth: OptBool = None
    maybe_shape: OptShape = None
    dtype: AnyDType = "float32"
    mode: Literal["max", "avg"] = "max"


class Required(Params):
    num_hidden: PositiveInt


def parse(**attrs: Any) -> All:
    return All.parse("op", attrs)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("integer", "7", 7),
        ("integer", " -3 ", -3),
        ("integer", "7L", 7),
        ("integer", True, 1),
        ("integer", "True", 1),
        ("integer", 7.0, 7),
        ("real", "0.9", 0.9),
        ("real", "1e-3", 1e-3),
        ("real", "inf", float("inf")),
        ("real", 2, 2.0),
        ("real", True, 1.0),
        ("truth", "True", True),
        ("truth", "false", False),
        ("truth", "1", True),
        ("truth", "0", False),
        ("truth", 1, True),
        ("shape", "(2, 3)", (2, 3)),
        ("shape", "[2,3]", (2, 3)),
        ("shape", "(2,)", (2,)),
        ("shape", "2", (2,)),
        ("shape", "()", ()),
        ("shape", "(2L, 3L)", (2, 3)),
        ("shape", [2, 3], (2, 3)),
        ("shape", 4, (4,)),
        ("shape", "(-1, 0)", (-1, 0)),
        ("ints", "(None, 2)", (None, 2)),
        ("ints", "(None,)", (None,)),
        ("reals", "(0.5, 1)", (0.5, 1.0)),
        ("maybe_int", "None", None),
        ("maybe_int", "3", 3),
        ("maybe_real", "None", None),
        ("maybe_real", "0.5", 0.5),
        ("maybe_truth", "None", None),
        ("maybe_truth", "True", True),
        ("maybe_shape", "None", None),
        ("maybe_shape", "(1,)", (1,)),
        ("dtype", "float16", "float16"),
        ("mode", "avg", "avg"),
    ],
)
def test_strings_and_values(name: str, text: Any, value: Any) -> None:
    got = getattr(parse(**{name: text}), name)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("attrs", "says"),
    [
        ({"integer": "seven"}, "op: parameter 'integer': expected an integer, got 'seven'"),
        ({"integer": "1.5"}, "op: parameter 'integer': expected an integer, got '1.5'"),
        ({"positive": "0"}, "op: parameter 'positive': expected a number greater than or equal to 1, got 0"),
        ({"natural": -1}, "op: parameter 'natural': expected a number greater than or equal to 0, got -1"),
        ({"real": "big"}, "op: parameter 'real': expected a number, got 'big'"),
        ({"truth": "maybe"}, "op: parameter 'truth': expected True or False, got 'maybe'"),
        ({"shape": "(2, x)"}, "op: parameter 'shape': expected a tuple of integers"),
        ({"mode": "min"}, "op: parameter 'mode': expected one of 'max' or 'avg', got 'min'"),
        ({"integr": 1}, "op: unknown parameter 'integr'; did you mean integer"),
        ({"zzz": 1}, "op: unknown parameter 'zzz'; it takes integer, positive,"),
    ],
)
def test_what_cannot_be_read(attrs: dict[str, Any], says: str) -> None:
    with pytest.raises(ParamError) as caught:
        parse(**attrs)
    assert caught.value.message.startswith(says)
    assert "\n" not in caught.value.message


def test_what_is_missing() -> None:
    with pytest.raises(ParamError, match=r"^op: parameter 'num_hidden' is required: an integer"):
        Required.parse("op", {})


def test_no_parameters() -> None:
    with pytest.raises(ParamError, match="unknown parameter 'axis'; it takes none"):
        NoParams.parse("op", {"axis": 1})


def test_several_complaints_are_one_sentence_each() -> None:
    with pytest.raises(ParamError, match=r"'integer': expected an integer.*; op: .*'mode': expected one of"):
        parse(integer="x", mode="y")


def test_hidden_attributes_are_passed_over() -> None:
    assert parse(integer="2", __shape__="(2,)", __lr_mult__="0.5").integer == 2
    assert is_hidden("__ctx_group__")
    assert not is_hidden("__")
    assert not is_hidden("_shape_")


def test_equal_parameters_are_equal_keys() -> None:
    assert len({parse(shape="(2, 3)"), parse(shape=[2, 3]), parse(shape=(2, 3))}) == 1
    with pytest.raises(ValueError, match="frozen"):
        parse().integer = 3  # type: ignore[misc]  # the error that is tested


@given(st.text(max_size=12), st.sampled_from(list(All.model_fields)))
def test_any_text_is_read_or_refused(text: str, name: str) -> None:
    try:
        written = parse(**{name: text}).model_dump_json()
    except ParamError as error:
        written = error.message
    assert name in written


@given(
    st.tuples(
        st.integers(-(2**40), 2**40),
        st.floats(allow_nan=False),
        st.booleans(),
        st.lists(st.integers(-(2**63), 2**63 - 1)),
    )
)
def test_values_and_their_text_are_the_same(numbers: tuple[int, float, bool, list[int]]) -> None:
    integer, real, truth, shape = numbers
    values = {"integer": integer, "real": real, "truth": truth, "shape": tuple(shape)}
    assert parse(**values) == parse(**{key: str(value) for key, value in values.items()})


@pytest.mark.parametrize("values", [{"integer": 2**63}, {"integer": str(-(2**63) - 1)}, {"shape": (1, 2**64)}])
def test_integers_have_64_bits(values: dict[str, object]) -> None:
    with pytest.raises(ParamError, match="expected an integer of at most 64 bits, got"):
        parse(**values)
