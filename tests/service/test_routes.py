"""The table of routes: a new route takes an entry and a handler, and what the table says is what is served."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import uvicorn
from pydantic import Field, RootModel, SecretStr

from opbox_protocol import routes as paths
from opbox_protocol.errors import NotFoundError
from opbox_protocol.routes import BLOCK as BLOCK_PATH
from opbox_protocol.routes import (
    BLOCKS,
    CUDA_MEMORY_REGION,
    DATASET,
    LISTED_MODEL,
    MODEL_BACKWARD,
    MODEL_INFER,
    MODEL_LOAD,
    MODEL_TEXTS,
    MODEL_VERSION_BACKWARD,
    MODEL_VERSION_INFER,
    SYSTEM_MEMORY_REGION,
)
from opbox_service.api.examples import BLOCK, EXAMPLES
from opbox_service.app import create_app
from opbox_service.carriers import Answer, Call, Done
from opbox_service.commands import COMMANDS
from opbox_service.engine import Engine
from opbox_service.routes import health
from opbox_service.routes.models import Body, TensorBody
from opbox_service.routes.route import Route, RouteTable, RunsOn
from opbox_service.routes.table import ROUTES
from opbox_service.settings import Settings
from opbox_service.validation import Strict, validate
from tests.models.folders import perceptron, save

TOKEN = "a-token-of-the-tests"
REFUSED = {
    ("DELETE", "/v1/requests/{request}"): 404,
    ("DELETE", "/v1/checkpoints/{checkpoint}"): 404,
    ("GET", SYSTEM_MEMORY_REGION + "/status"): 400,
    ("POST", SYSTEM_MEMORY_REGION + "/register"): 501,
    ("GET", CUDA_MEMORY_REGION + "/status"): 501,
    ("POST", CUDA_MEMORY_REGION + "/register"): 501,
    **{("POST", path): 501 for path in MODEL_TEXTS},
}
"""Statuses where nothing is under way, saved or registered, and shared memory is off."""
OF_MODELS = (MODEL_INFER, MODEL_VERSION_INFER, MODEL_BACKWARD, MODEL_VERSION_BACKWARD)
AS_IN_THE_EXAMPLES = (BLOCKS, BLOCK_PATH, DATASET, LISTED_MODEL, *OF_MODELS)
AS_IN_THE_EXAMPLES += (SYSTEM_MEMORY_REGION + "/register", CUDA_MEMORY_REGION + "/register")


# What a new route takes: models, a handler, an entry.
class ScaleRequest(TensorBody):
    """Tensors, and their factor."""

    factor: float = Field(gt=0)


class ScaleAnswer(Strict):
    """How many tensors were scaled for whom."""

    count: int
    name: str


def scale(engine: Engine, call: Call, done: Done) -> None:
    """Multiply every tensor by a factor."""
    scaled = {name: tensor * call.body.factor for name, tensor in call.tensors.items()}
    done(Answer({"count": len(scaled), "name": call.parameters["name"]}, scaled))


SCALE = Route(
    method="POST",
    path="/v1/scale/{name}",
    handler=scale,
    tag="graphs",
    request=ScaleRequest,
    answer=ScaleAnswer,
    tensors=True,
    errors=(400,),
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a live server with one route more."""
    state, models = tmp_path_factory.mktemp("state"), tmp_path_factory.mktemp("models")
    save(models / "plain", *perceptron())
    settings = Settings(token=SecretStr(TOKEN), isolation="none", state_dir=state, models=models)
    app = create_app(settings, RouteTable([*ROUTES, SCALE]))
    config = uvicorn.Config(app, http="httptools", lifespan="on", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        until = time.monotonic() + 60
        while not server.started:
            assert time.monotonic() < until
            time.sleep(0.05)
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30) as client:
            yield client
        server.should_exit = True
        thread.join()


def test_a_new_route_is_dispatched_with_its_body_and_its_tensors(client: httpx.Client) -> None:
    tensor = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2]}
    answer = client.post("/v1/scale/ann", json={"factor": 3, "inputs": [tensor]})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert (body["count"], body["name"], body["outputs"][0]["data"]) == (1, "ann", [3, 6])


