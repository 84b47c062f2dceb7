"""Reads files of tokens: one token as it stands, or a JSON list of tokens, perhaps with the terms of their owners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from opbox_protocol.errors import BadRequestError

from ..owner_terms import OwnerName, OwnerTerms, Token
from ..validation import explain

__all__ = ["MAX_CHOSEN", "TokensFile", "parse_tokens", "read_token", "read_tokens", "stamp_of"]

SHORTEST = 8
MAX_CHOSEN = 8
"""Maximum number of tokens that people chose: an unknown token is compared with all of them, a quarter of a second for
each."""


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tokens: tuple[Token, ...]
    owners: dict[OwnerName, OwnerTerms] = {}


_TOKENS = TypeAdapter(tuple[Token, ...])


@dataclass(frozen=True, slots=True)
class TokensFile:
    """The content of a file of tokens.

    Attributes:
        tokens: with their owners, scopes and expiry.
        owners: the terms of owners who have some of their own.
    """

    tokens: tuple[Token, ...] = ()
    owners: dict[str, OwnerTerms] = field(default_factory=dict)


def read_token(path: Path) -> str:
    """The token that a file holds, without the line's end.

    Raises:
        BadRequestError: it cannot be read, or holds no token.
    """
    token = _text(path).strip()
    if len(token) < SHORTEST or not token.isascii() or any(character.isspace() for character in token):
        raise BadRequestError(
            f"{path}: expected one token of {SHORTEST} or more ASCII characters on a line, got {len(token)} characters "
            "that are none: write the token alone into the file"
        )
    return token


def read_tokens(path: Path) -> TokensFile:
    """The tokens that a file lists, as OPBOX_TOKENS would; in an object there may be terms of their owners too.

        {"tokens": [{"name": "ann", "sha256": "…", "scopes": ["run"], "expires": "2030-01-31T00:00:00Z"}],
         "owners": {"ann": {"sessions": 4, "weight": 2}}}

    Raises:
        BadRequestError: it cannot be read, or says something else; nothing of a token is shown.
    """
    return parse_tokens(_text(path), path)


def parse_tokens(text: str, path: Path) -> TokensFile:
    """As `read_tokens`, from the text that a file has or will have."""
    try:
        if text.lstrip().startswith("{"):
            document = _Document.model_validate_json(text)
            file = TokensFile(document.tokens, document.owners)
        else:
            file = TokensFile(_TOKENS.validate_json(text))
    except ValidationError as error:
        item = error.errors(include_url=False)[0]
        if item["type"] == "json_invalid":
            raise BadRequestError(f"{path}: expected a JSON list of tokens, got malformed JSON") from None
        place = item["loc"] if text.lstrip().startswith("{") else ("tokens", *item["loc"])
        raise BadRequestError(f"{path}: {_sentence(item, place)}") from None
    chosen = sum(token.scrypt is not None for token in file.tokens)
    if chosen > MAX_CHOSEN:
        raise BadRequestError(
            f"{path}: expected at most {MAX_CHOSEN} tokens with scrypt, got {chosen}: use random ones, with sha256"
        )
    return file


def _sentence(item: Mapping[str, Any], place: tuple[str | int, ...]) -> str:
    """Return the sentence for an invalid entry, without any part of a token."""
    if "[key]" in place:
        return "owners: expected names of 1 to 128 characters, got another"
    if place[0] == "owners" and len(place) > 2:
        # An owner's name is no field's.
        return f"owners.{place[1]}: {explain(item, OwnerTerms, place[2:])}"
    if item["type"] == "extra_forbidden" and len(place) > 1 and place[0] == "tokens":
        return f"tokens.{place[1]}: unknown field: expected {', '.join(Token.model_fields)}"
    if place[0] == "owners" or item["type"] == "extra_forbidden":
        return explain(item, _Document, place)
    return explain(item, _Document, place).partition(", got ")[0]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise BadRequestError(f"{path}: expected a file of tokens, got none that can be read ({reason})") from None


def stamp_of(path: Path) -> tuple[int, ...]:
    """Return a stamp that changes with a file's text, its permissions, or the file that has its name."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
