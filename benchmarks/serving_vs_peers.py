"""Small requests to a served model beside other servers: processor time, requests a second, and what batching gains.

    python benchmarks/serving_vs_peers.py [--works add-4k …] [--servers opbox …] [--connections 1 16 64] [--seconds 3]
    python benchmarks/serving_vs_peers.py --batching        # 16 clients of one example each: batched over unbatched

Works: y = x + 1 of 4 KiB, 256 KiB and 4 MiB; networks with one example a request. Servers: opbox in one process and
with a worker process; a bare echo on uvicorn; FastAPI with onnxruntime; Triton's own binary with a backend in C, as
nvidia-pytriton brings it; MLServer. `--peers` is a Python with the packages of .ci/serving-peers.txt
(`make bench-serving`); what it lacks is left out. Tensors travel as bytes where the server takes them.

The load comes from a process of its own (`peers/http_load.py`). A figure is the processor time that all processes of
the server took for a request, in microseconds, and its ratio to the echo's with the same body; requests a second; and
the 99th percentile. Servers take turns in each round; the median of the rounds counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT / "examples" / "networks")]

TOKEN = "the-token-of-this-benchmark"
START_S = 120.0
NETWORKS = {
    "mlp": (784,),
    "lenet": (1, 28, 28),
    "resnet18": (3, 64, 64),
    "resnet50": (3, 224, 224),
}
"""An example's shape, by network."""
ADDITIONS = {"add-4k": 1 << 12, "add-256k": 1 << 18, "add-4m": 1 << 22}
"""Bytes of the tensor, by work."""


def network(name: str) -> Any:
    """A network to serve."""
    import peer_networks

    import opbox as mx

    if name in ADDITIONS:
        return mx.sym.Variable("data") + 1
    if name == "mlp":
        net = mx.sym.Variable("data")
        for number in (1, 2):
            net = mx.sym.relu(mx.sym.FullyConnected(net, num_hidden=512, name=f"fc{number}"))
        return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(net, num_hidden=10, name="fc3"), name="softmax")
    if name == "resnet18":
        import resnet

        return resnet.build(mx, 10, resnet.RESNET18, width=64, bottleneck=False)
    return mx.sym.load_json(json.dumps(getattr(peer_networks, name)()))


