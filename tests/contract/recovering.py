"""A loop of a program's own that goes on from its checkpoint when its worker dies."""

from __future__ import annotations

import os
import signal

import opbox as mx
from opbox_protocol.errors import MXNetError

__all__ = ["counted_through_a_kill"]


def counted_through_a_kill(steps: int, pid: int) -> float:
    """What `steps` steps that each add 1 come to when the process `pid` is killed at the fifth; two are lost."""
    weight = mx.nd.zeros((3,))
    saved = mx.Recovery("loop", every=2)
    saved.watch({"weight": weight})
    losses = 0
    for step in range(steps):
        try:
            if step == 5:
                mx.nd.waitall()
                os.kill(pid, signal.SIGKILL)
            weight += 1
            saved.step()
            mx.nd.waitall()
        except MXNetError as error:
            losses += saved.recover(error)[0]
    assert losses == 2  # the fifth step, and the one that met the loss
    values: list[float] = weight.asnumpy().tolist()
    assert len(set(values)) == 1
    return values[0]
