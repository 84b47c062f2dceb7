"""The seam between the client and an engine: one method, local or remote.

A transport carries a call (method, path, JSON header, tensors) to an engine and brings its answer back, or raises an
MXNetError. The client's HttpTransport speaks the wire format; an engine in the client's own process is found by its
entry point in the group `ENGINES`. Everything above this line is the same for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

__all__ = ["ENGINES", "NearSession", "Reply", "Transport", "Travel"]

ENGINES = "opbox.engine"
"""The group of entry points that each name a Transport class, made without arguments, to an engine of this process."""


@dataclass(frozen=True, slots=True)
class Travel:
    """What a call over a network took.

    Attributes:
        sent, received: bytes of the bodies.
        seconds: from the call to its answer.
        engine_s: those of them that the server says it took.
    """

    sent: int
    received: int
    seconds: float
    engine_s: float


@dataclass(frozen=True, slots=True)
class Reply:
    """An engine's answer.

    Attributes:
        header: its JSON object.
        tensors: by name.
        travel: what the call took; None where the engine is in this process.
    """

    header: dict[str, Any]
    tensors: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    travel: Travel | None = None


class NearSession(Protocol):
    """A session of an engine in this process: the calling thread runs its batches, without a request."""

    def is_next(self, seq: int) -> bool:
        """Return whether a batch of this number would run now, and wait for none before it."""

    def run(
        self, seq: int, commands: Sequence[Mapping[str, Any]], tensors: Mapping[str, np.ndarray[Any, Any]]
    ) -> Reply | None:
        """Run a batch whose turn has come, and wait until its work has been done.

        Args:
            seq, commands, tensors: as a request has them.

        Returns:
            The answer; None where nothing has happened, as its turn has not come or a request says what is wrong.

        Raises:
            MXNetError: what the batch came to.
        """


class Transport(Protocol):
    """Interface for calls to an engine.

    Attributes:
        address: what a user calls the engine: its URL, or "this process".
        in_process: whether the engine is in this process, and can be handed classes as they are.
        connections: calls that are worth making at a time.
    """

    address: str
    in_process: bool
    connections: int

    def call(
        self,
        method: str,
        path: str,
        header: Mapping[str, Any] | None = None,
        tensors: Mapping[str, np.ndarray[Any, Any]] | None = None,
    ) -> Reply:
        """Make one call and wait for its answer.

        Args:
            method: "GET", "POST", "PUT" or "DELETE".
            path: "/v1/forward", …
            header: the JSON object of the request.
            tensors: the tensors of the request by name.

        Raises:
            MXNetError: the engine refused; the class says why.
            TransportError: the engine could not be reached.
        """

    def another(self) -> Transport:
        """Return another transport to the same engine, with connections of its own."""

    def near(self, path: str) -> NearSession | None:
        """Return the session whose batches go to this path, where the engine is in this process and has it."""

    def close(self) -> None:
        """Close the connections; the transport must not be used again."""
