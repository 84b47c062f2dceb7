"""The response cache: an answer that is there is not computed again, and is nobody else's, nor another model's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_ops.backend import backend_for
from opbox_service.carriers import AnswerLimit
from opbox_service.models.loaded_model import LoadedModel
from opbox_service.models.model_config import ModelConfig
from opbox_service.models.model_files import find_files, read_files
from opbox_service.models.response_cache import ENTRY_BYTES, AnswerKey, ResponseCache
from opbox_service.quota import Budget
from tests.contract.live import TOKENS, Live
from tests.models.conftest import index, loaded, wait_until
from tests.models.folders import FEATURES, expected, perceptron, save
from tests.models.uploads import INPUT

TOML = "response_cache = true\n"
X = np.random.default_rng(0).normal(size=(3, FEATURES)).astype(np.float32)


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server that keeps answers, with models that ask for it and one that does not."""
    root = tmp_path_factory.mktemp("cached")
    for name, toml in (("plain", ""), ("kept", TOML), ("batched", TOML + "max_batch = 8\n"), ("reloaded", TOML)):
        save(root / "models" / name, *perceptron(), toml + INPUT)
    drawing = mx.sym.Dropout(mx.sym.Variable("data"), p=0.5, mode="always", name="drop")
    save(root / "models" / "drawing", drawing, {}, TOML + INPUT)
    live = Live("process", root, OPBOX_MODELS=str(root / "models"), OPBOX_RESPONSE_CACHE_BYTES=str(1 << 20))
    loaded(live)
    yield live
    assert live.stop() == 0


def check_counts(server: Live, model: str, *expected_counts: int) -> None:
    """Hits, misses, requests and runs, of which the last two are counted behind an answer."""

    def counts() -> list[int]:
        (row,) = server.json("GET", f"/v2/models/{model}/stats").header["model_stats"]
        stats = row["inference_stats"]
        return [*(stats[kind]["count"] for kind in ("cache_hit", "cache_miss", "success")), row["execution_count"]]

    wait_until(lambda: counts() == list(expected_counts))


@pytest.mark.parametrize("model", ["kept", "batched"])
def test_a_request_that_comes_again_is_not_computed_again(cached: Live, model: str) -> None:
    with mx.serve.Client(cached.url, TOKENS["ann"]) as client:
        for _ in range(3):
            np.testing.assert_array_equal(client.model(model)(data=X)["softmax_output"], expected(X))
        check_counts(cached, model, 2, 1, 3, 1)
        np.testing.assert_array_equal(client.model(model)(data=X + 1)["softmax_output"], expected(X + 1))
        client.model(model).infer({"data": X}, ["fc1_output"])  # other outputs of the same tensors
        client.model(model)(data=X[:1])
    check_counts(cached, model, 2, 4, 6, 4)
    with mx.serve.Client(cached.url, TOKENS["bob"]) as client:
        np.testing.assert_array_equal(client.model(model)(data=X)["softmax_output"], expected(X))
    check_counts(cached, model, 2, 5, 7, 5)


def test_a_model_that_does_not_ask_for_it_computes(cached: Live) -> None:
    with mx.serve.Client(cached.url, TOKENS["ann"]) as client:
        for _ in range(2):
            client.model("plain")(data=X)
    check_counts(cached, "plain", 0, 0, 2, 2)


def test_a_model_that_was_loaded_again_gives_its_own_answers(cached: Live) -> None:
    with mx.serve.Client(cached.url, TOKENS["ann"]) as client:
        model = client.model("reloaded")
        np.testing.assert_array_equal(model(data=X)["softmax_output"], expected(X))
        save(cached.folder / "models" / "reloaded", *perceptron(2.0), TOML + INPUT, epoch=2)
        assert cached.clients["boss"].post("/v2/repository/models/reloaded/load").status_code == 200
        np.testing.assert_array_equal(model(data=X)["softmax_output"], expected(X, 2.0))


def test_a_network_that_draws_is_refused_with_a_sentence(cached: Live) -> None:
    state, reason = index(cached)["drawing", "1"]
    assert (state, reason) == (
        "UNAVAILABLE",
        "response_cache: expected a network that answers the same tensors alike, got one with 'drop' (Dropout), which "
        "may draw random numbers or keep a state: leave response_cache out",
    )


def key(number: int) -> AnswerKey:
    return AnswerKey.of(0, "ann", ["y"], {"x": np.full(3, number, np.float32)})


