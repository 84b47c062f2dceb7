"""Routes of the Open Inference Protocol: metadata, inference, and the repository of models."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, RootModel, SkipValidation

from opbox_protocol.errors import BadRequestError, ForbiddenError, UnsupportedError

from ..carriers import Answer, Call, Done
from ..models.classes import top_classes
from ..models.configuration import configuration
from ..models.overrides import override_of
from ..models.repository import ModelState
from ..models.request_queue import QueueWishes
from ..validation import Strict
from .health import Place
from .models import Body, Tensor, TensorBody
from .request_parameters import RequestParameters
from .route import require_scope

if TYPE_CHECKING:
    from ..engine import Engine

__all__ = [
    "DescribedModel",
    "DropRequest",
    "Finished",
    "GenerateRequest",
    "IndexRequest",
    "InferRequest",
    "InferenceAnswer",
    "LoadRequest",
    "ModelConfiguration",
    "ModelFigures",
    "ModelIndex",
    "ModelList",
    "ModelMetadata",
    "ModelReady",
    "StatisticsAnswer",
    "all_statistics",
    "config",
    "describe",
    "drop",
    "figures",
    "generate",
    "index",
    "infer",
    "load",
    "metadata",
    "models",
    "ready",
    "statistics",
    "unload",
]


class RequestedOutput(Strict):
    """An output that a request asks for."""

    name: str
    parameters: dict[str, Any] = Field(
        default={},
        description="`binary_data`: whether it comes as bytes; `classification`: number of classes; "
        "`shared_memory_region`, `shared_memory_byte_size`, `shared_memory_offset`: where it goes instead. Others are "
        "ignored.",
    )


class InferRequest(TensorBody):
    """Tensors for a model, and the outputs that are wanted."""

    id: str | None = Field(default=None, max_length=256, description="Comes back with the answer.")
    inputs: SkipValidation[list[Tensor]] = Field(default=[], description="By input of the model.")
    outputs: list[RequestedOutput] | None = Field(default=None, description="Those that are wanted; by default all.")
    parameters: RequestParameters = RequestParameters()


class InferenceAnswer(BaseModel):
    """Outputs of a model."""

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[Tensor]


class TensorMetadata(BaseModel):
    """An input or output."""

    name: str
    datatype: str
    shape: list[int] = Field(description="-1: a length that varies.")


class ModelMetadata(BaseModel):
    """A model's inputs and outputs."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ConfiguredTensor(BaseModel):
    """An input or output."""

    name: str
    data_type: str
    dims: list[int] = Field(description="Without the batch axis where `max_batch_size` is not 0.")


class ConfiguredInput(ConfiguredTensor):
    """An input."""

    format: str = Field(description="FORMAT_NONE: its axes have no meaning that is known.")


class InstanceGroup(BaseModel):
    """A device on which a model runs."""

    name: str
    kind: str = Field(description="KIND_CPU, KIND_GPU, or KIND_AUTO: the server's device.")
    count: int
    gpus: list[int]


class ModelConfiguration(BaseModel):
    """A model's configuration."""

    name: str
    platform: str
    backend: str
    version_policy: dict[str, Any] = Field(description="`latest`, `all`, or `specific` with `versions`.")
    max_batch_size: int = Field(description="0: every request runs alone.")
    input: list[ConfiguredInput]
    output: list[ConfiguredTensor]
    instance_group: list[InstanceGroup]


class IndexEntry(BaseModel):
    """A version of a model."""

    name: str
    version: str
    state: ModelState
    reason: str


class ModelRow(IndexEntry):
    """A version of a model, who may call it, and its traffic since it was loaded."""

    owner: str | None = Field(description="Who published it; null for a model of the server's folder.")
    callers: list[str] | None = Field(description="The owners who may call it, beside that one; null: everyone.")

    device: str | None = Field(description="Where it runs; null while it is not loaded.")
    bytes: int = Field(description="Of its parameters.")
    in_flight: int = Field(description="Requests that run or wait for a run.")
    requests: int
    failed: int
    p50_ms: float | None = Field(description="Median time of the latest 1,000 requests.")
    p99_ms: float | None
    batches: dict[str, int] = Field(description="Runs by their number of examples.")


class ModelTraffic(BaseModel):
    """Device, size and traffic of a loaded model."""

    device: str
    bytes: int
    in_flight: int
    requests: int
    failed: int
    p50_ms: float | None
    p99_ms: float | None
    batches: dict[str, int]


