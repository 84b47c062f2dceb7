"""A server without workers stops: requests that were gathered for a run are answered before it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from opbox_protocol.errors import NotReadyError
from opbox_service.app import create_app
from opbox_service.carriers import RawRequest, RawResponse
from opbox_service.owner_terms import SCOPES
from opbox_service.routes.table import ROUTES
from opbox_service.settings import Settings
from opbox_service.worker.thread_pool import ThreadPool
from tests.models.conftest import INPUT, PATIENCE_S
from tests.models.folders import FEATURES, ROUNDING, expected, perceptron, save

X = np.random.default_rng(2).normal(size=(2, FEATURES)).astype(np.float32)
HEAD = json.dumps(
    {
        "inputs": [
            {
                "name": "data",
                "shape": list(X.shape),
                "datatype": "FP32",
                "parameters": {"binary_data_size": X.nbytes},
            }
        ],
        "parameters": {"binary_data_output": True},
    }
).encode()
REQUESTS = 5

Call = Callable[[], "asyncio.Task[RawResponse]"]


def in_process(tmp_path: Path, toml: str, steps: Callable[[ThreadPool, Call], Awaitable[None]]) -> None:
    """Run steps with a pool of threads that has loaded a model, and what begins a request for it."""
    save(tmp_path / "models" / "plain", *perceptron(), toml + INPUT)

    async def main() -> None:
        settings = Settings(isolation="none", token="a-token-of-the-tests", models=tmp_path / "models")
        server = create_app(settings).server
        pool = cast("ThreadPool", server.pool)
        await pool.start()
        await server.served_models.load_all()
        route, parameters = ROUTES.match("POST", "/v2/models/plain/infer")

        def call() -> asyncio.Task[RawResponse]:
            path = "/v2/models/plain/infer"
            request = RawRequest(route, parameters, path, "ann", SCOPES, "id", HEAD + X.tobytes(), len(HEAD), True)
            request.model = server.served_models.find(request)
            return asyncio.create_task(pool.call(request))

        await steps(pool, call)

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def output_of(answer: Any) -> np.ndarray:
    """The numbers of an answer."""
    assert (answer.status, answer.header_length is None) == (200, False)
    return np.frombuffer(bytes(answer.body)[answer.header_length :], np.float32).reshape(len(X), -1)


def test_gathered_requests_run_before_it_stops(tmp_path: Path) -> None:
    async def steps(pool: ThreadPool, call: Call) -> None:
        for _ in range(3):  # from the second on they are known, and gathered
            await call()
        calls = [call() for _ in range(REQUESTS)]
        await asyncio.sleep(0)  # all are there, and no run has begun
        await pool.stop(PATIENCE_S)
        for answer in await asyncio.gather(*calls):
            np.testing.assert_allclose(output_of(answer), expected(X), atol=ROUNDING)
        with pytest.raises(NotReadyError, match="starting or stopping"):
            await call()

    in_process(tmp_path, "max_batch = 8\n", steps)


def test_what_does_not_end_in_time_is_told_so(tmp_path: Path) -> None:
    async def steps(pool: ThreadPool, call: Call) -> None:
        calls = [call() for _ in range(REQUESTS)]
        await asyncio.sleep(0.01)
        await pool.stop(0.1)  # while they wait for others to run together with
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer) for answer in answers] == [NotReadyError] * REQUESTS
        assert "expected an answer before the server stopped, got none: try again" in str(answers[0])

    in_process(tmp_path, "max_batch = 16\nmax_delay_us = 10000000\n", steps)
