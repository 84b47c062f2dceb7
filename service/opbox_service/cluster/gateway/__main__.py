"""python -m opbox_service.cluster.gateway: the gateway as a process, beside an existing cluster.

    OPBOX_TOKENS_FILE=tokens.json python -m opbox_service.cluster.gateway --host 0.0.0.0 --port 8000

Its settings are environment variables OPBOX_…, as a server's: the tokens, which are the nodes', the certificate,
and the limits of connections.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import signal
import sys
from collections.abc import Sequence
from typing import Any

from opbox_protocol.errors import MXNetError

from ...listening import allow_open_files, listen, notify
from ...settings import Settings
from .controllers import Controllers
from .relay import FILES_OF_RELAYS
from .server import ClusterGateway

__all__ = ["main"]

RAY = "opbox_service.cluster.ray_gateway:connect"
"""What gives the controller of a cluster that Ray runs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT and requests in flight have finished; 0, or 2 where it cannot start."""
    parser = argparse.ArgumentParser("opbox cluster gateway", description="The gateway of a cluster.")
    parser.add_argument("--host", default=None, help="address to listen on (OPBOX_HOST)")
    parser.add_argument("--port", type=int, default=None, help="port to listen on; 0 takes a free one (OPBOX_PORT)")
    parser.add_argument("--controller", default=RAY, metavar="MODULE:FUNCTION", help=f"gives the controller: {RAY}")
    options = parser.parse_args(arguments)
    options_set = {name: value for name in ("host", "port") if (value := getattr(options, name)) is not None}
    try:
        settings = Settings(**options_set)
        controllers = _controllers(options.controller)
    except (ValueError, ImportError, AttributeError, MXNetError) as error:
        print(f"opbox cluster gateway: {error}", file=sys.stderr)
        return 2
    if not settings.is_anybody_known:
        print(
            "opbox cluster gateway: tokens: expected those of the nodes, got none: set OPBOX_TOKENS_FILE or "
            "OPBOX_TOKEN",
            file=sys.stderr,
        )
        return 2
    try:
        gateway = ClusterGateway(controllers, settings)
    except MXNetError as error:
        print(f"opbox cluster gateway: {error}", file=sys.stderr)
        return 2
    sock, _ = listen(settings)
    sock.listen(1024)  # who reads the line below may connect at once
    allow_open_files(2 * settings.max_connections + FILES_OF_RELAYS)
    host, port = sock.getsockname()[:2]
    scheme = "http" if gateway.certificate is None else "https"
    print(f"opbox cluster gateway on {scheme}://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
    run = _loop_runner()
    with run as runner:
        runner.run(_serve(gateway, sock))
    return 0


def _controllers(place: str) -> Controllers:
    module, _, name = place.partition(":")
    controllers: Controllers = getattr(importlib.import_module(module), name)()
    return controllers


def _loop_runner() -> asyncio.Runner:
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


async def _serve(gateway: ClusterGateway, sock: Any) -> None:
    task = asyncio.create_task(gateway.serve(sock))
    came: set[int] = set()

    def end(number: int) -> None:
        if not came or number in came:  # Ctrl-C of a terminal comes with the SIGTERM of who started this
            task.cancel()
        came.add(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    notify("READY=1")
    with contextlib.suppress(asyncio.CancelledError):
        await task


if __name__ == "__main__":
    sys.exit(main())
