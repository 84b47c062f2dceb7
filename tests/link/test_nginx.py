"""Programs behind Debian's nginx: with its defaults, with the tutorial's configuration, and under a path."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import opbox as mx
from opbox import connection
from opbox.cli import main
from opbox.http import HttpTransport
from opbox.session import Session
from opbox_protocol.errors import LimitError
from tests.contract.live import TOKENS, Live, symbol, var
from tests.docs.test_team_page import block
from tests.link.nginx import Nginx, needs_nginx
from tests.models.uploads import packed

pytestmark = needs_nginx
TLS = Path(__file__).with_name("tls")
DATA = 20_000
"""A batch of 64 rows has 5.1 MB: nginx lets 1 MiB through by default."""
STEPS = 3


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    server = Live("process", tmp_path_factory.mktemp("server"), OPBOX_ROOT_PATH="/opbox")
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def defaults(live: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    """An nginx with its defaults, which has the server under a path too: taken off, and not taken off."""
    site = (
        f"location / {{ proxy_pass {live.url}; }} location /gpu/box/ {{ proxy_pass {live.url}/; }}\n"
        f"location /hasty/ {{ proxy_pass {live.url}/; proxy_read_timeout 2s; }}"
    )
    with Nginx(tmp_path_factory.mktemp("nginx"), site) as nginx:
        yield nginx


def train(transport: HttpTransport) -> bytes:
    """The bits of a few steps whose batches have 5 MB each, and of the weights at their end."""
    connection.use(transport)
    try:
        random_numbers = np.random.default_rng(0)
        net = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=4, name="fc")
        net = mx.sym.LinearRegressionOutput(mx.sym.mean(net, axis=1), mx.sym.var("y"))
        executor = net.simple_bind(mx.cpu(), x=(64, DATA), y=(64,), grad_req={"fc_weight": "write", "fc_bias": "write"})
        weight, gradient = executor.arg_dict["fc_weight"], executor.grad_dict["fc_weight"]
        weight[:] = random_numbers.standard_normal((4, DATA)).astype(np.float32)
        read = b""
        for _ in range(STEPS):
            executor.arg_dict["x"][:] = random_numbers.standard_normal((64, DATA)).astype(np.float32)
            executor.forward(is_train=True)
            executor.backward()
            mx.nd.sgd_update(weight, gradient, lr=1e-4, out=weight)
            read += executor.outputs[0].asnumpy().tobytes()
        return read + gradient.asnumpy().tobytes() + weight.asnumpy().tobytes()
    finally:
        connection.use(None)


TOO_LARGE = "intended to send too large body"
"""What nginx writes into its log for each body that it refuses."""


@pytest.fixture(scope="module")
def undisturbed(live: Live) -> bytes:
    return train(HttpTransport(live.url, TOKENS["ann"]))


@pytest.mark.parametrize("client", ["lean", "httpx"])
def test_large_bodies_go_in_parts(live: Live, defaults: Nginx, undisturbed: bytes, client: str) -> None:
    before = defaults.log.count(TOO_LARGE)
    with httpx.Client() as own:
        transport = HttpTransport(defaults.url, TOKENS["ann"], http=own if client == "httpx" else None)
        assert train(transport) == undisturbed
    assert transport._gateway.body_bytes == 1_000_000
    assert defaults.log.count(TOO_LARGE) == before + 1
    assert not live.json("GET", "/v1/sessions").header["sessions"]


def test_the_tutorials_configuration_needs_none(
    live: Live, undisturbed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = block("nginx", "listen 443").partition("server {")[2].rpartition("}")[0]
    site = site.replace("/etc/letsencrypt/live/box.example.org", str(TLS)).replace("http://127.0.0.1:8000", live.url)
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "fullchain.pem"))
    with Nginx(tmp_path, site, tls=True) as nginx:
        transport = HttpTransport(nginx.url, TOKENS["ann"])
        assert train(transport) == undisturbed
        assert not transport._gateway.met
        assert nginx.log == ""


def test_asyncio(defaults: Nginx) -> None:
    net = mx.sym.sum(mx.sym.var("x"), name="total")
    x = np.ones((2, 1 << 20), np.float32)

    async def run() -> float:
        async with mx.aio.connect(defaults.url, token=TOKENS["ann"]) as server:
            return float((await server.forward(net, {"x": x}))["total_output"][0])

    assert asyncio.run(run()) == x.size


def test_a_model_is_published(live: Live, defaults: Nginx) -> None:
    """Its files have 1.6 MB, more than nginx lets through at once."""
    net = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=20, no_bias=True, name="fc")
    weight = np.random.default_rng(1).standard_normal((20, DATA)).astype(np.float32)
    files = {"net-symbol.json": net.tojson().encode(), "net.params": packed({"arg:fc_weight": weight})}
    x = np.ones((2, DATA), np.float32)

    async def publish() -> dict[str, Any]:
        async with mx.serve.AsyncClient(defaults.url, TOKENS["ann"]) as client:
            return await client.publish("wide", files)

    before = defaults.log.count(TOO_LARGE)
    with mx.serve.Client(defaults.url, TOKENS["ann"]) as client:
        published = client.publish("wide", files)
        assert (published["version"], published["bytes"]) == ("1", sum(map(len, files.values())))
        assert asyncio.run(publish())["version"] == "2"
        assert defaults.log.count(TOO_LARGE) == before + 2
        with mx.serve.Client(live.url, TOKENS["ann"]) as direct:
            expected = direct.model("wide")(x=x)["fc_output"]
        np.testing.assert_array_equal(client.model("wide")(x=x)["fc_output"], expected)
        np.testing.assert_allclose(expected, x @ weight.T, rtol=1e-4, atol=1e-2)  # float32: sums of 20,000 products
        client.remove("wide")


def test_calls_that_take_longer_than_nginx_waits(live: Live, defaults: Nginx) -> None:
    """The first is given up after two seconds and found again; the second is asked for in time. Each runs once."""
    transport = HttpTransport(f"{defaults.url}/hasty", TOKENS["ann"])
    session = Session(transport, "cpu")
    x, y = session.new_id(), session.new_id()
    session.record({"do": "put", "id": x, "tensor": ""}, np.ones(2, np.float32))
    session.record({"do": "invoke", "op": "_test_slow", "attrs": {"seconds": "2.2"}, "inputs": [x], "outputs": [y]})
    assert session.fetch(y).result().tolist() == [1.0, 1.0]
    assert live.json("GET", f"/v1/sessions/{session.id}").header["next_seq"] == session.requests + 1
    assert transport._gateway.wait_s == 1
    session.close()
    graph = symbol(var("x"), ("_test_slow", "y", {"seconds": "2.2"}, [0]))
    reply = transport.call("POST", "/v1/forward", {"graph": graph}, {"x": np.ones(2, np.float32)})
    assert reply.tensors["y_output"].tolist() == [1.0, 1.0]
    assert defaults.log.count("upstream timed out") == 1
    transport.close()


@pytest.mark.parametrize("path", ["/opbox", "/gpu/box/"])
def test_a_url_with_a_path(
    defaults: Nginx, path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """/opbox is passed on to the server (OPBOX_ROOT_PATH); /gpu/box is taken off, as the server knows nothing of it."""
    url = defaults.url + path
    monkeypatch.setenv("OPBOX_URL", url)
    monkeypatch.setenv("OPBOX_TOKEN", TOKENS["ann"])
    for command in (["status"], ["doctor"], ["datasets"]):
        assert main(command) == 0, capsys.readouterr()
    assert f"at {url}" in capsys.readouterr().out
    connection.use(None)
    home = url.rstrip("/") + "/"
    with httpx.Client(headers={"Authorization": f"Bearer {TOKENS['ann']}"}, follow_redirects=True) as client:
        for page in ("", "docs"):
            document = client.get(home + page)
            assert document.status_code == 200
            for link in re.findall(r'(?:href|src)="([^"#]+)"', document.text):
                assert client.get(document.url.join(link)).status_code == 200, link
        openapi = client.get(f"{home}openapi.json")
        server = openapi.url.join(openapi.json()["servers"][0]["url"])
        assert client.get(f"{str(server).rstrip('/')}/v2").json()["name"] == "opbox"


def test_events_come_at_once(defaults: Nginx) -> None:
    """nginx collects answers by default, but for those that ask it not to."""
    headers = {"Authorization": f"Bearer {TOKENS['ann']}"}
    with httpx.stream("GET", f"{defaults.url}/v1/events", headers=headers, timeout=30) as events:
        assert "event: state" in events.iter_lines()


def test_the_servers_own_limit_is_told_apart(defaults: Nginx) -> None:
    transport = HttpTransport(defaults.url, TOKENS["ann"])
    with pytest.raises(LimitError, match=r"^body: expected at most 67108864 bytes, got 7\d+: .* OPBOX_MAX_BODY_BYTES"):
        transport.call("POST", "/v1/forward", {"graph": {}}, {"x": np.zeros(18 << 20, np.float32)})
    transport.close()
