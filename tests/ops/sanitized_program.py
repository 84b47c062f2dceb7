"""Runs kernels in C at sizes that fill no vector, block or tile, for `test_sanitized_kernels`: a sanitizer watches."""

from __future__ import annotations

from typing import Any

import numpy as np

import opbox as mx
from opbox_ops.cpu.runtime import built_kernels, c_compiler

assert built_kernels.built_kernels() is None, "expected kernels to be compiled here, got those of the distribution"


def run(name: str, net: Any, *, is_train: bool = True, **shapes: tuple[int, ...]) -> None:
    """Run a network forward and, where it trains, backward."""
    rng = np.random.default_rng(0)
    executor = net.simple_bind(**shapes)
    for array in executor.arg_dict.values():
        array[:] = rng.normal(size=array.shape).astype("f") * 0.1
    for _ in range(2):
        executor.forward(is_train=is_train)
        if is_train:
            executor.backward([mx.nd.ones(out.shape) for out in executor.outputs])
        executor.outputs[0].asnumpy()
    print("ran", name, flush=True)


x = mx.sym.Variable("data")
run("a formula", mx.sym.tanh(x * 2 + 1) * mx.sym.exp(x), data=(37, 1003))
run("softmax", mx.sym.softmax(x), data=(61, 53))
run("log_softmax", mx.sym.log_softmax(x), data=(61, 1))
run("SoftmaxOutput", mx.sym.SoftmaxOutput(x, name="softmax"), data=(31, 7))
run("LayerNorm", mx.sym.LayerNorm(x, name="norm"), data=(19, 83))
run("LRN", mx.sym.LRN(x, nsize=5), data=(2, 19, 7, 9))
run("max pooling", mx.sym.Pooling(x, kernel=(3, 3), stride=(2, 2), pool_type="max"), data=(2, 17, 31, 29))
run("a product", mx.sym.FullyConnected(x, num_hidden=131, name="fc"), data=(67, 149))
run("a product of few rows", mx.sym.FullyConnected(x, num_hidden=513, name="fc"), data=(3, 515))
run("a product of many", mx.sym.FullyConnected(x, num_hidden=259, name="fc"), data=(261, 517))
left, right = mx.sym.Variable("left"), mx.sym.Variable("right")
run("products", mx.sym.batch_dot(left, right), left=(5, 67, 71), right=(5, 71, 73))
wide = mx.sym.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=35, name="one")
narrow = mx.sym.Convolution(mx.sym.Activation(wide, act_type="relu"), kernel=(1, 1), num_filter=33, name="two")
run("convolutions", narrow, data=(3, 33, 13, 15))
far = mx.sym.Convolution(x, kernel=(5, 5), pad=(2, 2), num_filter=19, name="far")
run("a convolution of 5 x 5", far, data=(2, 21, 11, 13))
jump = mx.sym.Convolution(x, kernel=(3, 3), stride=(2, 2), num_filter=64, name="jump")
run("a convolution that jumps", jump, data=(2, 32, 15, 17))
norm = mx.sym.Activation(mx.sym.BatchNorm(wide, fix_gamma=False, name="bn"), act_type="relu")
again = mx.sym.Convolution(norm, kernel=(3, 3), pad=(1, 1), num_filter=31, name="again")
run("BatchNorm", again, data=(3, 33, 13, 15))
run("BatchNorm in inference", again, is_train=False, data=(3, 33, 13, 15))
for mode in ("lstm", "gru"):
    rnn = mx.sym.RNN(
        x,
        mx.sym.Variable("parameters"),
        mx.sym.Variable("state"),
        *([mx.sym.Variable("state_cell")] if mode == "lstm" else []),
        state_size=45,
        num_layers=2,
        mode=mode,
        name="rnn",
    )
    run(mode, rnn, data=(7, 19, 33))
print("compiled", len(list((c_compiler.cache_folder() or mx.__path__).glob("*.so"))))  # type: ignore[union-attr]
