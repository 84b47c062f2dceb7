"""Graphs: kept by content, inferred, run forward and backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, SkipValidation

from ..carriers import Answer, Call, Done
from ..stateless.graph_runner import BackwardParameters, ForwardParameters
from ..stateless.inference import GraphReference, Shape, ShapeQuery, TypeQuery, infer_shapes, infer_types
from ..validation import Expected
from .models import Body, Tensor, TensorBody

if TYPE_CHECKING:
    from ..engine import Engine

__all__ = [
    "BackwardRequest",
    "ForwardRequest",
    "GraphAnswer",
    "GraphRequest",
    "ShapesAnswer",
    "ShapesRequest",
    "TensorsAnswer",
    "TypesAnswer",
    "TypesRequest",
    "backward",
    "forward",
    "infer_shape",
    "infer_type",
    "put_graph",
]


class GraphRequest(Body):
    """A graph to be kept."""

    graph: Annotated[dict[str, Any], Expected("MXNet's symbol JSON as an object")] = Field(
        description="MXNet's symbol JSON, as an object."
    )


class GraphAnswer(BaseModel):
    """The graph's name."""

    sha256: str


class ShapesRequest(ShapeQuery, Body):
    """A graph, and the shapes that are known."""


class ShapesAnswer(BaseModel):
    """Shapes by argument, output and auxiliary state."""

    arg_names: list[str]
    arg_shapes: list[Shape]
    out_names: list[str]
    out_shapes: list[Shape]
    aux_names: list[str]
    aux_shapes: list[Shape]
    complete: bool
    trace: list[dict[str, Any]] | None = None


class TypesRequest(TypeQuery, Body):
    """A graph, and the element types that are known."""


class TypesAnswer(BaseModel):
    """Element types by argument, output and auxiliary state."""

    arg_names: list[str]
    arg_types: list[str | None]
    out_names: list[str]
    out_types: list[str | None]
    aux_names: list[str]
    aux_types: list[str | None]
    complete: bool


class ForwardRequest(TensorBody):
    """A graph and its tensors."""

    graph: GraphReference
    inputs: SkipValidation[list[Tensor]] = Field(default=[], description="By argument and auxiliary state.")
    parameters: ForwardParameters = ForwardParameters()


class BackwardRequest(TensorBody):
    """A graph, its tensors and its head gradients."""

    graph: GraphReference
    inputs: SkipValidation[list[Tensor]] = Field(
        default=[], description="By argument and auxiliary state, and `head_grad:<output>`."
    )
    parameters: BackwardParameters = BackwardParameters()


class TensorsAnswer(BaseModel):
    """Outputs and gradients."""

    outputs: list[Tensor] = Field(description="By output; backward adds `grad:<argument>`.")


def put_graph(engine: Engine, call: Call, done: Done) -> None:
    """Send a graph once; other calls may then name it `sha256:<hex>`."""
    done(Answer({"sha256": engine.graphs.put(call.body.graph, call.owner)[0]}))


def infer_shape(engine: Engine, call: Call, done: Done) -> None:
    """Infer the shapes of arguments, outputs and auxiliary states, in both directions."""
    _, graph = engine.graphs.resolve(call.body.graph, call.owner)
    done(Answer(infer_shapes(graph, call.body, engine.settings.max_rank)))


def infer_type(engine: Engine, call: Call, done: Done) -> None:
    """Infer the element types of arguments, outputs and auxiliary states."""
    _, graph = engine.graphs.resolve(call.body.graph, call.owner)
    done(Answer(infer_types(graph, call.body)))


def forward(engine: Engine, call: Call, done: Done) -> None:
    """Run a graph on the given tensors; its outputs."""
    _run(engine, call, done, backward=False)


def backward(engine: Engine, call: Call, done: Done) -> None:
    """Run a graph forward and backward; its outputs and the gradients of its arguments."""
    _run(engine, call, done, backward=True)


def _run(engine: Engine, call: Call, done: Done, *, backward: bool) -> None:
    body = call.body
    engine.runner.run(
        body.graph,
        body.parameters,
        call.tensors,
        lambda outputs: done(Answer({}, outputs)),
        call.limit,
        fail=done,
        backward=backward,
        owner=call.owner,
        quota=call.quota,
    )
