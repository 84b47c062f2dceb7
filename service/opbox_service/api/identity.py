"""Who calls, and what they may: bearer tokens, their owners and scopes."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from opbox_protocol.errors import AuthenticationError, ForbiddenError

from ..settings import SCOPES, Scope, Settings

__all__ = ["Identity", "Tokens"]


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller: what it makes belongs to `owner`."""

    owner: str
    scopes: frozenset[Scope]

    def require(self, scope: Scope) -> None:
        """ForbiddenError unless the token has the scope."""
        if scope not in self.scopes:
            listed = ", ".join(sorted(self.scopes)) or "none"
            raise ForbiddenError(f"scope: expected a token with {scope!r}, got one with {listed}: use another token")


class Tokens:
    """The tokens of the settings, found by their digest, so that comparing tells nothing by its time."""

    def __init__(self, settings: Settings) -> None:
        self._known: dict[bytes, Identity] = {}
        if settings.token is not None:
            self._add(settings.token.get_secret_value(), Identity("default", SCOPES))
        for token in settings.tokens:
            self._add(token.token.get_secret_value(), Identity(token.name, token.scopes))

    def _add(self, secret: str, identity: Identity) -> None:
        self._known[_digest(secret.encode())] = identity

    def identify(self, authorization: bytes | None) -> Identity:
        """The caller behind an Authorization header.

        Raises:
            AuthenticationError: there is none, it is no bearer token, or the token is unknown.
        """
        if authorization is None:
            raise AuthenticationError("token: expected the header 'Authorization: Bearer TOKEN', got none")
        kind, _, secret = authorization.partition(b" ")
        if kind.lower() != b"bearer" or not secret.strip():
            raise AuthenticationError("token: expected the header 'Authorization: Bearer TOKEN', got another kind")
        presented = _digest(secret.strip())
        caller = None
        for digest, identity in self._known.items():
            if hmac.compare_digest(digest, presented):
                caller = identity
        if caller is None:
            raise AuthenticationError("token: expected one that this server knows, got another: check OPBOX_TOKEN")
        return caller


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
