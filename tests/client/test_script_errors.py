"""What a script that ends in an error prints: its own lines, and opbox's only where somebody asks for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

NOBODY = "http://127.0.0.1:9"
"""An address at which nothing listens: the port of the discard protocol."""
TRAIN = """
import numpy as np, opbox as mx
net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3), name="softmax")
batches = mx.io.NDArrayIter(np.zeros((10, 4), "float32"), np.zeros(10), batch_size=5)
def stop(param):
    mx.nd.dot(mx.nd.ones((2, 3)), mx.nd.ones((2, 3))).asnumpy()
mx.mod.Module(net).fit(batches, num_epoch=1, batch_end_callback=stop)
"""


INTERRUPTED = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it
import numpy as np, opbox as mx
net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3), name="softmax")
class Batches(mx.io.NDArrayIter):
    def next(self):
        if self.cursor >= 0:
            signal.raise_signal(signal.SIGINT)
        return super().next()
batches = Batches(np.zeros((10, 4), "float32"), np.zeros(10), batch_size=5)
mx.mod.Module(net).fit(batches, num_epoch=1)
"""


def _errors(folder: Path, text: str, code: int = 1, **environment: str) -> list[str]:
    """The lines that a script prints when it fails."""
    script = folder / "train.py"
    script.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "OPBOX_URL": NOBODY, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    return done.stderr.splitlines()


def test_a_script_without_a_server_shows_its_own_line_and_the_remedy(tmp_path: Path) -> None:
    lines = _errors(tmp_path, "import opbox as mx\nx = mx.nd.ones((2, 3))\n")
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].endswith('train.py", line 2, in <module>')
    assert lines[2].strip() == "x = mx.nd.ones((2, 3))"
    assert lines[-2] == (
        f"opbox_protocol.errors.TransportError: {NOBODY}: nothing listens there; start a server with `opbox serve`"
    )
    assert lines[-1].endswith("of opbox's own left out: OPBOX_DEBUG=1 shows all)")
    assert len(lines) <= 6
    assert sum(line.startswith("  File ") for line in lines) == 1


def test_all_lines_are_shown_to_who_asks(tmp_path: Path) -> None:
    lines = _errors(tmp_path, "import opbox as mx\nmx.nd.ones((2, 3))\n", OPBOX_DEBUG="1")
    assert any("opbox/http.py" in line for line in lines)
    assert any(line.startswith("ConnectionRefusedError") for line in lines)
    assert "left out" not in lines[-1]


def test_lines_of_a_callback_are_the_scripts_own(tmp_path: Path) -> None:
    lines = _errors(tmp_path, TRAIN, OPBOX_URL="")
    shown = [line.rsplit(",", 1)[1].strip() for line in lines if line.startswith("  File ")]
    assert shown == ["in <module>", "in stop"]


def test_the_scripts_own_error_before_it_is_shown(tmp_path: Path) -> None:
    text = "import opbox as mx\ntry:\n    {}['weights']\nexcept KeyError:\n    mx.nd.ones((2, 3))\n"
    lines = _errors(tmp_path, text)
    assert "KeyError: 'weights'" in lines
    assert not any("opbox/http.py" in line for line in lines)


def test_an_error_of_any_class_is_the_scripts_lines_and_a_sentence(tmp_path: Path) -> None:
    lines = _errors(tmp_path, "import opbox as mx\nmx.metric.create('acuracy')\n", OPBOX_URL="")
    assert [line.strip() for line in lines if line.startswith("  File ")] == [
        f'File "{tmp_path / "train.py"}", line 2, in <module>'
    ]
    assert lines[3].startswith("AssertionError: metric 'acuracy': did you mean accuracy")
    assert "left out" in lines[4]
    assert len(lines) == 5


def test_an_interrupt_is_the_scripts_lines(tmp_path: Path) -> None:
    lines = _errors(tmp_path, INTERRUPTED, code=-signal.SIGINT, OPBOX_URL="")
    shown = [line.rsplit(",", 1)[1].strip() for line in lines if line.startswith("  File ")]
    assert shown == ["in <module>", "in next"]
    assert "left out" in lines[lines.index("KeyboardInterrupt") + 1]


def test_an_error_in_a_thread_is_the_scripts_lines(tmp_path: Path) -> None:
    text = (
        "import threading, opbox as mx\n"
        "def work():\n    mx.nd.load('nothing.params')\n"
        "thread = threading.Thread(target=work, name='loader')\nthread.start()\nthread.join()\n"
    )
    lines = _errors(tmp_path, text, code=0, OPBOX_URL="")
    assert lines[0] == "Exception in thread loader:"
    assert "in work" in [line for line in lines if line.startswith("  File ")][-1]
    assert lines[-2].startswith("opbox_protocol.errors.MissingFileError: nothing.params: expected a file to read, got")


@pytest.mark.parametrize(
    "text",
    [
        "raise ValueError('mine')",
        "from opbox_protocol.errors import MXNetError\nraise MXNetError('mine')",
    ],
    ids=["of another class", "without a line of opbox's"],
)
def test_other_errors_are_pythons_own(tmp_path: Path, text: str) -> None:
    shown = _errors(tmp_path, f"import sys, opbox\n{text}\n")
    assert shown == _errors(tmp_path, f"import sys, opbox; sys.excepthook = sys.__excepthook__\n{text}\n")
    assert shown[-1].endswith("mine")


def test_a_program_that_reports_errors_itself_is_left_alone(tmp_path: Path) -> None:
    own = "import sys\nsys.excepthook = lambda *error: print('mine', file=sys.stderr)\n"
    assert _errors(tmp_path, f"{own}import opbox as mx\nmx.nd.ones(3)\n") == ["mine"]
