"""Extensions of the Open Inference Protocol: gradients of a model, and the names of the values inside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field, SkipValidation

from opbox_protocol.errors import BadRequestError

from ..carriers import Answer, Call, Done
from ..validation import RandomSeed, Strict
from .models import Tensor, TensorBody
from .served_models import RequestedOutput, TensorMetadata

if TYPE_CHECKING:
    from ..engine import Engine

__all__ = ["ModelOutputs", "ModelBackwardRequest", "ModelBackwardParameters", "list_outputs", "model_backward"]


class ModelBackwardParameters(Strict):
    """The parameters of a request for gradients."""

    is_train: bool = Field(default=False, description="Whether operators run as in training; the model never changes.")
    seed: RandomSeed = Field(default=0, description="Of random operators.")
    binary_data_output: bool = Field(
        default=False, description="Whether tensors come as bytes where `outputs` does not say."
    )
    tensor_alignment: Literal[64] | None = Field(default=None, description="Of a frame whose tensors are aligned.")


class ModelBackwardRequest(TensorBody):
    """Tensors for a model, gradients of its outputs, and the gradients that are wanted."""

    id: str | None = Field(default=None, max_length=256, description="Comes back with the answer.")
    inputs: SkipValidation[list[Tensor]] = Field(
        default=[], description="By input and label, and `head_grad:<output or inner value>`."
    )
    outputs: list[RequestedOutput] | None = Field(
        default=None, description="`grad:<input>`, `grad:<parameter>` and outputs; by default gradients of all inputs."
    )
    parameters: ModelBackwardParameters = ModelBackwardParameters()


class ModelOutputs(BaseModel):
    """The names that requests for a model may have."""

    model_name: str
    model_version: str
    outputs: list[TensorMetadata] = Field(description="Its outputs, and the values inside it, in the graph's order.")
    gradients: list[str] = Field(description="What `backward` computes.")
    labels: list[str] = Field(description="Further inputs of `backward`, where a loss reads them.")


def model_backward(engine: Engine, call: Call, done: Done) -> None:
    """Run a model forward and backward; gradients of its inputs and parameters. The model never changes."""
    reference, body = call.model, call.body
    assert reference is not None
    options = body.parameters
    asked = body.outputs
    for output in asked or ():
        _check_parameters(output)
    header: dict[str, Any] = {"model_name": reference.name, "model_version": str(reference.version)}
    if body.id is not None:
        header["id"] = body.id

    def take(tensors: dict[str, Any]) -> None:
        by_default = options.binary_data_output
        binary = {one.name: one.parameters.get("binary_data", by_default) for one in asked or ()}
        in_bytes = frozenset(name for name in tensors if binary.get(name, by_default))
        done(Answer(header, tensors, inferred=in_bytes))

    engine.models.get(reference).backward(
        call.owner,
        call.tensors,
        None if asked is None else list(dict.fromkeys(output.name for output in asked)),
        take,
        call.limit,
        is_train=options.is_train,
        seed=options.seed,
    )


def _check_parameters(output: RequestedOutput) -> None:
    unknown = [key for key in output.parameters if key != "binary_data"]
    if unknown:
        raise BadRequestError(
            f"outputs: {output.name[:80]!r}: parameters: expected binary_data, got {unknown[0][:80]!r}, which is not "
            "served for gradients"
        )


def list_outputs(engine: Engine, call: Call, done: Done) -> None:
    """List what requests for a model may name: outputs, values inside it, gradients."""
    reference = call.model
    assert reference is not None
    rows, gradients, labels = engine.models.get(reference).list_outputs(call.owner)
    header = {"model_name": reference.name, "model_version": str(reference.version)}
    outputs = [row.to_json() for row in rows]
    done(Answer({**header, "outputs": outputs, "gradients": gradients, "labels": labels}))
