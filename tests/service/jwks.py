"""An OIDC issuer for tests: keys that it makes, an HTTP server that publishes them, and tokens that it signs."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Mapping
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

ISSUER, AUDIENCE = "https://login.example.org/", "opbox"


def private_key(kind: str, number: int = 0) -> Any:
    """A private key: RSA, RSA1024, Ed25519, or one of a curve; another one for another number."""
    return _new_key(kind, number)


@cache
def _new_key(kind: str, number: int) -> Any:
    if kind.startswith("RSA"):
        return rsa.generate_private_key(65537, int(kind[3:] or 2048))
    if kind == "Ed25519":
        return ed25519.Ed25519PrivateKey.generate()
    return ec.generate_private_key({"P-256": ec.SECP256R1, "P-384": ec.SECP384R1, "P-521": ec.SECP521R1}[kind]())


def jwk(key: Any, kid: str | None, *, secret: bool = False, **more: Any) -> dict[str, Any]:
    """A key as a JWKS has it; `secret` adds its private part."""
    kind = type(key).__name__
    family: Any = jwt.algorithms.RSAAlgorithm if "RSA" in kind else jwt.algorithms.ECAlgorithm
    family = jwt.algorithms.OKPAlgorithm if "Ed25519" in kind else family
    entry = dict(family.to_jwk(key if secret else key.public_key(), as_dict=True))
    entry.pop("key_ops", None)
    return {**entry, **({} if kid is None else {"kid": kid}), **more}


def claims(**changes: Any) -> dict[str, Any]:
    """The claims of a good token; a change to None removes one."""
    now = time.time()
    good = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "scope": "openid opbox:run", "iat": now, "exp": now + 600}
    return {name: value for name, value in {**good, **changes}.items() if value is not None}


def sign(
    payload: Mapping[str, Any] | bytes,
    kid: str | None = "one",
    kind: str = "P-256",
    number: int = 0,
    algorithm: str = "ES256",
    **header: Any,
) -> str:
    """A signed token."""
    text = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    more = {**({} if kid is None else {"kid": kid}), "typ": "JWT", **header}
    return jwt.PyJWS().encode(text, private_key(kind, number), algorithm, {k: v for k, v in more.items() if v})


def part(value: Any) -> str:
    """A part of a token that nobody signs."""
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


class JwksServer(ThreadingHTTPServer):
    """Publishes keys.

    Attributes:
        body, status, headers: its answer.
        asked: how many requests have come.
    """

    daemon_threads = True

    def __init__(self, *keys: Mapping[str, Any]) -> None:
        self.status, self.headers = 200, {"Content-Type": "application/json"}
        self.asked = 0
        self.publish(*keys)
        super().__init__(("127.0.0.1", 0), _Publishing)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/keys"

    def publish(self, *keys: Mapping[str, Any]) -> None:
        self.body = json.dumps({"keys": keys}).encode()

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _Publishing(BaseHTTPRequestHandler):
    server: JwksServer

    def do_GET(self) -> None:
        self.server.asked += 1
        self.send_response(self.server.status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