class ModelFigures(BaseModel):
    """What a worker tells the server of a model that it has loaded."""

    statistics: dict[str, Any]
    summary: ModelTraffic


class DescribedModel(BaseModel):
    """What a worker tells the server of a model's inputs and outputs."""

    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ModelList(BaseModel):
    """The models of a server."""

    models: list[ModelRow]


NO_TRAFFIC: dict[str, Any] = {
    "device": None,
    "bytes": 0,
    "in_flight": 0,
    "requests": 0,
    "failed": 0,
    "p50_ms": None,
    "p99_ms": None,
    "batches": {},
}
"""The figures of a model that is not loaded."""


class StatisticsAnswer(BaseModel):
    """Figures by model and version."""

    model_stats: list[dict[str, Any]]


class ModelReady(BaseModel):
    """Whether a model takes requests."""

    name: str
    ready: bool


class IndexRequest(Body):
    """Which models to list."""

    ready: bool = Field(default=False, description="Only those that are ready.")


class LoadRequest(Body):
    """What takes the place of a model's own files, until it is loaded again."""

    parameters: dict[str, Any] | None = Field(
        default=None,
        description="`config`: fields of `model.toml`, as the text of a JSON object, which go before the file's; "
        "`file:PATH`, such as `file:1/net-symbol.json`: a file in base64. With files, the model has no others.",
    )


class ModelIndex(RootModel[list[IndexEntry]]):
    """A list of versions."""


class GenerateRequest(Body):
    """What a model of texts would be asked."""

    model_config = ConfigDict(extra="ignore")


class DropRequest(Body):
    """Which versions a worker is to keep."""

    keep: list[list[Any]]


class Finished(BaseModel):
    """Nothing: it has been done."""


def describe(engine: Engine, call: Call, done: Done) -> None:
    """A model's inputs and outputs; it is loaded if it is not."""
    assert call.model is not None
    model = engine.models.get(call.model)
    inputs, outputs = ([tensor.to_json() for tensor in tensors] for tensors in (model.inputs, model.outputs))
    done(Answer({"inputs": inputs, "outputs": outputs}))


def infer(engine: Engine, call: Call, done: Done) -> None:
    """Run a model on the given tensors; its outputs."""
    reference, body, recurring = call.model, call.body, call.recurring
    assert reference is not None
    model = engine.models.get(reference)
    asked = body.outputs if body.outputs is not None else [RequestedOutput(name=name) for name in model.default_outputs]
    by_default = body.parameters.binary_data_output
    in_bytes = frozenset(one.name for one in asked if one.parameters.get("binary_data", by_default))
    classes = {one.name: _classes(one) for one in asked if "classification" in one.parameters}
    header = {"model_name": call.parameters["model"], "model_version": str(reference.version)}
    if body.id is not None:
        header["id"] = body.id
    names = list(dict.fromkeys(one.name for one in asked))
    first: dict[str, Any] = {}
    """The outputs, by whose shapes a request like this one is answered."""

    def take(outputs: dict[str, Any]) -> None:
        best = {name: top_classes(name, outputs[name], count, model.labels) for name, count in classes.items()}
        first.update(outputs)
        done(Answer(header, {**outputs, **best}, inferred=in_bytes))

    wishes = QueueWishes(body.parameters.priority, body.parameters.timeout)
    tensors = call.tensors if call.raw is None else model.of_raw(call.raw)
    form = model.infer(call.owner, tensors, names, take, done, call.limit, wishes)
    if recurring is not None and first and not classes and in_bytes.issuperset(names):
        model.known_requests.keep(recurring, form, wishes, header, first)


def generate(place: Place, call: Call, done: Done) -> None:
    """Refuse Triton's extension for texts: no model takes any."""
    raise UnsupportedError(
        f"generate: expected a request for numbers, as no model takes texts, got one for model "
        f"{call.parameters['model'][:80]!r}: send tensors to its /infer"
    )


def _classes(output: RequestedOutput) -> int:
    count = output.parameters["classification"]
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise BadRequestError(
            f"outputs: {output.name!r}: classification: expected a number of classes, got {str(count)[:80]}"
        )
    return count


def statistics(engine: Engine, call: Call, done: Done) -> None:
    """Counts and times of a model's requests since it was loaded."""
    reference = call.model
    assert reference is not None
    figures = engine.models.get(reference).statistics.to_json()
    done(Answer({"model_stats": [{"name": call.parameters["model"], "version": str(reference.version), **figures}]}))


