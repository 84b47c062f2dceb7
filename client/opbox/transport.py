"""The seam between the client and an engine: one method, local or remote.

A transport carries a call (method, path, JSON header, tensors) to an engine and brings its answer back, or raises a
`MXNetError`. `HttpTransport` speaks the wire format; the embedded engine (opbox_service.embedded) answers the same
calls in this process. Everything above this line is the same for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

__all__ = ["Reply", "Transport"]


@dataclass(frozen=True, slots=True)
class Reply:
    """An engine's answer: its JSON header and its tensors by name."""

    header: dict[str, Any]
    tensors: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)


class Transport(Protocol):
    """How calls reach an engine."""

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
            MXNetError: the engine refused; its type says why.
            TransportError: the engine could not be reached.
        """

    def close(self) -> None:
        """Let go of connections; the transport is not used again."""
