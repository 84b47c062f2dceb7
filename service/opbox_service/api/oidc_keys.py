"""The public keys of an OIDC issuer (JWKS): read from a file or a URL, refreshed, given up when they are too old."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import jwt
import structlog

from opbox_protocol.errors import BadRequestError

from .token_files import stamp_of

__all__ = ["ALGORITHMS", "IssuerKeys", "SigningKey", "read_keys"]

RSA_BITS = range(2048, 8193)
MAX_KEYS = 64
MAX_BYTES = 256 << 10
"""Maximum bytes of a JWKS."""
FETCH_S = 10.0
"""Maximum seconds of a request for keys."""
MIN_PAUSE_S = 10.0
"""Minimum seconds between two requests for keys, whatever tokens come: anybody can send one that names a new key."""
FILE_LOOK_S = 1.0

_RSA = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_BY_KIND: dict[tuple[str, str], frozenset[str]] = {
    ("RSA", ""): _RSA,
    ("EC", "P-256"): frozenset({"ES256"}),
    ("EC", "P-384"): frozenset({"ES384"}),
    ("EC", "P-521"): frozenset({"ES512"}),
    ("OKP", "Ed25519"): frozenset({"EdDSA"}),
}
"""By a key's type and curve: the algorithms of signatures that it verifies. None is symmetric."""
ALGORITHMS = frozenset().union(*_BY_KIND.values())

_log = structlog.get_logger("opbox.tokens")


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A public key of the issuer.

    Attributes:
        kid: its name; None where it has none.
        algorithms: of the signatures that it verifies.
        text: the key as canonical JSON.
        public: the key, for the library.
    """

    kid: str | None
    algorithms: frozenset[str]
    text: str
    public: Any = field(compare=False, repr=False)


class IssuerKeys:
    """The keys of an issuer.

    While the issuer cannot be reached, the keys that are known are used for `stale_s` seconds.

    Args:
        place: an https URL, or a file.
        refresh_s: seconds between two looks.
        stale_s: seconds that keys are used after the last look that succeeded.
        on_change: called when keys have changed: what they verified may be valid no more.
        min_pause_s: minimum seconds between two looks that tokens ask for.

    Raises:
        BadRequestError: a file that cannot be read, or has no key.
    """

    def __init__(
        self,
        place: str,
        refresh_s: float,
        stale_s: float,
        on_change: Callable[[], None],
        *,
        min_pause_s: float = MIN_PAUSE_S,
    ) -> None:
        self._place = place
        self._min_pause_s = min_pause_s
        self._file = None if "://" in place else Path(place)
        self._refresh_s = refresh_s if self._file is None else min(FILE_LOOK_S, refresh_s)
        self._stale_s = stale_s
        self._on_change = on_change
        self._keys: tuple[SigningKey, ...] = ()
        self._read_at: float | None = None
        self._asked_at: float | None = None
        self._looking: asyncio.Task[None] | None = None
        self._client: httpx.AsyncClient | None = None
        self._problem = "they have not been read yet"
        self._stamp: tuple[int, ...] = ()
        if self._file is not None:
            try:
                self._take_file(self._file)
            except (OSError, ValueError) as error:
                raise BadRequestError(f"OPBOX_OIDC_JWKS: {place}: {_reason(error)}") from None

    @property
    def unready(self) -> str:
        """Why no token can be verified; empty where tokens can be."""
        if self._keys and self._read_at is not None and time.monotonic() - self._read_at <= self._stale_s:
            return ""
        return f"the keys of the OIDC issuer cannot be read ({self._place}: {self._problem}): try again in a moment"

    def find(self, kid: str | None, algorithm: str) -> SigningKey | None:
        """The key for a token's header; one without a `kid` means the only key of its algorithm."""
        if self.unready:
            return None
        keys = [key for key in self._keys if algorithm in key.algorithms and kid in (None, key.kid)]
        return keys[0] if len(keys) == 1 or (keys and kid is not None) else None

    async def run(self) -> None:
        """Look at the keys at intervals, for ever."""
        try:
            while True:
                await self._look()
                # Sooner after a look that failed, and when the keys become too old.
                pause = self._refresh_s if not self._problem else min(self._refresh_s, self._min_pause_s)
                await asyncio.sleep(min(pause, max(0.05, self._stale_s)))
        finally:
            if self._client is not None:
                with contextlib.suppress(Exception):
                    await self._client.aclose()

    async def refresh(self) -> None:
        """Look at the keys now, because a token names an unknown one; not so if a look was a moment ago."""
        recently = self._asked_at is not None and time.monotonic() - self._asked_at < self._min_pause_s
        if self._looking is not None or not recently:
            await self._look()

    async def _look(self) -> None:
        if self._looking is None:
            self._asked_at = time.monotonic()
            self._looking = asyncio.create_task(self._read())
            self._looking.add_done_callback(self._looked)
        await asyncio.shield(self._looking)

    def _looked(self, task: asyncio.Task[None]) -> None:
        self._looking = None

    async def _read(self) -> None:
        try:
            if self._file is not None:
                self._take_file(self._file)
            else:
                self._take(await self._fetch())
        except (OSError, ValueError, TimeoutError, httpx.HTTPError, httpx.InvalidURL) as error:
            self._problem = _reason(error)
            _log.warning("OIDC's keys were not read", place=self._place, reason=self._problem, known=len(self._keys))
            if self._keys and self.unready:
                _log.error("OIDC's keys are too old: its tokens are refused", seconds=self._stale_s)
                self._keys = ()
                self._on_change()

    def _take_file(self, path: Path) -> None:
        stamp = stamp_of(path)
        if stamp == self._stamp and not self._problem:
            self._read_at = time.monotonic()
            return
        self._take(_read_file(path))
        self._stamp = stamp

    def _take(self, text: bytes) -> None:
        keys = read_keys(text)
        self._read_at, self._problem = time.monotonic(), ""
        if keys != self._keys:
            self._keys = keys
            _log.info("OIDC's keys were read", place=self._place, keys=[key.kid for key in keys])
            self._on_change()

    async def _fetch(self) -> bytes:
        if self._client is None:
            # No redirects: the address is what the administrator wrote.
            self._client = httpx.AsyncClient(timeout=FETCH_S, headers={"Accept-Encoding": "identity"})
        body = bytearray()
        async with asyncio.timeout(FETCH_S), self._client.stream("GET", self._place) as answer:
            if answer.status_code != 200:
                raise ValueError(f"expected status 200, got {answer.status_code}")
            async for part in answer.aiter_raw():
                body += part
                if len(body) > MAX_BYTES:
                    raise ValueError(f"expected at most {MAX_BYTES} bytes, got more")
        return bytes(body)


