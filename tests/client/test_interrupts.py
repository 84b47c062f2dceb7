"""Ctrl-C, and what signal handlers raise: the interrupted call is made whole or not at all, and the next one works."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import slices

INTERRUPTS = slices.amount("interrupts")
IN_A_KERNEL = slices.amount("interrupts of a notebook's cell")
"""Interrupts of one cell."""
TRAINING = Path(__file__).with_name("interrupted_training.py")
PATIENCE_S = 120
"""Seconds that a call may take on a busy machine; one that waits for what never comes takes 300."""

FIT = """
import numpy as np
import opbox as mx

net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=16)
net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(net, num_hidden=3), name="softmax")
rng = np.random.default_rng(0)
data = mx.io.NDArrayIter(rng.standard_normal((256, 8)), rng.integers(0, 3, 256), batch_size=8)
module = mx.mod.Module(net)


def note(param):
    if param.epoch == 2 and param.nbatch == 5:
        print("fitting", flush=True)


def fit():
    module.fit(ITERATOR, num_epoch=1_000_000, batch_end_callback=note)
"""
SCORE = "print('scored', module.score(ITERATOR, 'acc')[0][1] > 0, flush=True)"
ITERATORS = {"plain": "data", "ahead": "mx.io.PrefetchingIter(data)"}


def program(source: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    # Where the tests run in the background SIGINT is ignored, and a program inherits that.
    start = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    return subprocess.Popen([sys.executable, "-c", start + source], env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.timeout(600)
def test_interrupts_at_random_places(program_environment: dict[str, str]) -> None:
    command = [sys.executable, str(TRAINING), str(INTERRUPTS)]
    done = subprocess.run(command, env=program_environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+ updates\n", done.stdout)
    assert "Exception ignored" not in done.stderr, "an interrupt was dropped"


@pytest.mark.parametrize("iterator", ITERATORS)
def test_score_after_ctrl_c_in_fit(program_environment: dict[str, str], iterator: str) -> None:
    source = f"{FIT.replace('ITERATOR', 'batches')}\nbatches = {ITERATORS[iterator]}\n"
    source += f"try:\n    fit()\nexcept KeyboardInterrupt:\n    {SCORE.replace('ITERATOR', 'batches')}\n"
    with program(source, program_environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "fitting\n"
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, "scored True\n")


@pytest.fixture
def kernel(program_environment: dict[str, str]) -> Iterator[Any]:
    manager_module = pytest.importorskip("jupyter_client.manager")
    pytest.importorskip("ipykernel")
    manager, client = manager_module.start_new_kernel(env=program_environment)
    yield manager, client
    client.execute_interactive("mx.disconnect()", timeout=PATIENCE_S)  # it is killed, and would leave its session
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def run_cell(client: Any, source: str) -> str:
    """What a cell prints, or the name of its error."""
    text = []

    def note(message: Any) -> None:
        if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
            text.append(message["content"]["text"])

    reply = client.execute_interactive(source, output_hook=note, timeout=PATIENCE_S)["content"]
    return "".join(text) if reply["status"] == "ok" else f"{reply['ename']}: {reply['evalue']}"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_notebook_goes_on(kernel: Any) -> None:
    manager, client = kernel
    assert run_cell(client, f"{FIT.replace('ITERATOR', 'data')}") == ""
    client.execute("fit()", stop_on_error=False)
    while True:
        message = client.get_iopub_msg(timeout=PATIENCE_S)
        if message["msg_type"] == "stream" and "fitting" in message["content"]["text"]:
            break
    manager.interrupt_kernel()
    while client.get_iopub_msg(timeout=PATIENCE_S)["msg_type"] != "error":
        pass
    assert run_cell(client, SCORE.replace("ITERATOR", "data")) == "scored True\n"
    cell = f"import sys\nsys.argv = ['', '{IN_A_KERNEL}']\nexec(open({str(TRAINING)!r}).read())"
    assert re.fullmatch(r"\d+ updates\n", run_cell(client, cell))
