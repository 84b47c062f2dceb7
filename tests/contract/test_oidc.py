"""A live server that takes the tokens of an OIDC issuer, whose keys come over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import httpx

from tests.contract.live import TOKENS, Live
from tests.service.jwks import AUDIENCE, ISSUER, JwksServer, claims, jwk, private_key, sign

KEY = jwk(private_key("P-256"), "one")


def ask(server: Live, method: str, path: str, token: str) -> httpx.Response:
    return httpx.request(method, server.url + path, headers={"Authorization": f"Bearer {token}"}, timeout=60)


def test_owners_of_an_issuer(start: Callable[..., Live]) -> None:
    issuer = JwksServer(KEY)
    issuer.status = 503
    settings = {"OPBOX_OIDC_ISSUER": ISSUER, "OPBOX_OIDC_AUDIENCE": AUDIENCE, "OPBOX_OIDC_JWKS": issuer.url}
    scopes = {"engineers": ["run"], "operators": ["metrics"]}
    settings |= {"OPBOX_OIDC_SCOPE_CLAIM": "groups", "OPBOX_OIDC_SCOPES": json.dumps(scopes)}
    server = start("none", OPBOX_OIDC_REFRESH_S="0.1", **settings)
    token = sign(claims(groups=["engineers"]))

    early = httpx.get(f"{server.url}/v2/health/ready")
    assert early.status_code == 503
    assert "the keys of the OIDC issuer cannot be read" in early.json()["error"]
    assert ask(server, "GET", "/v1/sessions", token).status_code == 503
    assert ask(server, "GET", "/v1/sessions", TOKENS["ann"]).status_code == 200
    issuer.status = 200
    until = time.monotonic() + 30
    while httpx.get(f"{server.url}/v2/health/ready").status_code != 200:
        assert time.monotonic() < until
        time.sleep(0.05)

    opened = ask(server, "POST", "/v1/sessions", token)
    assert opened.status_code == 201
    id = opened.json()["id"]
    for other, sessions in ((token, [id]), (TOKENS["ann"], []), (sign(claims(sub="bob", groups=["engineers"])), [])):
        listed = ask(server, "GET", "/v1/sessions", other).json()["sessions"]
        assert [row["id"] for row in listed] == sessions
        assert ask(server, "GET", f"/v1/sessions/{id}", other).status_code == (200 if sessions else 404)

    refused = ask(server, "GET", "/metrics", token)
    assert refused.status_code == 403
    assert refused.json()["error"].startswith("scope: expected a token with 'metrics' or 'admin', got one with run")
    assert ask(server, "GET", "/metrics", sign(claims(groups=["operators"]))).status_code == 200
    for path in ("/v1/sessions", "/v2", "/v1/usage"):
        stranger = ask(server, "GET", path, sign(claims(groups=["guests"])))
        assert stranger.status_code == 403, path
        assert "got one with guests: ask for access" in stranger.json()["error"]
    expired = ask(server, "GET", "/v2", sign(claims(exp=time.time() - 100, groups=["engineers"])))
    assert expired.status_code == 401
    assert expired.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    assert expired.json()["error"].startswith("token: expected one that is still good, got one that expired at ")
    issuer.close()
