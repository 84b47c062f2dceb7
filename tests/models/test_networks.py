"""The network of a served model, as data and drawn, for those who may call the model."""

from __future__ import annotations

import re

import pytest

from tests.contract.live import Live
from tests.models.folders import INDEX, UNKNOWN


def test_a_network_has_shapes_as_far_as_they_are_known(server: Live) -> None:
    network = server.json("GET", "/v1/models/plain/versions/1").header
    assert (network["name"], network["version"], network["labels"]) == ("plain", "1", [])
    assert network["inputs"] == [{"name": "data", "datatype": "FP32", "shape": [-1, 4]}]
    nodes = {node["name"]: node for node in network["network"]}
    assert nodes["fc1"]["outputs"] == [{"name": "fc1_output", "shape": [-1, 8], "datatype": "float32"}]
    assert nodes["fc1_weight"]["outputs"][0]["shape"] == [8, 4]
    assert network["network"][network["heads"][0][0]]["name"] == "softmax"
    labelled = server.json("GET", "/v1/models/anns/versions/1").header
    assert labelled["labels"] == ["cat", "dog"]


@pytest.mark.parametrize("name", ["folded", "folded-with-parameters", "unfolded", "unfolded-with-parameters"])
def test_a_network_is_drawn(server: Live, name: str) -> None:
    drawing = server.clients["ann"].get(f"/v1/models/plain/versions/1/drawings/{name}")
    assert (drawing.status_code, drawing.headers["content-type"]) == (200, "image/svg+xml")
    assert "?×8" in drawing.text
    assert ("fc1_weight" in drawing.text) == name.endswith("parameters")
    assert re.search(r'data-nodes="\d+"', drawing.text)


def test_a_network_is_of_those_who_may_call_the_model(server: Live) -> None:
    for path in ("/v1/models/anns/versions/1", "/v1/models/anns/versions/1/drawings/folded"):
        answer = server.json("GET", path, owner="bob")
        assert (answer.status, answer.error) == (404, UNKNOWN.format("'anns'", INDEX))
        assert server.clients["boss"].get(path).status_code == 403
    for path, status, sentence in (
        ("/v1/models/plain/versions/1/drawings/other", 404, "drawing 'other': expected one of folded"),
        ("/v1/models/plain/versions/9", 404, UNKNOWN.format("'plain' version 9", "version 1")),
        ("/v1/models/broken/versions/1", 400, "model 'broken': not ready"),
    ):
        answer = server.json("GET", path)
        assert (answer.status, sentence in answer.error) == (status, True), answer.error


def test_an_administrator_may_list_the_models(server: Live) -> None:
    assert {row["name"] for row in server.json("GET", "/v1/models", owner="boss").header["models"]} >= {"plain"}
    assert server.clients["monitor"].get("/v1/models").status_code == 403
