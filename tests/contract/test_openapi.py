"""The OpenAPI document: names that make good clients, where the server is, and examples that work as they stand."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from opbox_protocol import routes as paths
from opbox_service.api.examples import BLOCK, EXAMPLES
from opbox_service.routes.table import ROUTES
from tests.contract.live import TOKENS, Live

HEADERS = {"Authorization": f"Bearer {TOKENS['ann']}"}


@pytest.fixture
def document(server: Live) -> dict[str, Any]:
    return server.json("GET", "/openapi.json").header


def test_operations_have_names_of_their_own(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in names)
    assert {"infer_shape", "forward", "create_session", "run_commands", "list_operators", "server_metadata"} <= set(
        names
    )


def test_summaries_are_sentences_of_the_handlers(document: dict[str, Any]) -> None:
    shape = document["paths"]["/v1/infer_shape"]["post"]
    assert shape["summary"] == "Infer the shapes of arguments, outputs and auxiliary states, in both directions"
    summaries = [operation["summary"] for path in document["paths"].values() for operation in path.values()]
    assert all(" " in summary and not summary.endswith(".") for summary in summaries)


def test_it_says_where_the_server_is(document: dict[str, Any]) -> None:
    assert document["servers"][0]["url"] == "."


def test_commands_are_told_apart_by_what_they_do(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    commands = schemas["CommandsRequest"]["properties"]["commands"]["items"]
    assert commands["discriminator"]["propertyName"] == "do"
    for name, reference in commands["discriminator"]["mapping"].items():
        assert schemas[reference.rsplit("/", 1)[1]]["properties"]["do"]["const"] == name


def test_every_body_has_an_example(document: dict[str, Any]) -> None:
    bodies = {
        (method.upper(), path): operation["requestBody"]["content"]["application/json"]
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if "requestBody" in operation
    }
    assert not [place for place, body in bodies.items() if "example" not in body]


@pytest.mark.parametrize(("method", "path"), list(EXAMPLES), ids=lambda part: part)
def test_examples_work_as_they_stand(server: Live, document: dict[str, Any], method: str, path: str) -> None:
    operation = document["paths"][path][method.lower()]
    example = EXAMPLES[method, path]
    with httpx.Client(base_url=server.url, headers=HEADERS, trust_env=False) as client:
        opened = client.post("/v1/sessions", json={}).json()["id"]
        parameters = {"{id}": opened, "{block}": BLOCK, "{dataset}": "digits", "{model}": "plain", "{version}": "1"}
        parameters["{region}"] = "images"
        if path.startswith(paths.LISTED_MODEL):
            parameters["{model}"] = "sum"
        elif "{model}" in path:
            server.clients["boss"].post(paths.MODEL_LOAD.format(model="plain")).raise_for_status()
        if path == paths.DATASET:  # its block has to be there
            client.put(paths.BLOCK.format(block=BLOCK), json=EXAMPLES["PUT", paths.BLOCK].request).raise_for_status()
        place = re.sub(r"\{\w+\}", lambda match: parameters[match[0]], path)
        admin = "admin" in ROUTES.match(method, place)[0].scopes
        headers = {"Authorization": f"Bearer {TOKENS['boss']}"} if admin else {}
        answer = client.request(method, place, json=example.request, headers=headers)
        assert answer.status_code == example.refused if example.refused else answer.is_success, answer.text
        assert str(answer.status_code) in operation["responses"]
        if example.answer is not None:
            assert answer.json() == example.answer
            said = operation["responses"][str(answer.status_code)]["content"]["application/json"]["example"]
            assert said == example.answer
        for session in client.get("/v1/sessions").json()["sessions"]:
            client.delete(f"/v1/sessions/{session['id']}")
