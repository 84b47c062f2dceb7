"""The notebooks of examples/notebooks run from top to bottom, with fewer epochs than they are shown with."""

from __future__ import annotations

import os
import re
from pathlib import Path

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

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "notebooks"
SHORT = {
    "train_mnist": ("epochs = 2\nbatch_size = 100", ["mlp_accuracy", "lenet_accuracy"], 0.85),
    "custom_operator": ("epochs = 6", ["accuracy"], 0.85),
    "from_mxnet": ("epochs = 1", ["accuracy", "after"], 0.85),
}
"""Parameters for a test, the names that hold accuracies, and what they come to: far from the 0.1 to 0.4 of guessing."""


def test_all_are_tried() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(SHORT)


@pytest.mark.parametrize("name", SHORT)
def test_a_notebook_runs(name: str) -> None:
    parameters, names, least = SHORT[name]
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    cell.source = parameters
    notebook.cells.append(nbformat.v4.new_code_cell(f"print({', '.join(names)})"))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OPBOX_")}
    client = nbclient.NotebookClient(
        notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}
    )
    client.execute(env={**environment, "PYDEVD_DISABLE_FILE_VALIDATION": "1"})
    printed = notebook.cells[-1].outputs[0]["text"]
    assert all(float(number) > least for number in printed.split()), printed


@pytest.mark.parametrize("name", SHORT)
def test_what_a_notebook_shows_is_of_no_one_machine(name: str) -> None:
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert outputs
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert not re.findall(r"/(?:work|home|tmp|root)/", str(outputs))
