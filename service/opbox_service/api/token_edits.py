"""Edits files of tokens: adds entries with hashes, lists and removes entries, for `opbox token`.

Two edits at a time wait for each other, and the server, which may read the file at any moment, finds the old text or
the new one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from opbox_protocol.errors import BadRequestError, NotFoundError

from ..owner_terms import SCOPES, Token
from ..token_hashes import ScryptHash, new_token, sha256_of
from .token_files import parse_tokens, read_tokens

__all__ = ["TokenRow", "add_token", "expiry", "listed", "readable_by_others", "remove_tokens"]

SHORTEST_CHOSEN = 12
"""Minimum number of characters of a token that somebody chooses."""
ID_DIGITS = 8
UNITS = {"m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token as it is listed.

    Attributes:
        id: the beginning of its hash, by which it is told from others of its name.
        name: of its owner.
        kind: "sha256", "scrypt" or "plain".
        scopes: what it may do.
        expires: when it expires; None for never.
        expired: whether it has.
    """

    id: str
    name: str
    kind: str
    scopes: Sequence[str]
    expires: str | None
    expired: bool

    def to_json(self) -> dict[str, Any]:
        """As `opbox token list --json` prints it."""
        return asdict(self)


def add_token(
    path: Path, name: str, scopes: Sequence[str] = ("run",), expires: datetime | None = None, chosen: str | None = None
) -> str:
    """Make a token and add its hash to a file, which is made if there is none.

    Args:
        path: the file.
        name: of the owner.
        scopes: what the token may do.
        expires: when it expires, with a time zone.
        chosen: a token that somebody chose; by default it is a new random one.

    Returns:
        The token, which is nowhere else.

    Raises:
        BadRequestError: the file, or one of these, is not what it should be.
    """
    token = new_token() if chosen is None else chosen
    if chosen is not None and (
        len(chosen) < SHORTEST_CHOSEN or not chosen.isascii() or not chosen.isprintable() or " " in chosen
    ):
        raise BadRequestError(
            f"token: expected {SHORTEST_CHOSEN} or more printable ASCII characters without spaces, got "
            f"{len(chosen)} characters: choose another, or leave out --chosen"
        )
    entry: dict[str, Any] = {"name": name}
    entry |= {"sha256": sha256_of(token)} if chosen is None else {"scrypt": str(ScryptHash.of(token))}
    unknown = set(scopes) - SCOPES
    if unknown or not scopes:
        raise BadRequestError(
            f"scopes: expected some of {', '.join(sorted(SCOPES))}, got {', '.join(sorted(unknown)) or 'none'}"
        )
    entry["scopes"] = sorted(scopes)
    if expires is not None:
        entry["expires"] = expires.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with _edited(path, create=True) as document:
        _entries(document).append(entry)
    return token


def listed(path: Path) -> list[TokenRow]:
    """The tokens of a file, in its order.

    Raises:
        BadRequestError: it cannot be read, or says something else than tokens.
    """
    return [_row(token) for token in read_tokens(path).tokens]


def remove_tokens(path: Path, name: str, ids: Sequence[str] = (), *, every: bool = False) -> dict[str, Any]:
    """Remove tokens of an owner from a file; with the last one, the owner's terms too.

    Args:
        path: the file.
        name: of the owner.
        ids: beginnings of the tokens' ids; none where there is one token of the name.
        every: remove all tokens of the name.

    Returns:
        `removed`, the ids; and `terms`, those of the owner that were removed too.

    Raises:
        NotFoundError: there is no such token.
        BadRequestError: it is not clear which token is meant, or the file is not what it should be.
    """
    with _edited(path) as document:
        entries = _entries(document)
        rows = [_row(Token.model_validate_json(json.dumps(entry))) for entry in entries]
        own = [row for row in rows if row.name == name]
        if not own:
            names = ", ".join(sorted({row.name for row in rows})[:20]) or "none"
            raise NotFoundError(f"{name}: expected the name of a token in {path} ({names}), got one that none has")
        for id in ids:
            if sum(row.id.startswith(id) for row in own) != 1:
                known = ", ".join(row.id for row in own)
                raise NotFoundError(f"{id}: expected the beginning of one id of {name}'s tokens ({known})")
        if not ids and not every and len(own) > 1:
            known = ", ".join(row.id for row in own)
            raise BadRequestError(f"{name}: has {len(own)} tokens ({known}): name one by its id, or use --all")
        gone = {row.id for row in own if every or not ids or any(row.id.startswith(id) for id in ids)}
        entries[:] = [entry for entry, row in zip(entries, rows, strict=True) if row.name != name or row.id not in gone]
        terms = None
        if isinstance(document, dict) and all(entry["name"] != name for entry in entries):
            terms = document.get("owners", {}).pop(name, None)
    return {"removed": sorted(gone), "terms": terms}


