"""Heads that two servers read differently: two tokens, two hosts, a URL whose host is not that of the header."""

from __future__ import annotations

from tests.attack.attack import Attack, Outcome
from tests.attack.box import Box
from tests.contract.live import TOKENS

__all__ = ["ATTACKS"]

LOCAL = "Host: localhost"
OWN, OTHER = (f"Authorization: Bearer {TOKENS[owner]}" for owner in ("bob", "ann"))
HEADS = {
    "two tokens": ("/v2", (LOCAL, OWN, OTHER), 400),
    "a token and another kind": ("/v2", (LOCAL, "Authorization: Basic YTpi", OWN), 400),
    "two hosts": ("/v2", ("Host: evil.example.org", LOCAL, OWN), 400),
    "another host in the URL": ("http://evil.example.org/v2", (LOCAL, OWN), 403),
    "two lengths of JSON": ("/v2", (LOCAL, OWN, *["Inference-Header-Content-Length: 1"] * 2), 400),
}


def ambiguous(box: Box) -> Outcome:
    """Send each, and look whether it is taken."""
    wrong = []
    for name, (target, lines, expected) in HEADS.items():
        with box.connect() as sock:
            head = "\r\n".join([f"GET {target} HTTP/1.1", *lines, "Connection: close", "", ""])
            sock.sendall(head.encode())
            status = int(sock.makefile("rb").readline().split()[1])
        if status != expected:
            wrong.append(f"{name}: {status}")
    return Outcome(not wrong, ", ".join(wrong) or f"{len(HEADS)} heads refused")


ATTACKS = [Attack("ambiguous-heads", "two tokens, two hosts, another host in the URL", ambiguous)]
