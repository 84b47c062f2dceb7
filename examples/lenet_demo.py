"""Train LeNet on handwritten digits through HTTP: `make demo`.

Starts a server on a free port of this machine, trains on it, and prints validation accuracy, images per second, and
requests per training step as the server counted them. Ends with status 1 when the accuracy stays below 0.97.

    python examples/lenet_demo.py [--data DIR] [--epochs N] [--url URL --token TOKEN]

Without --data, the digits are scikit-learn's bundled 8 x 8 images; DIR holds MNIST's four idx files (or only the t10k
ones: the first nine tenths are trained on then).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np

REQUIRED = 0.97


def load_digits(folder):
    """Images (n, 1, side, side) in [0, 1] and labels: of training, of validation."""
    if folder is None:
        from sklearn.datasets import load_digits as bundled

        dataset = bundled()
        images = (dataset.images[:, None] / 16).astype(np.float32)
        order = np.random.RandomState(0).permutation(len(images))
        images, labels = images[order], dataset.target[order].astype(np.float32)
        cut = 1500
    else:
        from opbox.io import read_idx

        folder = Path(folder)
        parts = [("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")]
        if any(folder.glob("train-images-idx3-ubyte*")):
            parts.insert(0, ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"))
        read = [(read_idx(folder / images), read_idx(folder / labels)) for images, labels in parts]
        images = np.concatenate([one[0] for one in read])[:, None].astype(np.float32) / 255
        labels = np.concatenate([one[1] for one in read]).astype(np.float32)
        cut = len(read[0][0]) if len(read) > 1 else len(images) * 9 // 10
    return (images[:cut], labels[:cut]), (images[cut:], labels[cut:])


def lenet(mx, side):
    """LeNet (LeCun et al., 1998) with tanh; small images get 3 x 3 kernels with padding in place of 5 x 5."""
    small = side < 20
    kernel, pad = ((3, 3), (1, 1)) if small else ((5, 5), (0, 0))
    net = mx.sym.Variable("data")
    for number, filters in enumerate((20, 50), 1):
        net = mx.sym.Convolution(net, kernel=kernel, pad=pad, num_filter=filters, name=f"conv{number}")
        net = mx.sym.Activation(net, act_type="tanh", name=f"tanh{number}")
        net = mx.sym.Pooling(net, pool_type="max", kernel=(2, 2), stride=(2, 2), name=f"pool{number}")
    net = mx.sym.Flatten(net, name="flatten")
    net = mx.sym.FullyConnected(net, num_hidden=500, name="fc1")
    net = mx.sym.Activation(net, act_type="tanh", name="tanh3")
    net = mx.sym.FullyConnected(net, num_hidden=10, name="fc2")
    return mx.sym.SoftmaxOutput(net, name="softmax")


@contextlib.contextmanager
def server(isolation="process", code=True):
    """A server of its own on a free port, ended with the program; yields (url, token).

    Without `code` the token brings no operators to the server, whose sessions need no processes of their own then.
    """
    # As a module: from sources that are on a path alone there is no command `opbox`.
    arguments = [
        sys.executable,
        "-m",
        "opbox.cli",
        "serve",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--isolation",
        isolation,
    ]
    token = secrets.token_hex(24)
    environment = {**os.environ, "OPBOX_TOKEN": token, "OPBOX_URL": ""}
    if not code:
        tokens = [{"name": "demo", "token": token, "scopes": ["run", "metrics", "admin"]}]
        environment |= {"OPBOX_TOKENS": json.dumps(tokens), "OPBOX_TOKEN": ""}
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            # It says where it listens as soon as it takes work.
            address = re.search(r"http://\S+", process.stdout.readline())
            if address is None:
                process.wait(10)
                log.seek(0)
                sys.exit(f"the server ended with status {process.returncode}:\n{log.read()}")
            print(f"Watch it in a browser: {address[0]}/?token={token}")
            yield address[0], token
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def get(url, token):
    """The text of a GET."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode()


def requests_seen(url, token):
    """How many requests with session commands the server has answered, from its /metrics."""
    total = 0.0
    for line in get(f"{url}/metrics", token).splitlines():
        if re.match(r"opbox_requests_total\{.*commands", line):
            total += float(line.rsplit(" ", 1)[1])
    return total


