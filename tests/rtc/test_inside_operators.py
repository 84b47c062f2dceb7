"""`mx.rtc` inside operators: on the arrays that forward and backward are given."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

import opbox

pytestmark = pytest.mark.compiler

BODY = "int i = threadIdx.x; y[i] = 2 * x[i];"
ADD = """
extern "C" __global__ void add(float *y, const float *x, int n) {
    int i = threadIdx.x;
    if (i < n) y[i] += x[i];
}
"""


class Twice(opbox.operator.NDArrayOp):
    """y = 2 x by a body; its gradient by a kernel of a source, added to itself."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__(True)
        self.wrong = wrong
        self.kernel = None

    def forward(self, in_data, out_data):
        x, y = in_data[0], out_data[0]
        if self.kernel is None:
            body = "int i = threadIdx.x;\ny[i] = nothing;" if self.wrong == "source" else BODY
            self.kernel = opbox.rtc("twice", [("x", x)], [("y", y)], body)
        block = (x.size + 1, 1, 1) if self.wrong == "index" else (x.size, 1, 1)
        if self.wrong == "input":
            self.kernel.push([y], [x], (1, 1, 1), block)
        else:
            self.kernel.push([x], [y], (1, 1, 1), block)

    def backward(self, out_grad, in_data, out_data, in_grad):
        add = opbox.rtc.CudaModule(ADD).get_kernel("add", "float *y, const float *x, int n")
        in_grad[0][:] = out_grad[0]
        add.launch([in_grad[0], out_grad[0], in_grad[0].size], in_grad[0].context, (1, 1, 1), (32, 1, 1))


class Own(opbox.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        doubled = opbox.nd.zeros(in_data[0].shape, ctx=in_data[0].context)
        kernel = opbox.rtc("twice", [("x", in_data[0])], [("y", doubled)], BODY)
        kernel.push([in_data[0]], [doubled], (1, 1, 1), (in_data[0].size, 1, 1))
        self.assign(out_data[0], req[0], doubled)


@opbox.operator.register("rtc_inside")
class OwnProp(opbox.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Own()


def test_ndarray_op(mx: ModuleType) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    net = Twice()(data=mx.sym.Variable("data"), name="twice")
    mx.test_utils.check_symbolic_forward(net, [values], [2 * values])
    for request in ("write", "add", "null"):
        mx.test_utils.check_symbolic_backward(net, [values], [values], [2 * values], grad_req=request)


def test_custom_op(mx: ModuleType) -> None:
    x = mx.nd.array([1, 2, 3])
    assert mx.nd.Custom(x, op_type="rtc_inside").asnumpy().tolist() == [2, 4, 6]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("index", r"twice \(_NDArrayOp, .*kernel 'twice', line 1: index 12 is outside array 'x' of 12 elements"),
        ("source", r"kernel 'twice' does not compile: twice.cu:2:\d+: error: .*nothing"),
        ("input", "it writes to an input"),
    ],
)
def test_mistakes_name_the_node_and_the_users_line(mx: ModuleType, wrong: str, says: str) -> None:
    net = Twice(wrong)(data=mx.sym.Variable("data"), name="twice")
    executor = net.simple_bind(mx.cpu(), data=(3, 4))
    executor.forward()
    with pytest.raises(mx.MXNetError, match=says) as caught:
        executor.outputs[0].asnumpy()
    assert "test_inside_operators.py" in str(caught.value)
