"""What a model needs of the operators that came with it; `custom.model_code` has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from opbox_ops.backend import Backend

from ..quota import Budget

__all__ = ["OpenCode", "OwnCode", "RunWatcher"]


class OwnCode(Protocol):
    """Operators of a model's own."""

    def document(self, text: bytes) -> Mapping[str, Any] | bytes:
        """A symbol's JSON whose nodes name their sources."""

    def inside(self) -> AbstractContextManager[None]:
        """A block in which graphs may have the operators, and no other run of the model goes."""

    def close(self) -> None:
        """Drop the sources' modules."""


class RunWatcher(Protocol):
    """Learns when operators run, so that a supervisor outside can end a run that never returns."""

    def began(self, brings_code: bool) -> None:
        """A run begins."""

    def ended(self) -> None:
        """It has ended."""


OpenCode: TypeAlias = "Callable[[bytes, Backend, str, Budget], OwnCode]"
"""Takes the text of a `-ops.json` file, where the model runs, and what counts its memory."""
