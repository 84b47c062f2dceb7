"""opbox.aio: shapes, graphs and sessions from asyncio, as the rest of the client has them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import httpx
import numpy as np
import pytest

import opbox as mx
from opbox import aio
from opbox_protocol.errors import MXNetError, NotFoundError, ShapeError, TransportError, UnsupportedError
from tests.contract.live import TOKENS, Live
from tests.link.proxy import Exchange, Fault, LinkProxy

T = TypeVar("T")
CALLS = 200
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def network() -> mx.Symbol:
    net: mx.Symbol = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=4, name="fc")
    return net


def parameters() -> dict[str, np.ndarray[Any, Any]]:
    return {"x": X, "fc_weight": np.full((4, 3), 0.5, np.float32), "fc_bias": np.ones(4, np.float32)}


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 60))


def test_shapes_graphs_and_operators(live: Live) -> None:
    async def work() -> None:
        async with aio.connect(live.url, TOKENS["ann"]) as server:
            assert (await server.about())["name"] == "opbox"
            assert "FullyConnected" in {row["name"] for row in await server.operators()}
            shapes = await server.infer_shape(network(), x=(2, 3))
            assert shapes == ([(2, 3), (4, 3), (4,)], [(2, 4)], [])
            assert await server.infer_shape(network(), (2, 3)) == shapes
            outputs = await server.forward(network(), parameters())
            np.testing.assert_array_equal(outputs["fc_output"], X.sum(1, keepdims=True) * 0.5 + np.ones((2, 4)))
            heads = {"fc_output": np.ones((2, 4), np.float32)}
            gradients, again = await server.backward(network(), parameters(), heads, grads=["x", "fc_bias"])
            assert sorted(gradients) == ["fc_bias", "x"]
            np.testing.assert_array_equal(gradients["x"], np.full((2, 3), 2, np.float32))
            np.testing.assert_array_equal(again["fc_output"], outputs["fc_output"])

    run(work())


def test_a_session(live: Live) -> None:
    async def work() -> None:
        async with aio.connect(live.url, TOKENS["ann"]) as server:
            async with server.session() as session:
                x, y = session.put(X), session.new_id()
                session.record({"do": "invoke", "op": "exp", "inputs": [x], "outputs": [y]})
                await session.flush()
                np.testing.assert_allclose(await session.fetch(y), np.exp(X), rtol=1e-6)
                assert (await session.ask({"do": "describe", "id": y}))["shape"] == [2, 3]
                session.record({"do": "invoke", "op": "exp", "inputs": [77], "outputs": [78]})
                await session.flush()
                with pytest.raises(NotFoundError, match="77"):
                    await session.wait()
                await session.wait()
                with pytest.raises(MXNetError, match="do"):
                    await session.ask({"do": "no such command"})  # type: ignore[typeddict-item]  # the error
                np.testing.assert_array_equal(await session.fetch(x), X)
                assert live.json("GET", f"/v1/sessions/{session.id}").status == 200
                path = f"/v1/sessions/{session.id}"
            assert live.json("GET", path).status == 410
            with pytest.raises(TransportError, match="expected one that `async with` has opened"):
                await session.fetch(x)

    run(work())


def test_many_calls_at_once(live: Live) -> None:
    async def work() -> None:
        async with aio.connect(live.url, TOKENS["ann"], patience=60) as server:

            async def call(number: int) -> None:
                outputs = await server.forward(network(), {**parameters(), "x": X + number})
                expected = (X + number).sum(1, keepdims=True) * 0.5 + np.ones((2, 4))
                np.testing.assert_allclose(outputs["fc_output"], expected)

            await asyncio.gather(*(call(number) for number in range(CALLS)))

    run(work())


def test_a_session_over_a_link_that_cuts(live: Live) -> None:
    host, port = live.url.removeprefix("http://").split(":")

    def choose(exchange: Exchange) -> Fault | None:
        return Fault("answer", "body", 0.5) if exchange.is_batch and exchange.number % 2 else None

    async def work(url: str) -> None:
        async with aio.connect(url, TOKENS["ann"]) as server, server.session() as session:
            x = session.put(np.zeros(3, np.float32))
            for number in range(1, 6):
                add = {"do": "invoke", "op": "_plus_scalar", "attrs": {"scalar": "1"}, "inputs": [x], "outputs": [x]}
                session.record({**add, "into": True})  # type: ignore[misc,typeddict-item]  # an invoke
                np.testing.assert_array_equal(await session.fetch(x), np.full(3, number, np.float32))

    with LinkProxy((host, int(port)), fault=choose) as proxy:
        run(work(proxy.url))


def test_errors(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with aio.connect(live.url, TOKENS["ann"]) as server:
            with pytest.raises(ShapeError, match="fc"):
                await server.infer_shape(network(), x=(2, 3), fc_weight=(4, 5))
            with pytest.raises(MXNetError, match="fc_weight"):
                await server.forward(network(), {"x": X})
        with pytest.raises(TransportError, match="the connection was closed; connect again"):
            await server.about()
        with pytest.raises(MXNetError, match="OPBOX_URL: expected an address"):
            aio.connect("http://", "t")
        with pytest.raises(TypeError, match=r"expected an httpx\.AsyncClient, got Client; mx\.connect takes a Client"):
            aio.connect("gpu-box", "t", http=httpx.Client())  # type: ignore[arg-type]  # the error that is tested

    monkeypatch.delenv("OPBOX_URL", raising=False)
    with pytest.raises(MXNetError, match="expected the address of a server, as an argument or in OPBOX_URL"):
        aio.connect()
    run(work())


def test_nothing_listens() -> None:
    async def work() -> None:
        async with aio.connect("http://localhost:9", "t") as server:
            with pytest.raises(TransportError, match="nothing listens there; start a server with `opbox serve`"):
                await server.about()

    run(work())


def test_a_client_of_one_s_own_stays_open() -> None:
    answer = httpx.MockTransport(lambda request: httpx.Response(200, json={"name": "opbox"}))

    async def work() -> None:
        async with httpx.AsyncClient(transport=answer) as client:
            async with aio.connect("gpu-box", "t", http=client) as server:
                assert await server.about() == {"name": "opbox"}
            assert not client.is_closed

    run(work())


def test_operators_of_one_s_own_are_refused(live: Live) -> None:
    class Own(mx.operator.CustomOpProp):
        def create_operator(self, ctx: Any, shapes: Any, dtypes: Any) -> Any:
            raise NotImplementedError

    mx.operator.register("aio_own")(Own)
    net = mx.sym.Custom(mx.sym.var("x"), op_type="aio_own")

    async def work() -> None:
        async with aio.connect(live.url, TOKENS["ann"]) as server:
            with pytest.raises(UnsupportedError, match="got one with operators of your own"):
                await server.infer_shape(net, x=(2, 3))

    run(work())
