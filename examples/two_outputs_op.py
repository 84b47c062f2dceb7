"""A CustomOp with two outputs: the positive and the negative part of its input.

python examples/two_outputs_op.py
"""

import numpy as np

import opbox as mx


class Parts(mx.operator.CustomOp):
    """out[0] = max(x, 0), out[1] = min(x, 0); on arrays of the device, without leaving it."""

    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], mx.nd.maximum(in_data[0], 0))
        self.assign(out_data[1], req[1], mx.nd.minimum(in_data[0], 0))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        positive = in_data[0] > 0
        self.assign(in_grad[0], req[0], out_grad[0] * positive + out_grad[1] * (1 - positive))


@mx.operator.register("parts")
class PartsProp(mx.operator.CustomOpProp):
    """Backward reads no output, so their memory may be reused before it runs."""

    def list_outputs(self):
        return ["positive", "negative"]

    def declare_backward_dependency(self, out_grad, in_data, out_data):
        return out_grad + in_data

    def create_operator(self, ctx, shapes, dtypes):
        return Parts()


if __name__ == "__main__":
    parts = mx.sym.Custom(mx.sym.Variable("data"), op_type="parts", name="parts")
    print(parts.list_outputs())
    leaky = parts["parts_positive"] + 0.1 * parts["parts_negative"]
    exe = leaky.simple_bind(mx.cpu(), data=(2, 3))
    x = np.array([[1, -2, 3], [-4, 5, -6]], "float32")
    [out] = exe.forward(is_train=True, data=x)
    exe.backward(mx.nd.ones((2, 3)))
    assert np.allclose(out.asnumpy(), np.where(x > 0, x, 0.1 * x))
    assert np.allclose(exe.grad_dict["data"].asnumpy(), np.where(x > 0, 1, 0.1))
    print(out.asnumpy())
