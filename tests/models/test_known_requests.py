"""Requests for a model whose JSON came before: the same answers and errors as if each came for the first time."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import opbox as mx
from opbox_service.models.known_requests import MAX_KNOWN, RequestKey, RunForm
from opbox_service.models.model_plans import PlanKind
from opbox_service.models.quick_runs import MIN_SLOW_RUNS, QUICK_S, RUNS_ELSEWHERE
from tests.contract.live import Live
from tests.models.conftest import INPUT, loaded, wait_until
from tests.models.folders import CLASSES, FEATURES, ROUNDING, expected, perceptron, save

RNG = np.random.default_rng(5)
BINARY = {"parameters": {"binary_data_output": True}}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models' folder."""
    folder = tmp_path_factory.mktemp("models")
    save(folder / "plain", *perceptron(), INPUT)
    save(folder / "batched", *perceptron(), "max_batch = 8\n" + INPUT)
    save(folder / "anns", *perceptron(), 'owners = ["ann"]\n' + INPUT)
    save(folder / "plus", mx.sym.Variable("data") + 1, {}, "[inputs.data]\nshape = [-1, 1024]\n")
    return folder


@pytest.fixture(scope="module", params=["none", "process"])
def live(request: pytest.FixtureRequest, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server that makes small calls itself, and one with a worker."""
    server = Live(request.param, tmp_path_factory.mktemp("server"), OPBOX_MODELS=str(root))
    loaded(server)
    yield server
    assert server.stop() == 0


def features(rows: int = 2) -> np.ndarray:
    return RNG.normal(size=(rows, FEATURES)).astype(np.float32)


def head_of(x: np.ndarray, **fields: Any) -> bytes:
    described = {"name": "data", "shape": list(x.shape), "datatype": "FP32"}
    return json.dumps(
        {**fields, "inputs": [{**described, "parameters": {"binary_data_size": x.nbytes}}], **BINARY}
    ).encode()


def send(
    live: Live,
    model: str,
    head: bytes,
    payload: bytes,
    *,
    owner: str = "ann",
    length: int | None = None,
    **headers: str,
) -> httpx.Response:
    headers = {"Inference-Header-Content-Length": str(len(head) if length is None else length), **headers}
    path = f"/v2/models/{model}/infer"
    return live.clients[owner].post(path, content=head + payload, headers=headers)


def values(answer: httpx.Response) -> tuple[dict[str, Any], np.ndarray]:
    """The JSON of an answer, and its only output."""
    assert answer.status_code == 200, answer.text
    length = int(answer.headers["Inference-Header-Content-Length"])
    header = json.loads(answer.content[:length])
    (output,) = header["outputs"]
    assert output["parameters"]["binary_data_size"] == len(answer.content) - length
    return header, np.frombuffer(answer.content[length:], np.float32).reshape(output["shape"])


@pytest.mark.parametrize("model", ["plain", "batched"])
def test_answers_are_those_of_the_first(live: Live, model: str) -> None:
    first = None
    for _ in range(6):
        x = features()
        header, output = values(send(live, model, head_of(x), x.tobytes()))
        first = header if first is None else first
        assert header == first
        np.testing.assert_allclose(output, expected(x), atol=ROUNDING)


@pytest.mark.parametrize("model", ["plain", "batched"])
def test_ids_come_back(live: Live, model: str) -> None:
    x = features()
    ids = ["a", "b", "", "a-9_:+/=. ", 'with "quotes"', "with \\ backslash", "ümlaut", "0", "x" * 128, "y" * 256]
    for id in [*ids, *ids]:
        header, output = values(send(live, model, head_of(x, id=id), x.tobytes()))
        assert header["id"] == id
        np.testing.assert_allclose(output, expected(x), atol=ROUNDING)
    assert "id" not in values(send(live, model, head_of(x), x.tobytes()))[0]
    behind = head_of(x)[:-1] + b', "id": "last"}'
    for _ in range(3):
        assert values(send(live, model, behind, x.tobytes()))[0]["id"] == "last"


def test_two_ids_are_what_they_are_without_a_first_request(live: Live) -> None:
    x = features()
    alike = [b'{"id": "%b", "id": "b", ' % id + head_of(x)[1:] for id in (b"b", b"x")]
    before = [send(live, "plain", head, x.tobytes()) for head in reversed(alike)]
    for _ in range(3):
        for head, answer in zip(reversed(alike), before, strict=True):
            again = send(live, "plain", head, x.tobytes())
            assert again.status_code == answer.status_code
            if again.status_code == 200:
                assert values(again)[0] == values(answer)[0]


def changed(old: str, new: str) -> Callable[[bytes], bytes]:
    return lambda head: head.replace(old.encode(), new.encode())


BAD: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes], dict[str, Any]]] = {
    "a payload that is too short": (bytes, lambda payload: payload[:-4], {}),
    "a payload that is too long": (bytes, lambda payload: payload + b"\0" * 4, {}),
    "no payload": (bytes, lambda payload: b"", {}),
    "another shape": (changed("[2, 4]", "[2, 5]"), bytes, {}),
    "a negative shape": (changed("[2, 4]", "[-2,4]"), bytes, {}),
    "another type": (changed("FP32", "FP64"), bytes, {}),
    "a type of the same size": (changed("FP32", "INT32"), bytes, {}),
    "another name": (changed('"data"', '"date"'), bytes, {}),
    "no JSON": (changed("{", "["), bytes, {}),
    "a parameter of another type": (changed("true", "1234"), bytes, {}),
    "bytes that are not UTF-8": (lambda head: head.replace(b"data", b"d\xff\xfea", 1), bytes, {}),
    "a length of one byte less": (bytes, bytes, {"length": -1}),
    "a length of one byte more": (bytes, bytes, {"length": 1}),
    "a length beyond the body": (bytes, bytes, {"length": 100_000}),
    "an id that is no text": (lambda head: b'{"id": 7, ' + head[1:], bytes, {}),
    "an id that is too long": (lambda head: b'{"id": "%b", ' % (b"x" * 257) + head[1:], bytes, {}),
    "a wrong Accept": (bytes, bytes, {"Accept": "application/json;non-finite=1"}),
    "a wrong coding": (bytes, bytes, {"Content-Encoding": "br"}),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_request_after_a_good_one_with_nearly_the_same_bytes(live: Live, bad: str) -> None:
    x = features()
    head = head_of(x)
    for _ in range(2):
        values(send(live, "plain", head, x.tobytes()))
    of_head, of_payload, headers = BAD[bad]
    headers = dict(headers)
    if "length" in headers:
        headers["length"] += len(head)
    answer = send(live, "plain", of_head(head), of_payload(x.tobytes()), **headers)
    assert answer.status_code in (400, 415), answer.text
    assert answer.json()["error"]
    values(send(live, "plain", head, x.tobytes()))


def test_lengths_that_are_no_numbers(live: Live) -> None:
    x = features()
    for _ in range(2):
        values(send(live, "plain", head_of(x), x.tobytes()))
    for length in ("", "-1", "1e2", "9" * 5000, "0x10"):
        client = live.clients["ann"]
        headers = {"Inference-Header-Content-Length": length}
        answer = client.post("/v2/models/plain/infer", content=head_of(x) + x.tobytes(), headers=headers)
        assert answer.status_code == 400, (length, answer.text)


def test_what_others_may_not_call_they_may_not_call_after_its_owner(live: Live) -> None:
    x = features()
    for _ in range(3):
        values(send(live, "anns", head_of(x), x.tobytes()))
    refused = send(live, "anns", head_of(x), x.tobytes(), owner="bob")
    unknown = send(live, "nothing", head_of(x), x.tobytes(), owner="bob")
    assert refused.status_code == unknown.status_code == 404
    assert refused.json()["error"] == unknown.json()["error"].replace("nothing", "anns")


def test_a_token_that_is_none_after_one_that_is(live: Live) -> None:
    x = features()
    for _ in range(3):
        values(send(live, "plain", head_of(x), x.tobytes()))
    assert send(live, "plain", head_of(x), x.tobytes(), Authorization="Bearer another").status_code == 401


def test_a_model_that_is_loaded_again_and_unloaded(live: Live, root: Path) -> None:
    x = features()
    admin = live.clients["boss"]
    for scale in (1.0, 2.0, 1.0):
        save(root / "plain", *perceptron(scale), INPUT)
        assert admin.post("/v2/repository/models/plain/load", json={}).status_code == 200
        for _ in range(3):
            np.testing.assert_allclose(
                values(send(live, "plain", head_of(x), x.tobytes()))[1], expected(x, scale), atol=ROUNDING
            )
    assert admin.post("/v2/repository/models/plain/unload", json={}).status_code == 200
    assert send(live, "plain", head_of(x), x.tobytes()).status_code == 400
    assert admin.post("/v2/repository/models/plain/load", json={}).status_code == 200
    values(send(live, "plain", head_of(x), x.tobytes()))


@pytest.mark.parametrize("model", ["plain", "batched"])
def test_many_at_once_get_their_own_answers(live: Live, model: str) -> None:
    wrong: list[str] = []

    def ask(number: int) -> None:
        rng = np.random.default_rng(number)
        for i in range(20):
            x = rng.normal(size=(1 + number % 3, FEATURES)).astype(np.float32)
            id = f"{number}-{i}"
            header, output = values(send(live, model, head_of(x, id=id), x.tobytes(), owner=["ann", "bob"][i % 2]))
            if header["id"] != id or not np.allclose(output, output_of(x), atol=ROUNDING):
                wrong.append(id)

    _, params = perceptron()
    weights = {name: array.asnumpy() for name, array in params.items()}

    def output_of(x: np.ndarray) -> np.ndarray:
        hidden = np.tanh(x @ weights["fc1_weight"].T + weights["fc1_bias"])
        raw = np.exp(hidden @ weights["fc2_weight"].T + weights["fc2_bias"])
        return raw / raw.sum(axis=1, keepdims=True)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_statistics_and_metrics_count_all(live: Live) -> None:
    def counts() -> tuple[int, int, int]:
        stats = live.clients["ann"].get("/v2/models/plain/stats").json()["model_stats"][0]
        text = live.clients["monitor"].get("/metrics").text
        name = 'opbox_requests_total{method="POST",route="/v2/models/{model}/infer",status="200"}'
        requests = next((line for line in text.splitlines() if line.startswith(name)), f"{name} 0")
        return (
            stats["inference_stats"]["success"]["count"],
            stats["inference_count"],
            int(float(requests.rpartition(" ")[2])),
        )

    x = features(3)
    before = counts()
    for _ in range(5):
        values(send(live, "plain", head_of(x), x.tobytes()))
    assert [after - earlier for after, earlier in zip(counts(), before, strict=True)] == [5, 15, 5]


def test_request_ids_are_the_clients_or_new(live: Live) -> None:
    x = features()
    ids = [send(live, "plain", head_of(x), x.tobytes()).headers["X-Request-Id"] for _ in range(5)]
    assert len(set(ids)) == 5
    answer = send(live, "plain", head_of(x), x.tobytes(), **{"X-Request-Id": "mine"})
    assert answer.headers["X-Request-Id"] == "mine"
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Server-Timing"].startswith("app;dur=")


def test_more_forms_than_are_kept(live: Live) -> None:
    x = features()
    for number in range(MAX_KNOWN + 5):
        head = head_of(x)[:-1] + b" " * number + b"}"
        values(send(live, "plain", head, x.tobytes()))
    np.testing.assert_allclose(values(send(live, "plain", head_of(x), x.tobytes()))[1], expected(x), atol=ROUNDING)


def test_the_key_leaves_out_an_id_that_stands_first() -> None:
    rest = b', "inputs": []}'
    key = RequestKey.of("ann", "/infer", b'{"id": "seven"' + rest)
    assert (key.id, key.behind) == (b"seven", rest)
    assert RequestKey.of("ann", "/infer", b'{"id":"8"' + rest)[:3] == key[:3]
    for text in (
        b'{"id": "a\\n"' + rest,
        b'{"id": 7' + rest,
        b'{"id": "a", "id": "b"' + rest,
        b'{"id": "a", "\\u0069d": "b"' + rest,
        b'{"inputs": [], "id": "a"}',
        b'{"id": "a"',
    ):
        assert RequestKey.of("ann", "/infer", text) == ("ann", "/infer", text, None)


def test_runs_that_take_long_are_left_to_other_threads() -> None:
    form = RunForm(("y",), 1, True, (), None, PlanKind(), {}, (0,))  # type: ignore[arg-type]  # no graph is run
    assert not form.is_quick
    form.runs.ran(1.0, QUICK_S / 2, waited_for=False)  # others had the processor
    assert form.is_quick
    for _ in range(2):
        for _ in range(MIN_SLOW_RUNS - 1):  # which may be accidents of a busy machine
            form.runs.ran(1.0, 0.0, waited_for=True)
            assert form.is_quick
        form.runs.ran(QUICK_S / 2, 0.0, waited_for=True)
    for _ in range(MIN_SLOW_RUNS):
        form.runs.ran(1.0, 0.0, waited_for=True)
    for _ in range(RUNS_ELSEWHERE):
        assert not form.is_quick
        form.runs.ran(QUICK_S / 2, QUICK_S / 2, waited_for=False)
    assert form.is_quick
    form.runs.ran(1.0, 2 * QUICK_S, waited_for=False)
    assert not form.is_quick


@pytest.mark.parametrize("rows", [8, 64, 256, 500])  # 4 KiB each: inside a message, and in a buffer
def test_bodies_and_answers_in_buffers(live: Live, rows: int) -> None:
    for number in range(6):
        x = RNG.normal(size=(rows, 1024)).astype(np.float32)
        header, output = values(send(live, "plus", head_of(x, id=str(number)), x.tobytes()))
        assert header["id"] == str(number)
        np.testing.assert_array_equal(output, x + 1)
    head = head_of(x, id="short")
    assert send(live, "plus", head, x.tobytes()[:-4]).status_code == 400
    values(send(live, "plus", head, x.tobytes()))
    wait_until(lambda: live.metric("opbox_buffer_bytes") == 0)


def test_large_requests_beside_small_ones_get_their_own_answers(live: Live) -> None:
    wrong: list[tuple[int, int]] = []

    def ask(number: int) -> None:
        rng = np.random.default_rng(number)
        with httpx.Client(base_url=live.url, headers=live.clients["ann"].headers, timeout=60) as client:
            for i in range(24):
                x = rng.normal(size=((1, 64, 20)[i % 3], 1024)).astype(np.float32)
                head = head_of(x, id=f"{number}-{i}")
                headers = {"Inference-Header-Content-Length": str(len(head))}
                answer = client.post("/v2/models/plus/infer", content=head + x.tobytes(), headers=headers)
                header, output = values(answer)
                if header["id"] != f"{number}-{i}" or not np.array_equal(output, x + 1):
                    wrong.append((number, i))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_shape_of_an_answer(live: Live) -> None:
    x = features(3)
    for _ in range(2):
        assert values(send(live, "plain", head_of(x), x.tobytes()))[1].shape == (3, CLASSES)