def test_a_new_route_s_model_is_the_one_that_validates(client: httpx.Client) -> None:
    for body, sentence in (
        ({"factor": 0}, "factor: expected more than 0.0, got 0"),
        ({"factor": "2"}, "factor: expected a number, got '2'"),
        ({}, "factor: expected a value, got nothing"),
        ({"factor": 1, "colour": 1}, "unknown field 'colour': expected inputs, factor"),
    ):
        answer = client.post("/v1/scale/ann", json=body)
        assert (answer.status_code, answer.json()["type"], answer.json()["error"]) == (400, "BadRequestError", sentence)


def test_a_new_route_needs_its_scope(client: httpx.Client) -> None:
    assert client.post("/v1/scale/ann", json={}, headers={"Authorization": ""}).status_code == 401


def test_a_new_route_is_documented(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    route = document["paths"]["/v1/scale/{name}"]["post"]
    assert route["description"] == "Multiply every tensor by a factor."
    assert {parameter["name"] for parameter in route["parameters"]} == {"name", "Inference-Header-Content-Length"}
    schemas = document["components"]["schemas"]
    request = schemas[route["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]]
    assert request["required"] == ["factor"]
    assert set(schemas["ScaleAnswer"]["properties"]) == {"count", "name"}


def test_a_new_route_is_a_label_of_the_metrics(client: httpx.Client) -> None:
    client.post("/v1/scale/bob", json={"factor": 2})
    assert 'opbox_requests_total{method="POST",route="/v1/scale/{name}",status="200"}' in client.get("/metrics").text


def test_every_route_and_command_is_in_the_wire_s_document() -> None:
    text = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()
    for route in ROUTES:
        assert f"{route.method} {route.path}`" in text, route.path
    for name, command in COMMANDS.items():
        row = next((line for line in text.splitlines() if line.startswith(f"| `{name}` |")), "")
        fields = {field.alias or key for key, field in command.model_fields.items()} - {"do", "live"}
        assert all(f"`{field}" in row for field in fields), (name, fields)


def test_paths_find_their_routes() -> None:
    for method, path, expected in (
        ("POST", "/v1/forward", "/v1/forward"),
        ("GET", "/v1/sessions", "/v1/sessions"),
        ("GET", "/v1/sessions/abc", "/v1/sessions/{id}"),
        ("POST", "/v1/sessions/abc/commands", "/v1/sessions/{id}/commands"),
        ("GET", "/v1/ops/dot", "/v1/ops/{name}"),
    ):
        for _ in range(2):
            assert ROUTES.match(method, path)[0].path == expected
    for id in ("abc", "abd", "abc", "e" * 200, "e" * 201):
        assert ROUTES.match("GET", f"/v1/sessions/{id}")[1] == {"id": id}
    for method, path in (
        ("GET", "/v1/forward"),
        ("GET", "/v1/sessions/"),
        ("POST", "/v1/sessions//commands"),
        ("POST", "/v1/sessions/a/b/commands"),
        ("GET", "/v1/ops/a/b"),
        ("GET", "/metrics/"),
        ("GET", ""),
    ):
        assert ROUTES.find(method, path) is None
        with pytest.raises(NotFoundError, match=r"GET /openapi\.json"):
            ROUTES.match(method, path)


@pytest.mark.parametrize("route", list(ROUTES), ids=lambda route: f"{route.method} {route.path}")
def test_every_entry_is_whole(route: Route) -> None:
    assert route.handler.__doc__
    assert "\n" not in route.handler.__doc__.strip()
    assert ("{id}" in route.path) == (route.runs_on is RunsOn.SESSION_WORKER)
    page = ("/", "/page/{file}", "/docs", "/docs/{file}")
    texts = ("/metrics", "/openapi.json", "/v1/events", paths.EXECUTOR_DRAWING, paths.MODEL_DRAWING, *page)
    assert (route.answer is None) == (route.path in texts)
    assert route.token or route.path in ("/v2/health/live", "/v2/health/ready", *page)
    assert validate(Body, {}) is not None


def test_answers_are_what_their_models_say(client: httpx.Client) -> None:
    graph = {
        "nodes": [{"op": "null", "name": "x", "inputs": []}, {"op": "_copy", "name": "y", "inputs": [[0, 0, 0]]}],
        "arg_nodes": [0],
        "heads": [[1, 0, 0]],
    }
    tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}
    bodies = {
        "/v1/graphs": {"graph": graph},
        "/v1/infer_shape": {"graph": graph, "shapes": {"x": [2]}, "trace": True},
        "/v1/infer_type": {"graph": graph, "types": {"x": None}},
        "/v1/forward": {"graph": graph, "inputs": [tensor]},
        "/v1/backward": {"graph": graph, "inputs": [tensor, {**tensor, "name": "head_grad:y_output"}]},
        "/v1/sessions/{id}/commands": {
            "commands": [
                {"do": "zeros", "ids": [1], "shape": [2], "dtype": "float32"},
                {"do": "bind", "id": 2, "graph": graph, "args": {"x": 1}},
            ]
        },
        **{path: EXAMPLES[key].request for key in EXAMPLES if (path := key[1]) in AS_IN_THE_EXAMPLES},
    }
    commands = bodies["/v1/sessions/{id}/commands"]
    for route in ROUTES:
        in_session = "{id}" in route.path or "{session}" in route.path
        id = client.post("/v1/sessions", json={}).json()["id"] if in_session else ""
        if "{executor}" in route.path:
            assert client.post(f"/v1/sessions/{id}/commands", json=commands).status_code == 200
        publishes = route.method in ("PUT", "DELETE") and route.path.startswith(LISTED_MODEL)
        path = (
            route.path.replace("{id}", id)
            .replace("{session}", id)
            .replace("{name}", "dot")
            .replace("{executor}", "2")
            .replace("{drawing}", "folded")
            .replace("{block}", BLOCK)
            .replace("{dataset}", "digits")
            .replace("{model}", "sum" if publishes else "plain")
            .replace("{version}", "1")
            .replace("{file}", "swagger-ui.css" if route.path.startswith("/docs") else "main.js")
        )
        if route.media_type == "text/event-stream":
            with client.stream("GET", path) as stream:
                assert stream.headers["content-type"] == route.media_type
            continue  # it has no end
        if route.method == "DELETE" and publishes:
            assert client.put(LISTED_MODEL.format(model="sum"), json=bodies[LISTED_MODEL]).status_code == 200
            number = client.get("/v2/models/sum").json()["versions"][0]
            path = path.replace("/versions/1", f"/versions/{number}")
        elif "{model}" in route.path:
            assert client.post(MODEL_LOAD.format(model="plain")).status_code == 200
        answer = client.request(route.method, path, json=None if route.method == "DELETE" else bodies.get(route.path))
        refused = REFUSED.get((route.method, route.path))
        if refused is not None:
            assert answer.status_code == refused, answer.text
            continue
        assert answer.status_code == route.status, (route.path, answer.text)
        if route.answer is not None:
            route.answer.model_validate(answer.json())
            if not issubclass(route.answer, RootModel):
                assert set(answer.json()) <= set(route.answer.model_fields) | {"limits"}


def test_the_servers_metadata_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python reads a distribution's files for its version, which took five times as long as the rest of the answer."""
    health.server_metadata()
    monkeypatch.setattr(health, "version", lambda name: pytest.fail(f"the version of {name} was read again"))
    answers: list[Answer | BaseException] = []
    route, parameters = ROUTES.match("GET", "/v2")
    place: Any = SimpleNamespace(confinement="Landlock 7", books=None)
    route.handler(place, Call(route, parameters), answers.append)
    (answer,) = answers
    assert isinstance(answer, Answer)
    assert (answer.header["name"], answer.header["code"]) == ("opbox", "Landlock 7")
