"""Who may call and from where: scopes, files of tokens, expiry, names of the server, pages of other origins."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from tests.contract.live import TOKENS, Live


def ask(server: Live, path: str, token: str | None = None, **headers: str) -> httpx.Response:
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return httpx.get(server.url + path, headers=headers)


def wait_for(condition: Callable[[], object], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


def test_probes_need_no_token(server: Live) -> None:
    for path in ("/v2/health/live", "/v2/health/ready"):
        assert ask(server, path).status_code == 200


def test_metrics_need_their_scope_or_admin(server: Live) -> None:
    assert ask(server, "/metrics").status_code == 401
    refused = ask(server, "/metrics", TOKENS["ann"])
    assert refused.status_code == 403
    assert refused.json()["error"] == (
        "scope: expected a token with 'metrics' or 'admin', got one with run: use another token"
    )
    for name in ("monitor", "boss"):
        assert ask(server, "/metrics", TOKENS[name]).status_code == 200
        assert ask(server, "/v1/ops", TOKENS[name]).status_code == 403


def test_one_token_from_a_file(start: Callable[..., Live], tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("the-first-token\n")
    server = start("none", OPBOX_TOKENS="", OPBOX_TOKEN_FILE=str(file))
    assert server.announced == "token: as configured"
    assert ask(server, "/v1/ops", "the-first-token").status_code == 200
    file.write_text("the-second-token")
    wait_for(lambda: ask(server, "/v1/ops", "the-second-token").status_code == 200)
    assert ask(server, "/v1/ops", "the-first-token").status_code == 401


def test_tokens_of_several_owners_from_a_file(start: Callable[..., Live], tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    yesterday = datetime.now(UTC) - timedelta(days=1)
    tokens = [
        {"name": "ann", "token": "token-of-ann", "expires": (yesterday + timedelta(days=2)).isoformat()},
        {"name": "bob", "token": "token-of-bob", "scopes": ["run", "metrics"]},
        {"name": "old", "token": "token-of-old", "expires": yesterday.isoformat()},
    ]
    file.write_text(json.dumps(tokens))
    server = start("process", OPBOX_TOKENS="", OPBOX_TOKENS_FILE=str(file))
    assert ask(server, "/v1/ops", "token-of-ann").status_code == 200
    assert ask(server, "/metrics", "token-of-ann").status_code == 403
    assert ask(server, "/metrics", "token-of-bob").status_code == 200
    expired = ask(server, "/v1/ops", "token-of-old")
    assert expired.status_code == 401
    assert expired.json()["error"].startswith("token: expected one that is still good, got one that expired at ")
    # Another list, put in the place of the first as editors and Kubernetes do.
    other = tmp_path / "new"
    other.write_text(json.dumps([*tokens[1:2], {"name": "eve", "token": "token-of-eve"}]))
    other.replace(file)
    wait_for(lambda: ask(server, "/v1/ops", "token-of-eve").status_code == 200)
    assert ask(server, "/v1/ops", "token-of-ann").status_code == 401
    # What is no list changes nothing, and is logged without its text.
    file.write_text('[{"name": "eve", "token": "a-secret-token", "scope": "run"}]')

    def refused() -> bool:
        assert ask(server, "/v1/ops", "token-of-eve").status_code == 200
        return "the tokens of before stay" in Path(server.log.name).read_text()

    wait_for(refused)
    assert "a-secret-token" not in Path(server.log.name).read_text()
    (worker,) = server.workers()
    assert b"OPBOX_TOKEN" not in Path(f"/proc/{worker}/environ").read_bytes()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("localhost", 200),
        ("LOCALHOST.:80", 200),
        ("notebook.localhost", 200),
        ("[::1]:8000", 200),
        ("192.168.1.5", 200),
        ("evil.example.org", 403),
        ("127.0.0.1.evil.org:8000", 403),
        ("localhost.evil.org", 403),
    ],
)
def test_a_server_on_loopback_answers_to_its_own_names(server: Live, host: str, status: int) -> None:
    answer = ask(server, "/v2", TOKENS["ann"], Host=host)
    assert answer.status_code == status, answer.text
    if status == 403:
        assert answer.json()["error"].startswith("Host: expected a name of this server's (127.0.0.1, ")
        assert "OPBOX_ALLOWED_HOSTS" in answer.json()["error"]
        assert ask(server, "/v2/health/live", Host=host).status_code == 403


def status_of(server: Live, target: str, *lines: str, body: str = "") -> int:
    """The status of the answer to a head that is sent as it is."""
    host, port = server.url.removeprefix("http://").split(":")
    method = "POST" if body else "GET"
    with socket.create_connection((host, int(port)), timeout=60) as sock:
        text = "\r\n".join([f"{method} {target} HTTP/1.1", *lines, "Connection: close", "", body])
        sock.sendall(text.encode())
        return int(sock.makefile("rb").readline().split()[1])


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://localhost/v2", "localhost", 200),
        ("HTTP://127.0.0.1:8000/v2?x=1", "evil.example.org", 200),
        ("https://[::1]:8000/v2", "localhost", 200),
        ("http://evil.example.org/v2", "localhost", 403),
        ("http://evil.example.org:8000/v2", "localhost", 403),
        ("http://localhost@evil.example.org/v2", "localhost", 400),
        ("http:///v2", "localhost", 400),
        ("ftp://localhost/v2", "localhost", 400),
    ],
)
def test_the_host_of_a_url_counts_and_not_the_header(server: Live, target: str, host: str, status: int) -> None:
    assert status_of(server, target, f"Host: {host}", f"Authorization: Bearer {TOKENS['ann']}") == status


@pytest.mark.parametrize("token", ["ann", "bob"])
@pytest.mark.parametrize(
    "lines",
    [
        ["Authorization: Bearer no-such-token"],
        ["Authorization: Basic YW5uOmFubg=="],
        [f"authorization: Bearer {TOKENS['ann']}"],
        ["Host: localhost"],
        ["X-Request-Id: a", "X-Request-Id: b"],
        ["Content-Type: application/json", "Content-Type: text/plain"],
        ["Content-Length: 0", "Content-Length: 0"],
        ["Inference-Header-Content-Length: 1", "Inference-Header-Content-Length: 2"],
        ["Opbox-Call: a/1", "Opbox-Call: a/2"],
    ],
)
def test_a_header_of_which_one_value_is_taken_comes_once(server: Live, token: str, lines: list[str]) -> None:
    usual = ["Host: localhost", f"Authorization: Bearer {TOKENS[token]}"]
    assert status_of(server, "/v2", *usual, *lines) == 400
    assert status_of(server, "/v2", *lines, *usual) == 400
    assert status_of(server, "/v2", *usual, "Accept: text/plain", "Accept: application/json") == 200


def test_further_names_of_a_server(start: Callable[..., Live]) -> None:
    server = start("none", OPBOX_ALLOWED_HOSTS='["box.example.org", "*.lab.example.org"]')
    for host, status in (
        ("box.example.org", 200),
        ("a.lab.example.org:8000", 200),
        ("lab.example.org", 403),
        ("other.example.org", 403),
    ):
        assert ask(server, "/v2", TOKENS["ann"], Host=host).status_code == status, host


def test_pages_of_other_origins_may_not_read_answers_by_default(server: Live) -> None:
    answer = ask(server, "/v2", TOKENS["ann"], Origin="https://page.example.org")
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_pages_of_named_origins_may(start: Callable[..., Live]) -> None:
    server = start("none", OPBOX_CORS_ORIGINS='["https://page.example.org"]')
    origin = {"Origin": "https://page.example.org"}
    asked = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,inference-header-content-length",
    }
    preflight = httpx.options(f"{server.url}/v1/forward", headers={**origin, **asked})
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == origin["Origin"]
    answer = ask(server, "/v2", TOKENS["ann"], **origin)
    assert answer.headers["access-control-allow-origin"] == origin["Origin"]
    assert "X-Request-Id" in answer.headers["access-control-expose-headers"]
    assert ask(server, "/v2", **origin).headers["access-control-allow-origin"] == origin["Origin"]
    other = httpx.options(f"{server.url}/v1/forward", headers={"Origin": "https://evil.example.org", **asked})
    assert "access-control-allow-origin" not in other.headers
