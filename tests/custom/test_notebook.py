"""Each form in a notebook: cells are their own source files, and the kernel's process is not the test's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.contract.live import TOKENS, Live

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

pytestmark = [
    # What the notebook packages do inside is not ours to mend.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


CELLS: dict[str, list[str]] = {
    "CustomOp": [
        "import numpy as np\nimport opbox as mx\nFACTOR = 3",
        "%time 1\ndef grown(x):\n    return np.multiply(x, FACTOR)",
        "class Grow(mx.operator.CustomOp):\n"
        "    def forward(self, is_train, req, in_data, out_data, aux):\n"
        "        self.assign(out_data[0], req[0], mx.nd.array(grown(in_data[0].asnumpy())))\n"
        "    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):\n"
        "        self.assign(in_grad[0], req[0], out_grad[0] * FACTOR)",
        "@mx.operator.register('grow')\n"
        "class GrowProp(mx.operator.CustomOpProp):\n"
        "    def create_operator(self, ctx, shapes, dtypes):\n"
        "        return Grow()",
        "net = mx.sym.Custom(mx.sym.Variable('data'), op_type='grow')\n"
        "exe = net.simple_bind(mx.cpu(), data=(2,))\n"
        "[out] = exe.forward(is_train=True, data=np.array([1., 2.]))\n"
        "exe.backward(mx.nd.ones((2,)))\n"
        "print(out.asnumpy().tolist(), exe.grad_dict['data'].asnumpy().tolist())",
        "FACTOR = 5",
        "print(net.eval(mx.cpu(), data=mx.nd.ones((2,)))[0].asnumpy().tolist())",
        # The cell is edited and run again.
        "class Grow(mx.operator.CustomOp):\n"
        "    def forward(self, is_train, req, in_data, out_data, aux):\n"
        "        raise ValueError('edited')",
        "try:\n"
        "    net.eval(mx.cpu(), data=mx.nd.ones((2,)))[0].asnumpy()\n"
        "except mx.MXNetError as error:\n"
        "    print(error.detail['traceback'])",
    ],
    "NumpyOp": [
        "import numpy as np\nimport opbox as mx",
        "class Repeat(mx.operator.NumpyOp):\n"
        "    def __init__(self, times):\n"
        "        super().__init__(True)\n"
        "        self.times = times\n"
        "    def infer_shape(self, in_shape):\n"
        "        return in_shape, [in_shape[0] + [self.times]]\n"
        "    def forward(self, in_data, out_data):\n"
        "        out_data[0][:] = in_data[0][..., None]\n"
        "    def backward(self, out_grad, in_data, out_data, in_grad):\n"
        "        in_grad[0][:] = out_grad[0].sum(axis=-1)",
        "print(Repeat(3)(mx.sym.Variable('x')).eval(mx.cpu(), x=mx.nd.ones((2,)))[0].asnumpy().tolist())",
    ],
    "NDArrayOp": [
        "import opbox as mx",
        "class Double(mx.operator.NDArrayOp):\n"
        "    def forward(self, in_data, out_data):\n"
        "        out_data[0][:] = in_data[0] * 2\n"
        "    def backward(self, out_grad, in_data, out_data, in_grad):\n"
        "        in_grad[0][:] = out_grad[0] * 2",
        "print(Double()(mx.sym.Variable('x')).eval(mx.cpu(), x=mx.nd.ones((2,)))[0].asnumpy().tolist())",
    ],
}
PRINTS = {
    "CustomOp": ["[3.0, 6.0] [3.0, 3.0]", "[5.0, 5.0]", "ValueError: edited"],
    "NumpyOp": ["[[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]"],
    "NDArrayOp": ["[2.0, 2.0]"],
}


@pytest.mark.parametrize("where", ["embedded", "http"])
@pytest.mark.parametrize("form", CELLS)
def test_notebook(form: str, where: str, isolating: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in [key for key in os.environ if key.startswith("OPBOX_")]:
        monkeypatch.delenv(key)
    if where == "http":
        monkeypatch.setenv("OPBOX_URL", isolating.url)
        monkeypatch.setenv("OPBOX_TOKEN", TOKENS["py"])
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook: Any = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS[form]])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    printed = "".join(
        output["text"] for cell in notebook.cells for output in cell["outputs"] if output["output_type"] == "stream"
    )
    for each in PRINTS[form]:
        assert each in printed
