"""The catalogue of operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from opbox_ops import registry
from opbox_protocol.errors import NotFoundError, UnknownOperatorError

from ..carriers import Answer, Call, Done

if TYPE_CHECKING:
    from ..engine import Engine

__all__ = ["Catalogue", "CatalogueOperator", "operator", "operators"]


class CatalogueOperator(BaseModel):
    """An operator."""

    name: str
    aliases: list[str]
    doc: str
    inputs: Any
    outputs: Any
    params: dict[str, Any] = Field(description="JSON Schema of the parameters.")
    differentiable: bool
    devices: list[str]
    methods: list[str] = Field(default=[], description="The classes of the client that have it as a method.")
    initial: Any = Field(default=None, description="Attributes of the variables that are made for its inputs.")
    result_shape: str | None = Field(default=None, description="Whose shape the output has, where a word says it.")
    result_type: str | None = Field(default=None, description="Whose type the output has, where a word says it.")
    levels: dict[str, list[str]] = Field(description="By device, the levels of its computes, highest first.")


class Catalogue(BaseModel):
    """All operators but the gradients."""

    operators: list[CatalogueOperator]


def operators(engine: Engine, call: Call, done: Done) -> None:
    """All operators: names, inputs, outputs, JSON Schema of the parameters."""
    listed = (registry.get(name) for name in registry.names())
    done(Answer({"operators": [op.json() for op in listed if not op.is_backward]}))


def operator(engine: Engine, call: Call, done: Done) -> None:
    """One operator, by name or alias."""
    try:
        done(Answer(registry.get(call.parameters["name"]).json()))
    except UnknownOperatorError as error:
        raise NotFoundError(error.message) from None
