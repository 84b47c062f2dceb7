"""What `fit` shows: a bar at a terminal, lines elsewhere, a picture in a notebook; and what it logs, as MXNet does."""

from __future__ import annotations

import logging
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from ptyprocess import PtyProcess

import opbox as mx
from opbox import progress

PROGRAM = """
import logging, sys
import numpy as np, opbox as mx
logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2), name="softmax")
data = np.random.default_rng(0).standard_normal((200, 4)).astype(np.float32)
train = mx.io.NDArrayIter(data, (data[:, 0] > 0).astype(np.float32), batch_size=10)
mod = mx.mod.Module(net)
mod.fit(train, num_epoch=2, eval_metric=["acc", "ce"]OPTIONS)
"""
LOGGED = (
    r"Epoch\[0\] Train-accuracy=0\.\d+\r?\nEpoch\[0\] Train-cross-entropy=\d\.\d+\r?\nEpoch\[0\] Time cost=\d+\.\d+"
)


def program(options: str = "") -> list[str]:
    return [sys.executable, "-c", PROGRAM.replace("OPTIONS", options)]


def at_a_terminal(options: str = "", columns: int = 120, **environment: str) -> str:
    """What the program prints at a terminal."""
    import os

    # The test runner's processes have COLUMNS set, which would count for more than the terminal.
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = PtyProcess.spawn(
        program(options), env=inherited | {"TERM": "xterm"} | environment, dimensions=(24, columns)
    )
    shown = b""
    while True:
        try:
            shown += process.read()
        except EOFError:
            break
    assert process.wait() == 0, shown.decode()
    return shown.decode()


def fitted(capsys: pytest.CaptureFixture[str], **options: Any) -> str:
    """What a training here prints to standard error, which is no terminal."""
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2), name="softmax")
    train = mx.io.NDArrayIter(np.ones((25, 4)), np.zeros(25), batch_size=10)
    mx.mod.Module(net).fit(train, num_epoch=2, **options)
    return capsys.readouterr().err


def test_a_terminal_shows_a_bar_and_the_lines_that_were_logged() -> None:
    shown = at_a_terminal()
    assert re.search(
        r"\rEpoch 1/2 +100% █+ +20/20  \d+ samples/s  accuracy=0\.\d{4}  cross-entropy=\d\.\d{4}  ETA \d+:\d\d", shown
    )
    assert "\rEpoch 2/2" in shown
    # Logged lines begin at the left and are whole.
    assert len(re.findall(r"(?:\n|\x1b\[K)Epoch\[[01]\] Train-accuracy=0\.\d+\r\n", shown)) == 2
    assert re.search(LOGGED, shown)


def test_a_narrow_terminal_is_not_overrun() -> None:
    shown = at_a_terminal(columns=40)
    lines = [line for line in re.split(r"[\r\n]", shown) if line.startswith("Epoch 1/2")]
    assert lines
    assert all(len(line.replace("\x1b[K", "")) < 40 for line in lines)


@pytest.mark.parametrize(
    ("options", "environment", "bar"),
    [
        ("", {}, True),
        (", progress=False", {}, False),
        ("", {"OPBOX_PROGRESS": "0"}, False),
        # Who gave a callback that prints sees what MXNet shows.
        (", batch_end_callback=mx.callback.Speedometer(10, 5)", {}, False),
        (", batch_end_callback=mx.callback.Speedometer(10, 5), progress=True", {}, True),
        ("", {"TERM": "dumb"}, False),
    ],
)
def test_who_sees_a_bar(options: str, environment: dict[str, str], bar: bool) -> None:
    shown = at_a_terminal(options, **environment)
    assert ("Epoch 1/2" in shown) == bar
    assert re.search(LOGGED, shown)


def test_plain_lines_elsewhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert fitted(capsys) == ""
    logged = [re.sub(r"[\d.]+$", "", record.getMessage()) for record in caplog.records]
    caplog.clear()
    lines = fitted(capsys, progress=True).splitlines()
    assert re.fullmatch(r"Epoch 1/2 +33% 1/3  \d+ samples/s  accuracy=\d\.\d{4}  ETA \d+:\d\d", lines[0])
    assert re.fullmatch(r"Epoch 2/2 +100% 3/3  \d+ samples/s  accuracy=\d\.\d{4}  ETA 0:00", lines[-1])
    assert [re.sub(r"[\d.]+$", "", record.getMessage()) for record in caplog.records] == logged
    monkeypatch.setenv("OPBOX_PROGRESS", "1")
    assert fitted(capsys, batch_end_callback=lambda param: None).startswith("Epoch 1/2")
    monkeypatch.setenv("OPBOX_PROGRESS", "maybe")
    with pytest.raises(ValueError, match="OPBOX_PROGRESS: expected 0 or 1, got 'maybe'"):
        fitted(capsys)


@pytest.mark.parametrize(("handle", "expected"), [("pad", 3), ("discard", 2), ("roll_over", 2)])
def test_batches_of_an_epoch(handle: str, expected: int) -> None:
    data = mx.io.NDArrayIter(np.ones((25, 4)), batch_size=10, last_batch_handle=handle)
    assert progress._batches(data) == expected == len(list(data))
    assert progress._batches(object()) is None


def test_live_plot_at_no_notebook(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plot = mx.viz.LivePlot(frequent=1, interval=1e-9)
    shown = fitted(
        capsys, batch_end_callback=plot, eval_data=mx.io.NDArrayIter(np.ones((10, 4)), np.zeros(10), batch_size=10),
        eval_metric=["acc", "ce"], eval_end_callback=plot.validation,
    )  # fmt: skip
    assert re.search(r"Epoch\[1\] Batch 6  accuracy \d\.\d{4} [▁-█]+  cross-entropy \d\.\d{4} [▁-█]+", shown)
    assert "validation accuracy" in shown
    assert [len(points) for points in plot.curves.values()] == [6, 6]
    root = ET.parse(plot.save(tmp_path / "curves.svg")).getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert len(list(root.iter(f"{space}polyline"))) == 2
    assert len(list(root.iter(f"{space}circle"))) == 4
    assert repr(plot) == "<LivePlot of accuracy, cross-entropy over 6 batches>"
    assert "nothing yet" in repr(mx.viz.LivePlot())
    assert ET.fromstring(mx.viz.LivePlot().svg) is not None
    with pytest.raises(ValueError, match="expected frequent and interval above 0, got 0 and 1"):
        mx.viz.LivePlot(frequent=0)


def test_a_notebook_follows_a_training() -> None:
    lines = [
        PROGRAM.replace("OPTIONS", "").replace("logging.basicConfig", "dict"),
        "plot = mx.viz.LivePlot(frequent=2)\n"
        "mod.fit(train, num_epoch=2, eval_metric=['acc', 'ce'], batch_end_callback=plot)",
        "mod", "mod._exec", "mx.nd.ones((300, 300))",
    ]  # fmt: skip
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(line) for line in lines])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    bar, plot, module, executor, array = (cell.outputs[-1].data for cell in notebook.cells)
    assert "<progress value='1.000' max='1'></progress> 100% 20/20" in bar["text/html"]
    assert "Epoch 2/2" in bar["text/plain"]
    assert "cross-entropy" in plot["image/svg+xml"]
    assert "Module of softmax: bound on cpu(0), 10 numbers, SGD" in module["text/html"]
    assert "fullyconnected0_weight" in executor["text/html"]
    assert "argument, write" in executor["text/html"]
    assert "..." in array["text/html"]
    assert "NDArray 300×300, float32, cpu(0)" in array["text/html"]
