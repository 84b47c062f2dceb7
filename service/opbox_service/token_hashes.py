"""Hashes of bearer tokens: SHA-256 of long random ones, scrypt of those that people chose.

Nobody can guess 32 random bytes, so one SHA-256 is as good as a slow hash and costs a request nothing. What people
choose can be guessed, so each guess at it has to cost something.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
from typing import NamedTuple

__all__ = ["SHA256", "ScryptHash", "new_token", "sha256_of"]

SHA256 = r"[0-9a-f]{64}"
RANDOM_BYTES = 32
LOG2_N, BLOCK_SIZE, PARALLEL = 15, 8, 3
"""The cost of new hashes: 32 MiB and about a quarter of a second, as OWASP's table for scrypt advises for 2**15."""
MAX_MEMORY = 256 << 20
"""Maximum bytes that the check of one hash may take, whatever a file says."""
MAX_WORK = 1 << 26
"""Maximum n * r * p of a hash: some seconds."""
_SALT_BYTES, _DIGEST_BYTES = 16, 32
_TEXT = re.compile(r"\$scrypt\$ln=(\d{1,2}),r=(\d{1,2}),p=(\d{1,2})\$([A-Za-z0-9+/]{11,86})\$([A-Za-z0-9+/]{43,86})")


class ScryptHash(NamedTuple):
    """A salted scrypt hash; its text is `$scrypt$ln=15,r=8,p=3$SALT$DIGEST`, as other programs write it.

    Attributes:
        log2_n, r, p: what a check costs (RFC 7914).
        salt, digest: base64 without padding, in the text.

    Example:
        >>> ScryptHash.parse(str(ScryptHash.of("correct-horse-battery"))).matches(b"correct-horse-battery")
        True
    """

    log2_n: int
    r: int
    p: int
    salt: bytes
    digest: bytes

    @classmethod
    def of(cls, token: str) -> ScryptHash:
        """Hash a token with a new salt."""
        salt = os.urandom(_SALT_BYTES)
        return cls(LOG2_N, BLOCK_SIZE, PARALLEL, salt, _scrypt(token.encode(), LOG2_N, BLOCK_SIZE, PARALLEL, salt))

    @classmethod
    def parse(cls, text: str) -> ScryptHash:
        """Read a hash from its text.

        Raises:
            ValueError: it is none, or a check of it would take too long.
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError("a hash such as $scrypt$ln=15,r=8,p=3$SALT$DIGEST")
        log2_n, r, p = (int(match[number]) for number in (1, 2, 3))
        fits = 1 <= log2_n <= 24 and r and p and (r << log2_n) * 128 <= MAX_MEMORY and (r * p << log2_n) <= MAX_WORK
        if not fits:
            raise ValueError("a hash by scrypt whose check takes at most 256 MiB and some seconds")
        try:
            salt, digest = (base64.b64decode(match[number] + "=" * (-len(match[number]) % 4)) for number in (4, 5))
        except binascii.Error:
            raise ValueError("a hash by scrypt with salt and digest in base64") from None
        return cls(log2_n, r, p, salt, digest)

    def __str__(self) -> str:
        salt, digest = (base64.b64encode(part).decode().rstrip("=") for part in (self.salt, self.digest))
        return f"$scrypt$ln={self.log2_n},r={self.r},p={self.p}${salt}${digest}"

    def matches(self, token: bytes) -> bool:
        """Return whether it is the token's hash; takes about a quarter of a second, without the interpreter's lock."""
        digest = _scrypt(token, self.log2_n, self.r, self.p, self.salt, len(self.digest))
        return hmac.compare_digest(digest, self.digest)


def _scrypt(token: bytes, log2_n: int, r: int, p: int, salt: bytes, size: int = _DIGEST_BYTES) -> bytes:
    return hashlib.scrypt(token, salt=salt, n=1 << log2_n, r=r, p=p, dklen=size, maxmem=MAX_MEMORY + (8 << 20))


def sha256_of(token: str) -> str:
    """Return the SHA-256 of a token, as `printf %s TOKEN | sha256sum` prints it."""
    return hashlib.sha256(token.encode()).hexdigest()


def new_token() -> str:
    """Return a new random token; its beginning says whose it is to whoever finds it in a log or a repository."""
    return "opbox_" + secrets.token_urlsafe(RANDOM_BYTES)
