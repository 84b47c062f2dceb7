"""Models that several routes share: bodies, tensors, errors.

A body is either JSON with the tensors' values in lists, or a frame: the same JSON followed by the tensors' bytes.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field, SkipValidation
from pydantic.json_schema import SkipJsonSchema

from opbox_protocol.datatypes import DATATYPES

from ..validation import Strict

__all__ = ["Body", "Error", "Tensor", "TensorBody"]


class Tensor(BaseModel):
    """A tensor: its values under `data`, or behind the header (`parameters.binary_data_size` bytes)."""

    name: str
    shape: list[int]
    datatype: Literal[tuple(DATATYPES)]  # type: ignore[valid-type]  # a table's, which no checker reads
    data: list[Any] | None = None
    parameters: dict[str, int | str] | None = Field(
        default=None,
        description="`binary_data_size`; of a model's tensors also `shared_memory_region`, `shared_memory_byte_size` "
        "and `shared_memory_offset`.",
    )


class Error(BaseModel):
    """The answer to every failed request; `error` is one sentence."""

    error: str
    type: str = Field(description="The class of the error: ShapeError, NotFoundError, …")
    node: str | None = None
    request_id: str
    trace_id: str | None = Field(default=None, description="Where requests are traced.")
    detail: dict[str, Any] = {}


class Body(Strict):
    """Base of the bodies. Any may be a frame, whose `inputs` and `parameters` the frame's reader has checked."""

    inputs: SkipJsonSchema[SkipValidation[Any]] = None
    parameters: SkipJsonSchema[SkipValidation[Any]] = None


class TensorBody(Body):
    """Base of the bodies with tensors."""

    id: SkipJsonSchema[SkipValidation[Any]] = None
    inputs: SkipValidation[list[Tensor]] = []
