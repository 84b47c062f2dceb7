"""A tile operator, as np.repeat along a new axis: (2, 3) becomes (2, 3, 10), and the gradient is summed back.

    python examples/tile_op.py

Bound by a Module with inputs_need_grad; the values of forward and backward are checked. The operator is of MXNet 0.9's
form; after an article of 2017 whose author missed it, with the assignments that the article left out.
"""

import logging
from collections import namedtuple

import numpy as np

import opbox as mx


class TileLayer(mx.operator.NumpyOp):
    """`tiles` copies of the input, side by side along a new axis at position `axis` of the output."""

    lint_cases = [{"input": (2, 3), "params": {"tiles": 4, "axis": axis}} for axis in (2, 0, -2)]

    def __init__(self, tiles, axis):
        super().__init__(True)
        self.tiles = tiles
        self.axis = axis

    def list_arguments(self):
        return ["input"]

    def list_outputs(self):
        return ["output"]

    def infer_shape(self, in_shape):
        data_shape = in_shape[0]
        axis = self.axis % (len(data_shape) + 1)
        output_shape = [*data_shape[:axis], self.tiles, *data_shape[axis:]]
        return [data_shape], [output_shape]

    def forward(self, in_data, out_data):
        out_data[0][:] = np.expand_dims(in_data[0], self.axis)

    def backward(self, out_grad, in_data, out_data, in_grad):
        in_grad[0][:] = np.sum(out_grad[0], axis=self.axis)


if __name__ == "__main__":
    Batch = namedtuple("Batch", ["data"])
    logging.basicConfig(level=logging.INFO)
    a = mx.sym.Variable("data")
    custie = TileLayer(tiles=10, axis=2)
    tiles_a = custie(input=a, name="tileop")
    arg_shapes, out_shape, aux_shape = tiles_a.infer_shape(data=(2, 3))
    logging.info(f"arg_shape:{arg_shapes}\n, out_shape:{out_shape}\n, aux_shape:{aux_shape}")
    logging.info(f"output_blob:{tiles_a.list_outputs()}")

    for axis in (0, 1, 2, 3, -1):
        exe = mx.mod.Module(symbol=TileLayer(tiles=10, axis=axis)(input=a, name="tileop"), label_names=None)
        exe.bind(data_shapes=[("data", (1, 10, 10))], inputs_need_grad=True)
        exe.init_params()
        data = np.random.random(size=(1, 10, 10)).astype("float32")
        exe.forward(Batch([mx.nd.array(data)]), is_train=True)
        output = exe.get_outputs()[0].asnumpy()
        assert np.array_equal(output, np.repeat(np.expand_dims(data, axis), 10, axis))
        top_grads = np.random.random(size=output.shape).astype("float32")
        exe.backward(out_grads=[mx.nd.array(top_grads)])
        assert np.allclose(exe.get_input_grads()[0].asnumpy(), top_grads.sum(axis=axis), rtol=1e-5)
        print(f"axis {axis}: output {output.shape}, values and gradients are right")
