"""The server's limits for one request, learnt when a session opens and checked before sending."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from opbox_protocol.errors import LimitError

__all__ = ["RequestLimits"]

NO_LIMIT = 1 << 62
COMMAND_BYTES = 256
"""Estimated bytes of a command beside its tensor."""


class RequestLimits:
    """The limits of a request.

    Args:
        limits: of the session, by name. Each is a setting of the server: `body_bytes` is OPBOX_MAX_BODY_BYTES.
        address: the server's URL.

    Attributes:
        commands: how many a batch may have.
        dataset_bytes: of stored datasets, all together.
    """

    __slots__ = ("_address", "_limits", "commands", "dataset_bytes")

    def __init__(self, limits: Mapping[str, int], address: str) -> None:
        self._limits = limits
        self._address = address
        # What has been freed goes with a batch, as one command more.
        self.dataset_bytes = limits.get("dataset_bytes", 0)
        self.commands = max(1, limits.get("commands", NO_LIMIT) - 1)

    def check(self, tensor: np.ndarray[Any, Any]) -> None:
        """Raise LimitError for an array that no request can carry."""
        for name, unit, size, advice in (
            ("body_bytes", "bytes in a request", tensor.nbytes + COMMAND_BYTES, "send it in slices"),
            ("rank", "axes", tensor.ndim, "reshape it"),
            ("elements", "elements", tensor.size, "send it in slices"),
        ):
            most = self._limits.get(name, NO_LIMIT)
            if size > most:
                raise LimitError(
                    f"array of shape {tensor.shape} and type {tensor.dtype}: expected at most {most} {unit}, as "
                    f"{self._address} takes them, got {size}: {advice}, or start the server with a larger "
                    f"OPBOX_MAX_{name.upper()}"
                )

    def has_place(self, tensor: np.ndarray[Any, Any], commands: int, nbytes: int) -> bool:
        """Return whether a batch of so many commands and bytes can take an array more."""
        whole = nbytes + tensor.nbytes + COMMAND_BYTES * (commands + 2)
        return whole <= self._limits.get("body_bytes", NO_LIMIT) and commands < self._limits.get("tensors", NO_LIMIT)
