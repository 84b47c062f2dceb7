"""Tokens are kept as hashes: what files may say in their place, what memory holds, and what a wrong token costs."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from pydantic import SecretStr

from opbox_protocol.errors import AuthenticationError, NotReadyError
from opbox_service.accounting.accounts import Accounts
from opbox_service.api.chosen_tokens import MAX_OF_ADDRESS, ChosenTokens
from opbox_service.api.identity import CALLERS, Tokens
from opbox_service.owner_terms import SCOPES, Token
from opbox_service.settings import Settings
from opbox_service.token_hashes import ScryptHash, new_token, sha256_of

RANDOM = "opbox_a-random-token-that-nobody-guesses"
CHOSEN = "correct-horse-battery-staple"


def cheap(token: str) -> str:
    """A scrypt hash that takes a millisecond."""
    salt = os.urandom(16)
    digest = hashlib.scrypt(token.encode(), salt=salt, n=16, r=8, p=1, dklen=32)
    return str(ScryptHash(4, 8, 1, salt, digest))


def header(token: str) -> bytes:
    return b"Bearer " + token.encode()


def tokens_of(path: Path | None = None, **settings: Any) -> Tokens:
    whole = Settings(tokens_file=path, **settings)
    return Tokens(whole, Accounts(whole), look_s=-1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "tokens.json"
    file.write_text(
        json.dumps([{"name": "ann", "sha256": sha256_of(RANDOM)}, {"name": "bob", "scrypt": cheap(CHOSEN)}])
    )
    return file


def test_a_new_token_is_long_and_each_another() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert {len(token) for token in tokens} == {len("opbox_") + 43}


def test_scrypt_as_other_programs_write_it() -> None:
    """The test vector of RFC 7914 for N = 1024, and a text of the form that passlib writes."""
    text = (
        "$scrypt$ln=10,r=8,p=16$TmFDbA$/bq+HJ00cgB4VucZDQHp/nxq18vII3gw53N2Y0s3MWIurzDZLiKjiG/xCSedmDDaxyevuUqD7m2DYMvf"
        "oswGQA"
    )
    with pytest.raises(ValueError, match=r"a hash such as \$scrypt"):
        ScryptHash.parse(text)  # its salt has four bytes only
    digest = ScryptHash(
        10,
        8,
        16,
        b"NaCl",
        bytes.fromhex(
            "fdbabe1c9d3472007856e7190d01e9fe7c6ad7cbc8237830e77376634b373162"
            "2eaf30d92e22a3886ff109279d9830dac727afb94a83ee6d8360cbdfa2cc0640"
        ),
    )
    assert digest.matches(b"password")
    assert not digest.matches(b"passwort")
    assert str(digest) == text
    again = cheap(CHOSEN)
    assert str(ScryptHash.parse(again)) == again


def test_hashes_stand_in_the_place_of_tokens(path: Path) -> None:
    tokens = tokens_of(path)
    for token, owner in ((RANDOM, "ann"), (CHOSEN, "bob")):
        assert asyncio.run(tokens.find(header(token))).owner == owner
        assert tokens.identify(header(token)).owner == owner
    for wrong in (sha256_of(RANDOM), RANDOM + "x", RANDOM[:-1], "", " ", CHOSEN.upper()):
        with pytest.raises(AuthenticationError):
            asyncio.run(tokens.find(header(wrong)))


def test_memory_holds_no_token(path: Path) -> None:
    settings = Settings(
        tokens_file=path,
        token=SecretStr("the-token-with-every-scope"),
        tokens=(Token(name="eve", token=SecretStr("another-token-of-length")),),
    )
    tokens = Tokens(settings, Accounts(settings))
    for token in (RANDOM, CHOSEN, "the-token-with-every-scope", "another-token-of-length"):
        asyncio.run(tokens.find(header(token)))
    shown = repr((vars(tokens), vars(tokens._chosen)))
    for token in (RANDOM, CHOSEN, "the-token-with-every-scope", "another-token-of-length"):
        assert token not in shown
        assert hashlib.sha256(header(token)).hexdigest() not in shown
    hashed = settings.without_plain_tokens()
    assert (hashed.token, [token.token for token in hashed.tokens]) == (None, [None, None])
    assert [(token.name, token.scopes) for token in hashed.tokens] == [("eve", {"run"}), ("default", SCOPES)]
    assert hashed.without_plain_tokens() == hashed


def test_a_chosen_token_is_checked_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[bytes] = []
    matches = ScryptHash.matches
    monkeypatch.setattr(ScryptHash, "matches", lambda own, token: checks.append(token) or matches(own, token))
    tokens = tokens_of(path)

    async def ask() -> None:
        for _ in range(3):
            callers = await asyncio.gather(*(tokens.find(header(CHOSEN)) for _ in range(5)))
            assert {caller.owner for caller in callers} == {"bob"}
            with pytest.raises(AuthenticationError):
                await tokens.find(header("a-token-of-nobody"))

    asyncio.run(ask())
    assert checks == [CHOSEN.encode(), b"a-token-of-nobody"]
    tokens._callers.clear()  # as when more callers have come than are cached
    assert tokens.identify(header(CHOSEN)).owner == "bob"
    entries = json.loads(path.read_text())
    path.write_text(json.dumps([*entries, {"name": "new", "sha256": "0" * 64}]))
    assert tokens.identify(header(CHOSEN)).owner == "bob", "the file was read again, and its hash is the same"
    path.write_text(json.dumps(entries[:1]))
    with pytest.raises(AuthenticationError):
        tokens.identify(header(CHOSEN))
    assert len(checks) == 2


def test_a_flood_of_wrong_tokens_waits_and_holds_up_no_other(path: Path) -> None:
    """One check runs at a time, one address has few of them, and tokens with sha256 are known at once meanwhile."""
    tokens = tokens_of(path)
    tokens._chosen._pause = 1e6  # the check behind the first failed one waits for ever

    async def flood() -> None:
        with pytest.raises(AuthenticationError):
            await tokens.find(header("wrong-token-0"), "10.0.0.1")
        guesses = [asyncio.create_task(tokens.find(header(f"wrong-token-{i}"), "10.0.0.1")) for i in range(1, 20)]
        while sum(guess.done() for guess in guesses) < len(guesses) - MAX_OF_ADDRESS:
            await asyncio.sleep(0)
        waiting = [guess for guess in guesses if not guess.done()]
        assert len(waiting) == MAX_OF_ADDRESS
        assert {type(guess.exception()) for guess in guesses if guess.done()} == {NotReadyError}
        assert (await tokens.find(header(RANDOM))).owner == "ann"
        for task in [*waiting, *tokens._chosen._waiting.values()]:
            task.cancel()

    asyncio.run(flood())


def test_after_a_failed_check_comes_a_pause() -> None:
    checks = ChosenTokens()
    checks.replace([cheap(CHOSEN)])

    async def ask() -> None:
        assert await checks.check(b"one", b"wrong", "") is None
        assert checks._paused_until > time.monotonic() - 1
        assert await checks.check(b"two", CHOSEN.encode(), "") is not None

    asyncio.run(ask())
    assert checks.match(b"two") is not None
    assert checks.match(b"one") is None
    assert (checks._waiting, checks._of_address) == ({}, {})


def test_the_cache_of_callers_is_bounded(path: Path) -> None:
    entries = [{"name": f"owner {i}", "sha256": sha256_of(f"token {i}")} for i in range(CALLERS + 10)]
    path.write_text(json.dumps(entries))
    tokens = tokens_of(path)
    for i in range(CALLERS + 10):
        assert tokens.identify(header(f"token {i}")).owner == f"owner {i}"
    assert len(tokens._callers) == CALLERS


@pytest.fixture
def log() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as entries:
        yield entries


def test_short_plain_tokens_are_warned_of(path: Path, log: list[Any]) -> None:
    path.write_text(json.dumps([{"name": "ann", "token": "8-letter"}, {"name": "bob", "token": RANDOM}]))
    tokens = tokens_of(path, token=SecretStr("also-short"))
    assert tokens.identify(header("8-letter")).owner == "ann"
    assert [(entry["log_level"], entry["owners"]) for entry in log] == [("warning", ["default"]), ("warning", ["ann"])]
    assert "opbox token new" in log[0]["event"]
    assert "8-letter" not in str(log)
