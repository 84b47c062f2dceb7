"""2-bit gradient compression of stores of keys and values, as `KVStore.set_gradient_compression` sets it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from opbox_protocol.commands import CompressCall
from opbox_protocol.errors import MXNetError

from .base import value_text
from .ndarray import NDArray, zeros
from .session import Session

__all__ = ["TwoBitCompression"]

_DEFAULT_THRESHOLD = "0.5"


class TwoBitCompression:
    """Compression with a residual for each key and device, kept from push to push.

    Attributes:
        threshold: what is sent of a number is this, its negative or 0; a float32 number.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._residuals: dict[tuple[str | int, int], NDArray] = {}
        self.configure(params)

    def configure(self, params: Mapping[str, Any]) -> None:
        """Take parameters; residuals stay.

        Args:
            params: `type`, "2bit", and `threshold`, 0.5 by default; others are passed over, as in MXNet.

        Raises:
            AssertionError: no dict.
            MXNetError: no type or another one; a threshold that is no positive number of float32.
        """
        what = "set_gradient_compression"
        if not isinstance(params, Mapping):
            raise AssertionError(f"{what}: expected a dict such as {{'type': '2bit'}}, got {value_text(params)}")
        if params.get("type") != "2bit":
            got = value_text(params["type"]) if "type" in params else "none"
            raise MXNetError(f"{what}: type: expected '2bit', got {got}")
        value = params.get("threshold", _DEFAULT_THRESHOLD)
        try:
            threshold = np.float32(float("nan") if isinstance(value, bool) else float(value))
        except (TypeError, ValueError):
            threshold = np.float32("nan")
        if not 0 < threshold < np.inf:
            raise MXNetError(f"{what}: threshold: expected a float32 number above 0, got {value_text(value)}")
        self.threshold = float(threshold)

    def compress(self, pushed: Sequence[tuple[str | int, Sequence[NDArray]]]) -> list[list[NDArray]]:
        """Return what is sent of gradients, one command a session.

        Args:
            pushed: keys with the gradient of each device.
        """
        calls: dict[Session, list[CompressCall]] = {}
        sent = []
        for key, gradients in pushed:
            parts = []
            for number, gradient in enumerate(gradients):
                residual = self._residual(key, number, gradient)
                session = gradient._session
                part = NDArray(session, session.new_id(), residual.shape, np.dtype(np.float32))
                calls.setdefault(session, []).append(
                    {"gradient": gradient._id, "residual": residual._id, "out": part._id}
                )
                parts.append(part)
            sent.append(parts)
        for session, group in calls.items():
            session.record({"do": "compress", "threshold": self.threshold, "calls": group})
        return sent

    def _residual(self, key: str | int, number: int, gradient: NDArray) -> NDArray:
        """What waits of earlier gradients of a key's device, in the session of the gradient."""
        residual = self._residuals.get((key, number))
        if residual is None:
            residual = zeros(gradient.shape, gradient.context)
        elif residual._session != gradient._session:
            residual = residual.as_in_context(gradient.context)
        self._residuals[key, number] = residual
        return residual
