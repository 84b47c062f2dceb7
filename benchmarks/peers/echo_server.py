"""The least that a server on uvicorn can do with a body, for `serving_vs_peers.py`: python echo_server.py PORT"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer a request with its own body."""
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message["body"]
        if not message["more_body"]:
            break
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    uvicorn.run(echo, port=int(sys.argv[1]), loop="uvloop", http="httptools", log_level="warning", access_log=False)
