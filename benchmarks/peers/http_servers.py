"""Servers for `serving_vs_peers.py`, each one process of uvicorn's on PORT:

python http_servers.py echo PORT               answers a request with its own body
python http_servers.py fastapi PORT FILE       FastAPI; onnxruntime runs FILE on the body's float32 numbers
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """The least that an ASGI application can do with a body."""
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


def fastapi(file: str) -> Any:
    """What many write who serve a model themselves."""
    import numpy as np
    import onnxruntime
    from fastapi import FastAPI, Request, Response

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    (data,) = session.get_inputs()
    shape = [1 if not isinstance(size, int) else size for size in data.shape]
    app = FastAPI()

    @app.post("/")
    async def infer(request: Request) -> Response:
        values = np.frombuffer(await request.body(), np.float32).reshape(shape)
        (output,) = session.run(None, {data.name: values})
        return Response(output.tobytes(), media_type="application/octet-stream")

    return app


if __name__ == "__main__":
    kind, port, *rest = sys.argv[1:]
    app = echo if kind == "echo" else fastapi(*rest)
    uvicorn.run(app, port=int(port), loop="uvloop", http="httptools", log_level="warning", access_log=False)
