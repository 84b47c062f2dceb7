"""Chooses this process's engine: the server that OPBOX_URL names, or one embedded in the process.

opbox.connect("http://gpu-box:8000", token="…")     # or OPBOX_URL and OPBOX_TOKEN in the environment
"""

from __future__ import annotations

import atexit
import os
import threading
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opbox_protocol import routes
from opbox_protocol.collector import collection_paused
from opbox_protocol.errors import MXNetError
from opbox_protocol.transport import ENGINES, Transport
from opbox_protocol.variables import PREFIX, unknown_variables

from . import _schema
from .forks import at_end_of_child

if TYPE_CHECKING:
    import httpx

__all__ = [
    "before_disconnect",
    "connect",
    "disconnect",
    "open_transport",
    "refresh_operators",
    "server_info",
    "transport",
    "use",
]

_lock = threading.RLock()
_current: Transport | None = None
_ends_with_child = True
_has_looked = False
_closing: list[Callable[[], None]] = []


def transport() -> Transport:
    """Return the transport to the engine; the first call opens it.

    Raises:
        MXNetError: no server is named, and no engine is installed here.
    """
    global _current, _ends_with_child
    with _lock:
        if _current is None:
            _warn_of_variables()
            _current = _open(os.environ.get("OPBOX_URL"), os.environ.get("OPBOX_TOKEN"))
            _close_first_at_exit()
        elif not _ends_with_child:  # the parent's, in its forked child
            _ends_with_child = True
            at_end_of_child(_at_exit)
        return _current


def _warn_of_variables() -> None:
    """Warn once of variables that are nearly one of opbox's: with a misspelt OPBOX_URL this process would compute."""
    global _has_looked
    if _has_looked:
        return
    _has_looked = True
    if not any(name.startswith(PREFIX) for name in os.environ):
        return
    from ._schema.server_settings import server_settings
    from .base import user_level

    for name, near in unknown_variables(os.environ, server_settings()):
        if near:  # any other may be a program's own
            sentence = f"{name}: expected a variable of opbox, got an unknown name: did you mean {near}?"
            warnings.warn(sentence, stacklevel=user_level())


def _open(url: str | None, token: str | None, http: httpx.Client | None = None) -> Transport:
    if url:
        from . import token_store  # what an embedded engine needs none of
        from .http import HttpTransport

        if token:
            return HttpTransport(url, token, http=http)
        # The one that a server on this machine left for its clients, if any; the next server leaves another.
        return HttpTransport(url, token_store.read(url), read_token=lambda: token_store.read(url), http=http)
    from importlib.metadata import entry_points

    for embedded in entry_points(group=ENGINES):
        with collection_paused():  # its modules stay: the collector would look at all of them again and again
            engine: Transport = embedded.load()()
        return engine
    raise MXNetError(
        "no engine: set OPBOX_URL (and OPBOX_TOKEN) to a server's address, or install opbox-service to run in this "
        "process"
    )


def open_transport(url: str) -> Transport:
    """A transport of its own to the server at `url`, with this process's token for it; the caller closes it."""
    return _open(url, os.environ.get("OPBOX_TOKEN"))


def connect(url: str, token: str | None = None, *, http: httpx.Client | None = None) -> None:
    """Use the server at `url` from now on; close sessions on another engine.

    Args:
        url: "http://host:port", or "host:port".
        token: its token; by default OPBOX_TOKEN, or the one that a server on this machine stored.
        http: a client of yours, for what only httpx has: certificates, HTTP/2, event hooks, other proxies. It stays
            open when you disconnect.

    Raises:
        MXNetError: the address is not one.
        TypeError: `http` is no httpx.Client.

    Example:
        >>> mx.connect("https://gpu-box", http=httpx.Client(verify="ca.pem", cert=("client.pem", "key.pem")))
    """
    use(_open(url, token or os.environ.get("OPBOX_TOKEN"), http))


def use(other: Transport | None) -> None:
    """Use this transport from now on; None chooses again from the environment."""
    global _current
    disconnect()
    with _lock:
        _current = other
        _close_first_at_exit()


def disconnect() -> None:
    """Close all sessions and the transport. Arrays made before are gone."""
    global _current
    for close in reversed(_closing):
        close()
    with _lock:
        closed, _current = _current, None
    if closed is not None:
        closed.close()


def before_disconnect(close: Callable[[], None]) -> None:
    """Call `close` before the transport is closed; the function registered last runs first."""
    _closing.append(close)


def server_info() -> dict[str, Any]:
    """Return the engine's name and version, and what computes on its CPU."""
    return transport().call("GET", routes.ABOUT).header


def device_rows() -> list[dict[str, Any]]:
    """Return the engine's devices and their memory in bytes: a row for each device and worker."""
    rows: list[dict[str, Any]] = transport().call("GET", routes.DEVICES).header["devices"]
    return rows


def refresh_operators() -> list[str]:
    """Learn the engine's further operators, add their functions to `mx.sym` and `mx.nd`, and return their names."""
    operators = transport().call("GET", routes.OPERATORS).header["operators"]
    new = [op for op in operators if _schema.find(op["name"]) is None and not op["name"].startswith("_backward")]
    _schema.extend(new)
    return sorted(op["name"] for op in new)


def _close_first_at_exit() -> None:
    """At exit, have sessions send and run what is recorded before an engine of this process or its libraries end."""
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)  # the last that is registered is called first
    at_end_of_child(_at_exit)


def _at_exit() -> None:
    if _current is not None:
        disconnect()


def _in_child() -> None:
    global _lock, _ends_with_child
    _lock, _ends_with_child = threading.RLock(), False


os.register_at_fork(after_in_child=_in_child)
