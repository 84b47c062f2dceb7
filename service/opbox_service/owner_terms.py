"""Owners: their names, tokens, scopes and quotas, as settings and files of tokens have them."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, SecretStr, model_validator

from .token_hashes import SHA256, ScryptHash, sha256_of

__all__ = [
    "DEFAULT_OWNER",
    "LARGER_QUOTA",
    "SCOPES",
    "UPLOADS",
    "OwnerName",
    "OwnerTerms",
    "Scope",
    "Token",
    "check_owner_name",
]

Scope = Literal["run", "upload-python", "upload-cuda", "metrics", "admin"]
SCOPES: frozenset[Scope] = frozenset({"run", "upload-python", "upload-cuda", "metrics", "admin"})
UPLOADS: frozenset[Scope] = frozenset({"upload-python", "upload-cuda"})
MAX_OWNER_NAME = 128
DEFAULT_OWNER = "default"
"""Whose the token with every scope is."""
LARGER_QUOTA = "ask the server's administrator for a larger quota (owners in OPBOX_TOKENS_FILE)"
"""What an error advises when a quota is used up."""


def check_owner_name(name: str) -> str:
    """Return the name of an owner; ValueError if it is none: it is written into logs, and hashed as UTF-8."""
    if not 1 <= len(name) <= MAX_OWNER_NAME or not name.isprintable():
        raise ValueError(f"1 to {MAX_OWNER_NAME} printable characters")
    return name


def _check_sha256(text: str) -> str:
    if not re.fullmatch(SHA256, text):
        raise ValueError("64 digits of 0-9 and a-f")
    return text


def _check_scrypt(text: str) -> str:
    ScryptHash.parse(text)
    return text


OwnerName = Annotated[str, Field(min_length=1, max_length=MAX_OWNER_NAME), AfterValidator(check_owner_name)]


class Token(BaseModel):
    """A bearer token, or its hash: `name` owns the sessions made with it; tokens with one name share them."""

    model_config = ConfigDict(extra="forbid")

    name: OwnerName
    token: SecretStr | None = Field(default=None, min_length=8)
    sha256: Annotated[str, AfterValidator(_check_sha256)] | None = Field(
        default=None, description="SHA-256 of a random token, in the token's place."
    )
    scrypt: Annotated[str, AfterValidator(_check_scrypt)] | None = Field(
        default=None, description="$scrypt$… of a token that somebody chose, in the token's place."
    )
    scopes: frozenset[Scope] = frozenset({"run"})
    weight: float | None = Field(
        default=None, gt=0, le=1000, description="The owner's share of a worker's time, relative to others."
    )
    expires: AwareDatetime | None = Field(
        default=None, description="When the token expires, with its time zone: 2030-01-31T12:00:00Z."
    )

    @model_validator(mode="after")
    def _is_one(self) -> Token:
        if sum(secret is not None for secret in (self.token, self.sha256, self.scrypt)) != 1:
            raise ValueError("one of token, sha256 and scrypt")
        return self

    def hashed(self) -> Token:
        """Return the token with its hash in the place of its text."""
        if self.token is None:
            return self
        return self.model_copy(update={"token": None, "sha256": sha256_of(self.token.get_secret_value())})


class OwnerTerms(BaseModel):
    """Quotas, weight and urgency of one owner; missing fields have the settings' values."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    weight: float | None = Field(
        default=None, gt=0, le=1000, description="Share of a worker's time, relative to others."
    )
    urgency: int | None = Field(
        default=None, ge=0, le=7, description="Urgency of requests without one; 4 to 7 run later."
    )
    sessions: int | None = Field(default=None, ge=0, description="Maximum number of sessions.")
    session_bytes: int | None = Field(default=None, ge=1 << 16, description="Maximum device memory of a session.")
    memory_bytes: int | None = Field(
        default=None, ge=1 << 16, description="Maximum memory of all sessions on a device."
    )
    worker_seconds: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="Seconds of workers' time in a day (UTC); 0: no limit."
    )
    in_flight: int | None = Field(default=None, ge=1, description="Maximum number of requests at a time.")
    buffer_bytes: int | None = Field(
        default=None, ge=1 << 16, description="Maximum bytes of bodies and answers in transfer."
    )
    checkpoints: int | None = Field(default=None, ge=0, description="Maximum number of checkpoints.")
    checkpoint_bytes: int | None = Field(default=None, ge=0, description="Maximum bytes of all checkpoints.")
    dataset_bytes: int | None = Field(default=None, ge=0, description="Maximum bytes of stored datasets.")
    model_bytes: int | None = Field(default=None, ge=0, description="Maximum bytes of published models' files.")
