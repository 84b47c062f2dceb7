"""The methods of GRPCInferenceService: which route each is for, and how its messages become those of REST."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson
from google.protobuf import json_format

from opbox_protocol import routes as paths
from opbox_protocol.errors import BadRequestError

from ..routes.route import Route
from ..routes.table import ROUTES
from ..settings import Settings
from .call import Message
from .field_table import FieldTable
from .infer_answers import write_answer
from .infer_requests import InferRequestReader, parameter_value
from .messages import METHODS, message_class, parse

__all__ = ["Method", "RestRequest", "methods_of"]

MAX_NAMES_BYTES = 1 << 16
"""Maximum bytes of a message that has names and settings alone."""
MAX_FIELDS = 10_000
"""Maximum fields of such a message, or of one that loads a model; each takes some hundred bytes when it is read."""
_ROUTES: Mapping[tuple[str, str], Route] = {(route.method, route.path): route for route in ROUTES}


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
        route: one of those that it is for: all of them need the same scope.
        max_bytes: the most that a message may have.
        read: makes a request of REST of a message; MXNetError says what is wrong with it.
        write: makes a message, in pieces, of an answer's JSON and the bytes behind it.
        instead: the answer's JSON in the place of an error, by the error's status.
    """

    name: str
    route: Route
    max_bytes: int
    read: Callable[[Message], RestRequest]
    write: Callable[[bytes, Sequence[Message]], Sequence[Message]]
    instead: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def streams(self) -> bool:
        """Whether a call has many messages, and as many answers."""
        return bool(METHODS[self.name].client_streaming)


def methods_of(settings: Settings) -> Mapping[str, Method]:
    """All methods by name, with the limits of a server."""
    reader = InferRequestReader(settings)

    def infer(message: Message) -> RestRequest:
        body = reader.read(message)
        route, parameters = _of_model("POST", body.model, body.version, "/infer")
        return RestRequest(route, parameters, body.id, body.header, body.tensors)

    run = _ROUTES["POST", paths.MODEL_INFER]
    methods = [
        _method("ServerLive", "GET", paths.LIVE),
        _method("ServerReady", "GET", paths.READY, instead={503: {"ready": False}}),
        _method("ServerMetadata", "GET", paths.ABOUT),
        _method(
            "ModelReady",
            "GET",
            paths.MODEL + "/ready",
            _read_model("/ready"),
            instead={key: {"ready": False} for key in (400, 404, 503)},
        ),
        _method("ModelMetadata", "GET", paths.MODEL, _read_model("")),
        _method("ModelConfig", "GET", paths.MODEL + "/config", _read_model("/config"), _in("config")),
        _method("ModelStatistics", "GET", paths.MODELS_STATISTICS, _read_statistics),
        _method("RepositoryIndex", "POST", paths.REPOSITORY_INDEX, _read_index, _in("models")),
        _method(
            "RepositoryModelLoad",
            "POST",
            paths.MODEL_LOAD,
            _read_change(paths.MODEL_LOAD),
            max_bytes=settings.max_grpc_bytes,
        ),
        _method("RepositoryModelUnload", "POST", paths.MODEL_UNLOAD, _read_change(paths.MODEL_UNLOAD)),
        *(
            method
            for kind, all_of, one in (
                ("System", paths.SYSTEM_MEMORY, paths.SYSTEM_MEMORY_REGION),
                ("Cuda", paths.CUDA_MEMORY, paths.CUDA_MEMORY_REGION),
            )
            for method in _shared_memory(kind, all_of, one)
        ),
        _method("TraceSetting", "GET", paths.TRACE, _read_trace, _trace_settings),
        _method("LogSettings", "GET", paths.LOGGING, _read_logging, _log_settings),
        Method("ModelInfer", run, settings.max_grpc_bytes, infer, write_answer),
        Method("ModelStreamInfer", run, settings.max_grpc_bytes, infer, write_answer),
    ]
    return {method.name: method for method in methods}


