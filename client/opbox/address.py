"""Addresses of servers as users write them, with or without a scheme."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from .base import MXNetError

__all__ = ["split", "whole"]


def whole(url: str) -> str:
    """The address with its scheme, http by default.

    Example:
        >>> whole("127.0.0.1:8000")
        'http://127.0.0.1:8000'
    """
    if not isinstance(url, str):
        raise TypeError(f"url: expected an address such as http://127.0.0.1:8000, got {url!r}")
    url = url.strip()
    return url if "://" in url else f"http://{url.removeprefix('//')}"


def split(url: str) -> SplitResult:
    """The address in its parts.

    Raises:
        MXNetError: it is none of a server.
    """
    try:
        parts = urlsplit(whole(url))
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise MXNetError(f"OPBOX_URL: expected an address like http://127.0.0.1:8000, got {url!r}")
    return parts
