"""HttpProtocol's limits: heads, times, requests sent ahead, answers that nobody reads, too many connections."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import re
import sys
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn

from opbox_service.api.connections import READ_BYTES, Connections
from opbox_service.api.http_protocol import MAX_HEADERS, RECEIVE_INTO, HttpProtocol
from opbox_service.api.request_context import Disconnected
from opbox_service.settings import Settings

GET = b"GET /%d HTTP/1.1\r\nHost: here\r\n\r\n"
LIMIT = 4096
"""Maximum bytes of a head in these tests."""


class App:
    """Answers with the request's path and its body's length.

    Attributes:
        scopes: of the requests that have begun.
        gone: the number of clients that went away before their body was there.
        begun: set when a request begins.
        ready: requests are answered from when it is set.
    """

    def __init__(self) -> None:
        self.scopes: list[Any] = []
        self.gone = 0
        self.begun = asyncio.Event()
        self.ready = asyncio.Event()
        self.ready.set()
        self.answer_bytes = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        self.begun.set()
        await self.ready.wait()
        headers = dict(scope["headers"])
        size, length = 0, int(headers.get(b"content-length", b"0"))
        try:
            if length:
                await scope["extensions"][RECEIVE_INTO](memoryview(bytearray(length)), receive)
            while b"transfer-encoding" in headers:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Disconnected
                size += len(message["body"])
                if not message["more_body"]:
                    break
        except Disconnected:
            self.gone += 1
            raise
        text = b"%b %d\n" % (scope["path"].encode(), size + length) + b" " * self.answer_bytes
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(text))]})
        await send({"type": "http.response.body", "body": text})


class Server:
    """A server on a loop's thread.

    Attributes:
        app: what it serves.
        connections: as it counts them.
        protocols: every protocol that it has made.
    """

    def __init__(self, **limits: Any) -> None:
        limits = {"request_head_s": 60.0, "max_request_head_bytes": LIMIT} | limits
        self.app = App()
        self.connections = Connections(Settings.model_construct(**limits))
        self.protocols: list[weakref.ref[HttpProtocol]] = []
        config = uvicorn.Config(self.app, ws="none", lifespan="off", log_config=None, access_log=False)
        config.load()
        self._config, self.state = config, uvicorn.server.ServerState()

    def _protocol(self) -> HttpProtocol:
        protocol = HttpProtocol(self._config, self.state, {}, connections=self.connections)
        self.protocols.append(weakref.ref(protocol))
        return protocol

    async def listen(self) -> asyncio.Server:
        self._server = await asyncio.get_running_loop().create_server(self._protocol, "127.0.0.1", 0)
        return self._server

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self._server.sockets[0].getsockname())


def run(client: Callable[[Server], Awaitable[None]], **limits: Any) -> Server:
    """Have a client talk to a server."""

    async def main() -> Server:
        server = Server(**limits)
        listening = await server.listen()
        await asyncio.wait_for(client(server), 60)
        server.app.ready.set()
        listening.close()
        while server.state.tasks:
            await asyncio.sleep(0.001)
        return server

    loops = uvicorn.Config(App(), loop="uvloop" if sys.platform != "win32" else "auto").get_loop_factory()
    with asyncio.Runner(loop_factory=loops) as runner:
        return runner.run(main())


async def answer(reader: asyncio.StreamReader) -> tuple[int, str]:
    """The next answer: its status, and its text or an error's sentence."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    text = (await reader.readexactly(int(length.split(b":")[1]))).decode()
    return int(head[9:12]), str(json.loads(text)["error"]) if text.startswith("{") else text.strip()


def sent(first: bytes, more: bytes, **limits: Any) -> tuple[int, str]:
    """What a client is answered that sends `first`, and then `more` without end."""
    answers: list[tuple[int, str]] = []

    async def client(server: Server) -> None:
        reader, writer = await server.connect()

        async def send() -> None:
            writer.write(first)
            while True:
                writer.write(more)
                await writer.drain()

        sending = asyncio.create_task(send())
        answers.append(await answer(reader))
        sending.cancel()
        with contextlib.suppress(ConnectionError):  # it was cut while more was sent
            assert await reader.read() == b""
        assert await asyncio.gather(sending, return_exceptions=True)
        writer.close()

    run(client, **limits)
    return answers[0]


CHUNKED = b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
LARGER = "or start the server with a larger OPBOX_MAX_REQUEST_HEAD_BYTES"