def expiry(text: str) -> datetime:
    """The time of an expiry such as 90d, 12h, 2030-01-31 or 2030-01-31T12:00:00+01:00; without a zone it is UTC.

    Raises:
        BadRequestError: it is none, or has passed.
    """
    now = datetime.now(UTC)
    try:
        if text[-1:] in UNITS and text[:-1].isdecimal():
            moment = datetime.fromtimestamp(now.timestamp() + int(text[:-1]) * UNITS[text[-1]], UTC)
        else:
            moment = datetime.fromisoformat(text)
            moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError, OSError):
        raise BadRequestError(
            f"expires: expected a time such as 90d, 12h, 2030-01-31 or 2030-01-31T12:00:00Z, got {text[:40]!r}"
        ) from None
    if moment <= now:
        raise BadRequestError(f"expires: expected a time to come, got {text[:40]!r}, which has passed")
    return moment


def readable_by_others(path: Path) -> bool:
    """Return whether other users may read plain tokens in a file."""
    plain = any(token.token is not None for token in read_tokens(path).tokens)
    return plain and bool(stat.S_IMODE(path.stat().st_mode) & 0o077)


def _entries(document: Any) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = document if isinstance(document, list) else document["tokens"]
    return entries


def _row(token: Token) -> TokenRow:
    kind = "plain" if token.token is not None else "sha256" if token.sha256 is not None else "scrypt"
    secret = token.hashed()
    # A scrypt hash begins with its salt; this way two of them have two ids.
    id = secret.sha256 or hashlib.sha256(str(secret.scrypt).encode()).hexdigest()
    expires = None if token.expires is None else token.expires.astimezone(UTC)
    shown = None if expires is None else expires.strftime("%Y-%m-%dT%H:%M:%SZ")
    expired = expires is not None and expires <= datetime.now(UTC)
    return TokenRow(id[:ID_DIGITS], token.name, kind, sorted(token.scopes), shown, expired)


@contextlib.contextmanager
def _edited(path: Path, *, create: bool = False) -> Iterator[Any]:
    """The document of a file of tokens, to be changed in the block; then it is checked and written."""
    path = Path(os.path.realpath(path))
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise BadRequestError(f"{path}: expected a file in a folder, got none ({error.strerror})") from None
    try:
        # The file itself cannot be locked, as another one takes its place.
        fcntl.flock(folder, fcntl.LOCK_EX)
        status = None
        document: Any = []
        if path.exists() or not create:
            read_tokens(path)
            status = path.stat()
            document = json.loads(path.read_text("utf-8"))
        yield document
        text = _text(document)
        parse_tokens(text, path)
        _replace(path, text.encode(), status)
        os.fsync(folder)
    finally:
        os.close(folder)


def _text(document: Any) -> str:
    """A line for each entry, so that a person or `diff` sees what changed."""

    def lines(rows: list[str], ends: str, indent: str) -> str:
        return f",\n{indent}".join(rows).join(ends)

    tokens = [json.dumps(entry, ensure_ascii=False) for entry in _entries(document)]
    if isinstance(document, list):
        return lines(tokens, "[]", " ") + "\n"
    parts = [f'"tokens": {lines(tokens, "[]", " " * 12)}']
    for name, value in document.items():
        if name == "owners":
            rows = [f"{json.dumps(owner)}: {json.dumps(terms)}" for owner, terms in value.items()]
            parts.append(f'"owners": {lines(rows, "{}", " " * 12)}')
    return lines(parts, "{}", " ") + "\n"


def _replace(path: Path, data: bytes, status: os.stat_result | None) -> None:
    """Put a file into the place of another one, with that one's owner and mode; a new one is for its owner alone."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
            if status is not None:
                if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(file.fileno(), status.st_uid, status.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(status.st_mode))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise BadRequestError(f"{path}: cannot be written ({error.strerror})") from None