def figures(engine: Engine, call: Call, done: Done) -> None:
    """What a worker tells the server of a model that it has loaded."""
    reference = call.model
    assert reference is not None
    model = engine.models.get(reference)
    summary = {
        **model.statistics.summary(),
        "device": ", ".join(engine.models.devices(reference)),
        "bytes": model.nbytes,
        "in_flight": engine.models.busy(reference),
    }
    named = {"name": reference.name, "version": str(reference.version)}
    done(Answer({"statistics": {**named, **model.statistics.to_json()}, "summary": summary}))


def models(place: Place, call: Call, done: Done) -> None:
    """List the models that the caller may call, with their state and traffic."""
    _list_models(place, call.owner, done)


def all_models(place: Place, call: Call, done: Done) -> None:
    """List the models of every owner by their full names, with their state and traffic."""
    _list_models(place, None, done)


def _list_models(place: Place, owner: str | None, done: Done) -> None:

    async def gather() -> Answer:
        summaries = {(row["name"], row["version"]): row for row in await place.served_models.summaries(owner)}
        rows = []
        for row in place.served_models.repository.index(owner):
            known = summaries.get((row.name, str(row.version)), {})
            state = {
                "name": row.name,
                "version": str(row.version),
                "state": row.state,
                "reason": row.reason,
                "owner": row.owner,
                "callers": None if row.callers is None else list(row.callers),
            }
            rows.append({**NO_TRAFFIC, **known, **state})
        return Answer({"models": rows})

    place.begin(gather(), done)


def all_statistics(place: Place, call: Call, done: Done) -> None:
    """Counts and times of the requests for every model."""

    async def gather() -> Answer:
        return Answer({"model_stats": await place.served_models.statistics(call.owner)})

    place.begin(gather(), done)


def drop(engine: Engine, call: Call, done: Done) -> None:
    """Drop the versions of a model that are served no more."""
    engine.models.keep_only(call.parameters["model"], {tuple(key) for key in call.body.keep})
    done(Answer({}))


def index(place: Place, call: Call, done: Done) -> None:
    """List the models of the server, ready or not, and why not."""
    rows = [
        {"name": row.name, "version": str(row.version), "state": row.state, "reason": row.reason}
        for row in place.served_models.repository.index(call.owner)
        if row.state == "READY" or not call.body.ready
    ]
    done(Answer({}, text=json.dumps(rows).encode()))


def load(place: Place, call: Call, done: Done) -> None:
    """Load a model, or load it again from its files; the versions that served go on until that has succeeded."""
    parameters = call.body.parameters
    if parameters and "admin" not in call.scopes:  # whoever may load a model from its own files
        raise ForbiddenError("parameters: expected a token with 'admin' to replace a model's files, got one without it")

    name = _to_manage(place, call)

    async def work() -> None:
        override = await asyncio.to_thread(override_of, parameters) if parameters else None
        await place.served_models.load(name, override)

    place.begin(work(), done)


def unload(place: Place, call: Call, done: Done) -> None:
    """Serve a model no more, and give back its memory."""
    place.begin(place.served_models.unload(_to_manage(place, call)), done)


def _to_manage(place: Place, call: Call) -> str:
    """The full name of a model that the caller may load and unload: its own, or with the scope admin any.

    Raises:
        ForbiddenError: it is neither.
    """
    models, name = place.served_models.repository, call.parameters["model"]
    full = models.full_name(name, call.owner) or name
    if models.owner_of(full) != call.owner:
        require_scope(call.scopes, "admin")
    return full


def metadata(place: Place, call: Call, done: Done) -> None:
    """A model's inputs and outputs."""
    models = place.served_models.repository
    reference = models.resolve(call.parameters["model"], call.parameters.get("version", ""), call.owner)
    done(Answer({**models.metadata(reference), "name": call.parameters["model"]}))


def ready(place: Place, call: Call, done: Done) -> None:
    """Tell whether a model takes requests; 400 if it does not."""
    models = place.served_models.repository
    models.resolve(call.parameters["model"], call.parameters.get("version", ""), call.owner)
    done(Answer({"name": call.parameters["model"], "ready": True}))


def config(place: Place, call: Call, done: Done) -> None:
    """A model's configuration, in the form that Triton's clients know."""
    models = place.served_models.repository
    reference = models.resolve(call.parameters["model"], call.parameters.get("version", ""), call.owner)
    metadata = {**models.metadata(reference), "name": call.parameters["model"]}
    done(Answer(configuration(metadata, reference.config)))