@pytest.mark.parametrize(
    ("first", "more", "status", "sentence"),
    [
        (b"GET / HTTP/1.1\r\na: ", b"b" * 1000, 431, f"line and headers: expected at most {LIMIT} bytes .* {LARGER}"),
        (b"GET / HTTP/1.1\r\n", b"a" * 1000, 431, f"line and headers: expected at most {LIMIT} bytes"),
        (b"GET / HTTP/1.1\r\n", (b"a:" + b"b" * 1000 + b"\r\n"), 431, f"line and headers: expected at most {LIMIT}"),
        (b"", b"\r\n" * 1000, 431, f"line and headers: expected at most {LIMIT} bytes"),
        (b"GET /", b"b" * 1000, 414, f"URL: expected at most {LIMIT} bytes of a request's line and headers, got more"),
        (CHUNKED + b"5;", b"b" * 1000, 400, f"body in chunks: expected data, got more than {LIMIT} bytes between"),
        (CHUNKED, b"0" * 1000, 400, "body in chunks: expected data"),
        (CHUNKED + b"1\r\na\r\n0\r\n", b"a: b\r\n" * 100, 400, "body in chunks: expected data"),
        (CHUNKED + b"1\r\na\r\n0\r\na: ", b"b" * 1000, 400, "body in chunks: expected data"),
        (b"", b"a" * 1000, 400, "request: expected HTTP/1.1, got something else: Invalid method"),
    ],
    ids=["value", "name", "headers", "empty lines", "URL", "extension", "size", "trailers", "trailer", "no HTTP"],
)
def test_what_has_no_end_is_refused(first: bytes, more: bytes, status: int, sentence: str) -> None:
    code, text = sent(first, more)
    assert code == status
    assert re.search(sentence, text), text


def test_a_head_may_be_as_large_as_the_limit_and_no_larger() -> None:
    async def client(server: Server) -> None:
        for size, status in ((LIMIT, 200), (LIMIT + 1, 431)):
            reader, writer = await server.connect()
            start, end = b"GET / HTTP/1.1\r\nHost: here\r\na: ", b"\r\n\r\n"
            writer.write(start + b"b" * (size - len(start) - len(end)) + end)
            assert (await answer(reader))[0] == status
            writer.close()

    run(client)


def test_a_request_may_have_many_headers_but_not_any_number() -> None:
    async def client(server: Server) -> None:
        for number, status in ((MAX_HEADERS, 200), (MAX_HEADERS + 1, 431)):
            reader, writer = await server.connect()
            writer.write(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * number + b"\r\n")
            code, text = await answer(reader)
            assert code == status, text
            writer.close()
        assert len(server.app.scopes) == 1

    run(client)


def test_trailers_are_no_headers() -> None:
    async def client(server: Server) -> None:
        reader, writer = await server.connect()
        writer.write(CHUNKED + b"5\r\nhello\r\n0\r\nauthorization: Bearer x\r\n\r\n" + GET % 2)
        assert await answer(reader) == (200, "/ 5")
        assert await answer(reader) == (200, "/2 0")
        assert [name for name, _ in server.app.scopes[0]["headers"]] == [b"host", b"transfer-encoding"]
        writer.close()

    run(client)


BODY = b"POST /body HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\n\r\n\r\n\r\n\r\n."
STREAM = (
    GET % 1 + BODY + CHUNKED.replace(b"/ ", b"/chunks ") + b"5\r\n\r\n\r\n.\r\n0\r\n\r\n" + b"\r\n" + GET % 2 + BODY
)
ANSWERS = ["/1 0", "/body 9", "/chunks 5", "/2 0", "/body 9"]


@pytest.mark.parametrize("size", [*range(1, 9), len(STREAM)])
def test_one_request_at_a_time_is_parsed_however_it_is_cut(size: int) -> None:
    async def client(server: Server) -> None:
        reader, writer = await server.connect()
        for at in range(0, len(STREAM), size):
            writer.write(STREAM[at : at + size])
            await asyncio.sleep(0)  # pieces that come one by one, mostly
            for reference in server.protocols:
                protocol = reference()
                assert protocol is None or not protocol.pipeline
        assert [(await answer(reader))[1] for _ in ANSWERS] == ANSWERS
        writer.close()

    run(client)


def test_requests_sent_ahead_wait_in_the_clients_system() -> None:
    async def client(server: Server) -> None:
        server.app.ready.clear()
        reader, writer = await server.connect()
        number = 2 * READ_BYTES // len(GET)
        writer.write(b"".join(GET % i for i in range(number)))
        await server.app.begun.wait()
        await server.app.begun.wait()
        (protocol,) = [reference() for reference in server.protocols]
        assert protocol is not None
        while not protocol.flow.read_paused:
            await asyncio.sleep(0.001)
        assert len(server.app.scopes) == 1
        assert not protocol.pipeline
        assert len(protocol._rest) <= READ_BYTES
        server.app.ready.set()
        for i in range(number):
            assert await answer(reader) == (200, f"/{i} 0")
        writer.close()

    run(client)


def test_answers_that_nobody_reads_end_the_connection() -> None:
    async def client(server: Server) -> None:
        server.app.answer_bytes = 100_000
        _, writer = await server.connect()
        transport: Any = writer.transport
        transport.pause_reading()
        with contextlib.suppress(ConnectionError):
            while server.connections.lost == 0:
                writer.write(GET % 1)
                await writer.drain()
                await asyncio.sleep(0.001)
        writer.close()

    run(client, stall_s=0.2)


