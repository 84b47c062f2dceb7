"""An error in a notebook: the user's lines and one sentence, and everything with OPBOX_DEBUG."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

pytestmark = [
    # What the notebook packages do inside is not ours to mend.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CELLS = [
    "import opbox as mx\ndata = mx.sym.Variable('data')",
    "net = mx.sym.FullyConnected(data, num_hidden=3, name='fc')\nnet.infer_shape(data=(0, 4), fc_weight=(2, 2))",
    "def made(name):\n    return mx.sym.Activation(data, act_type=name)\n\nmade('relo')",
    "mx.nd.ones((2, 3)).reshape((4, 4)).asnumpy()",
    "mx.mod.Module(net, data_names=['dat'])",
    "mx.sym.FullyConected(data)",
    "1 / 0",
    "import numpy as np, signal\nbatches = mx.io.NDArrayIter(np.zeros((4, 2)), np.zeros(4), 2)\n"
    "def stop(param):\n    signal.raise_signal(signal.SIGINT)\n"
    "mx.mod.Module(mx.sym.SoftmaxOutput(net, name='softmax')).fit(batches, num_epoch=1, batch_end_callback=stop)",
    "mx.nd.load('nothing.params')",
    "%env OPBOX_DEBUG=1",
    "net.infer_shape(data=(0, 4), fc_weight=(2, 2))",
]


@pytest.fixture(scope="module")
def errors() -> dict[int, list[str]]:
    """The lines of each cell's error, by the cell's number."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OPBOX_")}
    client = nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True)
    client.execute(env={**environment, "PYDEVD_DISABLE_FILE_VALIDATION": "1"})
    return {
        number: re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(output["traceback"])).splitlines()
        for number, cell in enumerate(notebook.cells)
        for output in cell.outputs
        if output["output_type"] == "error"
    }


@pytest.mark.parametrize(
    ("number", "places", "sentence"),
    [
        (1, [(2, None)], r"ShapeError: fc \(FullyConnected, Cell In\[2\], line 1\): weight: expected .*"),
        (2, [(4, None), (2, "made")], "ParamError: .*relo.*"),
        (3, [(1, None)], r"\w+Error: .*"),
        (4, [(1, None)], "ValueError: Module: data_names has 'dat'.*"),
        (5, [(1, None)], "AttributeError: .*did you mean FullyConnected.*"),
        (7, [(5, None), (4, "stop")], "KeyboardInterrupt"),
        (8, [(1, None)], "MissingFileError: nothing.params: expected a file to read, got none: .*"),
    ],
)
def test_an_error_is_the_users_lines_and_a_sentence(
    errors: dict[int, Any], number: int, places: list[tuple[int, str | None]], sentence: str
) -> None:
    expected: list[str] = []
    for line, function in places:
        within = f", in {function}" if function else ""
        text = CELLS[number].splitlines()[line - 1].strip()
        expected += [f"Cell In[{number + 1}], line {line}{within}", f"----> {line} {text}"]
    assert errors[number][:-1] == [*expected, ""]
    assert re.fullmatch(sentence, errors[number][-1])


def test_errors_that_are_not_ours_are_ipythons(errors: dict[int, Any]) -> None:
    assert errors[6][0].startswith("---")
    assert "ZeroDivisionError" in errors[6][-1]


def test_with_a_setting_everything_is_shown(errors: dict[int, Any]) -> None:
    assert len(errors[10]) > 20
