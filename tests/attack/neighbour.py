"""A user who behaves well: trains a small network, step by step, and tells how long each step took.

    python -m tests.attack.neighbour URL TOKEN

It prints "ready" after the first steps, ends when its input does, and prints the number of steps, of those that failed,
and the longest wait in seconds.
"""

from __future__ import annotations

import sys
import threading
import time

import numpy as np

import opbox as mx
from opbox import connection
from opbox_protocol.errors import MXNetError

PAUSE_S = 0.02
"""Between two steps: a user who leaves the machine to others for most of the time."""


def main(url: str, token: str) -> None:
    """Train until the input ends."""
    ended = threading.Event()

    def until_the_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=until_the_end, daemon=True).start()
    connection.connect(url, token)
    data = mx.nd.array(np.random.RandomState(0).rand(32, 64).astype(np.float32))
    weight = mx.nd.zeros((64, 1))

    def step() -> None:
        weight[:] = weight - 0.01 * mx.nd.dot(data, mx.nd.dot(data, weight) - 1, transpose_a=True)
        weight.asnumpy()

    for _ in range(5):
        step()
    print("ready", flush=True)
    steps = failed = 0
    longest = 0.0
    while not steps or not ended.wait(PAUSE_S):
        began = time.monotonic()
        try:
            step()
        except MXNetError as error:
            failed += 1
            print(error, file=sys.stderr)
        steps += 1
        longest = max(longest, time.monotonic() - began)
    print(steps, failed, longest, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
