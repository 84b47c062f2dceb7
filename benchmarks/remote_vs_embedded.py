"""Training through HTTP against the embedded engine: LeNet on 28 x 28 images, batch 100, images per second of all.

Four processes train the same network: one with the engine embedded, three through a server on loopback, with its one
token, as `opbox serve` prints it. Of these one has a session that brings no code, in a shared worker, one a session
with code, in a process of its own, and one sends its images with each step (OPBOX_DATASETS=0): the others' are on the
server after the first round, which does not count. They take turns within one run, so that all meet the same machine; a
round is a number of whole training steps with the metric, ended by reading it. All engines compute with the same number
of BLAS threads, by default what a server's worker takes: all cores but one. The goals: 0.9 of the embedded engine's
speed over HTTP, and 0.95 of that with code.

    python benchmarks/remote_vs_embedded.py [--rounds 5] [--steps 20] [--model lenet|lstm|resnet18|mlp]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from lenet_demo import get, lenet, server
from networks import resnet

GOAL, CODE_GOAL = 0.9, 0.95


def network(mx, model):
    """LeNet, an LSTM over an image's rows, ResNet-18, or a perceptron with steps so short that the way there shows.

    ResNet-18 has half of its channels: its parameters travel over a slow link too, and its steps are long all the same.
    """
    if model == "lenet":
        return lenet(mx, 28)
    if model == "resnet18":
        return resnet.build(mx, 10, resnet.RESNET18, width=32, bottleneck=False)
    if model == "lstm":
        rows = mx.sym.reshape(mx.sym.Variable("data"), shape=(0, 28, 28))
        states, _ = mx.rnn.FusedRNNCell(128, mode="lstm", prefix="lstm_").unroll(28, rows, merge_outputs=True)
        last = mx.sym.slice_axis(states, axis=1, begin=-1, end=None)
        return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(last, num_hidden=10), name="softmax")
    net = mx.sym.Flatten(mx.sym.Variable("data"))
    net = mx.sym.Activation(mx.sym.FullyConnected(net, num_hidden=128), act_type="relu")
    net = mx.sym.FullyConnected(net, num_hidden=10)
    return mx.sym.SoftmaxOutput(net, name="softmax")


def work(options):
    """The training process: for each line that comes in, a round; its seconds go out."""
    import opbox as mx

    rng = np.random.RandomState(0)
    images = rng.rand(options.steps * options.batch, 1, 28, 28).astype(np.float32)
    labels = rng.randint(0, 10, len(images)).astype(np.float32)
    data = mx.io.NDArrayIter(images, labels, options.batch)
    mod = mx.mod.Module(network(mx, options.model))
    mod.bind(data.provide_data, data.provide_label)
    mod.init_params(mx.init.Uniform(0.07) if options.model == "lstm" else mx.init.Xavier())
    mod.init_optimizer(optimizer_params={"learning_rate": 0.01, "momentum": 0.9})
    metric = mx.metric.create("acc")
    print("ready", flush=True)
    for _ in sys.stdin:
        data.reset()
        metric.reset()
        began = time.perf_counter()
        for batch in data:
            mod.forward_backward(batch)
            mod.update()
            mod.update_metric(metric, batch.label)
        metric.get()
        print(time.perf_counter() - began, flush=True)


def start(options, environment):
    """A training process, warmed up."""
    own = [sys.executable, __file__, "--work", "--steps", str(options.steps), "--batch", str(options.batch)]
    child = subprocess.Popen(
        [*own, "--model", options.model],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={key: value for key, value in os.environ.items() if not key.startswith("OPBOX_")} | environment,
    )
    if child.stdout.readline().strip() != "ready":
        raise SystemExit("a training process did not start")
    one_round(child)
    return child


def one_round(child):
    """The seconds of one round."""
    child.stdin.write("go\n")
    child.stdin.flush()
    return float(child.stdout.readline())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--model", choices=["lenet", "lstm", "resnet18", "mlp"], default="lenet")
    parser.add_argument("--isolation", choices=["process", "none"], default="process")
    parser.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="BLAS threads of each")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options)
        return
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(options.threads)  # the server and both training processes inherit it
    images = options.steps * options.batch
    print(
        f"{options.model}, batch {options.batch}, {options.rounds} rounds of {options.steps} steps, "
        f"{options.threads} BLAS threads; images per second"
    )
    print(f"{'round':>6} {'embedded':>10} {'HTTP':>10} {'with code':>10} {'sending':>10} {'ratio':>7} {'code':>7}")
    with server(options.isolation) as (url, token):
        get(f"{url}/v2", token)
        reach = {"OPBOX_URL": url, "OPBOX_TOKEN": token}
        variables = ({}, reach, {**reach, "OPBOX_CODE": "1"}, {**reach, "OPBOX_DATASETS": "0"})
        children = [start(options, environment) for environment in variables]
        speeds = []
        for number in range(options.rounds):
            # Who goes first changes from round to round.
            order = [*range(number % 4, 4), *range(number % 4)]
            seconds = {child: one_round(children[child]) for child in order}
            speeds.append([images / seconds[child] for child in range(4)])
            show(number + 1, speeds[-1], speeds[-1][1] / speeds[-1][0], speeds[-1][2] / speeds[-1][1])
        for child in children:
            child.stdin.close()
            child.wait(30)
    remote, code = (statistics.median(row[i] / row[i - 1] for row in speeds) for i in (1, 2))
    show("median", [statistics.median(column) for column in zip(*speeds, strict=True)], remote, code)
    # The first goal is LeNet's: a step that takes a millisecond cannot hide its way there and back on two cores.
    if options.model == "lenet":
        print(f"HTTP: goal {GOAL}: {'met' if remote >= GOAL else 'missed'}")
    print(f"with code: goal {CODE_GOAL}: {'met' if code >= CODE_GOAL else 'missed'}")


def show(name, speeds, remote, code):
    print(f"{name:>6} " + " ".join(f"{speed:>10.0f}" for speed in speeds) + f" {remote:>7.2f} {code:>7.2f}", flush=True)


if __name__ == "__main__":
    main()
