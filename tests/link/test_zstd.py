"""Compression where it pays: by negotiation, on slow links, of what shrinks; never more memory than a quota has."""

from __future__ import annotations

import asyncio
import gzip
import math
import zlib
from collections.abc import Callable, Iterator

import httpx
import numpy as np
import pytest
import zstandard

import opbox as mx
from opbox.http import HttpTransport
from opbox.link_rates import FAST, LinkRates
from opbox.session import Session as ClientSession
from opbox_protocol import wire, zstd
from tests.contract.live import TOKENS, Live, Session
from tests.link.proxy import Link, LinkProxy

SLOW = Link(0.005, 5e6)
"""5 MB/s: far below what compressing costs, whatever else the machine does."""
IMAGES = np.repeat(np.random.default_rng(0).integers(0, 8, (80, 49)) / 8, 16, axis=1).astype(np.float32)
NOISE = np.random.default_rng(0).standard_normal((80, 784)).astype(np.float32)
"""250 KB each."""
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "zstd": lambda body: b"".join(zstd.compress([body])),
    "gzip": lambda body: gzip.compress(body, 1),
    "deflate": lambda body: zlib.compress(body, 1),
}
PREFERS = {"Accept-Encoding": "zstd, identity;q=0.5"}


@pytest.fixture(scope="module", params=["none", "process"])
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    server = Live(request.param, tmp_path_factory.mktemp("zstd"), OPBOX_MAX_OWNER_BUFFER_BYTES=str(4 << 20))
    yield server
    assert server.stop() == 0


@pytest.fixture
def proxy(live: Live) -> Iterator[LinkProxy]:
    host, port = live.url.removeprefix("http://").split(":")
    with LinkProxy((host, int(port)), SLOW) as proxy:
        yield proxy


@pytest.fixture
def session(live: Live) -> Iterator[Session]:
    session = live.session()
    yield session
    session.delete()


def framed(session: Session, values: np.ndarray, coding: str = "zstd", body: bytes | None = None) -> httpx.Response:
    """A batch that brings values and fetches them again, compressed."""
    session.seq += 1
    commands = [{"do": "put", "id": session.seq, "tensor": "x"}, {"do": "fetch", "id": session.seq, "as": "y"}]
    head, buffers = wire.encode({"commands": commands}, {"x": values}, "inputs")
    content = COMPRESS.get(coding, COMPRESS["zstd"])(b"".join([head, *buffers])) if body is None else body
    headers = {wire.HEADER_LENGTH: str(len(head)), "Content-Encoding": coding}
    return session.server.clients[session.owner].post(f"{session.path}/commands", content=content, headers=headers)


def values_of(answer: httpx.Response) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    return wire.decode(answer.content, int(answer.headers[wire.HEADER_LENGTH]), key="outputs").tensors["y"]


@pytest.mark.parametrize("values", [IMAGES, NOISE, IMAGES[:1, :5]], ids=["images", "noise", "small"])
@pytest.mark.parametrize("coding", COMPRESS)
def test_a_compressed_body(session: Session, values: np.ndarray, coding: str) -> None:
    assert values_of(framed(session, values, coding)).tobytes() == values.tobytes()


def test_a_compressed_body_in_parts(session: Session) -> None:
    head, buffers = wire.encode({"commands": [{"do": "put", "id": 1, "tensor": "x"}]}, {"x": NOISE}, "inputs")
    body = b"".join(zstd.compress([head, *buffers]))
    for begin, end in ((0, 100_000), (100_000, len(body))):
        part = {"Opbox-Call": "z/1", "Opbox-Part": f"{begin}/{len(body)}", "Content-Encoding": "zstd"}
        headers = {wire.HEADER_LENGTH: str(len(head)), **part}
        answer = session.server.clients["ann"].post(
            f"{session.path}/commands", content=body[begin:end], headers=headers
        )
    assert answer.status_code == 200, answer.text
    session.seq = 1
    fetched = session.run({"do": "fetch", "id": 1, "as": "y"})
    assert fetched.tensors["y"].tobytes() == NOISE.tobytes()


@pytest.mark.parametrize("coding", ["br", "zstd, gzip", "zstd, zstd"])
def test_other_codings(session: Session, coding: str) -> None:
    answer = framed(session, IMAGES, coding)
    assert (answer.status_code, answer.json()["type"]) == (415, "EncodingError")
    assert answer.json()["error"] == f"Content-Encoding: expected zstd, gzip, deflate or none, got {coding!r}"


WHOLE = b"".join(zstd.compress([bytes(1000)]))
HUGE = zstandard.ZstdCompressor().compressobj(size=1 << 40)


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        (WHOLE[:-2], 400, "it was broken off"),
        (WHOLE * 2, 400, "got more"),
        (b"{}", 400, "expected a zstd frame"),
        (
            HUGE.compress(bytes(1 << 20)),
            413,
            "body: expected at most 67108864 bytes, got 1099511627776 in its zstd frame",
        ),
        (b"".join(zstd.compress([bytes(8 << 20)])), 429, "transfer buffers: expected at most 4194304 bytes"),
    ],
    ids=["cut", "two", "other", "huge", "quota"],
)
def test_bombs_and_broken_zstd_frames(session: Session, body: bytes, status: int, sentence: str) -> None:
    for _ in range(3):  # nothing of it stays
        answer = framed(session, IMAGES, body=body)
        assert answer.status_code == status
        assert sentence in answer.json()["error"]
        assert "\n" not in answer.json()["error"]
    assert framed(session, np.zeros(3_900_000, np.uint8)).status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        (gzip.compress(bytes(1000))[:-2], 400, "body: expected a whole gzip stream, got one that was broken off"),
        (gzip.compress(bytes(1000)) * 2, 400, "body: expected one gzip stream, got further bytes behind it"),
        (gzip.compress(bytes(1000))[:-8] + bytes(8), 400, "got other bytes (incorrect data check)"),
        (b"{}", 400, "body: expected a gzip stream, as Content-Encoding says, got other bytes ("),
        (b"", 400, "body: expected a whole gzip stream, got one that was broken off"),
        (gzip.compress(bytes(8 << 20)), 429, "transfer buffers: expected at most 4194304 bytes"),
    ],
    ids=["cut", "two", "damaged", "other", "none", "quota"],
)
def test_bombs_and_broken_gzip_streams(session: Session, body: bytes, status: int, sentence: str) -> None:
    for _ in range(3):  # nothing of it stays
        answer = framed(session, IMAGES, "gzip", body)
        assert (answer.status_code, sentence in answer.json()["error"]) == (status, True), answer.text
        assert "\n" not in answer.json()["error"]
    assert framed(session, np.zeros(3_900_000, np.uint8), "gzip").status_code == 200


