"""Sends one request again and again over some connections, and prints how many were answered and how fast, as JSON:

    python http_load.py PORT CONNECTIONS SECONDS < request

The request is a whole one, with its head. Every answer must have the status 200 and a Content-Length.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import uvloop


class Caller(asyncio.Protocol):
    """A connection: the next request goes when the answer to the last one is here."""

    def __init__(self, request: bytes, until: float) -> None:
        self._request, self._until = request, until
        self._head, self._left = b"", 0
        self.times: list[float] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:  # uvloop's are none of asyncio's classes
        self._transport = transport
        self._send()

    def _send(self) -> None:
        self._begun = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self._left:
            head, end, body = (self._head + data).partition(b"\r\n\r\n")
            if not end:
                self._head = head
                return
            if not head.startswith(b"HTTP/1.1 200"):
                self._fail(head + body)
                return
            lines = head.lower().split(b"\r\n")
            length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
            self._head, self._left, data = b"", length, body
        self._left -= len(data)
        if not self._left:
            now = time.perf_counter()
            self.times.append(now - self._begun)
            if now < self._until:
                self._send()
            else:
                self._transport.close()

    def _fail(self, answer: bytes) -> None:
        self.ended.set_exception(RuntimeError(answer[:500].decode("latin-1")))
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


async def main(port: int, connections: int, seconds: float, request: bytes) -> dict[str, float]:
    """Call, and count."""
    loop, until = asyncio.get_running_loop(), time.perf_counter() + seconds
    begun = time.perf_counter()
    callers = [
        (await loop.create_connection(lambda: Caller(request, until), "127.0.0.1", port))[1] for _ in range(connections)
    ]
    await asyncio.gather(*(caller.ended for caller in callers))
    times = sorted(second for caller in callers for second in caller.times)
    took = time.perf_counter() - begun
    return {
        "count": len(times),
        "rate": len(times) / took,
        "p50": times[len(times) // 2],
        "p99": times[len(times) * 99 // 100],
    }


if __name__ == "__main__":
    port, connections, seconds = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(main(int(port), int(connections), float(seconds), sys.stdin.buffer.read()))))
