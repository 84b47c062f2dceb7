"""Each form in a notebook: cells are their own source files, and the kernel's process is not the test's."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
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


SCALED_SHIFT = Path(__file__).parents[2] / "examples" / "ops_package" / "opbox_example_ops" / "scaled_shift.py"
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
        "    print(error)\n"
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
    "rtc": [
        "import numpy as np\nimport opbox as mx",
        "x, y = mx.nd.array([1., 2., 3.]), mx.nd.zeros((3,))\n"
        "twice = mx.rtc('twice', [('x', x)], [('y', y)], 'y[threadIdx.x] = 2 * x[threadIdx.x];')\n"
        "twice.push([x], [y], (1, 1, 1), (3, 1, 1))\n"
        "print(y.asnumpy().tolist())",
        "source = '''\n"
        'extern "C" __global__ void axpy(const float *x, float *y, float alpha) {\n'
        "    y[threadIdx.x] += alpha * x[threadIdx.x];\n"
        "}'''\n"
        "axpy = mx.rtc.CudaModule(source).get_kernel('axpy', 'const float *x, float *y, float alpha')\n"
        "axpy.launch([x, y, 10.0], mx.cpu(), (1, 1, 1), (3, 1, 1))\n"
        "print(y.asnumpy().tolist())",
        "class Square(mx.operator.NDArrayOp):\n"
        "    def forward(self, in_data, out_data):\n"
        "        [x], [y] = in_data, out_data\n"
        "        kernel = mx.rtc('sq', [('x', x)], [('y', y)], 'int i = threadIdx.x; y[i] = x[i] * x[i];')\n"
        "        kernel.push([x], [y], (1, 1, 1), (x.size, 1, 1))\n"
        "    def backward(self, out_grad, in_data, out_data, in_grad):\n"
        "        [g], [x], [dx] = out_grad, in_data, in_grad\n"
        "        body = 'int i = threadIdx.x; dx[i] = 2 * x[i] * g[i];'\n"
        "        kernel = mx.rtc('dsq', [('g', g), ('x', x)], [('dx', dx)], body)\n"
        "        kernel.push([g, x], [dx], (1, 1, 1), (x.size, 1, 1))",
        "exe = Square()(mx.sym.Variable('x')).simple_bind(mx.cpu(), x=(3,))\n"
        "[out] = exe.forward(is_train=True, x=x)\n"
        "exe.backward(mx.nd.ones((3,)))\n"
        "print(out.asnumpy().tolist(), exe.grad_dict['x'].asnumpy().tolist())",
        "try:\n"
        "    twice.push([x], [y], (1, 1, 1), (4, 1, 1))\n"
        "    y.wait_to_read()\n"
        "except mx.MXNetError as error:\n"
        "    print(error)",
    ],
    "package": [
        "import os\nimport numpy as np\nimport opbox as mx",
        # Embedded, the engine is given the file here; a server has it already.
        "if 'OPBOX_URL' not in os.environ:\n"
        "    from pathlib import Path\n"
        "    from opbox_service.engine import load_plugin\n"
        f"    load_plugin(Path({str(SCALED_SHIFT)!r}))",
        "print(mx.refresh_operators())",
        "net = mx.sym.scaled_shift(mx.sym.Variable('data'), scale=10, name='ss')\n"
        "exe = net.simple_bind(mx.cpu(), data=(1, 2, 1, 1))\n"
        "[out] = exe.forward(is_train=True, data=np.ones((1, 2, 1, 1)), ss_shift=np.array([1, 2]))\n"
        "exe.backward(mx.nd.ones((1, 2, 1, 1)))\n"
        "print(out.asnumpy().ravel().tolist(), exe.grad_dict['ss_shift'].asnumpy().tolist())",
        "try:\n"
        "    mx.sym.scaled_shift(mx.sym.Variable('data'), scale='much')\n"
        "except mx.MXNetError as error:\n"
        "    print(error)",
    ],
}
PRINTS = {
    "CustomOp": [
        "[3.0, 6.0] [3.0, 3.0]",
        "[5.0, 5.0]",
        "edited (Cell In[8], line 3)",
        '"Cell In[8]", line 3, in forward',
    ],
    "NumpyOp": ["[[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]"],
    "NDArrayOp": ["[2.0, 2.0]"],
    "rtc": [
        "[2.0, 4.0, 6.0]",
        "[12.0, 24.0, 36.0]",
        "[1.0, 4.0, 9.0] [2.0, 4.0, 6.0]",
        "kernel 'twice', line 1: index 3 is outside array",
    ],
    "package": ["scaled_shift", "[11.0, 12.0] [1.0, 1.0]", "parameter 'scale': expected a number"],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with an operator of a package, whose tokens may do anything."""
    scopes = ["run", "upload-python", "upload-cuda"]
    tokens = [{"name": name, "token": token, "scopes": scopes} for name, token in TOKENS.items()]
    folder = tmp_path_factory.mktemp("notebook")
    live = Live("process", folder, OPBOX_TOKENS=json.dumps(tokens), OPBOX_OPS=json.dumps([str(SCALED_SHIFT)]))
    yield live
    assert live.stop() == 0


@pytest.mark.parametrize("where", ["embedded", "http"])
@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=[pytest.mark.compiler] if form == "rtc" else []) for form in CELLS]
)
def test_notebook(form: str, where: str, server: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in [key for key in os.environ if key.startswith("OPBOX_")]:
        monkeypatch.delenv(key)
    if where == "http":
        monkeypatch.setenv("OPBOX_URL", server.url)
        monkeypatch.setenv("OPBOX_TOKEN", TOKENS["py"])
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook: Any = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS[form]])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    printed = "".join(
        output["text"] for cell in notebook.cells for output in cell["outputs"] if output["output_type"] == "stream"
    )
    for line in PRINTS[form]:
        assert line in printed
