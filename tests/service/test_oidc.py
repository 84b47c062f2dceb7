"""Tokens of an OIDC issuer: what is taken, every way of being refused, and whose they are."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from opbox_protocol.errors import AuthenticationError, BadRequestError, ForbiddenError
from opbox_service.accounting.accounts import Accounts
from opbox_service.api.caller import Identity
from opbox_service.api.identity import Tokens
from opbox_service.owner_terms import SCOPES
from opbox_service.settings import Settings
from opbox_service.token_hashes import sha256_of

from .jwks import AUDIENCE, ISSUER, JwksServer, claims, jwk, part, private_key, sign

KINDS = {
    "RS256": "RSA",
    "RS512": "RSA",
    "PS256": "RSA",
    "ES256": "P-256",
    "ES384": "P-384",
    "ES512": "P-521",
    "EdDSA": "Ed25519",
}


@pytest.fixture(scope="module")
def issuer() -> Iterator[JwksServer]:
    keys = [jwk(private_key(kind), kind) for kind in dict.fromkeys(KINDS.values())]
    server = JwksServer(*keys, jwk(private_key("P-256"), "one"))
    yield server
    server.close()


def tokens_of(place: str, path: Path | None = None, **changes: Any) -> Tokens:
    settings = Settings(oidc_issuer=ISSUER, oidc_audience=AUDIENCE, oidc_jwks=place, tokens_file=path, **changes)
    return Tokens(settings, Accounts(settings), look_s=-1)


def find(tokens: Tokens, token: str) -> Identity:
    return asyncio.run(tokens.find(b"Bearer " + token.encode()))


@pytest.fixture
def tokens(issuer: JwksServer) -> Tokens:
    return tokens_of(issuer.url)


@pytest.mark.parametrize("algorithm", KINDS)
def test_signatures_of_each_algorithm(tokens: Tokens, algorithm: str) -> None:
    kind = KINDS[algorithm]
    token = sign(claims(), kind, kind, algorithm=algorithm)
    caller = find(tokens, token)
    assert (caller.owner, caller.scopes) == ("oidc:ann", {"run"})
    assert tokens.identify(b"Bearer " + token.encode()) == caller


def test_a_list_of_audiences_and_types_of_access_tokens(tokens: Tokens) -> None:
    assert find(tokens, sign(claims(aud=["other", AUDIENCE]))).owner == "oidc:ann"
    assert find(tokens, sign(claims(), typ="at+JWT")).owner == "oidc:ann"
    assert find(tokens, sign(claims(), typ=None)).owner == "oidc:ann"


def by_shared_secret() -> str:
    """A token whose secret is the public key, for libraries that take the algorithm from the token."""
    key = private_key("RSA").public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    text = f"{part({'alg': 'HS256', 'typ': 'JWT', 'kid': 'RSA'})}.{part(claims())}"
    return f"{text}.{part(hmac.digest(key, text.encode(), hashlib.sha256))}"


def changed_after_signing() -> str:
    header, _, signature = sign(claims()).split(".")
    return f"{header}.{part(claims(sub='boss'))}.{signature}"


def nested(depth: int) -> bytes:
    return b'{"iss": ' + b"[" * depth + b"]" * depth + b"}"


NOW = time.time()
UNSIGNED = f"{part({'alg': 'none', 'typ': 'JWT'})}.{part(claims())}."
REFUSED = {
    "unsigned": (lambda: UNSIGNED, "expected a signature by ES256, ES384, ES512, EdDSA, PS256, "),
    "symmetric": (by_shared_secret, "RS512, got 'HS256'"),
    "an algorithm that is a list": (
        lambda: f"{part({'alg': [], 'kid': 'one'})}.{part(claims())}.AA",
        "got another value",
    ),
    "another key's algorithm": (lambda: sign(claims(), "P-256", "RSA", algorithm="RS256"), "got one with another key"),
    "another key of the name": (lambda: sign(claims(), "one", "P-256", 1), "wrong signature"),
    "a key in the header": (
        lambda: sign(claims(), "one", "P-256", 1, jwk=jwk(private_key("P-256", 1), "one")),
        "wrong signature",
    ),
    "a place of keys in the header": (
        lambda: sign(claims(), "two", "P-256", 1, jku="http://127.0.0.1:1/keys"),
        "got one with another key",
    ),
    "no key's name": (lambda: sign(claims(), None), "got one with another key"),
    "changed": (changed_after_signing, "wrong signature"),
    "critical": (lambda: sign(claims(), crit=["b64"], b64=False), "malformed"),
    "another type": (lambda: sign(claims(), typ="logout+jwt"), "got the type 'logout+jwt'"),
    "no JSON": (lambda: sign(b"nothing"), "malformed"),
    "a list": (lambda: sign(b"[]"), "malformed"),
    "nested": (lambda: sign(nested(5000)), ""),
    "a little nested": (lambda: sign(nested(500)), "expected the issuer 'https://login.example.org/', got another"),
    "cut": (lambda: sign(claims())[:-9], ""),
    "no base64": (lambda: "eyJ!.!.!", "malformed"),
    "empty parts": (lambda: "eyJ..", "malformed"),
    "long": (lambda: sign(claims(note="x" * 20_000)), "expected at most 16384 bytes, got"),
    "expired": (lambda: sign(claims(exp=NOW - 31)), "got one that expired at "),
    "without an end": (lambda: sign(claims(exp=None)), "expected a claim exp, got none"),
    "an end of text": (lambda: sign(claims(exp="2999")), "expected a number of seconds in the claim exp"),
    "an end of true": (lambda: sign(claims(exp=True)), "expected a number of seconds in the claim exp"),
    "an endless end": (lambda: sign(b'{"exp": 1e999, %s' % json.dumps(claims(exp=None)).encode()[1:]), "claim exp"),
    "an end long ago": (lambda: sign(claims(exp=-(10**400))), "got one that expired at 1970-"),
    "not yet": (lambda: sign(claims(nbf=NOW + 86_400)), "got one whose nbf is "),
    "made tomorrow": (lambda: sign(claims(iat=NOW + 86_400)), "got one whose iat is "),
    "another issuer": (lambda: sign(claims(iss="https://evil.example.org/")), "got 'https://evil.example.org/'"),
    "issuers": (lambda: sign(claims(iss=[ISSUER])), "expected the issuer 'https://login.example.org/', got another"),
    "no issuer": (lambda: sign(claims(iss=None)), "expected the issuer 'https://login.example.org/', got none"),
    "another audience": (lambda: sign(claims(aud="mail")), "expected the audience 'opbox', got 'mail'"),
    "other audiences": (lambda: sign(claims(aud=["mail", 3])), "expected the audience 'opbox', got another value"),
    "no audience": (lambda: sign(claims(aud=None)), "expected the audience 'opbox', got none"),
    "nobody": (lambda: sign(claims(sub=None)), "expected a claim sub that names an owner in a few printable"),
    "an empty name": (lambda: sign(claims(sub="")), "expected a claim sub that names an owner"),
    "a number": (lambda: sign(claims(sub=7)), "expected a claim sub that names an owner"),
    "a long name": (lambda: sign(claims(sub="x" * 124)), "expected a claim sub that names an owner"),
    "two lines": (lambda: sign(claims(sub="ann\nbob")), "expected a claim sub that names an owner"),
    "half a character": (lambda: sign(claims(sub="\ud800")), "expected a claim sub that names an owner"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(tokens: Tokens, case: str) -> None:
    make, sentence = REFUSED[case]
    with pytest.raises(AuthenticationError) as refusal:
        find(tokens, make())
    message = str(refusal.value)
    assert message.startswith("token: expected ")
    assert sentence in message
    assert "\n" not in message


def test_the_clocks_may_differ_a_little(tokens: Tokens) -> None:
    now = time.time()
    assert find(tokens, sign(claims(exp=now - 5, nbf=now + 20, iat=now + 20))).owner == "oidc:ann"
    assert find(tokens, sign(claims(exp=10**400))).expires is not None


def test_a_token_that_was_taken_expires(issuer: JwksServer) -> None:
    tokens = tokens_of(issuer.url, oidc_leeway_s=0)
    token = sign(claims(exp=time.time() + 1.5))
    header = b"Bearer " + token.encode()
    assert find(tokens, token).owner == "oidc:ann"
    until = tokens.identify(header).expires
    assert until is not None
    while datetime.now(UTC) <= until:
        time.sleep(0.05)
    with pytest.raises(AuthenticationError, match="got one that expired at"):
        tokens.identify(header)


@pytest.mark.parametrize(
    ("changes", "scopes"),
    [
        ({"scope": "opbox:run opbox:admin email"}, {"run", "admin"}),
        ({"scope": ["opbox:upload-python", 3, None]}, {"upload-python"}),
        ({"scope": None}, "got one with none: ask for access"),
        ({"scope": "openid run admin"}, "got one with openid, run, admin"),
        ({"scope": {"opbox:run": True}}, "got one with none"),
        ({"scope": ""}, "expected a token whose scope has one of opbox:admin, opbox:metrics, opbox:run, "),
    ],
)
def test_scopes(tokens: Tokens, changes: dict[str, Any], scopes: Any) -> None:
    token = sign(claims(**changes))
    if isinstance(scopes, set):
        assert find(tokens, token).scopes == scopes
        return
    with pytest.raises(ForbiddenError) as refusal:
        find(tokens, token)
    assert scopes in str(refusal.value)


def test_scopes_and_owners_from_other_claims(issuer: JwksServer) -> None:
    tokens = tokens_of(
        issuer.url,
        oidc_owner_claim="profile.login",
        oidc_owner_prefix="lab:",
        oidc_scope_claim="realm_access.roles",
        oidc_scopes={"engineers": ["run", "upload-python"], "operators": ["metrics"]},
    )
    roles = {"roles": ["engineers", "operators", "opbox:admin"]}
    caller = find(tokens, sign(claims(profile={"login": "Ann Lee"}, realm_access=roles)))
    assert (caller.owner, caller.scopes) == ("lab:Ann Lee", {"run", "upload-python", "metrics"})
    whole = {"realm_access.roles": ["operators"], "profile.login": "bob"}
    assert find(tokens, sign(claims(realm_access=roles, **whole))).scopes == {"metrics"}


def test_an_address_counts_if_the_issuer_has_verified_it(issuer: JwksServer) -> None:
    tokens = tokens_of(issuer.url, oidc_owner_claim="email")
    assert find(tokens, sign(claims(email="a@b.org", email_verified=True))).owner == "oidc:a@b.org"
    for verified in (None, False, "true", 1):
        with pytest.raises(AuthenticationError, match="expected an email that the issuer has verified"):
            find(tokens, sign(claims(email="a@b.org", email_verified=verified)))


def test_no_owner_of_a_file_can_be_the_issuers(issuer: JwksServer, tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    entry = {"name": "ann", "sha256": sha256_of("a-random-token")}
    path.write_text(json.dumps({"tokens": [entry], "owners": {"oidc:ann": {"sessions": 2}}}))
    tokens = tokens_of(issuer.url, path)
    assert find(tokens, sign(claims(sub="ann"))).owner == "oidc:ann"
    assert find(tokens, sign(claims(sub="oidc:ann"))).owner == "oidc:oidc:ann"
    assert find(tokens, "a-random-token").owner == "ann"
    assert tokens._accounts.of("oidc:ann").sessions == 2
    path.write_text(json.dumps([{**entry, "name": "oidc:ann"}]))
    with pytest.raises(BadRequestError, match="token of 'oidc:ann': expected a name that does not begin with 'oidc:'"):
        tokens_of(issuer.url, path)
    assert find(tokens, "a-random-token").owner == "ann", "the tokens of before stay"
    path.write_text(json.dumps({"tokens": [entry], "owners": {"odic:ann": {"sessions": 2}}}))
    with pytest.raises(BadRequestError, match="got one that none has"):
        tokens_of(issuer.url, path)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"oidc_audience": None}, "OPBOX_OIDC_AUDIENCE: expected a value beside OPBOX_OIDC_ISSUER, got none"),
        ({"oidc_jwks": None}, "OPBOX_OIDC_JWKS: expected a value beside OPBOX_OIDC_ISSUER, got none"),
        ({"oidc_jwks": "/nowhere.json"}, "OPBOX_OIDC_JWKS: /nowhere.json: No such file or directory"),
        ({"oidc_jwks": "/dev/zero"}, "OPBOX_OIDC_JWKS: /dev/zero: expected a file, got something else"),
        ({"oidc_jwks": __file__}, f"OPBOX_OIDC_JWKS: {__file__}: expected a JWKS, a JSON object"),
    ],
)
def test_wrong_settings_stop_a_server_at_its_start(changes: dict[str, Any], sentence: str) -> None:
    settings = Settings(
        **{"oidc_issuer": ISSUER, "oidc_audience": AUDIENCE, "oidc_jwks": "http://localhost/k", **changes}
    )
    with pytest.raises(BadRequestError) as refusal:
        Tokens(settings, Accounts(settings))
    assert str(refusal.value).startswith(sentence)


@pytest.mark.parametrize("place", ["http://login.example.org/keys", "http://localhost.evil.org/", "ftp://localhost/"])
def test_keys_come_over_an_encrypted_link(place: str) -> None:
    with pytest.raises(ValueError, match="a file, or a URL with https"):
        Settings(oidc_jwks=place)


def test_the_library_is_needed_only_with_an_issuer(monkeypatch: pytest.MonkeyPatch, issuer: JwksServer) -> None:
    for name in ("jwt", "opbox_service.api.oidc", "opbox_service.api.oidc_keys"):
        monkeypatch.setitem(sys.modules, name, None) if name == "jwt" else monkeypatch.delitem(sys.modules, name)
    plain = Settings()
    assert Tokens(plain, Accounts(plain)).unready == ""
    with pytest.raises(
        BadRequestError, match=r"OPBOX_OIDC_ISSUER: needs PyJWT .*: pip install 'opbox-service\[oidc\]'"
    ):
        tokens_of(issuer.url)


def test_other_tokens_are_taken_beside_the_issuers(issuer: JwksServer) -> None:
    tokens = tokens_of(issuer.url, token="eyJ-a-token.of-ours.with-dots")
    assert find(tokens, "eyJ-a-token.of-ours.with-dots").scopes == SCOPES
