"""gRPC: tokens, TLS, deadlines, clients that go, and the end of the server."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

import opbox as mx
from opbox_protocol.errors import BadRequestError
from opbox_service.app import create_app
from opbox_service.grpc.messages import METHODS, message_class
from opbox_service.grpc.server import GrpcServer
from opbox_service.serve import grpc_server
from opbox_service.settings import Settings
from tests.contract.live import TOKENS, Live
from tests.models.conftest import INPUT, PATIENCE_S, address_of
from tests.models.folders import FEATURES, INDEX, UNKNOWN
from tests.models.grpc_client import Calls, calls, metadata, request

X = np.random.default_rng(0).normal(size=(3, FEATURES)).astype(np.float32)
TLS = Path(__file__).parents[1] / "link" / "tls"


@pytest.mark.parametrize("name", sorted(METHODS))
def test_no_token_and_a_wrong_one(call: Calls, name: str) -> None:
    if name in ("ServerLive", "ServerReady"):
        return
    message = message_class(METHODS[name].input_type)()
    for header, sentence in (
        ("", "token: expected "),
        ("Bearer wrong-token-of-22-letters", "token: expected one that "),
    ):
        sent = (("authorization", header),) if header else ()
        ask = iter([message]) if METHODS[name].client_streaming else message
        with pytest.raises(grpc.RpcError) as raised:
            list(answers) if isinstance(
                answers := call.callable(name)(ask, metadata=sent, timeout=120), Iterator
            ) else None
        assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert sentence in raised.value.details()


def test_a_message_without_a_token_is_not_read(grpc_address: str, call: Calls) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        call("ModelInfer", bytes(1 << 27), owner=None)  # more than any message may have
    assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server by TLS whose model takes its time."""
    root = tmp_path_factory.mktemp("slow")
    nodes: list[dict[str, Any]] = [
        {"op": "null", "name": "data", "attrs": {}, "inputs": []},
        {"op": "null", "name": "w", "attrs": {}, "inputs": []},
        {"op": "broadcast_add", "name": "sum", "attrs": {}, "inputs": [[0, 0, 0], [1, 0, 0]]},
    ]
    for i in range(40):
        step = {"op": "_test_slow", "name": f"y{i}", "attrs": {"seconds": "0.1"}, "inputs": [[i + 2, 0, 0]]}
        nodes.append(step)
    net = {"nodes": nodes, "arg_nodes": [0, 1], "heads": [[len(nodes) - 1, 0, 0]], "attrs": {}}
    model = root / "models" / "slow"
    model.mkdir(parents=True)
    (model / "net-symbol.json").write_text(json.dumps(net))
    (model / "model.toml").write_text(INPUT)
    mx.nd.save(str(model / "net-0001.params"), {"arg:w": mx.nd.ones((1, FEATURES))})
    for name in ("fullchain.pem", "privkey.pem"):
        shutil.copy(TLS / name, root)
    live = Live(
        "none",
        root,
        OPBOX_MODELS=str(root / "models"),
        OPBOX_GRPC_PORT="0",
        OPBOX_SSL_CERTFILE=str(root / "fullchain.pem"),
        OPBOX_SSL_KEYFILE=str(root / "privkey.pem"),
    )
    yield live
    live.stop()


@pytest.fixture(scope="module")
def slow_call(slow: Live) -> Iterator[Calls]:
    trusted = grpc.ssl_channel_credentials((TLS / "fullchain.pem").read_bytes())
    with calls(address_of(slow), trusted) as client:
        until = time.monotonic() + PATIENCE_S
        while (row := client("RepositoryIndex").models[0]).state != "READY":
            assert row.reason in ("", "not loaded")
            assert time.monotonic() < until
            time.sleep(0.05)
        yield client


def test_a_deadline_and_a_client_that_goes_stop_the_run(slow: Live, slow_call: Calls) -> None:
    def metric(label: str) -> float:
        context = ssl.create_default_context(cafile=str(slow.folder / "fullchain.pem"))
        headers = {"Authorization": f"Bearer {TOKENS['monitor']}"}
        lines = httpx.get(f"{slow.url}/metrics", headers=headers, verify=context).text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == label)

    def wait_for(label: str, number: float) -> None:
        until = time.monotonic() + PATIENCE_S
        while metric(label) < number:
            assert time.monotonic() < until

    label = 'opbox_requests_total{method="POST",route="/v2/models/{model}/infer",status="499"}'
    with pytest.raises(grpc.RpcError) as raised:
        slow_call.callable("ModelInfer")(request(X, "slow"), metadata=metadata("ann"), timeout=0.3)
    assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    wait_for(label, 1)
    later = slow_call.callable("ModelInfer").future(request(X, "slow"), metadata=metadata("ann"))
    wait_for("opbox_requests_in_flight", 2)  # the one that asks for it is the other
    later.cancel()
    wait_for(label, 2)


def test_tls_with_a_certificate_that_is_renewed(slow: Live, slow_call: Calls, tmp_path: Path) -> None:
    assert slow_call("ServerMetadata").name == "opbox"
    address = slow_call.address
    with calls(address) as plain:
        assert plain.refusal("ServerLive")[0] == "UNAVAILABLE"
    key, certificate = tmp_path / "key.pem", tmp_path / "new.pem"
    write_certificate(key, certificate)
    folder = slow.folder
    key.replace(folder / "privkey.pem")
    certificate.replace(folder / "fullchain.pem")
    trusted = grpc.ssl_channel_credentials((folder / "fullchain.pem").read_bytes())
    until = time.monotonic() + PATIENCE_S
    while True:
        with calls(address, trusted) as renewed:
            try:
                assert renewed("ServerLive").live
                break
            except grpc.RpcError:
                assert time.monotonic() < until


def write_certificate(key: Path, certificate: Path) -> None:
    """Write a key and a certificate of this machine's address, for a day."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "renewed")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(7)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))


def test_a_stop_ends_streams(tmp_path: Path) -> None:
    live = Live("none", tmp_path, OPBOX_GRPC_PORT="0")
    with calls(address_of(live)) as client:
        open_ended = threading.Event()

        def requests() -> Iterator[Any]:
            yield request(X, "nothing")
            open_ended.wait(PATIENCE_S)

        answers = client.callable("ModelStreamInfer")(requests(), metadata=metadata("ann"), timeout=120)
        assert next(answers).error_message == UNKNOWN.format("'nothing'", INDEX)
        assert live.stop() == 0
        with pytest.raises(grpc.RpcError) as raised:
            next(answers)
        open_ended.set()
    assert (raised.value.code().name, raised.value.details()[:22]) == ("UNAVAILABLE", "the server is stopping")


def test_a_server_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h2.connection", None)
    for name in ("call", "connection", "service"):
        monkeypatch.delitem(sys.modules, f"opbox_service.grpc.{name}")
    monkeypatch.delitem(sys.modules, "opbox_service.grpc.server")
    settings = Settings(grpc_port=0, isolation="none")
    with pytest.raises(BadRequestError, match=r"grpc_port: expected the packages of opbox-service\[grpc\], got none"):
        grpc_server(create_app(settings), settings, None)


def test_a_port_that_is_taken() -> None:
    async def open_port(settings: Settings) -> None:
        GrpcServer(create_app(settings), settings, None).open()

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = Settings(grpc_port=port, isolation="none")
        with pytest.raises(
            BadRequestError, match=f"expected a port that this server may listen on, got 127.0.0.1:{port}"
        ):
            asyncio.run(open_port(settings))
