"""`opbox serve`: the server as a program.

    main(["--port", "0", "--isolation", "none"])

Every setting (settings.py) but the secret ones is an option, which wins over the environment.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import structlog
import uvicorn
from pydantic import SecretStr, ValidationError
from pydantic_settings import CliSettingsSource, SettingsError

from opbox import token_store
from opbox_ops import switches
from opbox_ops.backend.gpu_description import gpu_description
from opbox_ops.cpu.description import cpu_description
from opbox_protocol.collector import begin_tending, tend
from opbox_protocol.errors import BadRequestError, FileError, MXNetError

from .allocator import return_memory, tune_allocator
from .api.connections import Connections
from .api.http_protocol import HttpProtocol
from .api.middleware import Middleware
from .api.tls import Certificate
from .api.tls_listener import TlsListener
from .app import create_app
from .environment import check_environment
from .listening import allow_open_files, listen, notify
from .logs import configure
from .memory_shares import within_machine
from .selfcheck.first_use import start_check
from .settings import SECRETS, Settings
from .token_hashes import new_token
from .validation import explain
from .worker.orphans import adopt_strays

if TYPE_CHECKING:
    from .grpc.server import GrpcServer

__all__ = ["Server", "grpc_server", "main"]


LINGER_S = 1.0
"""Seconds that connections stay open after a stop if another server shares the port."""
GRPC_S = 1.0
"""Seconds for answers by gRPC to be on their way, once all requests have been answered."""
MANY_LOST = 64
"""Number of ended connections after which their memory is returned to the system."""
_log = structlog.get_logger("opbox.serve")


class Server(uvicorn.Server):
    """A uvicorn server that prints where it listens, and turns unready as soon as it is asked to stop."""

    def __init__(self, settings: Settings, *, announce: bool = True) -> None:
        self.socket, self._shared = listen(settings)
        if self._shared:
            settings = settings.model_copy(update={"host": str(self.socket.getsockname()[0])})
        self.settings, self._new_token = _with_token(within_machine(settings))
        self._certificate = Certificate.of(self.settings)
        self.connections = Connections(self.settings)
        self.middleware = create_app(self.settings)
        self.settings = self.settings.without_plain_tokens()
        self._grpc = grpc_server(self.middleware, self.settings, self._certificate)
        self._announce = announce
        self._stopped = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked_by: int | None = None
        self._lost = 0
        self._selfcheck: subprocess.Popen[bytes] | None = None
        super().__init__(
            uvicorn.Config(
                self.middleware,
                loop="uvloop" if sys.platform != "win32" else "auto",
                http=self._protocol,  # type: ignore[arg-type]  # uvicorn calls it, as it calls a class
                lifespan="on",
                ws="none",
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_keep_alive=self.settings.keep_alive_s,  # type: ignore[arg-type]  # or parts of a second
                forwarded_allow_ips=list(self.settings.trusted_proxies),
                timeout_graceful_shutdown=max(1, round(self.settings.stop_grace_s)),
            )
        )

    @property
    def url(self) -> str:
        """The server's URL."""
        host, port = self.socket.getsockname()[:2]
        return f"{self._scheme}://[{host}]:{port}" if ":" in host else f"{self._scheme}://{host}:{port}"

    @property
    def _scheme(self) -> str:
        return "http" if self._certificate is None else "https"

    def _protocol(self, **uvicorns: Any) -> asyncio.Protocol:
        """Make the protocol of a new connection."""
        return HttpProtocol(**uvicorns, connections=self.connections)

    @property
    def page(self) -> str:
        """The page's address, which signs in by itself where the token was made here: nobody knows it yet."""
        host, port = self.socket.getsockname()[:2]
        address = ipaddress.ip_address(host)
        name = socket.gethostname() if address.is_unspecified else f"[{host}]" if address.version == 6 else host
        return f"{self._scheme}://{name}:{port}/" + (f"?token={self._new_token}" if self._new_token else "")

    @property
    def place(self) -> str:
        """A description of where calls run."""
        settings = self.settings
        if settings.isolation == "none":
            return f"in this process, on {settings.device}"
        if settings.workers == "auto":
            return f"in a worker process for each owner, on {settings.device}"
        return f"in {settings.workers} worker process{'es' if settings.workers > 1 else ''}, on {settings.device}"

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal."""
        tune_allocator()
        listeners = [self.connections] + ([] if self._grpc is None else [self._grpc.connections])
        allowed = allow_open_files(len(listeners) * self.settings.max_connections)
        for connections in listeners:
            connections.lower(allowed // len(listeners))
        super().run(sockets=sockets or [self.socket])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._announce:
            say(f"starting {self.place}: operators are loaded, which takes a few seconds")
        self._selfcheck = start_check(self.settings)
        try:
            if self._grpc is not None:
                self._grpc.open()
            # Before uvicorn starts the app, as it would log the traceback of what is one sentence.
            await self.middleware.server.pool.start()
        except MXNetError as error:
            raise SystemExit(f"opbox serve: {error}") from None
        # Calls that ask for it would wait for the driver's answer on this thread.
        gpu = await asyncio.to_thread(gpu_description)
        if self._announce:
            cpu = cpu_description()
            say(f"the CPU computes by {cpu.line}", warns=cpu.incomplete)
            if gpu.line:
                say(f"GPU: {gpu.line}", warns=gpu.incomplete)
        with self._begin_tls():
            await super().startup(sockets)
        if self._grpc is not None:
            await self._grpc.start()
        begin_tending()
        if self._new_token:
            _store_token(self.url, self._new_token)
        if self._announce:
            print(f"opbox serving on {self.url}", flush=True)
            print(f"token: {self._new_token or 'as configured'}", flush=True)
            if self.settings.page:
                print(f"page: {self.page}", flush=True)
            if self._grpc is not None:
                print(f"gRPC: {self._grpc.address}", flush=True)
        notify("READY=1")

    @contextlib.contextmanager
    def _begin_tls(self) -> Iterator[None]:
        """Have the sockets that are opened meanwhile speak TLS, if there is a certificate."""
        if self._certificate is None:
            yield
            return
        loop: Any = asyncio.get_running_loop()
        self.config.ssl = self._certificate.context
        loop.create_server = partial(TlsListener.create, connections=self.connections)
        try:
            yield
        finally:
            del loop.create_server

    async def main_loop(self) -> None:
        """Wait for a signal; uvicorn itself looks ten times a second, which is most of what an idle server does."""
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):  # once a second, for the Date header
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), 1)
            tend()
            if self._certificate is not None:
                self._certificate.refresh()
            if self.connections.lost - self._lost >= MANY_LOST:
                self._lost = self.connections.lost
                await asyncio.to_thread(return_memory)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._announce and self._asked_by is not None:
            self._say_stop()
        server = self.middleware.server
        server.stopping = True
        notify("STOPPING=1")
        server.pool.announce_stop()
        if self._selfcheck is not None:
            self._selfcheck.kill()
        server.stop_by = until = time.monotonic() + self.settings.stop_grace_s
        if self._new_token:
            token_store.remove(self.url)
        if self._grpc is not None:
            self._grpc.end_streams()
        await self._drain(until, sockets or [])
        if self._grpc is not None:
            await self._grpc.stop(min(GRPC_S, until - time.monotonic()))
        self.config.timeout_graceful_shutdown = max(1, round(until - time.monotonic()))
        await super().shutdown(sockets)

    async def _drain(self, until: float, sockets: list[socket.socket]) -> None:
        """Wait for the requests that have been accepted; what comes meanwhile is answered 503."""
        linger = 0.0
        if self._shared:
            # Whoever else listens takes new connections. On those that are open, a client may be about to write.
            linger = min(until, time.monotonic() + LINGER_S)
            if not self.settings.reuse_port:
                for server in self.servers:
                    server.close()
                for sock in sockets:
                    sock.close()
        while time.monotonic() < until:
            waiting = self.server_state.connections and time.monotonic() < linger
            if not waiting and not self.middleware.in_flight:
                return
            await asyncio.sleep(0.02)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note a signal, without logging: it may come amid a line of the log, whose lock this thread then has."""
        server = self.middleware.server
        if self.should_exit and sig == signal.SIGINT:
            saying = threading.Thread(target=say, args=("stopped at once, with what was running",), daemon=True)
            saying.start()
            server.pool.abandon()
            if self._new_token:
                token_store.remove(self.url)
            saying.join(1)  # longer than a line takes, and an end where the interrupted line has the lock
            os._exit(128 + sig)
        if not self.should_exit:
            self._asked_by = sig
        server.stopping = True
        super().handle_exit(sig, frame)
        # uvicorn raises the signal again when it has stopped; a stop that was asked for is a success.
        self._captured_signals.clear()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)

    def _say_stop(self) -> None:
        calls = self.middleware.in_flight
        waiting = f"waiting for {calls} call{'' if calls == 1 else 's'}, {self.settings.stop_grace_s:g} s at most"
        say(f"stopping, {waiting}" + (" (Ctrl-C again stops at once)" if self._asked_by == signal.SIGINT else ""))


