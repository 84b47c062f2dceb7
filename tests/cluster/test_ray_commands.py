"""`opbox cluster start`, `join`, `status`, `drain`, `stop`, and `opbox serve --cluster auto`, as a user calls them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

import psutil
import pytest

from tests.cluster.ray_cluster import SETTINGS, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]
PORTS = ("--host", "127.0.0.1", "--node-port", "0", "--ray-ports", "0", "--cpus", "1")
OWN = ("OPBOX_HOST", "OPBOX_PORT", "OPBOX_MAX_DEVICE_BYTES")
Opbox = Callable[..., "subprocess.Popen[str]"]

TRAINING = """
import sys
import time
from pathlib import Path

import numpy as np
import opbox as mx

data, label = mx.sym.Variable("data"), mx.sym.Variable("softmax_label")
network = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=2), label, name="softmax")
x = np.tile(np.eye(2, dtype="float32"), (8, 1))
rows = mx.io.NDArrayIter(x, x.argmax(1).astype("float32"), batch_size=4)
module = mx.mod.Module(network)
steps = 0

def wait(parameters):
    global steps
    steps += 1
    if steps == 10:
        mx.nd.waitall()
        print("ten steps", flush=True)
        while not Path(sys.argv[1]).exists():
            time.sleep(0.1)

module.fit(rows, num_epoch=5, optimizer_params={"learning_rate": 1.0}, eval_metric="acc", batch_end_callback=wait,
           checkpoint_every=4)
print(module.score(rows, "acc")[0][1])
"""

LONG_TRAINING = """
import sys
from pathlib import Path

import numpy as np
import opbox as mx

x = np.random.default_rng(3).standard_normal((16, 4)).astype("float32")
data, label = mx.sym.Variable("data"), mx.sym.Variable("softmax_label")
network = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=2), label, name="softmax")

def train(may_end):
    module = mx.mod.Module(network)
    module.bind([("data", (16, 4))], [("softmax_label", (16,))])
    module.init_params(mx.init.One())
    module.init_optimizer(optimizer="adam")
    batch = mx.io.DataBatch([mx.nd.array(x)], [mx.nd.array((x.sum(1) > 0).astype("float32"))])
    steps = 0
    while not may_end(steps):
        module.forward_backward(batch)
        module.update()
        steps += 1
        module.get_outputs()[0].wait_to_read()
        if steps == 10:
            print("ten steps", flush=True)
    return steps, {name: array.asnumpy().tobytes() for name, array in module.get_params()[0].items()}

steps, disturbed = train(lambda steps: Path(sys.argv[1]).exists())
print(train(lambda count: count == steps)[1] == disturbed)
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Ray's sockets need a short path."""
    with tempfile.TemporaryDirectory(prefix="oc", dir="/tmp", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def opbox(folder: Path) -> Iterator[Opbox]:
    """Start `opbox` on the machine `machine`; each has a folder of its own."""
    processes: list[subprocess.Popen[str]] = []

    def begin(machine: str, *words: str, **variables: str) -> subprocess.Popen[str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("OPBOX_", "RAY_"))}
        environment |= {key: value for key, value in SETTINGS.items() if key not in OWN}
        environment |= {"OPBOX_RUNTIME_DIR": str(folder / machine), "RAY_TMPDIR": str(folder)}
        environment |= {"OPBOX_STORE_URL": f"file://{folder}/store", **variables}
        command = [sys.executable, *(words if words[0] == "-c" else ("-m", "opbox.cli", *words))]
        with (folder / f"{machine}.log").open("a") as log:
            processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True))
        return processes[-1]

    yield begin
    for process in reversed(processes):
        if process.poll() is None:
            process.terminate()
            process.wait(120)
        assert process.stdout is not None
        process.stdout.close()


def lines(process: subprocess.Popen[str], count: int, log: Path) -> list[str]:
    """The first lines of what it prints."""
    assert process.stdout is not None
    read = [process.stdout.readline().strip() for _ in range(count)]
    assert all(read), log.read_text()
    return read


