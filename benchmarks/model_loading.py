"""How long a served model takes to load, to reload and to answer at first, and how much memory ten of them take.

    python benchmarks/model_loading.py [--works mlp resnet50 …] [--rounds 3] [--peers PYTHON]

A server with a worker process has ten copies of a network. `load` is one request of the repository's, on a server that
has run no model before; `first` is the request after it; `later` the median of those that follow. `reload` loads a
model again while it serves. `onnx` loads the same network from an ONNX file, which another process converts first.
Memory is what all processes of the server hold (shared pages counted in parts), above what they held without models:
with one and with ten, each loaded and called. `parameters` are the bytes that cannot be less.

The peer is onnxruntime in a program of its own, if `--peers` is a Python that has it (`make bench-serving` makes one):
no server stands around it. Times are medians in ms.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil
from serving_vs_peers import NETWORKS, TOKEN, Server, Servers, save, shape_of

COPIES = 10
LATER = 20
PEER = Path(__file__).resolve().parent / "peers" / "onnxruntime_loading.py"


def post(server: Server, path: str, body: bytes = b"{}", **headers: str) -> float:
    """Seconds of a request."""
    headers |= {"Authorization": f"Bearer {TOKEN}"}
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", body, headers, method="POST")
    begun = time.perf_counter()
    with urllib.request.urlopen(request) as answer:
        answer.read()
    return time.perf_counter() - begun


def infer(server: Server, work: str, name: str) -> float:
    """Seconds of a request for a model."""
    head, _, body = server.request(work).partition(b"\r\n\r\n")
    length = next(line for line in head.decode().splitlines() if line.startswith("Inference-Header"))
    return post(server, f"/v2/models/{name}/infer", body, **{"Inference-Header-Content-Length": length.split()[-1]})


def reload(server: Server, folder: Path, name: str) -> float:
    """Seconds of loading a model whose files are new."""
    (params,) = (folder / "models" / name).glob("*.params")
    params.touch()
    return post(server, f"/v2/repository/models/{name}/load")


def megabytes(server: Server) -> float:
    """Megabytes of the server's processes."""
    whole = psutil.Process(server.process.pid)
    return sum(one.memory_full_info().pss for one in (whole, *whole.children(recursive=True))) / 1e6


def once(folder: Path, work: str) -> dict[str, float]:
    """The figures of a server that has run nothing before."""
    servers = Servers(folder, sys.executable)
    try:
        server = servers.start("opbox-worker", "empty")
        assert server is not None
        empty, copies = megabytes(server), folder / "copies"
        for name in sorted(path.name for path in copies.iterdir()):
            shutil.copytree(copies / name, folder / "models" / name)
        figures = {"load": post(server, f"/v2/repository/models/{work}-0/load")}
        figures["first"] = infer(server, work, f"{work}-0")
        figures["later"] = statistics.median(infer(server, work, f"{work}-0") for _ in range(LATER))
        figures["reload"] = statistics.median(reload(server, folder, f"{work}-0") for _ in range(5))
        infer(server, work, f"{work}-0")
        figures = {key: 1e3 * value for key, value in figures.items()}
        figures["one"] = megabytes(server) - empty
        if (copies / "onnx").is_dir():
            figures["onnx"] = 1e3 * post(server, "/v2/repository/models/onnx/load")
            post(server, "/v2/repository/models/onnx/unload")
        for number in range(1, COPIES):
            post(server, f"/v2/repository/models/{work}-{number}/load")
            infer(server, work, f"{work}-{number}")
        figures["ten"] = megabytes(server) - empty
        return figures
    finally:
        servers.stop()
        for path in (folder / "models").iterdir():
            if path.name != "empty":
                shutil.rmtree(path)


def measure(work: str, rounds: int, peer: str) -> dict[str, Any]:
    """The medians of a network's figures, and the peer's."""
    with tempfile.TemporaryDirectory(prefix="loading-") as name:
        folder = Path(name)
        save(folder / "models", "add-4k")
        (folder / "models" / "add-4k").rename(folder / "models" / "empty")
        save(folder / "made", work)
        copies = folder / "copies"
        for number in range(COPIES):
            shutil.copytree(folder / "made" / work, copies / f"{work}-{number}")
        onnx = folder / "onnx" / f"{work}.onnx"
        if onnx.is_file():
            (copies / "onnx").mkdir()
            shutil.copy(onnx, copies / "onnx" / "model.onnx")
        parameters = next(copies.glob(f"{work}-0/*.params")).stat().st_size / 1e6
        runs = [once(folder, work) for _ in range(rounds)]
        row: dict[str, Any] = {"work": work, "parameters": parameters}
        row |= {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        if peer and onnx.is_file():
            command = [peer, str(PEER), str(onnx), json.dumps(shape_of(work)), str(COPIES)]
            ended = subprocess.run(command, capture_output=True, text=True)
            if not ended.returncode:
                row["onnxruntime"] = json.loads(ended.stdout)
        return row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--works", nargs="+", choices=NETWORKS, default=["mlp", "resnet18", "resnet50"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default="", help="a Python that has onnxruntime")
    parser.add_argument("--json", action="store_true", help="print a JSON object for each network")
    options = parser.parse_args()
    for work in options.works:
        row = measure(work, options.rounds, options.peers)
        if options.json:
            print(json.dumps(row), flush=True)
            continue
        peer = row.pop("onnxruntime", {})
        print(f"{work}: " + ", ".join(f"{key} {value:.1f}" for key, value in row.items() if key != "work"), flush=True)
        if peer:
            print("  onnxruntime: " + ", ".join(f"{key} {value:.1f}" for key, value in peer.items()), flush=True)


if __name__ == "__main__":
    main()