class Progress:
    """The callbacks of `fit`: one line an epoch with a bar, speed and accuracy; counts steps, requests and seconds.

    The first step of an epoch is waited for and not counted, so that the numbers are of steps alone.
    """

    BLOCKS = " ▏▎▍▌▋▊▉█"
    WIDTH = 28

    def __init__(self, batches, batch_size, epochs, requests):
        self.batches, self.batch_size, self.epochs, self.requests = batches, batch_size, epochs, requests
        self.live = sys.stdout.isatty()
        self.steps = self.seen = self.seconds = 0
        self.before = self.began = self.drawn = 0.0

    def batch_end(self, param):
        done, now = param.nbatch + 1, time.perf_counter()
        if done == 1:
            param.eval_metric.get()
            self.before, self.began = self.requests(), time.perf_counter()
        elif done == self.batches:
            accuracy = param.eval_metric.get()[1]  # waits for the last step
            elapsed = time.perf_counter() - self.began
            self.steps += done - 1
            self.seconds += elapsed
            self.seen += self.requests() - self.before
            self.draw(param.epoch, done, (done - 1) * self.batch_size / elapsed, accuracy)
        elif self.live and now - self.drawn > 0.1:
            self.drawn = now
            accuracy = param.eval_metric.get()[1]
            self.draw(param.epoch, done, (done - 1) * self.batch_size / (time.perf_counter() - self.began), accuracy)

    def draw(self, epoch, done, speed, accuracy):
        eighths = self.WIDTH * 8 * done // self.batches
        bar = ("█" * (eighths // 8) + self.BLOCKS[eighths % 8] * (eighths % 8 > 0)).ljust(self.WIDTH)
        line = f"epoch {epoch + 1:2}/{self.epochs} ▕{bar}▏ {speed:6.0f} images/s   accuracy: training {accuracy:.4f}"
        print(f"\r{line}" if self.live else line, end="", flush=True)

    def score_end(self, param):
        print(f", validation {param.eval_metric.get()[1]:.4f}", flush=True)


def train(mx, options, url, token):
    """Train, report, and return the accuracy on the validation images."""
    (images, labels), (val_images, val_labels) = load_digits(options.data)
    size, side = options.batch_size, images.shape[-1]
    train_iter = mx.io.NDArrayIter(images, labels, size, shuffle=True, last_batch_handle="discard")
    # Batches that come out even, so that no validation image counts twice.
    even = max(d for d in range(1, size + 1) if len(val_images) % d == 0)
    val_iter = mx.io.NDArrayIter(val_images, val_labels, even)
    # About 600 steps of the big images, and twelve passes over the small ones, are enough.
    options.epochs = options.epochs or (12 if side < 20 else max(2, round(600 * size / len(images))))
    print(f"LeNet on {len(images)} images of {side} x {side} in batches of {size}, through {url}\n")

    progress = Progress(len(images) // size, size, options.epochs, lambda: requests_seen(url, token))
    mod = mx.mod.Module(lenet(mx, side))
    mod.fit(
        train_iter,
        eval_data=val_iter,
        eval_metric="acc",
        initializer=mx.init.Xavier(),
        optimizer="sgd",
        optimizer_params={"learning_rate": options.learning_rate, "momentum": 0.9},
        batch_end_callback=progress.batch_end,
        eval_end_callback=progress.score_end,
        num_epoch=options.epochs,
    )
    [(_, accuracy)] = mod.score(val_iter, "acc")
    print(f"\nvalidation accuracy        {accuracy:.4f}")
    print(f"images per second          {progress.steps * size / progress.seconds:.0f}")
    rate = progress.seen / progress.steps
    print(f"requests per training step {rate:.2f}   (counted by the server over {progress.steps} steps)")
    return accuracy


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", metavar="DIR", help="a folder of MNIST idx files")
    parser.add_argument("--epochs", type=int, help="passes over the images (12; for MNIST 600 steps' worth)")
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--token", default=os.environ.get("OPBOX_TOKEN"))
    options = parser.parse_args()

    running = contextlib.nullcontext((options.url, options.token)) if options.url else server(code=False)
    with running as (url, token):
        os.environ["OPBOX_URL"], os.environ["OPBOX_TOKEN"] = url, token
        import logging

        import opbox as mx

        logging.getLogger().setLevel(logging.WARNING)
        np.random.seed(0)
        mx.random.seed(0)
        accuracy = train(mx, options, url, token)
    if accuracy < REQUIRED:
        sys.exit(f"the accuracy stayed below {REQUIRED}")


if __name__ == "__main__":
    main()
