"""Headers that came before: not parsed again, and the call is what it would be if they were."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from opbox_protocol import wire
from opbox_protocol.strict_json import strict_json
from opbox_service import codec
from opbox_service.carriers import RawRequest, RawResponse
from opbox_service.engine import Engine
from opbox_service.routes.table import ROUTES
from opbox_service.settings import Settings
from opbox_service.stateless.recent_headers import LARGEST, MAX_HEADERS
from tests.contract.live import symbol, var

SETTINGS = Settings(graph_cache=2)
LIMITS = codec.limits_of(SETTINGS)
ROUTE, PARAMETERS = ROUTES.match("POST", "/v1/forward")


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine_of_test = Engine(SETTINGS)
    yield engine_of_test
    engine_of_test.close()


def doubling(name: str = "y") -> dict[str, Any]:
    return symbol(var("x"), ("_mul_scalar", name, {"scalar": "2"}, [0]))


def request(body: bytes, head: int | None) -> RawRequest:
    return RawRequest(ROUTE, PARAMETERS, "/v1/forward", "ann", frozenset({"run"}), "id", body, head, True)


def frame(x: np.ndarray, graph: Any = None, **header: Any) -> tuple[bytes, int]:
    head, buffers = wire.encode({"graph": graph or doubling(), **header}, {"x": x}, "inputs")
    return b"".join([head, *buffers]), len(head)


def call(engine: Engine, body: bytes, head: int | None) -> tuple[int, Any]:
    """The status, and the first output or the error."""
    answers: list[tuple[int, Any]] = []

    def send(response: RawResponse) -> None:
        answer = wire.decode(bytes(response.body), response.header_length, key="outputs")
        outputs = [array.copy() for array in answer.tensors.values()]
        answers.append((response.status, outputs[0] if outputs else answer.header["error"]))

    codec.serve(engine, request(body, head), LIMITS, send)
    return answers[0]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each request that was parsed."""
    frames: list[int] = []
    decode = wire.decode

    def counting(body: Any, length: int | None, **options: Any) -> wire.Frame:
        if options.get("key") != "outputs":
            frames.append(len(body))
        return decode(body, length, **options)

    monkeypatch.setattr(wire, "decode", counting)
    return frames


def test_a_header_that_came_before_is_not_parsed_again(
    engine: Engine, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(call(engine, *frame(x))[1], 2 * x)
    assert len(decoded) == 1
    monkeypatch.setattr(engine.graphs, "put", lambda *_: pytest.fail("named again"))
    assert np.array_equal(call(engine, *frame(x + 1))[1], 2 * x + 2)
    assert len(decoded) == 1


def test_another_header_another_call(engine: Engine) -> None:
    for shape in ((6,), (2, 3), (3, 2), (6,)):
        x = np.arange(6, dtype=np.float32).reshape(shape)
        status, y = call(engine, *frame(x))
        assert status == 200
        assert np.array_equal(y, 2 * x)


def test_a_frame_that_is_cut_short_is_refused_as_ever(engine: Engine) -> None:
    body, head = frame(np.ones(100, np.float32))
    assert call(engine, body, head)[0] == 200
    for wrong in (body[:-4], body + bytes(4), body[:head]):
        status, error = call(engine, wrong, head)
        assert status == 400
        assert error == call(Engine(SETTINGS), wrong, head)[1]


def test_a_graph_that_was_dropped_meanwhile_is_loaded_again(engine: Engine) -> None:
    x = np.ones(3, np.float32)
    for _ in range(2):
        for name in ("a", "b", "c", "d"):  # more than the cache of graphs has room for
            assert np.array_equal(call(engine, *frame(x, doubling(name)))[1], 2 * x)
    assert len(engine.graphs) <= 2


def test_a_wrong_header_is_not_kept(engine: Engine) -> None:
    body, head = frame(np.ones(3, np.float32), unknown=1)
    assert call(engine, body, head) == call(engine, body, head)
    assert call(engine, body, head)[0] == 400


def test_the_oldest_header_goes_first(engine: Engine, decoded: list[int]) -> None:
    x = np.ones(3, np.float32)
    frames = [frame(x, parameters={"seed": seed}) for seed in range(MAX_HEADERS + 1)]
    for body, head in frames:
        codec.read(request(body, head), LIMITS, SETTINGS, recent=engine.recent_headers)
    decoded.clear()
    codec.read(request(*frames[-1]), LIMITS, SETTINGS, recent=engine.recent_headers)
    assert len(decoded) == 0
    codec.read(request(*frames[0]), LIMITS, SETTINGS, recent=engine.recent_headers)
    assert len(decoded) == 1


def test_what_is_large_or_holds_values_is_read_each_time(engine: Engine, decoded: list[int]) -> None:
    x = np.ones(2, np.float32)
    large = frame(x, symbol(var("x"), ("_copy", "y" * LARGEST, {}, [0])))
    tensor = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2]}
    listed = strict_json({"graph": doubling(), "inputs": [tensor]}).encode()
    for body, head in (large, (listed, len(listed))):
        decoded.clear()
        for _ in range(2):
            call = codec.read(request(body, head), LIMITS, SETTINGS, recent=engine.recent_headers)
        assert len(decoded) == 2
        assert call.tensors["x"].shape == (2,)
