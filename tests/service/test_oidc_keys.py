"""The keys of an OIDC issuer: rotated, withdrawn, out of reach, too old, and answers that are no keys."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from opbox_protocol.errors import AuthenticationError, NotReadyError
from opbox_service.accounting.accounts import Accounts
from opbox_service.api.identity import Tokens
from opbox_service.api.oidc_keys import MAX_BYTES, IssuerKeys, read_keys
from opbox_service.settings import Settings

from .jwks import AUDIENCE, ISSUER, JwksServer, claims, jwk, private_key, sign

ONE, TWO = (jwk(private_key("P-256", number), name) for number, name in ((0, "one"), (1, "two")))


@pytest.fixture
def issuer() -> Iterator[JwksServer]:
    server = JwksServer(ONE)
    yield server
    server.close()


@pytest.fixture
def log() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as entries:
        yield entries


def tokens_of(place: str, **changes: Any) -> Tokens:
    settings = Settings(oidc_issuer=ISSUER, oidc_audience=AUDIENCE, oidc_jwks=place, **changes)
    return Tokens(settings, Accounts(settings), look_s=-1)


def header(number: int, **changes: Any) -> bytes:
    name = ("one", "two")[number]
    return b"Bearer " + sign(claims(**changes), name, "P-256", number).encode()


async def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def test_a_new_key_is_looked_for_once(issuer: JwksServer) -> None:
    """Anybody can send tokens with names of keys; the issuer is asked once in a while for all of them together."""
    tokens = tokens_of(issuer.url)

    async def ask() -> None:
        assert (await tokens.find(header(0))).owner == "oidc:ann"
        assert issuer.asked == 1
        for _ in range(3):
            unknown = [header(1, jti=str(number)) for number in range(10)]
            answers = await asyncio.gather(*map(tokens.find, unknown), return_exceptions=True)
            assert {type(answer) for answer in answers} == {AuthenticationError}
        assert issuer.asked == 1, "it was asked a moment ago"
        assert tokens._oidc is not None
        tokens._oidc.keys._min_pause_s = 0
        issuer.publish(ONE, TWO)
        answers = await asyncio.gather(*map(tokens.find, [header(1, sub=f"owner {n}") for n in range(10)]))
        assert {answer.owner for answer in answers} == {f"oidc:owner {n}" for n in range(10)}
        assert issuer.asked == 2

    asyncio.run(ask())


def test_a_withdrawn_key_is_good_no_more(issuer: JwksServer) -> None:
    tokens = tokens_of(issuer.url, oidc_refresh_s=0.02)

    async def ask() -> None:
        await tokens.start()
        assert (await tokens.find(header(0))).owner == "oidc:ann"
        assert tokens.identify(header(0)).owner == "oidc:ann"
        issuer.publish(TWO)
        await until(lambda: tokens._oidc is not None and tokens._oidc.keys.find("two", "ES256"))
        with pytest.raises(AuthenticationError):
            tokens.identify(header(0))
        with pytest.raises(AuthenticationError, match="got one with another key"):
            await tokens.find(header(0))
        await tokens.stop()

    asyncio.run(ask())


def test_while_the_issuer_is_out_of_reach_known_keys_are_used_up_to_a_bound(issuer: JwksServer, log: list[Any]) -> None:
    tokens = tokens_of(issuer.url, oidc_refresh_s=0.02)
    assert "the keys of the OIDC issuer cannot be read" in tokens.unready

    async def ask() -> None:
        await tokens.start()
        await until(lambda: not tokens.unready)
        issuer.status = 500
        await until(lambda: [entry for entry in log if entry["log_level"] == "warning"])
        assert (await tokens.find(header(0))).owner == "oidc:ann"
        assert tokens.unready == ""
        assert tokens._oidc is not None
        tokens._oidc.keys._stale_s = 0
        await until(lambda: [entry for entry in log if entry["log_level"] == "error"])
        assert "expected status 200, got 500" in tokens.unready
        with pytest.raises(NotReadyError, match="cannot be read"):
            await tokens.find(header(0))
        with pytest.raises(AuthenticationError):
            tokens.identify(header(0))
        issuer.status, tokens._oidc.keys._stale_s = 200, 600
        await until(lambda: not tokens.unready)
        assert (await tokens.find(header(0))).owner == "oidc:ann"
        await tokens.stop()

    asyncio.run(ask())
    assert [entry["event"] for entry in log if entry["log_level"] == "error"] == [
        "OIDC's keys are too old: its tokens are refused"
    ]


def test_an_issuer_that_was_never_reached(issuer: JwksServer) -> None:
    issuer.close()
    tokens = tokens_of(issuer.url)

    async def ask() -> None:
        with pytest.raises(NotReadyError, match="the keys of the OIDC issuer cannot be read"):
            await tokens.find(header(0))

    asyncio.run(ask())


def answer_redirect(issuer: JwksServer) -> None:
    issuer.status, issuer.headers = 302, {"Location": issuer.url}


def answer_status(issuer: JwksServer) -> None:
    issuer.status = 404


def answer_much(issuer: JwksServer) -> None:
    issuer.body = b" " * (MAX_BYTES + 1) + issuer.body


def answer_packed(issuer: JwksServer) -> None:
    issuer.headers = {"Content-Encoding": "gzip"}
    issuer.body = b"\x1f\x8b" + issuer.body


def answer_page(issuer: JwksServer) -> None:
    issuer.body = b"<html>"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (answer_redirect, "expected status 200, got 302"),
        (answer_status, "expected status 200, got 404"),
        (answer_much, f"expected at most {MAX_BYTES} bytes, got more"),
        (answer_packed, "expected a JWKS"),
        (answer_page, "expected a JWKS"),
    ],
)
def test_answers_that_are_no_keys(issuer: JwksServer, change: Callable[[JwksServer], None], reason: str) -> None:
    change(issuer)
    keys = IssuerKeys(issuer.url, 300, 300, lambda: None)
    asyncio.run(keys.refresh())
    assert reason in keys.unready
    assert keys.find("one", "ES256") is None


RSA = jwk(private_key("RSA"), "rsa")


@pytest.mark.parametrize(
    "entry",
    [
        jwk(private_key("P-256"), "one", secret=True),
        {"kty": "oct", "kid": "one", "k": "c2VjcmV0"},
        {"kty": "oct", "kid": "one"},
        jwk(private_key("RSA1024"), "weak"),
        {**RSA, "n": RSA["n"] * 4},
        {**RSA, "n": "!"},
        {**RSA, "alg": "HS256"},
        {**RSA, "alg": ["RS256"]},
        {**RSA, "alg": "none"},
        {**RSA, "kty": ["RSA"]},
        {**RSA, "use": "enc"},
        {**RSA, "key_ops": ["sign"]},
        {**RSA, "key_ops": "verify"},
        {**RSA, "kid": 3},
        {**ONE, "crv": "P-384"},
        {**ONE, "crv": "secp256k1"},
        {**ONE, "x": ONE["y"]},
        {"kty": "RSA"},
        {},
        "key",
        None,
    ],
)
def test_keys_that_are_passed_over(entry: Any) -> None:
    with pytest.raises(ValueError, match="expected a public key to verify signatures by"):
        read_keys(json.dumps({"keys": [entry]}).encode())
    assert [key.kid for key in read_keys(json.dumps({"keys": [entry, TWO]}).encode())] == ["two"]


@pytest.mark.parametrize("text", [b"", b"[]", b"3", b'{"keys": {}}', b'{"keys": null}', b"[" * 5000, b"\xff"])
def test_texts_that_are_no_jwks(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"expected a (JWKS|list of at most 64 keys)"):
        read_keys(text)


def test_a_key_verifies_its_own_algorithms_only() -> None:
    keys = read_keys(json.dumps({"keys": [RSA, {**RSA, "kid": "one of it", "alg": "RS256"}, ONE]}).encode())
    assert [sorted(key.algorithms) for key in keys] == [
        ["PS256", "PS384", "PS512", "RS256", "RS384", "RS512"],
        ["RS256"],
        ["ES256"],
    ]


def test_a_token_without_a_key_name_means_the_only_key() -> None:
    nameless = jwk(private_key("P-256"), None)

    def verified(*entries: dict[str, Any]) -> bool:
        server = JwksServer(*entries)
        try:
            tokens = tokens_of(server.url)
            asyncio.run(tokens.find(b"Bearer " + sign(claims(), None).encode()))
        except AuthenticationError:
            return False
        finally:
            server.close()
        return True

    assert verified(nameless)
    assert verified(nameless, RSA)
    assert not verified(nameless, TWO)


def test_a_file_of_keys_is_read_again(tmp_path: Path, log: list[Any]) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [ONE]}))
    tokens = tokens_of(str(path), oidc_refresh_s=0.02)
    assert tokens.identify(header(0)).owner == "oidc:ann"

    async def ask() -> None:
        await tokens.start()
        path.write_text("nothing")
        await until(lambda: [entry for entry in log if entry["log_level"] == "warning"])
        assert tokens.identify(header(0)).owner == "oidc:ann"
        path.write_text(json.dumps({"keys": [TWO]}))
        await until(lambda: tokens._oidc is not None and tokens._oidc.keys.find("two", "ES256"))
        assert tokens.identify(header(1)).owner == "oidc:ann"
        with pytest.raises(AuthenticationError):
            tokens.identify(header(0))
        await tokens.stop()

    asyncio.run(ask())
