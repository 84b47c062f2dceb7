"""Reads files of tokens: one token as it stands, or a JSON list of tokens with owners, scopes and expiry."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from opbox_protocol.errors import BadRequestError

from ..settings import Settings, Token
from ..validation import explain

__all__ = ["read_token", "read_tokens"]

SHORTEST = 8
_TOKENS = TypeAdapter(tuple[Token, ...])


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


def read_tokens(path: Path) -> tuple[Token, ...]:
    """The tokens that a file lists, as OPBOX_TOKENS would.

        [{"name": "ann", "token": "…", "scopes": ["run"], "expires": "2030-01-31T00:00:00Z"}]

    Raises:
        BadRequestError: it cannot be read, or lists something else; nothing of a token is shown.
    """
    try:
        return _TOKENS.validate_json(_text(path))
    except ValidationError as error:
        item = error.errors(include_url=False)[0]
        if item["type"] == "json_invalid":
            raise BadRequestError(f"{path}: expected a JSON list of tokens, got malformed JSON") from None
        sentence = explain(item, Settings, ("tokens", *item["loc"])).rpartition(", got ")[0]
        raise BadRequestError(f"{path}: {sentence or 'unknown field: expected name, token, scopes, expires'}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise BadRequestError(f"{path}: expected a file of tokens, got none that can be read ({reason})") from None