@pytest.mark.parametrize(
    ("accept", "coding"),
    [
        ("zstd, identity;q=0.5", "zstd"),
        ("gzip, zstd;q=0.9, identity; q=0", "zstd"),
        ("zstd", None),
        ("gzip, deflate, br, zstd", None),
        ("zstd;q=0, identity;q=0.5", None),
        ("identity", None),
    ],
)
def test_an_answer_is_compressed_if_the_client_prefers_it(session: Session, accept: str, coding: str | None) -> None:
    for id, values in ((1, IMAGES), (2, NOISE)):
        assert session.run({"do": "put", "id": id, "tensor": "x"}, x=values).status == 200
        body = {"commands": [{"do": "fetch", "id": id, "as": "y"}]}
        headers = {"Accept": "application/octet-stream", "Accept-Encoding": accept}
        answer = session.server.clients["ann"].post(f"{session.path}/commands", json=body, headers=headers)
        session.seq += 1
        assert values_of(answer).tobytes() == values.tobytes()
        assert answer.headers.get("Content-Encoding") == (coding if values is IMAGES else None)
        assert (answer.num_bytes_downloaded < values.nbytes / 3) == (coding is not None and values is IMAGES)


@pytest.mark.parametrize("client", ["lean", "httpx"])
def test_a_slow_link(proxy: LinkProxy, client: str) -> None:
    """The first megabyte tells how slow it is; then what shrinks is compressed, both ways, and what does not is not."""
    own = httpx.Client()
    transport = HttpTransport(proxy.url, TOKENS["ann"], http=own if client == "httpx" else None)
    session = ClientSession(transport, "cpu")

    def send(values: np.ndarray) -> tuple[int, int]:
        """The bytes that it takes there and back."""
        up, down = proxy.up, proxy.down
        id = session.new_id()
        session.record({"do": "put", "id": id, "tensor": ""}, values)
        assert session.fetch(id).result().tobytes() == values.tobytes()
        transport.call("GET", "/v2")  # behind which all of it is counted
        return proxy.up - up, proxy.down - down

    for _ in range(5):
        assert min(send(NOISE)) >= NOISE.nbytes
    assert max(send(IMAGES)) < IMAGES.nbytes / 3
    assert min(send(NOISE)) >= NOISE.nbytes
    assert session.stats["bytes_up"] < proxy.up
    session.close()
    transport.close()
    own.close()


def test_switched_off(proxy: LinkProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPBOX_COMPRESS", "0")
    transport = HttpTransport(proxy.url, TOKENS["ann"])
    transport._gateway.link.add(1 << 20, 0, 1.0)
    transport._gateway.link.add(0, 1 << 20, 1.0)
    graph = mx.sym.var("x")._document()
    reply = transport.call("POST", "/v1/forward", {"graph": graph}, {"x": IMAGES})
    transport.call("GET", "/v2")  # behind which all of it is counted
    assert min(proxy.up, proxy.down) > IMAGES.nbytes
    (values,) = reply.tensors.values()
    assert values.tobytes() == IMAGES.tobytes()
    transport.close()


def test_asyncio(proxy: LinkProxy) -> None:
    async def run() -> bytes:
        async with mx.aio.connect(proxy.url, token=TOKENS["ann"]) as server:
            server._gateway.link.add(1 << 20, 0, 1.0)
            server._gateway.link.add(0, 1 << 20, 1.0)
            (values,) = (await server.forward(mx.sym.var("x"), {"x": IMAGES})).values()
            return values.tobytes()

    assert asyncio.run(run()) == IMAGES.tobytes()
    assert max(proxy.up, proxy.down) < IMAGES.nbytes / 3


def rates(nbytes: int, seconds: float, times: int = 4) -> LinkRates:
    link = LinkRates()
    link.add(100, 100, 0.02)  # the round trip
    for _ in range(times):
        link.add(nbytes, 100, 0.02 + seconds)
    return link


def test_what_a_link_is_worth() -> None:
    cheap, dear = zstd.Sample(0.2, 2e-9), zstd.Sample(0.2, 1e-6)
    slow = rates(1 << 19, 0.25)  # 2 MB/s
    assert slow.is_slow_up
    assert not slow.is_slow_down
    assert slow.pays(cheap)
    assert not slow.pays(dear)
    assert not slow.pays(zstd.Sample(0.95, 2e-9))
    assert not rates(1 << 19, 0.25, times=1).is_slow_up  # too little to tell
    assert not rates(1 << 14, 0.25, times=100).is_slow_up  # too small to measure
    assert not rates(1 << 19, (1 << 19) / FAST / 2).is_slow_up
    slow.add(1 << 19, 100, 0.02)  # one that waited for nothing
    assert not slow.is_slow_up
    assert not math.isfinite(LinkRates()._up.value)
