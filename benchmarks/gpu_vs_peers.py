"""Networks on a GPU beside PyTorch, eager and as CUDA graphs, in one run; in process and through HTTP.

    python benchmarks/gpu_vs_peers.py [--seconds 300] [--only resnet] [--without HTTP TF32] [--json FILE]

Forward is inference; forward and backward is a training step without the update, each until the device has finished.
Medians in ms, and the faster PyTorch form's time over opbox's: above 1, opbox is the faster. The file has more of them:
over eager PyTorch, both with TF32, over PyTorch with deterministic convolutions (opbox's are), and what of the speed in
process is left through HTTP. The GPU is shared by the
processes, of which one works at a time and then gives its memory back. After --seconds no further network begins.
PyTorch comes from this Python, or from where OPBOX_TORCH_PYTHON says; without one its columns stay empty. Factors are
rounded to TF32 in the columns that say so, and in no others. --device cpu tries the script where there is no GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "examples"))

import more_networks  # noqa: E402
import peer_networks as networks  # noqa: E402
from lenet_demo import server  # noqa: E402


def task(network: str, batch: int, data: tuple[int, ...], steps: int = 0, **shapes: tuple[int, ...]) -> dict[str, Any]:
    """What peers are asked; data is (batch, *data), or (steps, batch, *data)."""
    if network.startswith("lstm"):
        symbol = more_networks.lstm_layers() if network == "lstm_layers" else networks.lstm(49)
    else:
        symbol = getattr(networks, network)()
    sizes = {"data": (steps, batch, *data) if steps else (batch, *data), **shapes}
    runs = {"runs": RUNS, "seconds": RUNS_S, "release": True}
    return {"name": f"{network} b{batch}", "network": network, "symbol": symbol, "shapes": sizes, **runs}


RUNS, RUNS_S = 5, 0.2
"""Runs of each kind at least, and for at least so many seconds."""
IMAGE = (3, 224, 224)
TASKS = [
    task("mlp", 128, (784,)),
    task("lenet", 100, (1, 28, 28)),
    task("resnet50", 1, IMAGE),
    task("resnet50", 32, IMAGE),
    task("resnet50", 128, IMAGE),
    task("vgg16", 32, IMAGE),
    # The symbol is unrolled; PyTorch has its fused LSTM at first, then a cell a step; then both have one operator.
    task("lstm", 32, (49, 128), h=(32, 256), c=(32, 256)),
    task("lstm_cells", 32, (49, 128), h=(32, 256), c=(32, 256)),
    task("lstm_layers", 32, (200,), 35, h=(2, 32, 256), c=(2, 32, 256)),
    task("pointwise", 64, (1024,)),
]
TYPES = ("float32", "float16")


class Peer:
    """A process that answers tasks with seconds; None once it has ended."""

    def __init__(self, python: str, script: str, *arguments: str, **environment: str) -> None:
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  # as long as the process
        self.process = subprocess.Popen(
            [python, str(HERE / "peers" / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **environment},
        )

    def ask(self, question: dict[str, Any]) -> list[list[float]] | None:
        """Seconds of each run of forward, and of forward with backward."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(60)  # it closed its side because it ends
            return None
        answer: list[list[float]] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process, and let go of what it was reached by."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def why_ended(self) -> str:
        """The last line that it wrote to its errors; empty while it works."""
        if self.process.poll() is None:
            return ""
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return f"status {self.process.returncode}: {lines[-1] if lines else 'it said nothing'}"


