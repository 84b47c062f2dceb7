"""FastAPI with onnxruntime, as many who serve a model write it, for `serving_vs_peers.py`:

    python fastapi_server.py PORT FILE

It runs FILE on the float32 numbers of a request's body.
"""

import sys

import numpy as np
import onnxruntime
import uvicorn
from fastapi import FastAPI, Request, Response

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[2], options, providers=["CPUExecutionProvider"])
(data,) = session.get_inputs()
shape = [size if isinstance(size, int) else 1 for size in data.shape]
app = FastAPI()


@app.post("/")
async def infer(request: Request) -> Response:
    values = np.frombuffer(await request.body(), np.float32).reshape(shape)
    (output,) = session.run(None, {data.name: values})
    return Response(output.tobytes(), media_type="application/octet-stream")


uvicorn.run(app, port=int(sys.argv[1]), loop="uvloop", http="httptools", log_level="warning", access_log=False)
