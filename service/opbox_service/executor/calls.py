"""Prepared calls, run one after the other: what happens beside the kernels while a plan runs is here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from opbox_ops.backend import device_error
from opbox_ops.node import Node
from opbox_ops.user_line import user_line
from opbox_protocol.errors import MXNetError, OutOfMemoryError

from ..task import current
from ..turns import NO_TURN
from .gradient_ends import Follower
from .profile import Profile

__all__ = ["Call", "Calls", "at_node"]

Call: TypeAlias = Callable[[], Any]
"""A prepared call: a compute with all its arguments."""


class Calls:
    """Prepared calls and, for errors, the node of each."""

    __slots__ = ("calls", "nodes")

    def __init__(self, calls: list[Call] | None = None, nodes: list[Node] | None = None) -> None:
        self.calls: list[Call] = calls or []
        self.nodes: list[Node] = nodes or []

    def run(self, profile: Profile | None = None) -> None:
        """Run them; `profile` notes when each began and ended."""
        if profile is not None:
            self._run_timed(profile)
            return
        call: Any = None
        task = current()
        # NaN and infinity are values like others here: no warnings.
        with np.errstate(all="ignore"):
            try:
                if task is None:
                    for call in self.calls:
                        call()
                    return
                turn = task.turn or NO_TURN
                for call in self.calls:
                    call()
                    if turn.wanted or task.stopped is not None:
                        task.check()
            except Exception as error:
                raise at_node(error, self.nodes[self.calls.index(call)]) from error

    def run_followed(self, follower: Follower) -> None:
        """Run them; `follower` is told when its stops have been reached."""
        begin = 0
        for stop in follower.stops:
            if stop > begin:
                Calls(self.calls[begin:stop], self.nodes[begin:stop]).run()
                begin = stop
            follower.reached(stop)
        Calls(self.calls[begin:], self.nodes[begin:]).run()

    def _run_timed(self, profile: Profile) -> None:
        task = current()
        with np.errstate(all="ignore"):
            began = profile.now()
            for call, node in zip(self.calls, self.nodes, strict=True):
                try:
                    call()
                    ended = profile.now()
                    profile.add_node(node, began, ended)
                    began = ended
                    if task is not None and ((task.turn or NO_TURN).wanted or task.stopped is not None):
                        task.check()
                        began = profile.now()
                except Exception as error:
                    raise at_node(error, node) from error


def at_node(error: Exception, node: Node) -> MXNetError:
    """`error`, raised inside an operator, with the name of its node."""
    if isinstance(error, MemoryError):
        error = OutOfMemoryError("memory: expected enough for this step, got none from the system: use smaller arrays")
    if not isinstance(error, MXNetError):
        error = device_error(error) or MXNetError(
            f"the operator failed: {type(error).__name__}: {error}{user_line(error)}"
        )
    return error.at(node.name, node.op.name if node.op is not None else None, node.source)
