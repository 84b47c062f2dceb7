"""Training over links as they are: images per second, bytes a step, the first and the later epochs.

    python benchmarks/link.py [--links loopback office home hotel] [--models lenet lstm resnet18 mlp eager] [--cut 0.01]

A server runs on this machine. Between it and the program is a proxy that delays and limits: office is 20 ms and
100 Mbit/s each way, home 50 ms and 50 Mbit/s, hotel 20 ms and 20 Mbit/s. `--cut` is the share of requests and of
answers at which the proxy resets the connection; the last column says whether the parameters have the bits of those on
loopback, which is never cut. A model "eager" calls operators one by one. Each row has an owner of its own on the
server, so that its first epoch sends all images; `ratio` is that of the later epochs to loopback's. `--new-iterators`
makes an iterator for each epoch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import secrets
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "examples"), str(ROOT)]

from lenet_demo import server  # noqa: E402
from remote_vs_embedded import network  # noqa: E402
from tests.link.proxy import LINKS, Exchange, Fault, LinkProxy  # noqa: E402

IMAGES, BATCH = 2000, 100
MODELS = ("lenet", "lstm", "resnet18", "mlp", "eager")


def train(options: argparse.Namespace) -> None:
    """The training process: prints each epoch's seconds, then the hash of its parameters."""
    import opbox as mx

    rng = np.random.RandomState(0)
    images = rng.rand(options.images, 1, 28, 28).astype(np.float32)
    labels = rng.randint(0, 10, len(images)).astype(np.float32)
    mx.random.seed(0)
    np.random.seed(0)
    epoch, parameters = (eager if options.model == "eager" else module)(mx, options, images, labels)
    for _ in range(options.epochs):
        begun = time.perf_counter()
        epoch()
        print(time.perf_counter() - begun, flush=True)
    print(hashlib.sha256(b"".join(value.asnumpy().tobytes() for value in parameters())).hexdigest(), flush=True)


def module(mx: Any, options: argparse.Namespace, images: Any, labels: Any) -> tuple[Any, Any]:
    """A Module with its metric."""
    data = mx.io.NDArrayIter(images, labels, BATCH)
    mod = mx.mod.Module(network(mx, options.model))
    mod.bind(data.provide_data, data.provide_label)
    mod.init_params(mx.init.Uniform(0.07))
    mod.init_optimizer(optimizer_params={"learning_rate": 0.01, "momentum": 0.9})
    metric = mx.metric.create("acc")

    def epoch() -> None:
        nonlocal data
        if options.new_iterators:
            data = mx.io.NDArrayIter(images, labels, BATCH)
        data.reset()
        metric.reset()
        for batch in data:
            mod.forward_backward(batch)
            mod.update()
            mod.update_metric(metric, batch.label)
        metric.get()

    return epoch, lambda: [value for _, value in sorted(mod.get_params()[0].items())]


def eager(mx: Any, options: argparse.Namespace, images: Any, labels: Any) -> tuple[Any, Any]:
    """Linear regression by operators that are called one by one, whose loss is read at every tenth step."""
    x, y = images.reshape(len(images), -1), labels[:, None] / 10
    weight = mx.nd.zeros((x.shape[1], 1))

    def epoch() -> None:
        for step, at in enumerate(range(0, len(x), BATCH)):
            rows = mx.nd.array(x[at : at + BATCH])
            error = mx.nd.dot(rows, weight) - mx.nd.array(y[at : at + BATCH])
            gradient = mx.nd.dot(rows, error, transpose_a=True) / BATCH
            weight[:] = weight - 0.001 * gradient
            if step % 10 == 0:
                (error * error).mean().asscalar()
        weight.wait_to_read()

    return epoch, lambda: [weight]


def measure(options: argparse.Namespace, target: tuple[str, int], token: str, link: str, model: str) -> list[Any]:
    """Train over a link: images per second of the first and of later epochs, bytes of their steps, the hash."""
    numbers = random.Random(0)

    def cut(exchange: Exchange) -> Fault | None:
        for where in ("request", "answer"):
            if link != "loopback" and numbers.random() < options.cut:
                return Fault(where, numbers.choice(["head", "body"]), numbers.random())
        return None

    command = [sys.executable, __file__, "--work", "--model", model, "--epochs", str(options.epochs)]
    command += ["--images", str(options.images), *(["--new-iterators"] if options.new_iterators else [])]
    env = {key: value for key, value in os.environ.items() if not key.startswith("OPBOX_")}
    with LinkProxy(target, LINKS[link], cut) as proxy:
        env |= {"OPBOX_URL": proxy.url, "OPBOX_TOKEN": token}
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            rows = [(line.strip(), proxy.up, proxy.down, len(proxy.exchanges)) for line in process.stdout]
    if process.returncode:
        return [float("nan")] * 6 + ["failed"]
    *epochs, (sha, *_) = rows
    rates = [options.images / float(seconds) for seconds, *_ in epochs]
    steps = options.images // BATCH
    first, last = epochs[0], epochs[-1]
    later = [(now - before) / steps / max(1, len(epochs) - 1) for before, now in zip(first[1:], last[1:], strict=True)]
    return [rates[0], statistics.median(rates[1:] or rates), first[1] / steps, *later, sha]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--links", nargs="+", choices=LINKS, default=list(LINKS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--cut", type=float, default=0.0, help="share of requests, and of answers, that are cut")
    parser.add_argument("--new-iterators", action="store_true", help="make an iterator for each epoch")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        train(options)
        return
    rows = [(model, link, secrets.token_hex(24)) for model in options.models for link in options.links]
    owners = [{"name": f"{model}-{link}", "token": token, "scopes": ["run"]} for model, link, token in rows]
    os.environ["OPBOX_TOKENS"] = json.dumps(owners)
    print(f"{options.images} images of 28 x 28, batch {BATCH}; images per second; bytes and requests a step")
    print(
        f"{'model':9} {'link':9} {'epoch 1':>9} {'later':>9} {'ratio':>6} {'up 1':>9} {'up':>9} {'down':>9} "
        f"{'requests':>8}  bits"
    )
    with server("process") as (url, _):
        host, port = url.removeprefix("http://").split(":")
        reference: dict[str, tuple[float, str]] = {}
        for model, link, token in rows:
            first, later, up_first, up, down, count, sha = measure(options, (host, int(port)), token, link, model)
            rate, bits = reference.setdefault(model, (later, sha))
            print(
                f"{model:9} {link:9} {first:9.0f} {later:9.0f} {later / rate:6.2f} {up_first:9.0f} {up:9.0f} "
                f"{down:9.0f} {count:8.2f}  {'as the first' if sha == bits else sha}",
                flush=True,
            )


if __name__ == "__main__":
    main()
