"""The same CustomOp classes in MXNet 1.9.1 and here: names, shapes, JSON, values, gradients, states."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox import connection

from . import custom_ops
from .mxnet import ROOT, python

pytestmark = pytest.mark.conformance

NAMES = ("softmax", "norm", "first output", "in a network", "twice")
# mx.nd.array makes float32, which MXNet does not add to float64: the softmax is for the former.
RUNS = [
    (name, req, dtype)
    for name in NAMES
    for req in ("write", "add")
    for dtype in ("float32", "float64")
    if dtype == "float32" or name not in ("softmax", "in a network")
]
THEIRS = """
import json, sys, warnings
warnings.simplefilter("ignore")
import mxnet as mx, numpy as np
from tests.conformance import custom_ops
custom_ops.operators(mx)
results, arrays = {}, {}
for name, req, dtype in json.loads(sys.argv[1]):
    outputs = custom_ops.run(mx, name, req, dtype)
    arrays.update({f"{name}|{req}|{dtype}|{key}": array for key, array in outputs.pop("arrays").items()})
    results[f"{name}|{req}|{dtype}"] = outputs
np.savez(sys.argv[2] + ".npz", **arrays)
json.dump(results, open(sys.argv[2] + ".json", "w"))
"""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """What MXNet makes of all runs, in one process of it."""
    if not Path(python()).exists():
        pytest.skip("no MXNet: make conformance sets it up, or name its Python in OPBOX_ORACLE_PYTHON")
    stem = tmp_path_factory.mktemp("mxnet") / "results"
    done = subprocess.run(
        [python(), "-c", THEIRS, json.dumps(RUNS), str(stem)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    with np.load(f"{stem}.npz") as file:
        arrays = dict(file)
    return json.loads(Path(f"{stem}.json").read_text()), arrays


@pytest.fixture(scope="module", autouse=True)
def ours() -> Any:
    """Our side: the embedded engine, which is handed the classes (they are local to a function)."""
    connection.use(None)
    custom_ops.operators(mx)
    yield
    connection.use(None)


@pytest.mark.parametrize(("name", "req", "dtype"), RUNS)
def test_run(theirs: tuple[dict[str, Any], dict[str, Any]], name: str, req: str, dtype: str) -> None:
    key = f"{name}|{req}|{dtype}"
    ours = custom_ops.run(mx, name, req, dtype)
    expected = theirs[0][key]
    assert ours["lists"] == expected["lists"]
    assert [[list(shape) for shape in side] for side in ours["shapes"]] == expected["shapes"]
    assert ours["json"] == expected["json"]
    arrays = {k.removeprefix(f"{key}|"): a for k, a in theirs[1].items() if k.startswith(f"{key}|")}
    assert set(ours["arrays"]) == set(arrays)
    for name_of_array, array in arrays.items():
        mine = ours["arrays"][name_of_array]
        assert mine.dtype == array.dtype, name_of_array
        np.testing.assert_allclose(mine, array, rtol=1e-5, atol=1e-6, err_msg=name_of_array)