class Machines(NamedTuple):
    """A cluster of the machines "head", whose node is alpha, and "other", whose node is beta."""

    opbox: Opbox
    url: str
    token: str
    head: subprocess.Popen[str]
    other: subprocess.Popen[str]

    def status(self, machine: str) -> dict[str, Any]:
        """By node, what `opbox cluster status` says."""
        state = json.loads(self.opbox(machine, "cluster", "status", "--json").communicate()[0])
        return {row["node"]: row for row in state["nodes"]}

    def open(self) -> str:
        """Open a session by the gateway; its id."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        with urlopen(Request(self.url + "/v1/sessions", b"{}", headers), timeout=60) as answer:
            return str(json.loads(answer.read())["id"])


@pytest.fixture(scope="module")
def machines(opbox: Opbox, folder: Path) -> Machines:
    head = opbox("head", "cluster", "start", "--head", "--port", "0", "--name", "alpha", *PORTS)
    url, token, invitation = lines(head, 3, folder / "head.log")
    variable, _, address = invitation.removeprefix("on each other machine: ").partition(" opbox cluster join ")
    key, _, secret = variable.partition("=")
    other = opbox("other", "cluster", "join", address, "--name", "beta", *PORTS, **{key: secret})
    assert lines(other, 1, folder / "other.log")[0].startswith("opbox node beta serving on http://127.0.0.1:")
    return Machines(opbox, url.split()[-1], token.split()[-1], head, other)


def test_each_machine_shows_all_nodes(machines: Machines) -> None:
    for machine in ("head", "other"):
        nodes = machines.status(machine)
        assert {name: row["state"] for name, row in nodes.items()} == {"alpha": "ready", "beta": "ready"}
    for row in nodes.values():  # they trust the gateway, which is on the head's machine
        environment = psutil.Process(row["pid"]).environ()
        assert environment["OPBOX_TRUSTED_PROXIES"] == '["127.0.0.1", "::1"]'


def test_a_training_goes_on_elsewhere_when_its_node_is_drained(machines: Machines, folder: Path) -> None:
    """By the gateway, and without the script's help."""
    variables = {"OPBOX_URL": machines.url, "OPBOX_TOKEN": machines.token}
    script = machines.opbox("script", "-c", TRAINING, str(folder / "go"), **variables)
    assert lines(script, 1, folder / "script.log") == ["ten steps"]
    (node,) = until(
        lambda: [name for name, row in machines.status("head").items() if row["sessions"]], "it is reported"
    )
    drain = machines.opbox("head", "cluster", "drain", node).communicate()
    assert drain[0] == f"{node} is drained\n", (folder / "head.log").read_text()
    (folder / "go").touch()
    assert script.communicate(timeout=300)[0].split() == ["1.0"], (folder / "script.log").read_text()
    assert "node " + node + " was drained" in (folder / "script.log").read_text()
    other = {"alpha": "beta", "beta": "alpha"}[node]
    assert {machines.open().partition("-")[0] for _ in range(3)} == {other}


def is_live(url: str) -> bool:
    """Return whether somebody serves there."""
    try:
        with urlopen(url + "/v2/health/live", timeout=60) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def gateway_of(head: subprocess.Popen[str]) -> psutil.Process | None:
    """The gateway's process that the head has started."""
    for process in psutil.Process(head.pid).children():
        with contextlib.suppress(psutil.Error):
            if "opbox_service.cluster.gateway" in process.cmdline():
                return process
    return None


def test_a_training_goes_on_when_the_gateway_is_killed(machines: Machines, folder: Path) -> None:
    """All its calls go by the gateway, which is started again; each runs once."""
    variables = {"OPBOX_URL": machines.url, "OPBOX_TOKEN": machines.token, "OPBOX_DIRECT": "0"}
    script = machines.opbox("long", "-c", LONG_TRAINING, str(folder / "end"), **variables)
    assert lines(script, 1, folder / "long.log") == ["ten steps"]
    killed = gateway_of(machines.head)
    assert killed is not None
    killed.kill()
    until(lambda: (now := gateway_of(machines.head)) is not None and now.pid != killed.pid, "it is started again")
    until(lambda: is_live(machines.url), "it serves where it did")
    (folder / "end").touch()
    assert script.communicate(timeout=300)[0].split() == ["ten", "steps", "True"], (folder / "long.log").read_text()


def test_a_machine_leaves_and_the_head_ends(machines: Machines, folder: Path) -> None:
    """Last, as nothing is left."""
    assert machines.opbox("other", "cluster", "stop").communicate()[0] == "stopped\n", (
        folder / "other.log"
    ).read_text()
    assert machines.other.wait(60) == 0
    until(lambda: "ready" not in machines.status("head").get("beta", {}).get("state", ""), "the machine has left")
    stopped = machines.opbox("head", "cluster", "stop").communicate()[0]
    assert stopped == "stopped\n", (folder / "head.log").read_text()
    assert machines.head.wait(60) == 0


def test_serving_on_a_cluster_of_ray(opbox: Opbox, folder: Path) -> None:
    from opbox_service.cluster.machine_record import new_ray_token
    from opbox_service.cluster.ray_start import RayPorts, RayProcess, ray_environment

    token = new_ray_token()
    ray_process = RayProcess(token, folder / "ray", {"RAY_TMPDIR": str(folder)})
    ray_process.start_head("127.0.0.1", RayPorts(0), 1, "lab/1")
    try:
        variables = {**ray_environment(token), "RAY_ADDRESS": ray_process.address}
        server = opbox("box", "serve", "--cluster", "auto", "--port", "0", "--max-sessions", "3", **variables)
        url, secret = (line.split()[-1] for line in lines(server, 2, folder / "box.log"))
        with urlopen(Request(url + "/v1/usage", headers={"Authorization": f"Bearer {secret}"}), timeout=60) as answer:
            assert json.loads(answer.read())["quotas"]["sessions"] == 3
        server.terminate()
        assert server.wait(120) == 0
    finally:
        ray_process.stop()
