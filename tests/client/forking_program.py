"""A program that trains, and forks children that train: os.fork, multiprocessing's processes and its pool.

The first line that it prints is what a child is told of its parent's array.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from typing import Any

import numpy as np

import opbox as mx

CHILDREN = 4
PATIENCE_S = 120
SHAPE = (4, 3, 32, 32)
"""Large enough for kernels that several threads share."""


def step() -> float:
    """A step of a network that is bound here: one of the parameters behind it."""
    net = mx.sym.Convolution(mx.sym.Variable("data"), kernel=(3, 3), num_filter=8, pad=(1, 1), name="convolution")
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Flatten(net), num_hidden=5, name="out"), name="softmax")
    module = mx.mod.Module(net)
    module.bind([("data", SHAPE)], [("softmax_label", SHAPE[:1])])
    module.init_params(mx.init.One())
    module.init_optimizer()
    module.forward_backward(mx.io.DataBatch([mx.nd.array(np.ones(SHAPE))], [mx.nd.zeros(SHAPE[:1])]))
    module.update()
    return float(module.get_params()[0]["out_bias"].asnumpy()[0])


def task(_: int) -> float:
    return step()


def in_process(array: mx.nd.NDArray, answers: Any) -> None:
    try:
        array.asnumpy()
        said = "read"
    except mx.MXNetError as error:
        said = str(error)
    answers.put((said, step()))


def forked(work: Any) -> None:
    """Run `work` in a child, which ends as a program does: by its exit handlers."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def main() -> None:
    expected = step()
    array = mx.nd.ones((3,)) * 2
    array.wait_to_read()
    recorded = array + 1

    def check() -> None:
        np.testing.assert_allclose(step(), expected)

    for _ in range(CHILDREN):
        forked(check)
    forked(lambda: None)

    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    processes = [context.Process(target=in_process, args=(array, answers)) for _ in range(CHILDREN)]
    for process in processes:
        process.start()
    for number in range(CHILDREN):
        said, parameter = answers.get(timeout=PATIENCE_S)
        np.testing.assert_allclose(parameter, expected)
        if number == 0:
            print(said)
    for process in processes:
        process.join(PATIENCE_S)
        assert process.exitcode == 0
    with context.Pool(2) as pool:
        np.testing.assert_allclose(pool.map(task, range(6)), expected)
        pool.close()
        pool.join()

    np.testing.assert_array_equal(recorded.asnumpy(), [3, 3, 3])
    check()


if __name__ == "__main__":
    main()
