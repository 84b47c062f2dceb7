"""Servers that a program names: their address and token, and the `with` block after which they are closed."""

from __future__ import annotations

import os
from typing import Self

from .base import MXNetError

__all__ = ["AsyncClosing", "Closing", "server_named"]


def server_named(subject: str, url: str | None, token: str | None) -> tuple[str, str | None]:
    """The address and token of a server, which the environment says where the program does not.

    Args:
        subject: what needs them, for the error.

    Raises:
        MXNetError: no address.
    """
    url = url or os.environ.get("OPBOX_URL")
    if not url:
        raise MXNetError(f"{subject}: expected the address of a server, as an argument or in OPBOX_URL, got none")
    return url, token or os.environ.get("OPBOX_TOKEN")


class Closing:
    """What `with` closes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it."""
        raise NotImplementedError


class AsyncClosing:
    """What `async with` closes."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close it."""
        raise NotImplementedError
