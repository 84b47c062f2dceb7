"""The engine in the caller's own process, behind the client's transport seam: no server, no copies through HTTP."""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from threading import Lock
from typing import Any
from weakref import WeakSet

import numpy as np

from opbox_ops.cpu.runtime.gomp_threads import release_threads
from opbox_protocol.signal_shield import shielded
from opbox_protocol.transport import NearSession, Reply

from .allocator import tune_allocator
from .blas_threads import restart_blas_threads
from .engine import Engine
from .session.here import SessionHere, raise_as_answered
from .settings import Settings

__all__ = ["EmbeddedTransport", "engine"]

_engine: Engine | None = None
_lock = Lock()
_of_parents: list[Engine] = []
"""Engines of parent processes, kept unused so that a forked child does not destroy them."""


def engine() -> Engine:
    """This process's engine, made on first use; the allocator and BLAS's threads are tuned with it, as in a worker."""
    global _engine
    with _lock:
        if _engine is None:
            tune_allocator()
            restart_blas_threads()
            _engine = Engine(Settings.embedded())
            atexit.register(_engine.close)
        return _engine


class EmbeddedTransport:
    """Calls into an engine of this process (see opbox_protocol.transport.Transport).

    Args:
        engine: the engine; by default the one that this process shares.

    Example:
        >>> EmbeddedTransport().call("GET", "/v1/ops/FullyConnected").header["name"]
        'FullyConnected'
    """

    address = "this process"
    in_process = True
    connections = 1

    def __init__(self, engine: Engine | None = None) -> None:
        self._own = engine
        self._shared = None if engine is not None else globals()["engine"]()
        _transports.add(self)

    @property
    def _engine(self) -> Engine:
        own = self._own or self._shared
        if own is None:  # in a forked child
            own = self._shared = engine()
        return own

    def call(
        self,
        method: str,
        path: str,
        header: Mapping[str, Any] | None = None,
        tensors: Mapping[str, np.ndarray[Any, Any]] | None = None,
    ) -> Reply:
        """See opbox_protocol.transport.Transport.call."""
        try:
            return Reply(*shielded(self._engine.call, method, path, header, tensors))
        except Exception as error:
            raise_as_answered(error)

    def another(self) -> EmbeddedTransport:
        """See opbox_protocol.transport.Transport.another."""
        return self

    def near(self, path: str) -> NearSession | None:
        """See opbox_protocol.transport.Transport.near."""
        session = self._engine.session_at(path)
        return None if session is None else SessionHere(session)

    def close(self) -> None:
        """Do nothing: the engine belongs to this process."""


_transports: WeakSet[EmbeddedTransport] = WeakSet()


def _before_fork() -> None:
    """Wait before a fork until no other thread is in the middle of a call: the child lacks these threads."""
    if _engine is not None:
        _engine.wait_until_idle()
        release_threads()


def _in_child() -> None:
    global _engine, _lock
    _lock = Lock()
    if _engine is not None:
        atexit.unregister(_engine.close)
        _of_parents.append(_engine)
        _engine = None
    for transport in _transports:
        transport._shared = None


os.register_at_fork(before=_before_fork, after_in_child=_in_child)
