"""Programs as their authors published them run: changed are the import, and what Python 3 and NumPy force."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from .programs import run

SEEDS = Path(__file__).with_name("seeds")
PRINTS = {
    "softmax": "('accuracy', ",
    "tile": "arg_shape:[(2, 3)]\n, out_shape:[(2, 3, 10)]\n, aux_shape:[]\n, output_blob:['tileop_output']",
    "makeloss": "fc_bias:[0.], fc_bias_grad:[-",
    "two_lstms": "(1024, 256), (1024,), (1024, 256), (1024,)], [(128, 512)], [])",
    "reorg": "EvalMetric: {'accuracy': ",
}


@pytest.fixture(scope="module")
def mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with MNIST's four files, which hold few and smaller digits, enlarged."""
    folder = tmp_path_factory.mktemp("mnist")
    digits = load_digits()
    images = np.pad(np.kron(digits.images, np.ones((3, 3))) * 255 / 16, ((0, 0), (2, 2), (2, 2))).astype(np.uint8)
    labels = digits.target.astype(np.uint8)
    for name, rows in (("train", slice(0, 200)), ("t10k", slice(200, 300))):
        for kind, array in (("images", images[rows]), ("labels", labels[rows])):
            header = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            (folder / f"{name}-{kind}-idx{array.ndim}-ubyte").write_bytes(header + array.tobytes())
    return folder


@pytest.mark.parametrize("where", ["embedded", "server"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.compiler] if name == "reorg" else []) for name in PRINTS]
)
def test_it_runs(name: str, where: str, mnist: Path, request: pytest.FixtureRequest) -> None:
    env = request.getfixturevalue("server") if where == "server" else {}
    printed = run(SEEDS / f"{name}.py", env={**env, "OPBOX_MNIST": str(mnist)})
    assert PRINTS[name] in printed
    if name == "softmax":
        accuracy = re.search(r"'accuracy', (?:np\.float64\()?([\d.]+)", printed)
        assert accuracy is not None
        assert float(accuracy[1]) >= 0.95
