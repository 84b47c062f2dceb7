"""LinkProxy: passes HTTP on as a link of a certain length and rate does, and cuts, stalls or answers where it is told.

with LinkProxy(("127.0.0.1", 8000), LINKS["home"]) as proxy:
    mx.connect(proxy.url)
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["LINKS", "Exchange", "Fault", "Link", "LinkProxy"]

CHUNK = 1 << 14
"""Bytes that travel at a time."""
IN_FLIGHT = 64
"""Number of chunks that may be on their way in each direction."""
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)


@dataclass(frozen=True)
class Link:
    """A link between a program and its server.

    Attributes:
        round_trip_s: seconds there and back.
        rate: bytes per second each way; None without a limit.
    """

    round_trip_s: float = 0.0
    rate: float | None = None


LINKS = {
    "loopback": Link(),
    "office": Link(0.020, 100e6 / 8),
    "home": Link(0.050, 50e6 / 8),
    "hotel": Link(0.020, 20e6 / 8),
}


@dataclass(frozen=True)
class Exchange:
    """A request and its answer.

    Attributes:
        number: of the request, from 1, over all connections.
        method, path: its first line.
    """

    number: int
    method: str
    path: str

    @property
    def is_batch(self) -> bool:
        """Whether it carries commands of a session."""
        return self.path.endswith("/commands") and self.method == "POST"


@dataclass(frozen=True)
class Fault:
    """What happens to an exchange.

    Attributes:
        where: "request" or "answer".
        part: the head or the body.
        at: how much of that part goes through before it happens, from 0 to 1.
        kind: "reset" or "close" the connection; "stall" for `seconds`, then go on; "twice": send the request to the
            server once more and drop the answer; a number: answer with a page of this status instead.
        seconds: of a stall.
    """

    where: Literal["request", "answer"] = "request"
    part: Literal["head", "body"] = "head"
    at: float = 0.0
    kind: Literal["reset", "close", "stall", "twice"] | int = "reset"
    seconds: float = 0.0


class _Cut(Exception):
    """The connection ends here."""


class LinkProxy:
    """A proxy on a free port of this machine, in a thread of its own.

    Args:
        target: the server's host and port.
        link: the delay and the rates.
        fault: chooses what happens to an exchange; it is called with each one's request.

    Attributes:
        url: where it listens.
        up, down: bytes passed to the server, and from it.
        exchanges: the requests that came.
    """

    def __init__(
        self,
        target: tuple[str, int],
        link: Link = LINKS["loopback"],
        fault: Callable[[Exchange], Fault | None] = lambda exchange: None,
    ) -> None:
        self._target, self._link, self.fault = target, link, fault
        self.up = self.down = 0
        self.exchanges: list[Exchange] = []
        self._free = {"request": 0.0, "answer": 0.0}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def __enter__(self) -> LinkProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _end(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(self._link.round_trip_s)  # what a connection takes to be opened
        behind, there = await asyncio.open_connection(*self._target)
        fault: Fault | None = None
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                method, path = head.split(b" ", 2)[:2]
                exchange = Exchange(len(self.exchanges) + 1, method.decode(), path.decode())
                self.exchanges.append(exchange)
                fault = self.fault(exchange)
                request = await self._pass("request", head, reader, there, fault)
                if fault is not None and fault.kind == "twice":
                    await self._once_more(request)
                elif fault is not None and isinstance(fault.kind, int):
                    if fault.where == "answer":  # the server has run it: its answer does not come through
                        await self._drop(behind)
                    writer.write(_page(fault.kind))
                    await writer.drain()
                    continue
                await self._pass("answer", await behind.readuntil(b"\r\n\r\n"), behind, writer, fault)
        except _Cut:
            if fault is not None and fault.kind == "reset":
                _reset(writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            there.close()

    async def _pass(
        self,
        where: Literal["request", "answer"],
        head: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        fault: Fault | None,
    ) -> bytes:
        """Pass a message on, and return the bytes of a request that may be sent once more."""
        match = _LENGTH.search(head)
        length = int(match[1]) if match else 0
        here = fault is not None and fault.where == where and fault.kind in ("reset", "close", "stall")
        stop = -1
        if fault is not None and isinstance(fault.kind, int) and fault.where == "request" == where:
            await _exactly(reader, length)
            return b""
        if fault is not None and here:
            stop = int(fault.at * len(head)) if fault.part == "head" else len(head) + int(fault.at * length)
        chunks: asyncio.Queue[tuple[float, bytes] | None] = asyncio.Queue(IN_FLIGHT)

        async def read() -> None:
            left, chunk = length, head
            while True:
                await chunks.put((self._arrives(where, len(chunk)), chunk))
                if not left:
                    break
                chunk = await reader.read(min(CHUNK, left))
                if not chunk:
                    break
                left -= len(chunk)
            await chunks.put(None)

        reading, sent, whole = asyncio.create_task(read()), 0, []
        try:
            while (row := await chunks.get()) is not None:
                arrives, chunk = row
                await asyncio.sleep(arrives - self._loop.time())
                if 0 <= stop <= sent + len(chunk) and fault is not None:
                    writer.write(chunk[: stop - sent])
                    await writer.drain()
                    if fault.kind != "stall":
                        raise _Cut
                    await asyncio.sleep(fault.seconds)
                    chunk, sent, stop = chunk[stop - sent :], stop, -1
                writer.write(chunk)
                await writer.drain()
                sent += len(chunk)
                if fault is not None and fault.kind == "twice":
                    whole.append(chunk)
            await reading
        finally:
            reading.cancel()
            if where == "request":
                self.up += sent
            else:
                self.down += sent
        if sent < len(head) + length:
            raise _Cut
        return b"".join(whole)

    def _arrives(self, where: str, nbytes: int) -> float:
        """When bytes that are sent now have come to the other end."""
        begun = max(self._loop.time(), self._free[where])
        self._free[where] = begun + (nbytes / self._link.rate if self._link.rate else 0.0)
        return self._free[where] + self._link.round_trip_s / 2

    async def _drop(self, reader: asyncio.StreamReader) -> None:
        match = _LENGTH.search(await reader.readuntil(b"\r\n\r\n"))
        await _exactly(reader, int(match[1]) if match else 0)

    async def _once_more(self, request: bytes) -> None:
        reader, writer = await asyncio.open_connection(*self._target)
        writer.write(request)
        await self._drop(reader)
        writer.close()


async def _exactly(reader: asyncio.StreamReader, length: int) -> None:
    while length:
        chunk = await reader.read(min(CHUNK, length))
        if not chunk:
            raise _Cut
        length -= len(chunk)


def _page(status: int) -> bytes:
    page = f"<html><head><title>{status} of a gateway</title></head></html>".encode()
    head = f"HTTP/1.1 {status} Gateway\r\nContent-Type: text/html\r\nContent-Length: {len(page)}\r\n\r\n"
    return head.encode() + page


def _reset(writer: asyncio.StreamWriter) -> None:
    """Have the connection reset when it is closed."""
    with contextlib.suppress(OSError):
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
