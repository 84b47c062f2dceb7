"""Authentication: bearer tokens, their owners, scopes and expiry."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from opbox_protocol.errors import AuthenticationError, BadRequestError, ForbiddenError

from ..accounting.accounts import Accounts
from ..settings import SCOPES, Scope, Settings
from .token_files import TokensFile, read_token, read_tokens

__all__ = ["Identity", "Tokens"]

CALLERS = 1000
"""Number of Authorization headers whose callers are cached."""
LOOK_S = 1.0
"""Minimum seconds between two checks of the token files for changes."""

_log = structlog.get_logger("opbox.tokens")


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated caller; its sessions belong to `owner`.

    Attributes:
        expires: when its token ceases to be one; None for never.
        weight: the token's own for its owner; None where it states none.
    """

    owner: str
    scopes: frozenset[Scope]
    expires: datetime | None = None
    weight: float | None = None

    def require(self, *scopes: Scope) -> None:
        """ForbiddenError unless the token has one of the scopes."""
        if not self.scopes.intersection(scopes):
            listed = ", ".join(sorted(self.scopes)) or "none"
            wanted = " or ".join(map(repr, scopes))
            raise ForbiddenError(f"scope: expected a token with {wanted}, got one with {listed}: use another token")


class Tokens:
    """The tokens of settings and files, compared by digest so that timing reveals nothing.

    A header that has been accepted is known again by its hash, whose key is this process's secret.

    A file that changes is read again; what cannot be read then is logged, and the tokens from before stay. The terms of
    owners that it has go to the accounts.

    Args:
        settings: of the server.
        accounts: of its owners.
        on_read: learns that files were read again: how many tokens there are, or what was wrong.
        look_s: minimum seconds between two checks of the files for changes.

    Raises:
        BadRequestError: a file that cannot be read, or says something else than tokens.
    """

    def __init__(
        self,
        settings: Settings,
        accounts: Accounts,
        on_read: Callable[[int, str], None] = lambda tokens, wrong: None,
        *,
        look_s: float = LOOK_S,
    ) -> None:
        self._look_s = look_s
        self._settings = settings
        self._accounts = accounts
        self._on_read = on_read
        self._files = [path for path in (settings.token_file, settings.tokens_file) if path is not None]
        self._looked = time.monotonic()
        self._stamps = self._now_stamped()
        self._known = self._read()
        self._callers: dict[bytes, Identity] = {}
        """Callers by Authorization header, valid until the tokens change."""

    def identify(self, authorization: bytes | None) -> Identity:
        """The caller behind an Authorization header.

        Raises:
            AuthenticationError: there is none, it is no bearer token, or the token is unknown or has expired.
        """
        if self._files:
            self._read_changes()
        caller = self._callers.get(authorization) if authorization is not None else None
        if caller is None:
            caller = self._look_up(authorization)
        if caller.expires is not None and caller.expires <= datetime.now(UTC):
            raise AuthenticationError(
                f"token: expected one that is still good, got one that expired at {caller.expires:%Y-%m-%dT%H:%M:%SZ}: "
                "ask for a new one"
            )
        return caller

    def _look_up(self, authorization: bytes | None) -> Identity:
        if authorization is None:
            raise AuthenticationError(
                "token: expected the header 'Authorization: Bearer TOKEN', got none: set OPBOX_TOKEN"
            )
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
        if len(self._callers) < CALLERS:
            self._callers[authorization] = caller
        return caller

    def _read(self) -> dict[bytes, Identity]:
        settings = self._settings
        known: dict[bytes, Identity] = {}
        file = TokensFile() if settings.tokens_file is None else read_tokens(settings.tokens_file)
        everything = [settings.token.get_secret_value()] if settings.token is not None else []
        if settings.token_file is not None:
            everything.append(read_token(settings.token_file))
        for secret in everything:
            known[_digest(secret.encode())] = Identity("default", SCOPES)
        for token in (*settings.tokens, *file.tokens):
            expires = token.expires.astimezone(UTC) if token.expires is not None else None
            known[_digest(token.token.get_secret_value().encode())] = Identity(
                token.name, token.scopes, expires, token.weight
            )
        if settings.tokens_file is not None:
            _check_owners(settings.tokens_file, file, known)
        self._accounts.replace(file.owners)
        return known

    def _read_changes(self) -> None:
        now = time.monotonic()
        if now - self._looked < self._look_s:
            return
        self._looked = now
        stamps = self._now_stamped()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            for path in self._files:
                _check_reads_at_once(path)
            self._known = self._read()
            self._callers.clear()
        except BadRequestError as error:
            _log.error("the tokens of before stay", error=error.message)
            self._on_read(len(self._known), error.message)
        else:
            _log.info("tokens were read again", tokens=len(self._known))
            self._on_read(len(self._known), "")

    def _now_stamped(self) -> list[tuple[int, ...]]:
        return [_stamp(path) for path in self._files]


def _check_owners(path: Path, file: TokensFile, known: Mapping[bytes, Identity]) -> None:
    """Raise BadRequestError for terms of an owner without a token (a misspelt name), or two weights of one owner."""
    names = {identity.owner for identity in known.values()}
    for owner, terms in file.owners.items():
        if owner not in names:
            raise BadRequestError(
                f"{path}: owners.{owner}: expected the name of a token ({', '.join(sorted(names)[:20])}), got one that "
                "none has"
            )
        weights = [identity.weight for identity in known.values() if identity.owner == owner]
        if terms.weight is not None and any(weight is not None for weight in weights):
            raise BadRequestError(
                f"{path}: owners.{owner}: expected one weight, got one here and one at a token: remove the token's"
            )


def _check_reads_at_once(path: Path) -> None:
    """Raise BadRequestError for a pipe: opening one waits for a writer, and every request would wait with it."""
    with contextlib.suppress(OSError):
        if stat.S_ISFIFO(path.stat().st_mode):
            raise BadRequestError(f"{path}: expected a file of tokens, got a pipe: write the tokens into a file")


def _stamp(path: Path) -> tuple[int, ...]:
    """Return a stamp that changes with a file's text, its permissions, or the file that has its name."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
