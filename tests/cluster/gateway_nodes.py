"""Two or three real servers behind a real gateway, with a controller in this process, and no Ray."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from opbox_service.cluster.controller import Controller
from opbox_service.cluster.documents import NodeInfo
from opbox_service.cluster.gateway.controllers import LocalControllers
from opbox_service.cluster.gateway.server import ClusterGateway
from opbox_service.settings import Settings
from tests.contract.live import SCOPES, TOKENS, Live

__all__ = ["Box", "tokens_setting"]

GIB = 1 << 30


def tokens_setting() -> str:
    """OPBOX_TOKENS of the gateway: the nodes'."""
    return json.dumps([{"name": name, "token": token, "scopes": SCOPES[name]} for name, token in TOKENS.items()])


class GatewayThread:
    """A gateway in a thread of this process.

    Args:
        controller: which it asks.
        settings: further ones of its own.
    """

    def __init__(self, controller: Controller, **settings: Any) -> None:
        sock = socket.create_server(("127.0.0.1", 0))
        self.port = sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.clock = 0.0
        tokens = json.loads(tokens_setting())
        self.gateway = ClusterGateway(
            LocalControllers(controller, lambda: self.clock), Settings(tokens=tokens, **settings)
        )
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(sock,), daemon=True)
        self._thread.start()
        assert self._ready.wait(30)

    def _run(self, sock: socket.socket) -> None:
        async def serve() -> None:
            ready = asyncio.Event()
            self._task = asyncio.ensure_future(self.gateway.serve(sock, ready))
            await ready.wait()
            self._ready.set()
            await asyncio.gather(self._task, return_exceptions=True)

        self._loop.run_until_complete(serve())
        self._loop.close()

    def do(self, work: Any) -> Any:
        """Run a function in the gateway's thread, and return its result."""

        async def call() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(30)

    def stop(self) -> None:
        """End it."""
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(30)


class Box:
    """Nodes "a", "b", …, a controller that knows them, and a gateway.

    Args:
        folder: for the servers.
        names: of the nodes.
        settings: of the servers; "{node}" in one is the node's own folder.
    """

    def __init__(self, folder: Path, names: Sequence[str] = "ab", **settings: str) -> None:
        self.controller = Controller()
        self.lives: dict[str, Live] = {}
        for name in names:
            place = folder / name
            place.mkdir()
            own = {key: value.replace("{node}", str(place)) for key, value in settings.items()}
            self.lives[name] = Live("none", place, OPBOX_NODE=name, **own)
            self.controller.join(NodeInfo(name, self.lives[name].url, {"cpu": GIB}), 0.0)
        self.front = GatewayThread(self.controller)
        self.url = self.front.url
        self.ann = self.client("ann")

    def client(self, owner: str) -> httpx.Client:
        """A client of the gateway."""
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {TOKENS[owner]}"}, timeout=60)

    def change(self, work: Any) -> None:
        """Change the controller in the gateway's thread, and have the gateway see it."""
        self.front.do(work)
        asyncio.run_coroutine_threadsafe(self.front.gateway.refresh(), self.front._loop).result(30)

    def kill(self, name: str) -> None:
        """Kill a node's server."""
        self.lives[name].process.kill()
        self.lives[name].process.wait(30)

    def __enter__(self) -> Box:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.ann.close()
        self.front.stop()
        for live in self.lives.values():
            live.stop()
