"""Very long lists and objects are validated in pieces, and their first error is told as that of short ones."""

from __future__ import annotations

import gc
import weakref
from typing import Annotated, Any

import pytest
from pydantic import Field

from opbox_protocol.errors import BadRequestError
from opbox_service import validation
from opbox_service.commands.parse import PIECE, parse
from opbox_service.validation import Expected, InPieces, Strict, validate

MANY = validation.PIECE
LATE = 2 * MANY + 1
"""The number of a value in the third piece."""


class Row(Strict):
    size: Annotated[int, Field(ge=2)]


class Long(Strict):
    """A model with fields that may be long."""

    rows: Annotated[list[Row], InPieces()] = []
    names: Annotated[dict[str, Annotated[str, Expected("a {name}")]], InPieces()] = {}


class Whole(Strict):
    """A model whose list is validated in one piece."""

    rows: list[Row] = []


class Wrong(dict[str, Any]):
    """Values that a weak reference can watch."""


def test_an_error_does_not_keep_what_was_sent() -> None:
    """Until the collector comes round, which may be long: one that refers to itself has all its callers' values."""
    values = Wrong(rows=[{"size": 0} for _ in range(validation.MANY + 1)])
    seen = weakref.ref(values)
    gc.disable()
    try:
        with pytest.raises(BadRequestError, match=r"rows\.0\.size"):
            validate(Whole, values)
        del values
        assert seen() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("count", [0, 4, MANY, MANY + 1, 3 * MANY + 1])
def test_long_values(count: int) -> None:
    model = validate(
        Long, {"rows": [{"size": i + 2} for i in range(count)], "names": {str(i): "" for i in range(count)}}
    )
    assert [row.size for row in model.rows] == list(range(2, count + 2))
    assert len(model.names) == count


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"rows": 3}, "rows: expected a list, got 3"),
        ({"rows": [{"size": 2}] * LATE + [{"size": 1}] * 9}, f"rows.{LATE}.size: expected 2 or more, got 1"),
        ({"rows": [{"size": 2}] * LATE + [{}]}, f"rows.{LATE}.size: expected a value, got nothing"),
        ({"names": {str(i): i for i in range(3, LATE)}}, "names.3: expected a {name}, got 3"),
    ],
)
def test_the_first_error(values: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        validate(Long, values)
    assert str(caught.value) == says


def test_a_wrong_command_late_in_a_batch_has_its_number() -> None:
    commands = [{"do": "seed", "seed": 1}] * (PIECE + 3) + [{"do": "seed", "seed": -1}, {"do": "nonsense"}]
    with pytest.raises(BadRequestError, match=rf"command {PIECE + 3} \(seed\): seed: expected an integer") as caught:
        parse(commands, 10_000)
    assert caught.value.detail == {"command": PIECE + 3}