def say(sentence: str, *, warns: bool = False) -> None:
    """Print a line on a terminal, or write a log entry elsewhere."""
    if sys.stderr.isatty():
        print(f"opbox serve: {sentence}", file=sys.stderr, flush=True)
    elif warns:
        _log.warning(sentence)
    else:
        _log.info(sentence)


def _store_token(url: str, token: str) -> None:
    """Store a token that was made here for clients of this user; where that cannot be, they are told it otherwise."""
    try:
        token_store.write(url, token)
    except FileError as error:
        say(
            f"the token is printed and not stored: {error}: set OPBOX_RUNTIME_DIR, or OPBOX_TOKEN for clients",
            warns=True,
        )


def _with_token(settings: Settings) -> tuple[Settings, str]:
    """The settings with a token; its text if it was made here, else an empty one."""
    if settings.is_anybody_known:
        return settings, ""
    token = new_token()
    return settings.model_copy(update={"token": SecretStr(token)}), token


def grpc_server(middleware: Middleware, settings: Settings, certificate: Certificate | None) -> GrpcServer | None:
    """The server of gRPC; None where no port is asked for.

    Raises:
        BadRequestError: the packages that it needs are not installed.
    """
    if settings.grpc_port is None:
        return None
    try:
        from .grpc.server import GrpcServer
    except ImportError as error:
        raise BadRequestError(
            f"grpc_port: expected the packages of opbox-service[grpc], got none ({error}): install them, or leave "
            "grpc_port out"
        ) from None
    return GrpcServer(middleware, settings, certificate)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server.

    Args:
        argv: options, without the program's name; see `opbox serve --help`.
    """
    options = CliSettingsSource[_ServeParser](
        Settings,
        cli_parse_args=list(sys.argv[1:] if argv is None else argv),
        cli_kebab_case=True,
        cli_implicit_flags=True,
        root_parser=_ServeParser(),
        add_argument_method=_add_option,
    )
    try:
        settings = Settings(**options())
    except ValidationError as error:
        item = error.errors(include_url=False)[0]
        sentence = explain(item, Settings, item["loc"])
        if item["loc"][0] in ("token", "tokens"):  # nobody is to see what it got
            sentence = sentence.partition(", got ")[0]
        raise SystemExit(f"opbox serve: {sentence}") from None
    except SettingsError as error:
        raise SystemExit(f"opbox serve: {error}: expected JSON") from None
    configure(settings)
    if settings.cluster:
        return _serve_on_ray(settings)
    adopt_strays()
    try:
        check_environment(os.environ)
        switches.check()
        server = Server(settings)
    except MXNetError as error:
        raise SystemExit(f"opbox serve: {error}") from None
    server.run()
    return 0


class _ServeParser(argparse.ArgumentParser):
    """A parser whose errors are one sentence."""

    def __init__(self) -> None:
        super().__init__(
            "opbox serve",
            usage="opbox serve [options]",
            description="Serve operators over HTTP.",
            epilog="Every setting is an environment variable OPBOX_… as well; tokens and passwords only there.",
            allow_abbrev=False,  # --token would be --token-file, with a secret for its name
        )

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"opbox serve: {message}: see opbox serve --help\n")


def _serve_on_ray(settings: Settings) -> int:
    from .cluster.machine import serve_on_ray

    try:
        serve_on_ray(settings)
    except MXNetError as error:
        raise SystemExit(f"opbox serve: {error}") from None
    return 0


METAVARS = {
    "int": "N",
    "float": "X",
    "str": "TEXT",
    "Path": "PATH",
    "{Path,null}": "PATH",
    "{str,null}": "TEXT",
    "{int,auto}": "{N,auto}",
}


def _add_option(parser: argparse._ActionsContainer, *names: str, **how: Any) -> Any:
    """Add a setting's option, as pydantic-settings describes it; several values may follow one that takes them."""
    if any(name.removeprefix("--").replace("-", "_") in SECRETS for name in names):
        return None
    kind = str(how.get("metavar", ""))
    if kind.startswith("tuple["):
        kind = kind.removeprefix("tuple[").removesuffix(",...]")
        how |= {"nargs": "+", "action": "extend"}
    if kind in METAVARS or kind.startswith("dict["):
        how["metavar"] = METAVARS.get(kind, "JSON")
    how["help"] = (
        str(how["help"]).replace(" (default: ())", "").replace(" (default: null)", "").replace(" (default: {})", "")
    )
    return parser.add_argument(*names, **how)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