def read_keys(text: bytes) -> tuple[SigningKey, ...]:
    """The keys of a JWKS that verify signatures; others are passed over.

    Raises:
        ValueError: it is none, or has no such key.
    """
    try:
        document = json.loads(text)
        entries = document["keys"]
    except (ValueError, RecursionError, LookupError, TypeError):
        raise ValueError('expected a JWKS, a JSON object with "keys", got another text') from None
    if not isinstance(entries, list) or len(entries) > MAX_KEYS:
        raise ValueError(f"expected a list of at most {MAX_KEYS} keys, got another")
    keys: dict[tuple[str | None, frozenset[str]], SigningKey] = {}
    for entry in entries:
        key = _read_key(entry)
        if key is not None:
            keys.setdefault((key.kid, key.algorithms), key)
    if not keys:
        raise ValueError("expected a public key to verify signatures by, of RSA, EC or Ed25519, got none")
    return tuple(keys.values())


def _read_key(entry: Any) -> SigningKey | None:
    if not isinstance(entry, dict) or "d" in entry or "k" in entry:  # no secret belongs here
        return None
    kid, kind, curve = entry.get("kid"), entry.get("kty"), entry.get("crv", "")
    uses = entry.get("key_ops", ["verify"])
    algorithms = _BY_KIND.get((str(kind), "" if kind == "RSA" else str(curve)))
    if algorithms is None or entry.get("use", "sig") != "sig" or not isinstance(uses, list) or "verify" not in uses:
        return None
    if entry.get("alg") is not None:
        algorithms &= {entry["alg"]} if isinstance(entry["alg"], str) else frozenset()
    if not algorithms or not isinstance(kid, str | None):
        return None
    try:
        public = jwt.PyJWK(entry, algorithm=min(algorithms)).key
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    if kind == "RSA" and public.key_size not in RSA_BITS:
        return None
    return SigningKey(kid, algorithms, json.dumps(entry, sort_keys=True), public)


def _read_file(path: Path) -> bytes:
    if path.exists() and not path.is_file():
        raise ValueError("expected a file, got something else")
    with path.open("rb") as file:
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise ValueError(f"expected at most {MAX_BYTES} bytes, got more")
    return text


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        return f"no answer within {FETCH_S:g} s"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)[:200] or type(error).__name__