def shape_of(work: str) -> tuple[int, ...]:
    """The shape of a request's tensor."""
    return (1, ADDITIONS[work] // 4) if work in ADDITIONS else (1, *NETWORKS[work])


def save(folder: Path, work: str, toml: str = "") -> None:
    """Write a work's model where `opbox serve --models` finds it, and as an ONNX file beside it."""
    import opbox as mx

    net = network(work)
    shape = shape_of(work)
    arguments, _, states = net.infer_shape(data=shape)
    rng = np.random.RandomState(0)
    known = zip(net.list_arguments(), arguments, strict=True)
    args = {n: mx.nd.array(0.05 * rng.randn(*s)) for n, s in known if n != "data" and not n.endswith("label")}
    aux = {n: mx.nd.ones(s) for n, s in zip(net.list_auxiliary_states(), states, strict=True)}
    (folder / work).mkdir(parents=True)
    mx.model.save_checkpoint(str(folder / work / work), 0, net, args, aux)
    free = [-1, *shape[1:]]
    (folder / work / "model.toml").write_text(f"{toml}[inputs.data]\nshape = {free}\n")
    onnx = folder.parent / "onnx"
    onnx.mkdir(exist_ok=True)
    with contextlib.suppress(ImportError):
        mx.onnx.export_model(net, [args, aux], [shape], onnx_file_path=str(onnx / f"{work}.onnx"))


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@dataclass
class Server:
    """A running server.

    Attributes:
        name: in the table.
        port: where it listens.
        process: whose time counts, with its children's.
    """

    name: str
    port: int
    process: subprocess.Popen[str]

    def seconds(self) -> float:
        """Processor time that it has taken."""
        whole = psutil.Process(self.process.pid)
        total = 0.0
        for process in [whole, *whole.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def request(self, work: str) -> bytes:
        """A whole request of this server's."""
        values = np.random.RandomState(1).rand(*shape_of(work)).astype(np.float32)
        path, headers, body = "/", {}, values.tobytes()
        if self.name.startswith("opbox") or self.name == "triton":
            path = f"/v2/models/{work}/infer"
            size = {"binary_data_size": len(body)}
            name = "INPUT0" if self.name == "triton" else "data"
            described = {"name": name, "shape": list(values.shape), "datatype": "FP32", "parameters": size}
            header = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
            headers = {"Inference-Header-Content-Length": str(len(header)), "Authorization": f"Bearer {TOKEN}"}
            body = header + body
        elif self.name == "mlserver":
            path = f"/v2/models/{work}/infer"
            entry = {"name": "data", "shape": list(values.shape), "datatype": "FP32", "data": values.ravel().tolist()}
            body = json.dumps({"inputs": [entry]}).encode()
            headers = {"Content-Type": "application/json"}
        headers |= {"Host": "127.0.0.1", "Content-Length": str(len(body))}
        lines = [f"POST {path} HTTP/1.1", *(f"{key}: {value}" for key, value in headers.items()), "", ""]
        return "\r\n".join(lines).encode() + body

    def load(self, work: str, connections: int, seconds: float) -> dict[str, float]:
        """Call it for so many seconds."""
        command = [sys.executable, str(HERE / "peers" / "http_load.py"), str(self.port), str(connections), str(seconds)]
        before = self.seconds()
        ended = subprocess.run(command, input=self.request(work), capture_output=True, timeout=seconds + START_S)
        if ended.returncode:
            raise SystemExit(f"{self.name}, {work}: {ended.stderr.decode().splitlines()[-1]}")
        figures: dict[str, float] = json.loads(ended.stdout)
        figures["us"] = 1e6 * (self.seconds() - before) / figures["count"]
        return figures


def ready(server: Server, path: str, log: Path) -> Server:
    """Wait until a server answers."""
    until = time.monotonic() + START_S
    asked = urllib.request.Request(
        f"http://127.0.0.1:{server.port}{path}", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    while time.monotonic() < until and server.process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(asked) as answer:
            if answer.status == 200:
                return server
        time.sleep(0.1)
    raise SystemExit(f"{server.name} did not start:\n{log.read_text()[-2000:]}")


class Servers:
    """Starts servers in a folder.

    Args:
        folder: with `models` and `onnx`.
        python: that has the peers' packages.
    """

    def __init__(self, folder: Path, python: str) -> None:
        self._folder, self._python = folder, python
        self.running: list[Server] = []

    def start(self, name: str, work: str) -> Server | None:
        """Start a server for a work; None where it has no part in it."""
        start = getattr(self, f"_{name.replace('-', '_')}")
        server: Server | None = start(work)
        if server is not None:
            self.running.append(server)
        return server

    def stop(self) -> None:
        """End all."""
        for server in self.running:
            server.process.terminate()
        for server in self.running:
            try:
                server.process.wait(30)
            except subprocess.TimeoutExpired:
                server.process.kill()
        self.running.clear()

    def _run(self, name: str, port: int, command: list[str], path: str, **environment: str) -> Server:
        log = self._folder / f"{name}.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                command, stdout=file, stderr=file, text=True, env={**os.environ, "OMP_NUM_THREADS": "1", **environment}
            )
        return ready(Server(name, port, process), path, log)

    def _opbox(self, work: str, isolation: str = "none", name: str = "opbox") -> Server:
        port = free_port()
        tokens = json.dumps([{"name": "user", "token": TOKEN, "scopes": ["run", "admin"]}])
        command = [sys.executable, "-m", "opbox_service.serve", "--port", str(port), "--isolation", isolation]
        return self._run(
            name,
            port,
            [*command, "--models", str(self._folder / "models")],
            f"/v2/models/{work}/ready",
            OPBOX_TOKENS=tokens,
            OPBOX_STATE_DIR=str(self._folder / name),
        )

    def _opbox_worker(self, work: str) -> Server:
        return self._opbox(work, "process", "opbox-worker")

    def _echo(self, work: str) -> Server:
        port = free_port()
        return self._run("echo", port, [sys.executable, str(HERE / "peers" / "echo_server.py"), str(port)], "/")

    def _fastapi(self, work: str) -> Server | None:
        port, file = free_port(), self._folder / "onnx" / f"{work}.onnx"
        if not self._has("onnxruntime") or not file.is_file():
            return None
        command = [self._python, str(HERE / "peers" / "fastapi_server.py"), str(port), str(file)]
        return self._run("fastapi", port, command, "/openapi.json")

    def _mlserver(self, work: str) -> Server | None:
        if not self._has("mlserver") or work not in ADDITIONS:
            return None
        folder, port = self._folder / "mlserver", free_port()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        shutil.copy(HERE / "peers" / "mlserver_add.py", folder)
        (folder / "settings.json").write_text(
            json.dumps(
                {"http_port": port, "grpc_port": free_port(), "metrics_port": free_port(), "parallel_workers": 0}
            )
        )
        model = {"name": work, "implementation": "mlserver_add.AddOne"}
        (folder / "model-settings.json").write_text(json.dumps(model))
        program = str(Path(self._python).with_name("mlserver"))
        return self._run(
            "mlserver", port, [program, "start", str(folder)], f"/v2/models/{work}/ready", PYTHONPATH=str(folder)
        )

    def _triton(self, work: str) -> Server | None:
        home = self._has("pytriton")
        if not home or work not in ADDITIONS:
            return None
        triton, port = Path(home) / "tritonserver", free_port()
        repository, backend = self._folder / "triton", self._folder / "backends" / "add_one"
        shutil.rmtree(repository, ignore_errors=True)
        (repository / work / "1").mkdir(parents=True)
        backend.mkdir(parents=True, exist_ok=True)
        library = backend / "libtriton_add_one.so"
        subprocess.run(
            ["gcc", "-O3", "-shared", "-fPIC", "-o", str(library), str(HERE / "peers" / "add_one.c")], check=True
        )
        tensor = "data_type: TYPE_FP32 dims: [ -1, -1 ]"
        (repository / work / "config.pbtxt").write_text(
            f'backend: "add_one" input [ {{ name: "INPUT0" {tensor} }} ] output [ {{ name: "OUTPUT0" {tensor} }} ]\n'
            "instance_group [ { kind: KIND_CPU count: 1 } ]\n"
        )
        command = [str(triton / "bin" / "tritonserver"), "--model-repository", str(repository)]
        command += ["--backend-directory", str(backend.parent), "--http-port", str(port), "--allow-grpc", "false"]
        return self._run("triton", port, [*command, "--allow-metrics", "false"], f"/v2/models/{work}/ready")

    def _has(self, module: str) -> str:
        """The folder of a package that the peers' Python has; empty without it."""
        spec = f"import importlib.util as u; spec = u.find_spec({module!r})"
        find = f"{spec}; print(spec.submodule_search_locations[0] if spec else '')"
        ended = subprocess.run([self._python, "-c", find], capture_output=True, text=True)
        return ended.stdout.strip()


SERVERS = ("echo", "opbox", "opbox-worker", "triton", "fastapi", "mlserver")


def compare(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each work, number of connections and server."""
    works = options.works or [work for work in (*ADDITIONS, *NETWORKS) if work != "resnet18"]
    for work in works:
        save(folder / "models", work)
    servers = Servers(folder, options.peers)
    for work in works:
        try:
            running = [server for name in options.servers if (server := servers.start(name, work)) is not None]
            for connections in options.connections:
                rounds: dict[str, list[dict[str, float]]] = {server.name: [] for server in running}
                for server in running:
                    server.load(work, connections, 0.5)
                for _ in range(options.rounds):
                    for server in running:
                        rounds[server.name].append(server.load(work, connections, options.seconds))
                medians = {
                    name: {key: statistics.median(row[key] for row in rows) for key in rows[0]}
                    for name, rows in rounds.items()
                }
                for name, row in medians.items():
                    ratio = row["us"] / medians["echo"]["us"] if "echo" in medians else float("nan")
                    yield {"work": work, "connections": connections, "server": name, "ratio": ratio, **row}
        finally:
            servers.stop()


def batching(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Examples a second of 16 clients, batched over not; and the processor time and 99th percentile of both."""
    for work in options.works or ("mlp", "resnet18", "resnet50"):
        for kind, toml in (("alone", ""), ("batched", "max_batch = 16\n")):
            save(folder / work / kind / "models", work, toml)
        rows = {}
        servers = {kind: Servers(folder / work / kind, options.peers) for kind in ("alone", "batched")}
        try:
            running = {kind: one.start("opbox-worker", work) for kind, one in servers.items()}
            rates: dict[str, list[dict[str, float]]] = {kind: [] for kind in running}
            for server in running.values():
                assert server is not None
                server.load(work, 16, 1.0)
            for _ in range(options.rounds):
                for kind, server in running.items():
                    assert server is not None
                    rates[kind].append(server.load(work, 16, options.seconds))
            rows = {
                kind: statistics.median(row["rate"] for row in measurements) for kind, measurements in rates.items()
            }
            p99, us = (
                {kind: statistics.median(row[key] for row in measurements) for kind, measurements in rates.items()}
                for key in ("p99", "us")
            )
        finally:
            for one in servers.values():
                one.stop()
        yield {"work": work, "gain": rows["batched"] / rows["alone"], **rows, "p99": p99, "us": us}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    works = (*ADDITIONS, *NETWORKS)
    parser.add_argument(
        "--works", nargs="+", choices=works, help="by default all but resnet18; with --batching, three networks"
    )
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=SERVERS)
    parser.add_argument("--connections", nargs="+", type=int, default=[1, 16, 64])
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batching", action="store_true", help="what batching gains, instead")
    parser.add_argument("--peers", default=sys.executable, help="a Python that has the peers' packages")
    parser.add_argument("--json", action="store_true", help="print a JSON object for each row")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="serving-") as name:
        rows = (batching if options.batching else compare)(options, Path(name))
        for row in rows:
            if options.json:
                print(json.dumps(row), flush=True)
            elif options.batching:
                print(
                    f"{row['work']:10} {row['alone']:8.0f} examples/s one by one, {row['batched']:8.0f} batched: "
                    f"{row['gain']:.2f}; processor time {row['us']['alone']:.0f}, {row['us']['batched']:.0f} us an "
                    f"example; p99 {1e3 * row['p99']['alone']:.1f}, {1e3 * row['p99']['batched']:.1f} ms",
                    flush=True,
                )
            else:
                print(
                    f"{row['work']:10} {row['connections']:3} connections {row['server']:13} {row['us']:9.0f} us "
                    f"{row['ratio']:6.2f} x echo {row['rate']:8.0f}/s  p99 {1e3 * row['p99']:8.2f} ms",
                    flush=True,
                )


if __name__ == "__main__":
    main()
