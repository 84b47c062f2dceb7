"""Verifies the tokens of an OIDC issuer (JWT): signature and claims, from which owner and scopes follow."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import jwt

from opbox_protocol.errors import AuthenticationError, BadRequestError, ForbiddenError, NotReadyError

from ..owner_terms import check_owner_name
from ..settings import Settings
from .caller import Identity
from .oidc_keys import ALGORITHMS, IssuerKeys, SigningKey

__all__ = ["OidcTokens"]

MAX_TOKEN = 16 << 10
"""Maximum bytes of a token."""
LATEST = 253_402_300_799
"""The last second of the year 9999, which is the last that Python knows."""
SHOWN = 80
KINDS = (None, "jwt", "at+jwt", "application/at+jwt")
"""Values of a header's `typ`, in small letters: others are no tokens for requests."""
UNCHECKED = {f"verify_{claim}": False for claim in ("exp", "nbf", "iat", "aud", "iss", "sub", "jti")}
"""The library verifies signatures; claims are checked here, with sentences."""


class OidcTokens:
    """The tokens of one issuer.

    Args:
        settings: with an issuer.
        on_change: called when the issuer's keys have changed.

    Raises:
        BadRequestError: a setting is missing, or the file of keys cannot be read.
    """

    def __init__(self, settings: Settings, on_change: Callable[[], None]) -> None:
        if not (settings.oidc_audience and settings.oidc_jwks):
            missing = "OPBOX_OIDC_JWKS" if settings.oidc_audience else "OPBOX_OIDC_AUDIENCE"
            raise BadRequestError(f"{missing}: expected a value beside OPBOX_OIDC_ISSUER, got none")
        self._settings = settings
        self._scopes = settings.scopes_of_claims
        self.keys = IssuerKeys(settings.oidc_jwks, settings.oidc_refresh_s, settings.oidc_stale_s, on_change)

    @staticmethod
    def is_one(token: bytes) -> bool:
        """Return whether a token has the form of a JWT."""
        return token.startswith(b"eyJ") and token.count(b".") == 2

    def identify(self, token: bytes) -> Identity | None:
        """Whose a token is; None where its key is not known (yet). Whether it has expired is the caller's to check.

        Raises:
            AuthenticationError: it is none of the issuer's for this server.
            ForbiddenError: it has no scope of this server's.
        """
        key, algorithm = self._key_of(token)
        return None if key is None else self._identity(_claims(token, key, algorithm))

    async def find(self, token: bytes) -> Identity:
        """As `identify`; looks at the issuer's keys again if the token's key is not known.

        Raises:
            NotReadyError: the issuer's keys cannot be read.
        """
        identity = self.identify(token)
        if identity is None:
            await self.keys.refresh()
            identity = self.identify(token)
        if identity is not None:
            return identity
        if self.keys.unready:
            raise NotReadyError(self.keys.unready)
        raise AuthenticationError(
            "token: expected one that is signed by a key of the OIDC issuer, got one with another key: get a new one"
        )

    def _key_of(self, token: bytes) -> tuple[SigningKey | None, str]:
        """The key and the algorithm that a token's header names."""
        if len(token) > MAX_TOKEN:
            raise AuthenticationError(f"token: expected at most {MAX_TOKEN} bytes, got {len(token)}")
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise _malformed() from None
        algorithm, kid, kind = header.get("alg"), header.get("kid"), header.get("typ")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise AuthenticationError(
                f"token: expected a signature by {', '.join(sorted(ALGORITHMS))}, got {_shown(algorithm)}"
            )
        if not isinstance(kind, str | None) or (kind and kind.lower()) not in KINDS:
            raise AuthenticationError(f"token: expected one for requests, got the type {_shown(kind)}")
        if "crit" in header or not isinstance(kid, str | None):
            raise _malformed()
        return self.keys.find(kid, algorithm), algorithm

    def _identity(self, claims: Mapping[str, Any]) -> Identity:
        settings = self._settings
        if claims.get("iss") != settings.oidc_issuer:
            raise _wrong("issuer", settings.oidc_issuer, claims.get("iss"))
        audience = claims.get("aud")
        if settings.oidc_audience not in (audience if isinstance(audience, list) else [audience]):
            raise _wrong("audience", settings.oidc_audience, audience)
        leeway, now = settings.oidc_leeway_s, time.time()
        expires = _moment(claims, "exp")
        if expires is None:
            raise AuthenticationError("token: expected a claim exp, got none")
        for name in ("nbf", "iat"):
            begins = _moment(claims, name)
            if begins is not None and begins - leeway > now:
                raise AuthenticationError(
                    f"token: expected one that is good now, got one whose {name} is "
                    f"{datetime.fromtimestamp(begins, UTC):%Y-%m-%dT%H:%M:%SZ}: check the clocks"
                )
        until = datetime.fromtimestamp(min(expires + leeway, LATEST), UTC)
        owner = self._owner(claims)
        return Identity(owner, self._scopes_in(claims), until)

    def _owner(self, claims: Mapping[str, Any]) -> str:
        """The owner's name: with a prefix that no name in the settings or in a file has."""
        claim = self._settings.oidc_owner_claim
        value = _claim(claims, claim)
        if claim == "email" and claims.get("email_verified") is not True:
            raise AuthenticationError("token: expected an email that the issuer has verified, got one that it has not")
        try:
            if not isinstance(value, str) or not value:
                raise ValueError
            return check_owner_name(self._settings.oidc_owner_prefix + value)
        except ValueError:
            raise AuthenticationError(
                f"token: expected a claim {claim} that names an owner in a few printable characters, got "
                f"{_shown(value)}"
            ) from None

    def _scopes_in(self, claims: Mapping[str, Any]) -> frozenset[Any]:
        value = _claim(claims, self._settings.oidc_scope_claim)
        words = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
        words = [word for word in words if isinstance(word, str)]
        scopes = frozenset[Any]().union(*(self._scopes[word] for word in words if word in self._scopes))
        if not scopes:
            expected = ", ".join(sorted(self._scopes)[:20])
            raise ForbiddenError(
                f"scope: expected a token whose {self._settings.oidc_scope_claim} has one of {expected}, got one with "
                f"{', '.join(words)[:SHOWN] or 'none'}: ask for access"
            )
        return scopes


def _claims(token: bytes, key: SigningKey, algorithm: str) -> Mapping[str, Any]:
    try:
        claims: Mapping[str, Any] = jwt.decode(token, key.public, algorithms=[algorithm], options=UNCHECKED)  # type: ignore[arg-type]
    except jwt.InvalidSignatureError:
        raise AuthenticationError(
            "token: expected one that the OIDC issuer has signed, got one with a wrong signature"
        ) from None
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise _malformed() from None
    return claims


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """A claim by its name, or inside of others: realm_access.roles."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _moment(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    wrong = isinstance(value, bool) or not isinstance(value, int | float)
    if wrong or (isinstance(value, float) and not math.isfinite(value)):
        raise AuthenticationError(f"token: expected a number of seconds in the claim {name}, got another value")
    return float(min(max(value, 0), LATEST))


def _wrong(what: str, expected: str | None, got: Any) -> AuthenticationError:
    return AuthenticationError(f"token: expected the {what} {expected!r}, got {_shown(got)}")


def _malformed() -> AuthenticationError:
    return AuthenticationError("token: expected a JWT of the OIDC issuer, got a malformed one")


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return repr(value[:SHOWN]) if isinstance(value, str) else "another value"
