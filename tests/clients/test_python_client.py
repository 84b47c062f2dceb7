"""openapi-python-client makes a client of the document, without a warning, and the client works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.live import TOKENS, Live

pytestmark = pytest.mark.clients

PROGRAM = """
import sys
from opbox_client import AuthenticatedClient
from opbox_client.api.graphs import forward, infer_shape
from opbox_client.api.operators import get_operator
from opbox_client.api.sessions import create_session, delete_session, list_sessions, run_commands
from opbox_client.models import (
    CommandsRequest, Error, Fetch, ForwardRequest, Put, SessionRequest, ShapesRequest, Tensor, TensorDatatype,
)

client = AuthenticatedClient(base_url=sys.argv[1], token=sys.argv[2])
graph = {
    "nodes": [{"op": "null", "name": "x", "inputs": []}, {"op": "square", "name": "y", "inputs": [[0, 0, 0]]}],
    "arg_nodes": [0],
    "heads": [[1, 0, 0]],
}


def body(model, **fields):
    return model.from_dict({"graph": graph, **fields})


x = {"name": "x", "shape": [3], "datatype": "FP32", "data": [1, 2, 3]}
shapes = infer_shape.sync(client=client, body=body(ShapesRequest, shapes={"x": [3]}))
assert shapes.out_shapes == [[3]], shapes
run = forward.sync(client=client, body=body(ForwardRequest, inputs=[x]))
assert run.outputs[0].data == [1.0, 4.0, 9.0], run
session = create_session.sync(client=client, body=SessionRequest(device="cpu"))
batch = CommandsRequest(
    inputs=[Tensor.from_dict(x)], commands=[Put(do="put", id=1, tensor="x"), Fetch(do="fetch", id=1, as_="back")]
)
done = run_commands.sync(session.id, client=client, body=batch)
assert done.outputs[0].name == "back" and done.outputs[0].datatype is TensorDatatype.FP32, done
assert [one.id for one in list_sessions.sync(client=client).sessions] == [session.id]
assert delete_session.sync(session.id, client=client).deleted == session.id
wrong = get_operator.sync("FullyConected", client=client)
assert isinstance(wrong, Error) and "did you mean FullyConnected?" in wrong.error, wrong
print("all right")
"""


@pytest.fixture(scope="module")
def client(document: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the generated package."""
    tool = Path(sys.executable).with_name("openapi-python-client")
    if not tool.exists():
        pytest.fail("openapi-python-client is not installed: run make clients")
    folder = tmp_path_factory.mktemp("python") / "client"
    path = f"{tool.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    command = [str(tool), "generate", "--path", str(document), "--output-path", str(folder), "--fail-on-warning"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env={**os.environ, "PATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_generated_client_works(client: Path, server: Live) -> None:
    command = [sys.executable, "-c", PROGRAM, server.url, TOKENS["ann"]]
    env = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    env["PYTHONPATH"] = str(client)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "all right\n"


def test_modules_are_called_as_the_operations(client: Path) -> None:
    names = {path.stem for path in (client / "opbox_client" / "api").rglob("*.py")} - {"__init__"}
    assert {"create_session", "forward", "get_operator", "infer_shape", "put_graph", "run_commands"} <= names
    assert not [name for name in names if "v1" in name]
