"""Authentication: the hashes of bearer tokens, their owners, scopes and expiry; or the tokens of an OIDC issuer."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import stat
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from pydantic import SecretStr

from opbox_protocol.errors import AuthenticationError, BadRequestError

from ..accounting.accounts import Accounts
from ..owner_terms import DEFAULT_OWNER, SCOPES, Token
from ..settings import Settings
from .caller import Identity
from .chosen_tokens import ChosenTokens
from .token_files import TokensFile, read_token, read_tokens, stamp_of

if TYPE_CHECKING:
    from .oidc import OidcTokens

__all__ = ["Tokens"]

CALLERS = 1000
"""Number of Authorization headers whose callers are cached."""
LOOK_S = 1.0
"""Minimum seconds between two checks of the token files for changes."""
SHORT = 22
"""Length below which a plain token is called short: 128 random bits in base64 have as many characters."""

_log = structlog.get_logger("opbox.tokens")


@dataclass(frozen=True, slots=True)
class _KnownTokens:
    """The tokens that are taken.

    Attributes:
        random: by their keyed digest: the SHA-256, and whose they are.
        chosen: by the text of their scrypt hash: whose they are.
    """

    random: dict[bytes, tuple[bytes, Identity]] = field(default_factory=dict)
    chosen: dict[str, Identity] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.random) + len(self.chosen)

    @property
    def identities(self) -> list[Identity]:
        return [*(identity for _, identity in self.random.values()), *self.chosen.values()]


class Tokens:
    """The tokens of settings and files. It keeps hashes, not tokens.

    Tokens and headers are looked up by digests whose key is this process's secret, so the time of a lookup says
    nothing about them. A file that changes is read again; if it cannot be read, that is logged and the previous tokens
    stay. The terms of owners in it go to the accounts.

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
        self._key = os.urandom(hashlib.blake2b.MAX_KEY_SIZE)
        self._look_s = look_s
        _warn_of_short([*settings.tokens, *_one_token(settings.token)])
        self._settings = settings.without_plain_tokens()
        self._accounts = accounts
        self._on_read = on_read
        self._files = [path for path in (settings.token_file, settings.tokens_file) if path is not None]
        self._looked = time.monotonic()
        self._stamps = self._now_stamped()
        self._chosen = ChosenTokens()
        self._callers: OrderedDict[bytes, Identity] = OrderedDict()
        """Callers by the keyed digest of their Authorization header, valid until the tokens change."""
        self._oidc = _oidc_of(self._settings, self._callers.clear)
        self._refreshing: asyncio.Task[None] | None = None
        self._known = self._read()

    async def start(self) -> None:
        """Begin to look at the keys of an OIDC issuer."""
        if self._oidc is not None:
            self._refreshing = asyncio.create_task(self._oidc.keys.run())

    async def stop(self) -> None:
        """Look at them no more."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)

    @property
    def unready(self) -> str:
        """Why tokens that should be taken cannot be; empty where all can be."""
        return "" if self._oidc is None else self._oidc.keys.unready

    async def find(self, authorization: bytes | None, address: str = "") -> Identity:
        """The caller behind an Authorization header, which may have to be checked for a while.

        Args:
            authorization: the header.
            address: where it comes from.

        Raises:
            AuthenticationError: there is none, it is no bearer token, or the token is unknown or has expired.
            NotReadyError: it cannot be checked now.
        """
        caller = self.at_once(authorization)
        if caller is not None:
            return caller
        secret = _secret_of(authorization)
        if self._oidc is not None and self._oidc.is_one(secret):
            return _unexpired(await self._oidc.find(secret))
        await self._chosen.check(self._digest(secret), secret, address)
        return self.identify(authorization)

    def identify(self, authorization: bytes | None) -> Identity:
        """The caller behind an Authorization header that has been accepted before.

        Raises:
            AuthenticationError: there is none, it is no bearer token, or the token is unknown now or has expired.
        """
        caller = self.at_once(authorization)
        if caller is None:
            raise AuthenticationError("token: expected one that this server knows, got another: check OPBOX_TOKEN")
        return caller

    def at_once(self, authorization: bytes | None) -> Identity | None:
        """As `find`, without waiting; None for a token that is not known yet."""
        if self._files:
            self._read_changes()
        digest = self._digest(authorization or b"")
        caller = self._callers.get(digest)
        if caller is None:
            caller = self._look_up(_secret_of(authorization))
            if caller is None:
                return None
            while len(self._callers) >= CALLERS:
                self._callers.popitem(last=False)
            self._callers[digest] = caller
        return _unexpired(caller)

    def _look_up(self, secret: bytes) -> Identity | None:
        presented = hashlib.sha256(secret).digest()
        sha256, caller = self._known.random.get(self._digest(presented), (b"", None))
        if hmac.compare_digest(sha256, presented):
            return caller
        if self._oidc is not None and self._oidc.is_one(secret):
            return self._oidc.identify(secret)
        scrypt = self._chosen.match(self._digest(secret))
        return None if scrypt is None else self._known.chosen.get(scrypt)

    def _digest(self, data: bytes) -> bytes:
        """A digest that nobody outside of this process can compute."""
        return hashlib.blake2b(data, key=self._key, digest_size=32).digest()

    def _read(self) -> _KnownTokens:
        settings = self._settings
        file = TokensFile() if settings.tokens_file is None else read_tokens(settings.tokens_file)
        further = list(file.tokens)
        if settings.token_file is not None:
            further += _one_token(SecretStr(read_token(settings.token_file)))
        _warn_of_short(further)
        known = _KnownTokens()
        for token in (*settings.tokens, *(token.hashed() for token in further)):
            expires = token.expires.astimezone(UTC) if token.expires is not None else None
            identity = Identity(token.name, token.scopes, expires, token.weight)
            if token.scrypt is not None:
                known.chosen[token.scrypt] = identity
            else:
                assert token.sha256 is not None
                sha256 = bytes.fromhex(token.sha256)
                known.random[self._digest(sha256)] = sha256, identity
        prefix = settings.oidc_owner_prefix if settings.oidc_issuer else None
        _check_prefix(prefix, known.identities)
        if settings.tokens_file is not None:
            _check_owners(settings.tokens_file, file, known.identities, prefix)
        self._chosen.replace(known.chosen)
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
        return [stamp_of(path) for path in self._files]


def _secret_of(authorization: bytes | None) -> bytes:
    """The token in an Authorization header.

    Raises:
        AuthenticationError: there is none.
    """
    if authorization is None:
        raise AuthenticationError("token: expected the header 'Authorization: Bearer TOKEN', got none: set OPBOX_TOKEN")
    kind, _, secret = authorization.partition(b" ")
    if kind.lower() != b"bearer" or not secret.strip():
        raise AuthenticationError("token: expected the header 'Authorization: Bearer TOKEN', got another kind")
    return secret.strip()


def _one_token(secret: SecretStr | None) -> list[Token]:
    """The token with every scope."""
    return [] if secret is None else [Token(name=DEFAULT_OWNER, token=secret, scopes=SCOPES)]


def _warn_of_short(tokens: Iterable[Token]) -> None:
    owners = {token.name for token in tokens if token.token is not None and len(token.token) < SHORT}
    if owners:
        _log.warning(
            f"tokens of fewer than {SHORT} characters may be guessed: make others by `opbox token new`",
            owners=sorted(owners)[:20],
        )


def _oidc_of(settings: Settings, on_change: Callable[[], None]) -> OidcTokens | None:
    if settings.oidc_issuer is None:
        return None
    try:
        from .oidc import OidcTokens
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("jwt", "cryptography"):
            raise
        raise BadRequestError(
            "OPBOX_OIDC_ISSUER: needs PyJWT with cryptography: pip install 'opbox-service[oidc]'"
        ) from None
    return OidcTokens(settings, on_change)


def _unexpired(caller: Identity) -> Identity:
    """The caller; AuthenticationError when the token has expired."""
    if caller.expires is not None and caller.expires <= datetime.now(UTC):
        raise AuthenticationError(
            f"token: expected one that is still good, got one that expired at {caller.expires:%Y-%m-%dT%H:%M:%SZ}: "
            "ask for a new one"
        )
    return caller


def _check_prefix(prefix: str | None, known: Sequence[Identity]) -> None:
    """Raise BadRequestError for a name that an owner of the OIDC issuer could have."""
    for identity in known:
        if prefix is not None and identity.owner.startswith(prefix):
            raise BadRequestError(
                f"token of {identity.owner!r}: expected a name that does not begin with {prefix!r}, as the OIDC "
                "issuer's owners do: rename it, or set OPBOX_OIDC_OWNER_PREFIX"
            )


def _check_owners(path: Path, file: TokensFile, known: Sequence[Identity], prefix: str | None) -> None:
    """Raise BadRequestError for terms of an owner without a token (a misspelt name), or two weights of one owner.

    Owners whose names begin with the prefix have tokens of the OIDC issuer.
    """
    names = {identity.owner for identity in known}
    for owner, terms in file.owners.items():
        if owner not in names and not (prefix is not None and owner.startswith(prefix)):
            raise BadRequestError(
                f"{path}: owners.{owner}: expected the name of a token ({', '.join(sorted(names)[:20])}), got one that "
                "none has"
            )
        weights = [identity.weight for identity in known if identity.owner == owner]
        if terms.weight is not None and any(weight is not None for weight in weights):
            raise BadRequestError(
                f"{path}: owners.{owner}: expected one weight, got one here and one at a token: remove the token's"
            )


def _check_reads_at_once(path: Path) -> None:
    """Raise BadRequestError for a pipe: opening one waits for a writer, and every request would wait with it."""
    with contextlib.suppress(OSError):
        if stat.S_ISFIFO(path.stat().st_mode):
            raise BadRequestError(f"{path}: expected a file of tokens, got a pipe: write the tokens into a file")
