"""Triton's own asynchronous HTTP client, unchanged, against a server with a model."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from tests.clients.test_tritonclient import X, data, headers
from tests.contract.live import Live
from tests.models.folders import ROUNDING, expected

pytestmark = [
    pytest.mark.clients,
    # It leaves the answers of is_server_live and others unread, and so their connections open.
    pytest.mark.filterwarnings("ignore:Unclosed connection:ResourceWarning"),
]


def run(server: Live, work: Callable[[Any], Awaitable[None]]) -> None:
    """Call `work` with a client."""
    from tritonclient.http.aio import InferenceServerClient

    async def main() -> None:
        client = InferenceServerClient(server.url.removeprefix("http://"))
        try:
            await work(client)
        finally:
            await client.close()

    asyncio.run(main())
    gc.collect()


def test_what_it_asks(server: Live) -> None:
    async def work(client: Any) -> None:
        assert await client.is_server_live(headers=headers())
        assert await client.is_server_ready(headers=headers())
        assert await client.is_model_ready("plain", headers=headers())
        assert (await client.get_server_metadata(headers=headers()))["name"] == "opbox"
        assert (await client.get_model_metadata("plain", "1", headers=headers()))["name"] == "plain"
        assert (await client.get_model_config("plain", headers=headers()))["name"] == "plain"
        assert await client.get_model_repository_index(headers=headers())
        assert (await client.get_inference_statistics(headers=headers()))["model_stats"]
        await client.unload_model("plain", headers=headers("boss"))
        await client.load_model("plain", headers=headers("boss"))
        assert (await client.get_trace_settings(headers=headers()))["trace_level"] == ["OFF"]
        await client.update_trace_settings(settings={"trace_level": "OFF"}, headers=headers())
        assert (await client.get_log_settings(headers=headers()))["log_error"]
        await client.update_log_settings({"log_error": True}, headers=headers())

    run(server, work)


@pytest.mark.parametrize("coding", [None, "gzip", "deflate"])
def test_infer(server: Live, coding: str | None) -> None:
    """Its library says that it takes gzip, and then leaves an answer as it comes."""

    async def work(client: Any) -> None:
        from tritonclient.http import InferInput, InferRequestedOutput

        x = np.tile(X, (1000, 1))
        tensor = InferInput("data", list(x.shape), "FP32").set_data_from_numpy(x)
        for binary in (True, False):
            answer = await client.infer(
                "plain",
                [tensor],
                outputs=[InferRequestedOutput("softmax_output", binary_data=binary)],
                request_compression_algorithm=coding,
                response_compression_algorithm=coding,
                headers=headers(),
            )
            np.testing.assert_allclose(answer.as_numpy("softmax_output")[:3], expected(X), rtol=0, atol=ROUNDING)

    run(server, work)


def test_shared_memory(server: Live) -> None:
    async def work(client: Any) -> None:
        import tritonclient.utils.shared_memory as shm
        from tritonclient.http import InferInput
        from tritonclient.utils import InferenceServerException

        region = shm.create_shared_memory_region("async", "/opbox_test_async", X.nbytes)
        try:
            shm.set_shared_memory_region(region, [X])
            await client.register_system_shared_memory("async", "/opbox_test_async", X.nbytes, headers=headers())
            (row,) = await client.get_system_shared_memory_status("async", headers=headers())
            assert row["key"] == "/opbox_test_async"
            tensor = InferInput("data", list(X.shape), "FP32").set_shared_memory("async", X.nbytes)
            answer = await client.infer("plain", [tensor], headers=headers())
            np.testing.assert_array_equal(answer.as_numpy("softmax_output"), expected(X))
            await client.unregister_system_shared_memory(headers=headers())
        finally:
            shm.destroy_shared_memory_region(region)
        assert await client.get_cuda_shared_memory_status(headers=headers()) == []
        with pytest.raises(InferenceServerException, match="CUDA shared memory"):
            await client.register_cuda_shared_memory("gpu", "AAAA", 0, 64, headers=headers())
        await client.unregister_cuda_shared_memory(headers=headers())

    run(server, work)


def test_several_at_once(server: Live) -> None:
    async def work(client: Any) -> None:
        answers = await asyncio.gather(*(client.infer("plain", [data()], headers=headers()) for _ in range(8)))
        for answer in answers:
            np.testing.assert_array_equal(answer.as_numpy("softmax_output"), expected(X))

    run(server, work)
