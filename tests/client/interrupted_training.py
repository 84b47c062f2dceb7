"""A training that a timer interrupts at random places, compared with one that nothing disturbs.

python interrupted_training.py INTERRUPTS [LONGEST_S]

An interrupt may land in any call. Each is made whole or not at all: the parameters are those of an undisturbed run with
as many updates as the optimizer has counted, to the last bit.
"""

from __future__ import annotations

import contextlib
import faulthandler
import random
import signal
import sys
import threading
from types import FrameType
from typing import Any

import numpy as np

import opbox as mx

STUCK_S = 60.0
"""A call that takes longer waits for what never comes."""
BATCH = mx.io.DataBatch(
    [mx.nd.array(np.random.default_rng(2).standard_normal((4, 5)))], [mx.nd.array(np.array([0, 1, 2, 1]))]
)


def network() -> mx.mod.Module:
    hidden = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8, name="hidden")
    out = mx.sym.FullyConnected(mx.sym.Activation(hidden, act_type="relu"), num_hidden=3, name="out")
    module = mx.mod.Module(mx.sym.SoftmaxOutput(out, name="softmax"))
    module.bind([("data", (4, 5))], [("softmax_label", (4,))])
    module.init_params(mx.init.Zero())
    rng = np.random.default_rng(3)
    arguments = {name: mx.nd.array(rng.uniform(-1, 1, a.shape)) for name, a in module.get_params()[0].items()}
    module.set_params(arguments, {})
    module.init_optimizer(optimizer_params=(("learning_rate", 0.05), ("momentum", 0.5)))
    return module


class Interrupts:
    """Raises KeyboardInterrupt in the main thread at random times while `steps` runs, so many times."""

    def __init__(self, count: int, longest: float) -> None:
        self.left, self._longest = count, longest
        signal.signal(signal.SIGALRM, self._interrupt)
        self._again()

    def _again(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.001, self._longest) if self.left else 0.0)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._again()
        while frame is not None and frame.f_code is not steps.__code__:
            frame = frame.f_back
        if frame is not None and self.left:
            self.left -= 1
            raise KeyboardInterrupt


def steps(module: mx.mod.Module, interrupts: Interrupts) -> None:
    while interrupts.left:
        module.forward_backward(BATCH)
        module.update()
        module.get_outputs()[0].asnumpy()


def train(module: mx.mod.Module, interrupts: Interrupts) -> None:
    while interrupts.left:
        with contextlib.suppress(KeyboardInterrupt):
            steps(module, interrupts)


def watched(work: Any, *args: Any) -> None:
    """Call `work`; where a call is stuck, say where all threads are, and end."""
    faulthandler.dump_traceback_later(STUCK_S + 0.1 * int(sys.argv[1]), exit=True, file=sys.__stderr__)
    work(*args)
    faulthandler.cancel_dump_traceback_later()


def values(module: mx.mod.Module) -> dict[str, np.ndarray[Any, Any]]:
    return {name: array.asnumpy() for name, array in module.get_params()[0].items()}


def main() -> None:
    module = network()
    watched(train, module, Interrupts(int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.03))
    updates = module._optimizer.num_update
    undisturbed = network()
    for _ in range(updates):
        undisturbed.forward_backward(BATCH)
        undisturbed.update()
    for name, expected in values(undisturbed).items():
        np.testing.assert_array_equal(values(module)[name], expected)
    assert sum(thread.name.startswith("opbox") for thread in threading.enumerate()) < 10
    print(f"{updates} updates")


if __name__ == "__main__":
    main()
