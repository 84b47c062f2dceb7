"""libgomp's threads that computed what nobody waited for end with it: those of the user's thread would sleep sooner."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.machine import needs_onednn

pytestmark = needs_onednn

SCRIPT = """
import os, threading, time
import opbox as mx
from opbox_service import stream_thread

released = []
release = stream_thread.release_threads
stream_thread.release_threads = lambda: released.append((count_more(), release(), count_more()))

def count_more():
    return len(os.listdir("/proc/self/task")) - len(threading.enumerate())

data = mx.nd.array([[1.0] * 512] * 256)
weight = mx.nd.array([[1.0] * 512] * 512)
data.wait_to_read()
for _ in range(1200):  # more than travel together: the first of them wait for nobody
    out = mx.nd.FullyConnected(data, weight, no_bias=True, num_hidden=512)
until = time.monotonic() + 30
while not released and time.monotonic() < until:
    time.sleep(0.01)
print(*released[-1][::2])
"""


def test_they_end_with_work_that_nobody_waits_for() -> None:
    settings = {**os.environ, "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "1", "OPBOX_URL": ""}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=settings, capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert before - after == 1