def test_the_answer_that_was_used_longest_ago_goes_first() -> None:
    answer = {"y": np.zeros(1024, np.uint8)}
    size = ENTRY_BYTES + 1024
    memory = Budget(4 * size, Budget(6 * size))
    cache = ResponseCache(memory)
    for number in range(4):
        cache.keep(key(number), answer)
    assert cache.get(key(0)) is not None
    cache.keep(key(4), answer)
    assert [cache.get(key(number)) is not None for number in range(5)] == [True, False, True, True, True]
    cache.keep(key(5), {"y": np.zeros(1025, np.uint8)})  # more than a quarter
    assert (cache.get(key(5)), memory.used) == (None, 4 * size)
    cache.forget(0)
    assert (cache.get(key(0)), memory.used) == (None, 0)


def test_memory_that_sessions_have_is_not_taken() -> None:
    device = Budget(8192)
    session, cache = Budget(8192, device), ResponseCache(Budget(1 << 20, device))
    session.take(8000)
    cache.keep(key(0), {"y": np.zeros(1, np.uint8)})
    assert cache.get(key(0)) is None
    session.give(8000)
    cache.keep(key(0), {"y": np.zeros(1, np.uint8)})
    assert cache.get(key(0)) is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"x": np.zeros((2, 3), np.float32)}, {"x": np.zeros((3, 2), np.float32)}),
        ({"x": np.zeros(2, np.float32)}, {"x": np.zeros(2, np.int32)}),
        ({"x": np.zeros(2, np.float32)}, {"y": np.zeros(2, np.float32)}),
        ({"x": np.float32([0.0])}, {"x": np.float32([-0.0])}),
        ({"x": np.uint8([1]), "y": np.uint8([2])}, {"x": np.uint8([2]), "y": np.uint8([1])}),
    ],
)
def test_what_differs_in_anything_has_another_key(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert AnswerKey.of(0, "ann", ["y"], one) != AnswerKey.of(0, "ann", ["y"], other)
    assert AnswerKey.of(0, "ann", ["y"], one) == AnswerKey.of(0, "ann", ["y"], dict(reversed(one.items())))
    strided = {name: np.repeat(array, 2, -1)[..., ::2] for name, array in one.items()}
    assert AnswerKey.of(0, "ann", ["y"], one) == AnswerKey.of(0, "ann", ["y"], strided)
    assert len({AnswerKey.of(*of, one) for of in ((0, "ann", ["y"]), (1, "ann", ["y"]), (0, "bob", ["y"]))}) == 3


def test_a_kept_answer_is_a_copy(tmp_path: Path) -> None:
    """The arrays that a run answers with are the next run's."""
    save(tmp_path / "m", *perceptron(), INPUT)
    network = read_files(find_files(tmp_path / "m"), max_nodes=100, max_edges=100)
    config = ModelConfig(response_cache=True)
    answers = ResponseCache(Budget(1 << 20))
    model = LoadedModel("m", network, config, backend_for("cpu"), Budget(1 << 30), "cpu", answers=answers)
    seen: list[np.ndarray] = []
    for x in (X, X + 1, X):
        model.infer(
            "ann",
            {"data": x},
            ["softmax_output"],
            lambda outputs: seen.append(outputs["softmax_output"].copy()),
            lambda error: None,
            AnswerLimit(),
        )
    np.testing.assert_array_equal(seen[0], seen[2])
    assert model.statistics.to_json()["execution_count"] == 2
    model.close()
    assert answers.get(AnswerKey.of(0, "ann", ["softmax_output"], {"data": X})) is None


def test_an_answer_from_the_cache_says_nothing_of_how_long_a_run_takes(tmp_path: Path) -> None:
    """Else a slow network would run in the thread that calls come by, as its kept answers took no time."""
    save(tmp_path / "m", *perceptron(), INPUT)
    network = read_files(find_files(tmp_path / "m"), max_nodes=100, max_edges=100)
    config, answers = ModelConfig(response_cache=True), ResponseCache(Budget(1 << 20))
    model = LoadedModel("m", network, config, backend_for("cpu"), Budget(1 << 30), "cpu", answers=answers)
    form = None
    for _ in range(3):
        form = model.infer("ann", {"data": X}, ["softmax_output"], lambda _: None, print, AnswerLimit(), form=form)
        form.runs.elsewhere = 5
    model.infer("ann", {"data": X}, ["softmax_output"], lambda _: None, print, AnswerLimit(), form=form)
    assert form is not None
    assert (form.runs.elsewhere, model.statistics.to_json()["execution_count"]) == (5, 1)
    model.close()
