"""A program that type checkers have nothing to say of, and the types that they see in it."""

from __future__ import annotations

from typing import assert_type

import numpy as np

import opbox as mx

data = mx.sym.Variable("data")
assert_type(data, mx.Symbol)
net = mx.sym.FullyConnected(data, num_hidden=64, name="fc1")
assert_type(net, mx.Symbol)
net = mx.sym.Activation(data=net, act_type="relu", attr={"ctx_group": "dev1"})
net = mx.sym.Convolution(net, kernel=(3, 3), num_filter=8, pad=[1, 1], no_bias=True, layout="NCHW")
net = mx.sym.BatchNorm(net, fix_gamma=False, eps=1e-5)
net = mx.sym.Pooling(net, kernel=2, pool_type="max", stride=(2, 2))
assert_type(net + 1, mx.Symbol)
assert_type(2**net, mx.Symbol)
assert_type(net * net - 1.5, mx.Symbol)
assert_type(-net, mx.Symbol)
assert_type(net > 0, mx.Symbol)
assert_type(net.reshape(shape=(0, -1)), mx.Symbol)
assert_type(net.sum(axis=1, keepdims=True).sqrt(), mx.Symbol)
assert_type(mx.sym.Concat(net, net, dim=1), mx.Symbol)
assert_type(mx.sym.linalg.gemm2(data, data, transpose_b=True), mx.Symbol)
assert_type(mx.sym.cast(net, dtype="float16"), mx.Symbol)
loss = mx.sym.SoftmaxOutput(net, name="softmax", normalization="batch")
assert_type(loss, mx.Symbol)

x = mx.nd.array(np.zeros((2, 3)))
assert_type(x, mx.NDArray)
assert_type(mx.nd.relu(x), mx.NDArray)
assert_type(mx.nd.dot(x, x, transpose_b=True), mx.NDArray)
assert_type(mx.nd.clip(x, 0, 1), mx.NDArray)
assert_type(mx.nd.SliceChannel(x, num_outputs=3), list[mx.NDArray])
assert_type(x + 1, mx.NDArray)
assert_type(np.float32(2) * 3 - 1.5 + x.mean(), mx.NDArray)
assert_type(x[0], mx.NDArray)
x += x
x[:] = 0
assert_type(x.exp().sum(axis=0), mx.NDArray)
assert_type(x.transpose((1, 0)), mx.NDArray)
assert_type(mx.nd.cast(x, dtype=np.float16), mx.NDArray)
mx.nd.relu(x, out=x)
assert_type(mx.nd.from_dlpack(np.zeros(3)), mx.NDArray)

module = mx.mod.Module(loss, context=mx.cpu())
module.fit(mx.io.NDArrayIter(np.zeros((4, 3)), np.zeros(4), batch_size=2), num_epoch=1, optimizer="sgd")
plot = mx.viz.LivePlot(frequent=10)
module.fit(
    mx.io.NDArrayIter(np.zeros((4, 3)), np.zeros(4), batch_size=2), num_epoch=1, progress=False, batch_end_callback=plot
)
assert_type(mx.viz.plot_network(loss, shape={"data": (2, 3)}).render("net.svg"), str)
