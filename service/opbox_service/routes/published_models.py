"""Models that owners publish: uploaded, and removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, SkipValidation

from opbox_protocol.errors import BadRequestError, NotFoundError

from ..carriers import Answer, Call, Done
from ..models.model_files import OPERATORS
from ..models.model_store import MAX_VERSION, Publication
from ..owner_terms import OwnerName
from ..validation import Expected
from .health import Place, books_of
from .models import Tensor, TensorBody
from .route import require_scope

if TYPE_CHECKING:
    from ..engine import Engine

__all__ = ["PrepareRequest", "PublishRequest", "PublishedModel", "RemovedModel", "prepare", "publish", "remove"]

MAX_CALLERS = 1000
"""Maximum number of owners to whom a model is published by name."""


class PublishRequest(TensorBody):
    """The files of a version: tensors of bytes (UINT8), by the file's name."""

    model_config = ConfigDict(json_schema_extra={"required": ["inputs"]})

    inputs: SkipValidation[list[Tensor]] = Field(
        default=[],
        description="NAME-symbol.json and NAME.params, or NAME.onnx; if wanted NAME-ops.json with the sources of its "
        "operators, model.toml, and a .txt file of labels.",
    )
    version: int | None = Field(
        default=None, ge=1, le=MAX_VERSION, description="Its number, larger than those before; by default the next."
    )
    callers: list[Annotated[OwnerName, Expected("an owner's name")]] | None = Field(
        default=[], max_length=MAX_CALLERS, description="The further owners who may call it; null: everyone."
    )


class PublishedModel(BaseModel):
    """The version that is served now."""

    name: str
    full_name: str = Field(description="How other owners call it.")
    version: str
    bytes: int = Field(description="Of its files.")
    callers: list[str] | None
    outputs: list[Tensor] = Field(default=[], description="Empty.")


class RemovedModel(BaseModel):
    """The name of the model, or of the version's, that was removed."""

    removed: str


class PrepareRequest(TensorBody):
    """The files of a model with operators of its own, for the process that is to serve it."""


def prepare(engine: Engine, call: Call, done: Done) -> None:
    """Load a model from files that come with the call; its inputs and outputs."""
    assert call.model is not None
    model = engine.models.take(call.model, {name: tensor.tobytes() for name, tensor in call.tensors.items()})
    inputs, outputs = ([tensor.to_json() for tensor in tensors] for tensors in (model.inputs, model.outputs))
    done(Answer({"inputs": inputs, "outputs": outputs}))


def publish(place: Place, call: Call, done: Done) -> None:
    """Publish a model or a further version of it; the version before serves until this one is loaded."""
    publishing, body, owner = place.publishing, call.body, call.owner
    books_of(place, call).check_time(owner)  # its loading takes a worker's
    files = {name: _bytes(name, tensor) for name, tensor in call.tensors.items()}
    if any(name.endswith(OPERATORS.removeprefix("*")) for name in files):
        require_scope(call.scopes, "upload-python")
    callers = None if body.callers is None else tuple(dict.fromkeys(body.callers))
    publication = Publication(owner, call.parameters["model"], callers)

    async def answer() -> Answer:
        number = await publishing.publish(publication, files, body.version)
        return Answer(
            {
                "name": publication.name,
                "full_name": publication.full_name,
                "version": str(number),
                "bytes": sum(len(data) for data in files.values()),
                "callers": callers if callers is None else list(callers),
            }
        )

    place.begin(answer(), done)


def remove(place: Place, call: Call, done: Done) -> None:
    """Remove a model that you published, or one version of it: the version before serves again."""
    name, version = call.parameters["model"], call.parameters.get("version")
    number = None if version is None else _number(name, version)

    async def answer() -> Answer:
        await place.publishing.remove(call.owner, name, number)
        return Answer({"removed": name})

    place.begin(answer(), done)


def _bytes(name: str, tensor: np.ndarray[Any, Any]) -> memoryview:
    if tensor.dtype != np.uint8 or tensor.ndim != 1:
        raise BadRequestError(
            f"inputs: {name[:140]!r}: expected a file's bytes, UINT8 in one dimension, got {tensor.dtype} of shape "
            f"{list(tensor.shape)}"
        )
    return np.ascontiguousarray(tensor).data


def _number(name: str, version: str) -> int:
    if not version.isdecimal() or len(version) > len(str(MAX_VERSION)):
        raise NotFoundError(f"model {name[:80]!r}: version: expected a number, got {version[:20]!r}")
    return int(version)
