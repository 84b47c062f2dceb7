"""The methods of GRPCInferenceService: which route each is for, and how its messages become those of REST."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson
from google.protobuf import json_format

from opbox_protocol import routes as paths
from opbox_protocol.errors import BadRequestError, UnsupportedError

from ..routes.route import Route
from ..routes.table import ROUTES
from ..settings import Settings
from .infer_answers import write_answer
from .infer_requests import InferRequestReader, parameter_value, parse
from .messages import METHODS, message_class

__all__ = ["Method", "RestRequest", "methods_of"]

_ROUTES: Mapping[tuple[str, str], Route] = {(route.method, route.path): route for route in ROUTES}
_CUDA = (
    "CUDA shared memory: expected tensors in the message, got a region on a GPU, which is not served: send their "
    "bytes, or use system shared memory"
)


class RestRequest(NamedTuple):
    """A request as REST makes it.

    Attributes:
        route, parameters: its route, and the parameters in its path.
        id: that the client gave it; empty where there is none.
        header: the JSON of its body.
        tensors: bytes behind that, in pieces; None where the body is all JSON.
    """

    route: Route
    parameters: Mapping[str, str]
    id: str = ""
    header: bytes = b""
    tensors: Sequence[bytes | memoryview] | None = None

    @property
    def path(self) -> str:
        """The path that it would have."""
        return self.route.path.format(**self.parameters) if self.parameters else self.route.path


@dataclass(frozen=True, slots=True)
class Method:
    """A method of the service.

    Attributes:
        name: of the method.
        route: one of those that it is for: all of them need the same token.
        read: makes a request of REST of a message; MXNetError says what is wrong with it.
        write: makes a message of an answer's JSON and the bytes behind it.
        instead: the answer's JSON in the place of an error, by the error's status.
    """

    name: str
    route: Route
    read: Callable[[bytes], RestRequest]
    write: Callable[[bytes, Sequence[bytes | memoryview]], bytes]
    instead: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)


def methods_of(settings: Settings) -> Mapping[str, Method]:
    """All methods by name, with the limits of a server."""
    reader = InferRequestReader(settings)

    def infer(message: bytes, of_stream: bool) -> RestRequest:
        body = reader.read(message, of_stream=of_stream)
        route, parameters = _of_model("POST", body.model, body.version, "/infer")
        return RestRequest(route, parameters, body.id, body.header, body.tensors)

    run = _ROUTES["POST", paths.MODEL_INFER]
    methods = [
        _method("ServerLive", "GET", paths.LIVE),
        _method("ServerReady", "GET", paths.READY, instead={503: {"ready": False}}),
        _method("ServerMetadata", "GET", paths.ABOUT),
        _method("ModelReady", "GET", paths.MODEL + "/ready", _read_model("/ready"), instead={400: {"ready": False}}),
        _method("ModelMetadata", "GET", paths.MODEL, _read_model("")),
        _method("ModelConfig", "GET", paths.MODEL + "/config", _read_model("/config"), _in("config")),
        _method("ModelStatistics", "GET", paths.MODELS_STATISTICS, _read_statistics),
        _method("RepositoryIndex", "POST", paths.REPOSITORY_INDEX, _read_index, _in("models")),
        _method("RepositoryModelLoad", "POST", paths.MODEL_LOAD, _read_change(paths.MODEL_LOAD)),
        _method("RepositoryModelUnload", "POST", paths.MODEL_UNLOAD, _read_change(paths.MODEL_UNLOAD)),
        Method("ModelInfer", run, lambda message: infer(message, False), write_answer),
        Method("ModelStreamInfer", run, lambda message: infer(message, True), write_answer),
    ]
    by_name = {method.name: method for method in methods}
    for name in METHODS:
        if name not in by_name:
            by_name[name] = _not_served(name)
    return by_name


def _method(
    name: str,
    verb: str,
    path: str,
    read: Callable[[Any], RestRequest] | None = None,
    answer: Callable[[Any], Any] = lambda values: values,
    instead: Mapping[int, Mapping[str, Any]] | None = None,
) -> Method:
    """A method whose messages are JSON to REST.

    Args:
        name: of the method.
        verb, path: of its route, or of one of its routes.
        read: makes the request of a message; None where the route says all.
        answer: makes of the answer's JSON the fields of the message.
        instead: see Method.
    """
    route = _ROUTES[verb, path]
    request, response = (message_class(kind) for kind in (METHODS[name].input_type, METHODS[name].output_type))

    def parsed(data: bytes) -> RestRequest:
        message = parse(request, data)
        return RestRequest(route, {}) if read is None else read(message)

    def write(head: bytes, payload: Sequence[bytes | memoryview]) -> bytes:
        fields = answer(orjson.loads(head))
        data: bytes = json_format.ParseDict(fields, response(), ignore_unknown_fields=True).SerializeToString()
        return data

    return Method(name, route, parsed, write, instead or {})


def _in(name: str) -> Callable[[Any], Any]:
    """The answer's JSON as a field of the message."""
    return lambda values: {name: values}


def _of_model(verb: str, model: str, version: str, suffix: str) -> tuple[Route, Mapping[str, str]]:
    if not model:
        raise BadRequestError("the model's name: expected one of RepositoryIndex, got none")
    if version:
        return _ROUTES[verb, paths.MODEL_VERSION + suffix], {"model": model, "version": version}
    return _ROUTES[verb, paths.MODEL + suffix], {"model": model}


def _read_model(suffix: str) -> Callable[[Any], RestRequest]:
    return lambda message: RestRequest(*_of_model("GET", message.name, message.version, suffix))


def _read_statistics(message: Any) -> RestRequest:
    if not message.name and not message.version:
        return RestRequest(_ROUTES["GET", paths.MODELS_STATISTICS], {})
    return RestRequest(*_of_model("GET", message.name, message.version, "/stats"))


def _check_repository(message: Any) -> None:
    if message.repository_name:
        raise BadRequestError(
            f"repository_name: expected none, as a server has one repository, got {message.repository_name[:80]!r}"
        )


def _read_index(message: Any) -> RestRequest:
    _check_repository(message)
    return RestRequest(
        _ROUTES["POST", paths.REPOSITORY_INDEX], {}, header=orjson.dumps({"ready": True} if message.ready else {})
    )


def _read_change(path: str) -> Callable[[Any], RestRequest]:
    """Reads the request to load or unload a model."""

    def read(message: Any) -> RestRequest:
        _check_repository(message)
        if not message.model_name:
            raise BadRequestError("model_name: expected one of RepositoryIndex, got none")
        values = {key: parameter_value(key, value) for key, value in message.parameters.items()}
        texts = {
            key: base64.b64encode(value).decode() if isinstance(value, bytes) else value
            for key, value in values.items()
        }
        header = orjson.dumps({"parameters": texts} if texts else {})
        return RestRequest(_ROUTES["POST", path], {"model": message.model_name}, header=header)

    return read


def _not_served(name: str) -> Method:
    """A method of the protocol that this server does not have."""
    sentence = _CUDA if name.startswith("Cuda") else f"{name}: expected another method, as this one is not served yet"

    def read(message: bytes) -> RestRequest:
        raise UnsupportedError(sentence)

    return Method(name, _ROUTES["GET", paths.ABOUT], read, write_answer)
