"""Who may call a model, and what callers may learn of it: the same by REST and by gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import opbox as mx
from opbox_protocol.errors import BadRequestError, ForbiddenError
from opbox_service.models.repository import ModelRepository
from tests.contract.live import TOKENS, Live
from tests.models.conftest import address_of, remove_all
from tests.models.folders import FEATURES, INDEX, UNKNOWN
from tests.models.grpc_client import Calls, calls, request
from tests.models.uploads import INPUT, files

X = np.random.default_rng(0).normal(size=(2, FEATURES)).astype(np.float32)


@pytest.fixture(scope="module")
def shared_call(shared: Live) -> Iterator[Calls]:
    with calls(address_of(shared)) as client:
        yield client


@pytest.fixture
def ann(shared: Live) -> Iterator[mx.serve.Client]:
    with mx.serve.Client(shared.url, TOKENS["ann"]) as client:
        yield client
        remove_all(shared, "ann")


@pytest.fixture
def bob(shared: Live) -> Iterator[mx.serve.Client]:
    with mx.serve.Client(shared.url, TOKENS["bob"]) as client:
        yield client


def test_the_weights_stay_with_the_owner(
    shared: Live, shared_call: Calls, ann: mx.serve.Client, bob: mx.serve.Client
) -> None:
    """Inner values and gradients are enough to compute them, so that other callers get neither."""
    message = request(X, "ann.net")
    message.outputs.add(name="fc1_output")
    ann.publish("net", files(), to="bob")
    theirs = bob.model("ann.net")
    with pytest.raises(BadRequestError, match="'fc1_output' is none of the model's: expected softmax_output, or"):
        theirs.infer({"data": X}, ["fc1_output"])
    assert shared_call.refusal("ModelInfer", message, "bob")[0] == "INVALID_ARGUMENT"
    with pytest.raises(ForbiddenError, match="gradients: expected the owner of the model, as they give its parameters"):
        theirs.backward({"data": X}, {"softmax_output": np.ones((2, 3), np.float32)})
    listed = shared.clients["bob"].get("/v2/models/ann.net/outputs").json()
    assert [row["name"] for row in listed["outputs"]] == ["softmax_output"]
    assert not listed["gradients"] + listed["labels"]
    assert theirs(data=X)["softmax_output"].shape == (2, 3)

    own = ann.model("net")
    assert "fc1_output" in own.outputs()
    hidden = own.infer({"data": X}, ["fc1_output"])["fc1_output"]
    heads = {"fc1_output": np.ones_like(hidden)}
    gradient = own.backward({"data": X}, heads)["data"]

    ann.publish("net", files(1.0, "inner_values = true\n" + INPUT), to="bob")
    assert theirs.outputs() == own.outputs()
    np.testing.assert_array_equal(theirs.infer({"data": X}, ["fc1_output"])["fc1_output"], hidden)
    assert len(shared_call("ModelInfer", message, "bob").outputs) == 1
    np.testing.assert_array_equal(theirs.backward({"data": X}, heads)["data"], gradient)

    ann.publish("net", files(1.0, "inner_values = false\n" + INPUT))
    with pytest.raises(BadRequestError, match="'fc1_output' is none of the model's"):
        own.infer({"data": X}, ["fc1_output"])
    with pytest.raises(ForbiddenError, match="got one with inner_values = false"):
        own.backward({"data": X})


@pytest.mark.parametrize("name", ["ann.net", "anns"])
def test_an_owner_who_may_not_call_a_model_learns_nothing_of_it(
    shared: Live, shared_call: Calls, ann: mx.serve.Client, name: str
) -> None:
    """The answers are those for a name that nobody has: of a published model, and of one of the server's folder."""
    ann.publish("net", files(), to="bob")
    py = shared.clients["py"]
    for asked in (name, "nobodys"):
        sentence = UNKNOWN.format(f"'{asked}'", INDEX)
        answers = [
            *(py.get(f"/v2/models/{asked}{path}") for path in ("", "/config", "/ready", "/stats", "/outputs")),
            *(py.get(f"/v2/models/{asked}/versions/1{path}") for path in ("", "/config", "/stats", "/outputs")),
            *(py.get(f"/v1/models/{asked}/versions/1{path}") for path in ("", "/drawings/folded")),
            *(py.post(f"/v2/models/{asked}/{verb}", json={"inputs": []}) for verb in ("infer", "backward")),
        ]
        assert {(answer.status_code, answer.json()["error"]) for answer in answers} == {(404, sentence)}
        for method in ("ModelMetadata", "ModelConfig", "ModelStatistics"):
            assert shared_call.refusal(method, {"name": asked}, "py") == ("NOT_FOUND", sentence)
        assert shared_call.refusal("ModelInfer", request(X, asked), "py") == ("NOT_FOUND", sentence)
        assert not shared_call("ModelReady", {"name": asked}, owner="py").ready
        for verb in ("load", "unload"):
            assert py.post(f"/v2/repository/models/{asked}/{verb}", json={}).status_code == 403
    for listed in (
        py.post("/v2/repository/index", json={}).json(),
        py.get("/v1/models").json()["models"],
        py.get("/v2/models/stats").json()["model_stats"],
    ):
        assert not [row for row in listed if row["name"].endswith(name.removeprefix("ann."))]
    assert name not in {row.name for row in shared_call("RepositoryIndex", owner="py").models}
    assert name not in {row.name for row in shared_call("ModelStatistics", owner="py").model_stats}


def test_a_folder_that_was_never_loaded_is_shown_to_its_callers(tmp_path: Path) -> None:
    for name, text in (("anns", 'owners = ["ann"]\n'), ("open", ""), ("wrong", "owners = 7\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.toml").write_text(text)
    repository = ModelRepository(tmp_path)
    shown = {owner: [(row.name, row.callers) for row in repository.index(owner)] for owner in ("ann", "py")}
    assert shown == {
        "ann": [("anns", ("ann",)), ("open", None), ("wrong", None)],
        "py": [("open", None), ("wrong", None)],
    }
