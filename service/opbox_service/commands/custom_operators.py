"""Operators of a user's own: define, and infer_shape and infer_type for graphs that use them."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from ..owner_terms import Scope
from ..stateless.inference import ShapeQuery, TypeQuery, infer_shapes, infer_types
from .array_table import ArrayTable
from .command import Command, Exchange

__all__ = ["COMMANDS"]


class Define(Command):
    """The source of a user's operator, by content; graphs name it by `__code__`. It runs when it is first needed."""

    scope: ClassVar[Scope] = "upload-python"
    always_runs: ClassVar[bool] = True

    do: Literal["define"]
    op: Literal["Custom", "_NumpyOp", "_NDArrayOp"] = "Custom"
    op_type: str = Field(min_length=1, max_length=512)
    sha256: str = Field(max_length=80, description="Of the bundle's canonical JSON.")
    bundle: dict[str, Any] | None = Field(default=None, description="Pieces of source, exports, modules.")
    live: SkipJsonSchema[Any] = Field(default=None, description="A class: only from this very process.")

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        table.define(self.op, self.op_type, self.sha256, self.bundle, self.live)


class InferShape(ShapeQuery, Command):
    """As POST /v1/infer_shape, for a graph with operators that the session has defined."""

    do: Literal["infer_shape"]

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        exchange.report(**infer_shapes(table.graph(self.graph), self, table.max_rank))


class InferType(TypeQuery, Command):
    """As POST /v1/infer_type, for a graph with operators that the session has defined."""

    do: Literal["infer_type"]

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        exchange.report(**infer_types(table.graph(self.graph), self))


COMMANDS = (Define, InferShape, InferType)