@contextmanager
def started(device: str, without: Sequence[str]) -> Iterator[dict[str, Peer]]:
    """The peers that this machine has, by name, but those whose name contains one of `without`."""
    torch = os.environ.get("OPBOX_TORCH_PYTHON") or (sys.executable if importlib.util.find_spec("torch") else "")
    on = ("cuda",) if device == "gpu" else ()
    commands: dict[str, tuple[list[str], dict[str, str]]] = {
        "opbox": (["symbols.py", "opbox", device], {"OPBOX_URL": ""}),
        "opbox, TF32": (["symbols.py", "opbox", device], {"OPBOX_URL": "", "OPBOX_ALLOW_TF32": "1"}),
        "opbox, HTTP": (["symbols.py", "opbox", device], {}),
        "eager": (["modules.py", *on], {}),
        "eager, last": (["modules.py", "last", *on], {}),
        "graphs": (["modules.py", "last", "graphs", *on], {}),
        "graphs, TF32": (["modules.py", "last", "graphs", "tf32", *on], {}),
        "deterministic": (["modules.py", "deterministic", *on], {}),
        "graphs, deterministic": (["modules.py", "last", "graphs", "deterministic", *on], {}),
    }
    with ExitStack() as stack:
        peers = {}
        for name, (command, environment) in commands.items():
            ours = name.startswith("opbox")
            if any(part in name for part in without) or not (ours or torch) or ("graphs" in name and not on):
                continue
            if name == "opbox, HTTP":
                url, token = stack.enter_context(server(code=False))
                environment = {"OPBOX_URL": url, "OPBOX_TOKEN": token}
            peers[name] = Peer(sys.executable if ours else torch, *command, **environment)
            stack.callback(peers[name].close)
        yield peers


def compare(question: dict[str, Any], peers: dict[str, Peer]) -> dict[str, Any]:
    """Milliseconds of each peer, forward and with backward, and the ratios."""
    answers = {name: peer.ask(question) for name, peer in peers.items()}
    medians = {
        name: [round(statistics.median(times) * 1e3, 4) for times in both] for name, both in answers.items() if both
    }
    return {"milliseconds": medians, **ratios(medians)}


def ratios(medians: dict[str, list[float]]) -> dict[str, list[float]]:
    """For forward and for the step: how many times the time of an opbox another needs, at least; above 1 opbox wins."""
    torch = [name for name in medians if not name.startswith("opbox")]
    same_bits = [name for name in torch if "deterministic" in name]
    asked = {
        "over opbox": ([name for name in torch if "TF32" not in name and name not in same_bits], "opbox"),
        "deterministic over opbox": (same_bits, "opbox"),
        "TF32 over opbox with it": ([name for name in torch if "TF32" in name], "opbox, TF32"),
        "eager over opbox": ([name for name in torch if name.startswith("eager")], "opbox"),
        "in process over HTTP": (["opbox"], "opbox, HTTP"),
    }
    return {
        title: [round(min(medians[name][kind] for name in others) / medians[own][kind], 3) for kind in (0, 1)]
        for title, (others, own) in asked.items()
        if own in medians and others and all(name in medians for name in others)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300, help="for all networks and types together")
    parser.add_argument("--only", default="", help="networks whose name contains this")
    parser.add_argument("--without", nargs="*", default=(), help="leave out peers whose name contains one of these")
    parser.add_argument("--types", nargs="+", default=TYPES, choices=TYPES)
    parser.add_argument("--json", type=Path, help="a file for the figures, written anew with each network")
    parser.add_argument("--device", default="gpu", choices=("gpu", "cpu"))
    options = parser.parse_args()
    questions = [
        {**question, "name": f"{question['name']} {dtype}", "dtype": dtype}
        for question in TASKS
        for dtype in options.types
        if options.only in question["name"]
    ]
    figures: dict[str, Any] = {}
    ended: dict[str, str] = {}
    begin = time.monotonic()
    with started(options.device, options.without) as peers:
        print("forward / forward and backward, ms")
        heads = [f"{name:>{max(20, len(name) + 2)}}" for name in peers]
        print(f"{'':22}" + "".join(heads) + f"{'faster PyTorch over opbox':>28}")
        for question in questions:
            if figures and time.monotonic() - begin > options.seconds:
                print(f"{question['name']}: left out, as {options.seconds:g} s have passed", flush=True)
                continue
            figures[question["name"]] = result = compare(question, peers)
            line = f"{question['name']:22}"
            for name, head in zip(peers, heads, strict=True):
                both = result["milliseconds"].get(name)
                line += f"{'-' if both is None else f'{both[0]:.2f} / {both[1]:.2f}':>{len(head)}}"
            print(line + f"{' / '.join(map(str, result.get('over opbox', ['-']))):>28}", flush=True)
            for name, peer in peers.items():
                if name not in ended and (reason := peer.why_ended()):
                    ended[name] = reason
                    print(f"{name} ended with {reason}", flush=True)
            if options.json is not None:
                options.json.write_text(json.dumps({"networks": figures, "ended": ended}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