def _method(
    name: str,
    verb: str,
    path: str,
    read: Callable[[Any], RestRequest] | None = None,
    answer: Callable[[Any], Any] = lambda values: values,
    instead: Mapping[int, Mapping[str, Any]] | None = None,
    max_bytes: int = MAX_NAMES_BYTES,
) -> Method:
    """A method whose messages are JSON to REST.

    Args:
        name: of the method.
        verb, path: of its route, or of one of its routes.
        read: makes the request of a message; None where the route says all.
        answer: makes of the answer's JSON the fields of the message.
        instead, max_bytes: see Method.
    """
    route = _ROUTES[verb, path]
    request, response = (message_class(kind) for kind in (METHODS[name].input_type, METHODS[name].output_type))

    fields = FieldTable(request.DESCRIPTOR)

    def parsed(data: Message) -> RestRequest:
        fields.count(data, MAX_FIELDS)
        message = parse(request, bytes(data))
        return RestRequest(route, {}) if read is None else read(message)

    def write(head: bytes, payload: Sequence[Message]) -> Sequence[Message]:
        fields = answer(orjson.loads(head))
        return [json_format.ParseDict(fields, response(), ignore_unknown_fields=True).SerializeToString()]

    return Method(name, route, max_bytes, parsed, write, instead or {})


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


def _shared_memory(kind: str, all_of: str, one: str) -> Iterator[Method]:
    """The methods for one kind of shared memory.

    Args:
        kind: as the methods' names have it.
        all_of, one: paths of all regions, and of one.
    """

    def read(verb: str, suffix: str) -> Callable[[Any], RestRequest]:
        def of(message: Any) -> RestRequest:
            header = b"{}" if verb == "POST" else b""
            if message.name:
                return RestRequest(_ROUTES[verb, one + suffix], {"region": message.name}, header=header)
            return RestRequest(_ROUTES[verb, all_of + suffix], {}, header=header)

        return of

    def register(message: Any) -> RestRequest:
        values = {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}
        name = values.pop("name")
        if "raw_handle" in values:
            values["raw_handle"] = {"b64": base64.b64encode(values["raw_handle"]).decode()}
        return RestRequest(_ROUTES["POST", one + "/register"], {"region": name}, header=orjson.dumps(values))

    def regions(rows: Any) -> dict[str, Any]:
        return {"regions": {row["name"]: row for row in rows}}

    yield _method(f"{kind}SharedMemoryStatus", "GET", all_of + "/status", read("GET", "/status"), regions)
    yield _method(f"{kind}SharedMemoryRegister", "POST", one + "/register", register)
    yield _method(f"{kind}SharedMemoryUnregister", "POST", all_of + "/unregister", read("POST", "/unregister"))


def _changed(path: str, parameters: Mapping[str, str], values: Mapping[str, Any]) -> RestRequest:
    """The request that reads settings, or changes those that are named."""
    if not values:
        return RestRequest(_ROUTES["GET", path], parameters)
    return RestRequest(_ROUTES["POST", path], parameters, header=orjson.dumps(values))


def _read_trace(message: Any) -> RestRequest:
    lists = {key: [*setting.value] for key, setting in message.settings.items()}
    values = {key: listed if len(listed) > 1 else listed[0] if listed else None for key, listed in lists.items()}
    if message.model_name:
        return _changed(paths.MODEL_TRACE, {"model": message.model_name}, values)
    return _changed(paths.TRACE, {}, values)


def _trace_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "settings": {key: {"value": value if isinstance(value, list) else [value]} for key, value in values.items()}
    }


def _read_logging(message: Any) -> RestRequest:
    values = {key: parameter_value(key, setting) for key, setting in message.settings.items()}
    return _changed(paths.LOGGING, {}, values)


_LOG_FIELDS: Mapping[type, str] = {bool: "bool_param", int: "uint32_param", str: "string_param"}


def _log_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"settings": {key: {_LOG_FIELDS[type(value)]: value} for key, value in values.items()}}
