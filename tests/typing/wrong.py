"""Programs with a mistake on every line below that ends in a comment; type checkers find each."""

from __future__ import annotations

import numpy as np

import opbox as mx

data = mx.sym.Variable("data")
x = mx.nd.array(np.zeros((2, 3)))

mx.sym.FullyConnected(data, num_hiden=64)  # no such parameter
mx.sym.FullyConnected(data, num_hidden="many")  # a number
mx.sym.FullyConnected(3, num_hidden=64)  # a symbol
mx.sym.FullyConnected(x, num_hidden=64)  # an array where a symbol goes
mx.sym.FullyConected(data, num_hidden=64)  # no such operator
mx.sym.Activation(data, act_type="relo")  # no such choice
mx.sym.Pooling(data, kernel=(2, 2), pool_type="mean")  # no such choice
mx.sym.Convolution(data, kernel="3x3", num_filter=8)  # integers
mx.sym.cast(data, dtype="float33")  # no such type
mx.sym.linalg.gemm3(data, data)  # no such operator
data + "one"  # neither a symbol nor a number
data.reshap(shape=(2,))  # no such method
data.sum(axes=1)  # no such parameter
(data + 1).asnumpyy()  # no such method
mx.nd.relu(data)  # a symbol where an array goes
mx.nd.clip(x, a_min="low", a_max=1)  # a number
mx.nd.relu(x, outs=x)  # no such parameter
x.sum(axis="rows")  # integers
x - "one"  # neither an array nor a number
x.expp()  # no such method
mx.viz.LivePlot(frequent="often")  # a number
mx.viz.plot_network(data, shapes={"data": (2, 3)})  # no such parameter
