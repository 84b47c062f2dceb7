"""HttpProtocol: large bodies arrive where they belong, whatever the client does before, behind and instead of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn

from opbox_service.api.connection_io import HEAD_BYTES
from opbox_service.api.connections import READ_BYTES
from opbox_service.api.http_protocol import RECEIVE_INTO, HttpProtocol
from opbox_service.api.request_context import Disconnected

BODY = bytes(range(256)) * 4096
"""1 MiB."""


class App:
    """Receives each body into a buffer of its length, and answers with its first, its last byte and its length.

    Attributes:
        parsed: bytes of bodies that the parser was shown.
        errors: what receiving came to.
        begun: set when a body is waited for.
    """

    def __init__(self) -> None:
        self.parsed = 0
        self.errors: list[BaseException] = []
        self.begun = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = bytearray(int(dict(scope["headers"]).get(b"content-length", b"0")))
        self.task = asyncio.current_task()
        self.begun.set()
        try:
            if body:
                await scope["extensions"][RECEIVE_INTO](memoryview(body), receive)
        except BaseException as error:
            self.errors.append(error)
            if isinstance(error, Disconnected):
                raise
        text = b"%d %d %d %d" % (len(body), body[0], body[-1], body == BODY) if body else b"no body"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(text))]})
        await send({"type": "http.response.body", "body": text})


Client: Any = Callable[[App, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def served(client: Client) -> App:
    """Have a client talk to a server; the app, when both have ended."""

    async def main() -> App:
        app = App()
        parsing = HttpProtocol.on_body

        class Counting(HttpProtocol):
            def on_body(self, body: bytes) -> None:
                app.parsed += len(body)
                parsing(self, body)

        config = uvicorn.Config(app, http=Counting, ws="none", lifespan="off", log_config=None, access_log=False)
        config.load()
        state = uvicorn.server.ServerState()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Counting(config, state, {}), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        await asyncio.wait_for(client(app, reader, writer), 60)
        writer.close()
        while state.tasks:
            await asyncio.sleep(0.001)
        server.close()
        return app

    return asyncio.run(main())


def head(nbytes: int, *further: bytes) -> bytes:
    lines = [b"POST / HTTP/1.1", b"Host: here", b"Content-Length: %d" % nbytes, *further]
    return b"\r\n".join(lines) + b"\r\n\r\n"


async def answer(reader: asyncio.StreamReader) -> bytes:
    await reader.readuntil(b"\r\n\r\n")
    return await reader.readexactly(len(b"1048576 0 255 1"))


def test_the_parser_is_shown_the_beginning_of_a_body_alone() -> None:
    async def client(app: App, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head(len(BODY)) + BODY)
        assert await answer(reader) == b"1048576 0 255 1"

    assert served(client).parsed <= READ_BYTES


def test_the_parser_is_shown_less_of_a_body_behind_another() -> None:
    async def client(app: App, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in range(5):
            writer.write(head(len(BODY)) + BODY)
            assert await answer(reader) == b"1048576 0 255 1"
            if number == 2:  # a small one between them is read at once
                writer.write(head(0))
                await reader.readuntil(b"no body")

    app = served(client)
    assert app.errors == []
    assert app.parsed <= 2 * READ_BYTES + 3 * HEAD_BYTES


def test_requests_behind_one_another_on_a_connection() -> None:
    async def client(app: App, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((head(len(BODY)) + BODY + head(0)) * 3 + head(len(BODY)) + BODY)
        for _ in range(3):
            assert await answer(reader) == b"1048576 0 255 1"
            await reader.readuntil(b"no body")
        assert await answer(reader) == b"1048576 0 255 1"

    assert served(client).errors == []


@pytest.mark.parametrize("begun", [0, 1, 1000])
def test_a_body_that_comes_long_after_its_head(begun: int) -> None:
    async def client(app: App, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            app.begun.clear()
            writer.write(head(len(BODY)) + BODY[:begun])
            await app.begun.wait()
            await asyncio.sleep(0.01)
            writer.write(BODY[begun:])
            assert await answer(reader) == b"1048576 0 255 1"

    assert served(client).parsed == 2 * begun


def test_a_client_that_waits_to_be_asked_for_the_body() -> None:
    async def client(app: App, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head(len(BODY), b"Expect: 100-continue"))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(BODY)
        assert await answer(reader) == b"1048576 0 255 1"

    assert served(client).errors == []


@pytest.mark.parametrize("sent", [0, 10, len(BODY) // 2])
def test_a_client_that_goes_away_amid_a_body(sent: int) -> None:
    async def client(app: App, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head(len(BODY)) + BODY[:sent])
        await app.begun.wait()
        await asyncio.sleep(0.01)

    assert [type(error) for error in served(client).errors] == [Disconnected]


def test_a_connection_ends_with_the_answer_to_a_body_that_was_not_waited_for() -> None:
    async def client(app: App, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head(len(BODY)) + BODY[:-1000])
        await app.begun.wait()
        await asyncio.sleep(0.01)
        assert app.task is not None
        app.task.cancel()
        rest = await reader.read()  # or what is still to come of the body would be taken for a request
        assert rest.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in rest

    assert [type(error) for error in served(client).errors] == [asyncio.CancelledError]