@pytest.mark.parametrize("before", [b"", GET % 1], ids=["first", "second"])
@pytest.mark.parametrize("drips", [False, True])
def test_a_head_has_its_time(before: bytes, drips: bool) -> None:
    async def client(server: Server) -> None:
        reader, writer = await server.connect()
        if before:
            writer.write(before)
            assert await answer(reader) == (200, "/1 0")
        writer.write(b"GET / HTTP/1.1\r\na: ")

        async def drip() -> None:
            while drips:
                writer.write(b"b")
                await asyncio.sleep(0.01)

        dripping = asyncio.create_task(drip())
        code, text = await answer(reader)
        assert code == 408
        assert re.match(r"request's line and headers: expected them within 0\.2 s, got \d+ bytes: send them", text)
        dripping.cancel()
        writer.close()
        assert len(server.app.scopes) == bool(before)

    run(client, request_head_s=0.2)


def test_a_silent_connection_is_closed_without_a_word() -> None:
    async def client(server: Server) -> None:
        reader, writer = await server.connect()
        assert await reader.read() == b""
        writer.close()
        assert server.connections.refused == {"silent": 1}

    run(client, request_head_s=0.1)


@pytest.mark.parametrize(
    ("head", "begun"),
    [
        (b"POST / HTTP/1.1\r\nContent-Length: 100000\r\n\r\n", b""),
        (b"POST / HTTP/1.1\r\nContent-Length: 100000\r\n\r\n", b"begun"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"5\r\nhello\r\n"),
    ],
    ids=["none of it", "some of it", "in chunks"],
)
@pytest.mark.parametrize("drips", [False, True])
def test_a_body_that_does_not_come_is_given_up(head: bytes, begun: bytes, drips: bool) -> None:
    async def client(server: Server) -> None:
        reader, writer = await server.connect()
        writer.write(head + begun)

        async def drip() -> None:
            while drips:
                writer.write(b"1\r\na\r\n")
                await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip())
        code, text = await answer(reader)
        assert code == 408
        assert re.match(r"body: expected at least 1024 bytes in a second, got \d+ in 0\.3 s: send it faster", text)
        dripping.cancel()
        writer.close()

    assert run(client, stall_s=0.3).app.gone == 1


def test_a_body_that_the_application_does_not_ask_for_is_not_late() -> None:
    async def client(server: Server) -> None:
        server.app.ready.clear()
        reader, writer = await server.connect()
        writer.write(b"POST /body HTTP/1.1\r\nContent-Length: 100000\r\n\r\nbegun")
        await server.app.begun.wait()
        await asyncio.sleep(0.5)  # several times the limit
        server.app.ready.set()
        writer.write(b"x" * 99_995)
        assert await answer(reader) == (200, "/body 100000")
        writer.close()

    run(client, stall_s=0.1)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_request_that_asks_for_another_protocol_is_served_by_this_one(chunked: bool) -> None:
    """As Java's client asks for HTTP/2 with each request."""
    framing, body = (
        (b"Transfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n")
        if chunked
        else (
            b"Content-Length: 5",
            b"hello",
        )
    )

    async def client(server: Server) -> None:
        reader, writer = await server.connect()
        lines = [b"POST /upgrade HTTP/1.1", b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", framing]
        writer.write(b"\r\n".join(lines) + b"\r\n\r\n" + body + GET % 2)
        assert await answer(reader) == (200, "/upgrade 5")
        assert await answer(reader) == (200, "/2 0")
        writer.close()

    run(client)


def test_a_connection_too_many_is_told_so() -> None:
    async def client(server: Server) -> None:
        server.app.ready.clear()
        pairs = []
        for i in range(4):
            pairs.append(await server.connect())
            pairs[-1][1].write(GET % i)
            while len(server.app.scopes) <= i:
                await asyncio.sleep(0.001)
        reader, writer = await server.connect()
        text = "connections: expected at most 4, got more: try again in a moment, or start the server with a larger "
        assert await answer(reader) == (503, text + "OPBOX_MAX_CONNECTIONS")
        assert await reader.read() == b""
        writer.close()
        server.app.ready.set()
        for i, (reader, _) in enumerate(pairs):
            assert await answer(reader) == (200, f"/{i} 0")
        reader, writer = await server.connect()  # the place of the one that is idle for longest
        writer.write(GET % 9)
        assert await answer(reader) == (200, "/9 0")
        assert await pairs[0][0].read() == b""
        for _, other in [*pairs, (reader, writer)]:
            other.close()

    run(client, max_connections=4)


def test_nothing_refers_to_a_connection_that_has_ended() -> None:
    async def client(server: Server) -> None:
        sockets = [await server.connect() for _ in range(5)]
        for i, (reader, writer) in enumerate(sockets):
            writer.write([GET % 1, BODY, GET[:9], b"\x16", GET % 1 + GET % 2][i])
            if i != 2:
                await answer(reader)
            writer.transport.abort()
        while server.connections.lost < len(sockets) or server.state.tasks:
            await asyncio.sleep(0.001)
        while any(reference() is not None for reference in server.protocols):
            await asyncio.sleep(0.001)

    gc.disable()  # a server's collector does not look at what lives for long
    try:
        run(client)
    finally:
        gc.enable()
