"""Operator parameters: pydantic models that read typed values and MXNet's string attributes alike.

MXNet's JSON carries every attribute as a string: "(2, 2)", "True", "None", "0.9". The types below accept those
strings and the Python values, so that a graph from a file and a call from Python meet in one frozen, hashable model.

    class PoolingParams(Params):
        kernel: Shape = ()
        pool_type: Literal["max", "avg", "sum", "lp"] = "max"
        global_pool: Bool = False

    PoolingParams.parse("Pooling", {"kernel": "(2, 2)", "pool_type": "avg"})
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
)

from opbox_protocol.errors import ParamError
from opbox_protocol.mxnet import BOOLEANS, INTEGER, NP_SHAPE, is_hidden, tuple_parts
from opbox_protocol.shapes import from_mxnet

__all__ = [
    "AnyDType",
    "Bool",
    "Count",
    "Field",
    "Float",
    "FloatTuple",
    "Int",
    "KnownShape",
    "MAX_COUNT",
    "Literal",
    "NoParams",
    "NonNegativeInt",
    "OptCount",
    "OptBool",
    "OptFloat",
    "OptFloatTuple",
    "OptInt",
    "OptInts",
    "OptShape",
    "Params",
    "PartialShape",
    "PositiveInt",
    "Shape",
    "as_element",
    "as_int64",
]

MAX_COUNT = 1 << 16
"""The most inputs, outputs or layers that a parameter may ask for: inputs and outputs are named before other checks."""


def _scalar(value: Any) -> Any:
    if isinstance(value, str):
        text = value.strip()
        if INTEGER.fullmatch(text):
            return int(text.rstrip("lL"))
        return text
    return value


def _integer(value: Any) -> Any:
    value = _within_64_bits(_scalar(value))
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and value in ("True", "False"):
        return int(value == "True")
    return value


def _within_64_bits(value: Any) -> Any:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("an integer of at most 64 bits")
    return value


def _boolean(value: Any) -> Any:
    if isinstance(value, str):
        text = value.strip()
        return BOOLEANS.get(text, text)
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    return value


def _real(value: Any) -> Any:
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        text = value.strip()
        try:
            return float(text)
        except ValueError:
            return text
    return value


def _sequence(value: Any) -> Any:
    if isinstance(value, str):
        value = tuple(None if part == "None" else _scalar(part) for part in tuple_parts(value))
    elif isinstance(value, int) and not isinstance(value, bool):
        value = (value,)
    elif isinstance(value, list):
        value = tuple(value)
    if isinstance(value, tuple):
        for part in value:
            _within_64_bits(part)
    return value


def _optional(value: Any) -> Any:
    return None if isinstance(value, str) and value.strip() == "None" else value


def _partial(value: tuple[int, ...] | None, info: ValidationInfo) -> tuple[int, ...] | None:
    """A shape that may be known in part, in the terms of inference: -1 for an unknown dimension, None for all of it."""
    if value is None:
        return None
    if info.context is not None and info.context.get(NP_SHAPE):
        return tuple(max(d, -1) for d in value)
    return from_mxnet(value)


def _known(value: tuple[int, ...]) -> tuple[int, ...]:
    if any(d < 0 for d in value):
        raise ValueError("dimensions of at least 0")
    return value


Int = Annotated[int, BeforeValidator(_integer)]
PositiveInt = Annotated[int, Field(ge=1), BeforeValidator(_integer)]
NonNegativeInt = Annotated[int, Field(ge=0), BeforeValidator(_integer)]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT), BeforeValidator(_integer)]
"""A number of inputs, outputs or layers: names are made for all of them."""
OptCount = Annotated[int, Field(ge=0, le=MAX_COUNT), BeforeValidator(_integer)]
"""The same, where 0 says that something else tells how many."""
Float = Annotated[float, BeforeValidator(_real)]
Share = Annotated[float, Field(ge=0, le=1), BeforeValidator(_real)]
"""From 0 to 1."""
OpenShare = Annotated[float, Field(gt=0, lt=1), BeforeValidator(_real)]
"""Between 0 and 1."""
Bool = Annotated[bool, BeforeValidator(_boolean)]
Shape = Annotated[tuple[int, ...], BeforeValidator(_sequence)]
KnownShape = Annotated[Shape, AfterValidator(_known)]
"""No dimension of it follows from elsewhere."""
OptInts = Annotated[tuple[int | None, ...], BeforeValidator(_sequence)]
FloatTuple = Annotated[tuple[float, ...], BeforeValidator(_sequence)]
OptInt = Annotated[Int | None, BeforeValidator(_optional)]
OptFloatTuple = Annotated[FloatTuple | None, BeforeValidator(_optional)]
OptFloat = Annotated[Float | None, BeforeValidator(_optional)]
OptBool = Annotated[Bool | None, BeforeValidator(_optional)]
OptShape = Annotated[Shape | None, BeforeValidator(_optional)]
PartialShape = Annotated[OptShape, AfterValidator(_partial)]
AnyDType = Literal["float32", "float64", "float16", "bfloat16", "uint8", "int8", "int32", "int64", "bool"]


class Params(BaseModel):
    """Base of the parameter models: frozen, hashable, no unknown keys."""

    # An operator's validator is built when it is first called: building all takes a fifth of the engine's start.
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, defer_build=True)

    positional: ClassVar[tuple[str, ...]] = ()
    """Parameters that MXNet's functions take first, where that is not the order of the fields."""

    @classmethod
    def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The JSON Schema of the parameters, in the order of a call with positional arguments."""
        schema = super().model_json_schema(*args, **kwargs)
        if cls.positional:
            fields = schema["properties"]
            schema["properties"] = {key: fields[key] for key in dict.fromkeys((*cls.positional, *fields))}
        return schema

    @classmethod
    def parse(cls, op: str, attrs: Mapping[str, Any]) -> Self:
        """Read the parameters of operator `op` from `attrs`; hidden attributes (`__…__`) are passed over.

        With the hidden attribute `NP_SHAPE`, 0 in a parameter that is a `PartialShape` is a size, and not unknown.

        Raises:
            ParamError: names the parameter, what it accepts and what it got.
        """
        if not cls.__pydantic_complete__:
            cls.model_rebuild(_types_namespace={})  # by itself it would look through the variables of those who call
        try:
            values = {k: v for k, v in attrs.items() if not is_hidden(k)}
            return cls.model_validate(values, context={NP_SHAPE: True} if NP_SHAPE in attrs else None)
        except ValidationError as error:
            raise ParamError("; ".join(dict.fromkeys(cls._tell(op, item) for item in error.errors()))) from None

    @classmethod
    def _tell(cls, op: str, item: Any) -> str:
        name = str(item["loc"][0]) if item["loc"] else "parameters"
        known = list(cls.model_fields)
        if item["type"] == "extra_forbidden":
            near = difflib.get_close_matches(name, known, n=3)
            listed = f"did you mean {' or '.join(near)}?" if near else f"it takes {', '.join(known) or 'none'}"
            return f"{op}: unknown parameter {name!r}; {listed}"
        field = cls.model_fields.get(name)
        accepts = accepted_values(field.annotation if field is not None else None, item)
        if item["type"] == "missing":
            return f"{op}: parameter {name!r} is required: {accepts}"
        return f"{op}: parameter {name!r}: expected {accepts}, got {item.get('input')!r}"


def as_int64(value: float) -> int:
    """The integer part of a number, as an integer array takes it: wrapped around beyond 64 bits, 0 for nan and inf."""
    whole = math.trunc(value) if math.isfinite(value) else 0
    return (whole + 2**63) % 2**64 - 2**63


def as_element(value: float, dtype: np.dtype[Any]) -> Any:
    """A number as an array of that type holds it; see `as_int64` for integers."""
    return np.asarray(as_int64(value)).astype(dtype)[()] if dtype.kind in "iu" else dtype.type(value)


def accepted_values(annotation: Any, item: Any = None) -> str:
    """In words, what a parameter of this annotation accepts."""
    if item is not None and item["type"] == "literal_error":
        return f"one of {item['ctx']['expected']}"
    if item is not None and item["type"] in ("greater_than_equal", "greater_than", "less_than", "less_than_equal"):
        return "a number " + str(item["msg"]).rpartition("be ")[2]
    if item is not None and item["type"] in ("value_error", "assertion_error"):
        return str(item["msg"]).partition(", ")[2] or str(item["msg"])
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(repr(value) for value in args)
    if origin is tuple:
        return f"a tuple of {'integers' if args[0] is int else 'numbers'}"
    named = {int: "an integer", float: "a number", bool: "True or False", str: "a string"}
    if annotation in named:
        return named[annotation]
    if origin is Annotated:
        return accepted_values(args[0])
    if args:
        return " or ".join("None" if arg is type(None) else accepted_values(arg) for arg in args)
    return "another value"


class NoParams(Params):
    """For operators that take no parameters."""
