"""Kernels of our own need no oneDNN: they compute the same bits without it, in several threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.machine import needs_onednn, needs_vectors

pytestmark = [needs_vectors, needs_onednn]

ROOT = Path(__file__).parents[2]

# Convolutions of 3 x 3 and their gradients (Winograd), a product, rows of softmax, a formula in threads; one of 3 x 3
# that jumps has windows read by a product, and its gradient of the weight, too.
PROGRAM = """if True:
    import hashlib, os, sys
    os.environ["OPBOX_C_KERNELS"] = "now"
    import numpy as np
    import opbox as mx
    from opbox_ops.cpu.algorithms.winograd import Winograd
    from opbox_ops.cpu.algorithms.blocked_product import BlockedProduct
    from opbox_ops.cpu.algorithms.softmax_rows import RowKernels
    from opbox_ops.cpu.onednn.library import library
    from opbox_ops.cpu.runtime import c_compiler
    from opbox_ops.expression.swept import Sweep

    bound = set()

    def trace(kind, name):
        method = getattr(kind, name)

        def traced(*arguments, **named):
            bound.add(f"{kind.__name__}.{name}")
            return method(*arguments, **named)

        setattr(kind, name, traced)

    for name in ("convolution", "sums", "weight_gradient"):
        trace(Winograd, name)
    trace(BlockedProduct, "product")
    trace(RowKernels, "softmax")
    rng = np.random.default_rng(0)
    data = mx.sym.Variable("data")
    net = mx.sym.Convolution(data, num_filter=32, kernel=(3, 3), pad=(1, 1), name="c1")
    net = mx.sym.tanh(net * 2 + 1)
    net = mx.sym.Convolution(net, num_filter=32, kernel=(3, 3), pad=(1, 1), name="c2")
    net = mx.sym.FullyConnected(net, num_hidden=256, name="fc")
    net = mx.sym.softmax(net)
    executor = net.simple_bind(data=(16, 32, 14, 14))
    for array in executor.arg_dict.values():
        array[:] = rng.normal(size=array.shape).astype("f") * 0.05
    for _ in range(2):
        executor.forward(is_train=True)
        executor.backward(mx.nd.array(rng.normal(size=(16, 256))))
    arrays = [executor.outputs[0], *(executor.grad_dict[name] for name in sorted(executor.grad_dict))]
    digest = hashlib.sha256(b"".join(array.asnumpy().tobytes() for array in arrays)).hexdigest()
    large = mx.nd.array(rng.normal(size=(1 << 18,)))
    digest += hashlib.sha256(mx.nd.tanh(large * 2 + 1).asnumpy().tobytes()).hexdigest()
    kernels = any("/kernels/" in line for line in open("/proc/self/maps"))
    print(digest, library() is not None, c_compiler.thread_count(), kernels, *sorted(bound))
"""


def ran(onednn: str | None, threads: int) -> tuple[str, list[str]]:
    """The digest of what the program computes, and what it says of how."""
    settings = {**os.environ, "OMP_NUM_THREADS": str(threads)} | ({} if onednn is None else {"OPBOX_ONEDNN": onednn})
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=settings, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    digest, *words = done.stdout.split()
    return digest, words


KERNELS = [
    *("BlockedProduct.product", "RowKernels.softmax", "Winograd.convolution", "Winograd.sums"),
    "Winograd.weight_gradient",
]


def test_the_same_kernels_give_the_same_bits() -> None:
    expected, words = ran(None, 2)
    assert words == ["True", "2", "True", *KERNELS]
    digest, words = ran("/nowhere/libdnnl.so.3", 3)
    assert words == ["False", "3", "True", *KERNELS]
    assert digest == expected


CONVOLUTIONS = """if True:
    import numpy as np
    import opbox as mx
    for kernel, stride, layout in (
        ((3, 3), (1, 1), "NHWC"),
        ((3, 3), (2, 2), "NCHW"),
        ((1, 1), (1, 1), "NCHW"),
        ((1, 1), (2, 2), "NCHW"),
    ):
        data = mx.sym.Variable("data")
        net = mx.sym.Convolution(data, num_filter=48, kernel=kernel, stride=stride, layout=layout, name="c")
        executor = net.simple_bind(data=(4, 32, 12, 12) if layout == "NCHW" else (4, 12, 12, 32))
        rng = np.random.default_rng(0)
        for array in executor.arg_dict.values():
            array[:] = rng.normal(size=array.shape)
        executor.forward(is_train=True)
        executor.backward(mx.nd.array(rng.normal(size=executor.outputs[0].shape)))
        arrays = [executor.outputs[0], *(executor.grad_dict[name] for name in sorted(executor.grad_dict))]
        print(*(value for array in arrays for value in array.asnumpy().ravel()[::97]))
"""


def test_convolutions_and_their_gradients_agree_with_numpy() -> None:
    results = []
    for setting in ({"OPBOX_ONEDNN": "/nowhere/libdnnl.so.3"}, {"OPBOX_COMPUTE_LEVEL": "reference"}):
        command = [sys.executable, "-c", CONVOLUTIONS]
        done = subprocess.run(command, env={**os.environ, **setting}, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        results.append([float(number) for number in done.stdout.split()])
    # Sums of up to 576 products of numbers of scatter 1; Winograd's errors are 2 millionths of an output's scatter.
    assert results[0] == pytest.approx(results[1], rel=1e-4, abs=1e-3)
