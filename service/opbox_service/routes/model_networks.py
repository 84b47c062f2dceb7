"""The network of a served model: its nodes, and a drawing of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from ..carriers import Answer, Call, Done
from ..executor import network
from .executors import NetworkNode, draw
from .served_models import TensorMetadata

if TYPE_CHECKING:
    from ..engine import Engine
    from ..models.loaded_model import LoadedModel

__all__ = ["ServedNetwork", "model_drawing", "model_network"]


class ServedNetwork(BaseModel):
    """A served version of a model and its network; no tensor's values."""

    name: str
    version: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    labels: list[str] = Field(description="Names of classes, in order; empty where the model has none.")
    network: list[NetworkNode] = Field(description="The nodes, each after its inputs.")
    heads: list[tuple[int, int]]


def model_network(engine: Engine, call: Call, done: Done) -> None:
    """The network of a served model: its nodes, and the shapes and types of what they put out."""
    model, reference = _model(engine, call), call.model
    assert reference is not None
    nodes = network(model.graph, model.variables)
    done(
        Answer(
            {
                "name": reference.name,
                "version": str(reference.version),
                "inputs": [tensor.to_json() for tensor in model.inputs],
                "outputs": [tensor.to_json() for tensor in model.outputs],
                "labels": model.labels,
                # Lines of a script are its author's, and a model may be called by others.
                "network": [{**node, "source": None} for node in nodes["nodes"]],
                "heads": nodes["heads"],
            }
        )
    )


def model_drawing(engine: Engine, call: Call, done: Done) -> None:
    """Draw a served model's network as SVG: `folded` or `unfolded` blocks, `-with-parameters` or without."""
    model = _model(engine, call)
    done(draw(call.parameters["drawing"], model.graph, model.variables))


def _model(engine: Engine, call: Call) -> LoadedModel:
    assert call.model is not None
    return engine.models.get(call.model)
