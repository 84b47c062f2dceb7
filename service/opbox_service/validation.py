"""Models of what clients send, and the one place where their errors become a sentence.

A model is strict: no unknown fields, no silent conversions. `Expected` gives a field's type a phrase that errors use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, SecretStr, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from opbox_protocol.errors import BadRequestError
from opbox_protocol.excerpt import excerpt

__all__ = ["Expected", "InPieces", "RandomSeed", "FieldList", "Strict", "explain", "first_error", "validate"]

M = TypeVar("M", bound=BaseModel)
SHOWN = 80
"""Maximum number of characters of a wrong value in an error."""
PIECE = 8192
"""Number of items to validate at a time."""
MANY = 64
"""Number of errors from which on only a part of the values is searched for the first."""

PHRASES: Mapping[str, str] = {
    "bool_type": "true or false",
    "int_type": "an integer",
    "int_parsing": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "string_type": "a string",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "less than {lt}",
    "less_than_equal": "{le} or less",
    "literal_error": "one of {expected}",
    "too_short": "{min_length} or more items",
    "too_long": "at most {max_length} items",
    "string_too_short": "{min_length} or more characters",
    "string_too_long": "at most {max_length} characters",
}
"""The words for what was expected, by pydantic's type of error."""
SECRETS: Mapping[str, str] = {"too_short": "string_too_short", "too_long": "string_too_long"}
"""A SecretStr is a text, whose length pydantic counts as that of a list."""


class Strict(BaseModel):
    """Base of the models: no unknown fields, no silent conversions, unchangeable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True)


class FieldList(Strict):
    """Base of models that JSON has as lists of the fields' values."""

    @model_validator(mode="before")
    @classmethod
    def _of_list(cls, value: Any) -> Any:
        names = tuple(cls.model_fields)
        return dict(zip(names, value, strict=True)) if isinstance(value, list) and len(value) == len(names) else value


class Expected:
    """An annotation: the phrase that errors say of a value of this type.

    Example:
        Seed = Annotated[int, Field(ge=0), Expected("an integer of 0 or more")]
    """

    def __init__(self, phrase: str) -> None:
        self.phrase = phrase

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        # In pydantic's compiled part, so that a right value costs nothing.
        return core_schema.custom_error_schema(
            handler(source), custom_error_type="expected", custom_error_message=self.phrase
        )


class InPieces:
    """An annotation of a list or an object that may be very long: it is validated in pieces, up to the first error.

    A validator keeps the interpreter's lock, and remembers all errors; between two pieces other threads have turns.

    Example:
        Ids = Annotated[list[Id], InPieces()]
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(_in_pieces, handler(source))


def _in_pieces(values: Any, validate: Callable[[Any], Any]) -> Any:
    if not isinstance(values, dict | list) or len(values) <= PIECE:
        return validate(values)
    if isinstance(values, dict):
        items = iter(values.items())
        pieces = iter(lambda: dict(islice(items, PIECE)), {})
        return {key: value for piece in pieces for key, value in validate(piece).items()}
    valid: list[Any] = []
    for start in range(0, len(values), PIECE):
        try:
            valid += validate(values[start : start + PIECE])
        except ValidationError as error:
            raise _moved(error, start) from None
    return valid


def _moved(error: ValidationError, by: int) -> ValidationError:
    """The first error on a piece of a list, with its position in the whole."""
    item = error.errors(include_url=False)[0]
    number, *place = item["loc"]
    kind = PydanticCustomError(item["type"], item["msg"], item.get("ctx"))
    detail = InitErrorDetails(type=kind, loc=(int(number) + by, *place), input=item["input"])
    return ValidationError.from_exception_data(error.title, [detail])


RandomSeed = Annotated[int, Field(ge=0, lt=1 << 64), Expected("an integer from 0 to 2**64 - 1")]


def validate(model: type[M], values: Mapping[str, Any]) -> M:
    """The values as a model.

    Raises:
        BadRequestError: which field, what it expects, what it got.
    """
    try:
        validated: M = model.__pydantic_validator__.validate_python(values)
        return validated
    except ValidationError as error:
        item = first_error(error, values, model.__pydantic_validator__.validate_python)
        raise BadRequestError(explain(item, model, item["loc"])) from None


def first_error(error: ValidationError, values: Any, validate: Callable[[Any], Any]) -> Mapping[str, Any]:
    """The first error on `values`; found in a small part of them when there are very many, for each costs memory."""
    size = MANY
    while error.error_count() > MANY and size < error.error_count():
        try:
            validate(_beginning(values, size))
        except ValidationError as fewer:
            # No other variable has it: the error knows this frame, and with it all that the callers have at hand.
            return fewer.errors(include_url=False)[0]
        size *= 8
    return error.errors(include_url=False)[0]


def _beginning(values: Any, size: int) -> Any:
    """The same lists and objects with their first `size` items, all the way down."""
    if isinstance(values, Mapping):
        return {key: _beginning(value, size) for key, value in islice(values.items(), size)}
    if isinstance(values, list):
        return [_beginning(value, size) for value in islice(values, size)]
    return values


def explain(item: Mapping[str, Any], model: type[BaseModel], place: Sequence[str | int]) -> str:
    """One sentence on one error of a ValidationError.

    Args:
        item: of its `errors()`.
        model: what was validated.
        place: the path of field names and positions from the model to the error.
    """
    kind, field = item["type"], ".".join(str(part) for part in place)
    if kind == "extra_forbidden":
        fields = _model_at(model, place[:-1]).model_fields
        names = [info.alias or name for name, info in fields.items() if not _is_hidden(name, info)]
        above = ".".join(str(part) for part in place[:-1])
        expected = f"expected {', '.join(names)}" if names else "expected none"
        return f"{above + ': ' if above else ''}unknown field {str(place[-1])[:SHOWN]!r}: {expected}"
    if kind == "missing":
        info = _field_at(model, place)
        phrase = next((note.phrase for note in info.metadata if isinstance(note, Expected)), "a value")
        return f"{field}: expected {phrase}, got nothing"
    if kind in SECRETS and isinstance(item.get("input"), str | SecretStr):
        kind = SECRETS[kind]
    phrase = PHRASES.get(kind, "")
    message = str(item["msg"]).removeprefix("Input should be ").removeprefix("Value error, ")
    expected = phrase.format(**item.get("ctx", {})) if phrase else message
    value = item.get("input")
    got = "nothing" if value is None else excerpt(value, SHOWN)
    return f"{field or 'the request'}: expected {expected}, got {got}"


def _is_hidden(name: str, info: FieldInfo) -> bool:
    """Return whether no error recommends the field."""
    return name == "do" or any(type(note) is SkipJsonSchema for note in info.metadata)


def _field_at(model: type[BaseModel], place: Sequence[str | int]) -> FieldInfo:
    fields = _model_at(model, place[:-1]).model_fields
    name = str(place[-1])
    return fields.get(name) or next(info for info in fields.values() if info.alias == name)


def _model_at(model: type[BaseModel], place: Sequence[str | int]) -> type[BaseModel]:
    """The model that a path leads to, through lists and nested models."""
    for part in place:
        info = model.model_fields.get(str(part))
        if info is not None:
            model = _model_in(info.annotation) or model
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (_model_in(part) for part in getattr(annotation, "__args__", ()))
    return next((model for model in inner if model is not None), None)
