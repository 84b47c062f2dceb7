"""A session's own operators: their source is taken, and graphs with them are asked for shapes and types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import commands as c
from .handlers import handles
from .inference import shapes_told, types_told

if TYPE_CHECKING:
    from .batch import Batch
    from .session import Session

__all__: list[str] = []


@handles(c.Define)
def define(session: Session, command: c.Define, batch: Batch) -> None:
    session.definitions.add(command.op, command.op_type, command.sha256, command.bundle, command.live)


@handles(c.InferShape)
def infer_shape(session: Session, command: c.InferShape, batch: Batch) -> None:
    _, graph = session.graphs.resolve(command.graph)
    rank = session.settings.max_rank
    batch.tell(**shapes_told(graph, command.shapes, partial=command.partial, trace=command.trace, max_rank=rank))


@handles(c.InferType)
def infer_type(session: Session, command: c.InferType, batch: Batch) -> None:
    _, graph = session.graphs.resolve(command.graph)
    batch.tell(**types_told(graph, command.types, partial=command.partial))
