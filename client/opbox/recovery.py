"""Recovery: saves a program's arrays on the server every few steps, to continue after a loss, there or elsewhere.

saved = mx.Recovery("run", every=50)
saved.watch({"w": w}, [executor])
for batch in batches:
    try:
        ...                      # a step
        saved.step()
    except mx.MXNetError as error:
        saved.recover(error)     # raises it again unless the session is lost
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opbox_protocol.commands import Checkpoint
from opbox_protocol.errors import (
    GoneError,
    MXNetError,
    NotFoundError,
    NotReadyError,
    TransportError,
    WorkerDiedError,
)

from .device_sessions import adopt
from .executor import Executor
from .ndarray import NDArray
from .operator.sending import forget_sent, graph_for
from .session import Session

__all__ = ["Recovery"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
PATIENCE_S = 120.0
"""Seconds that a server may take to be there again, with its workers."""
PAUSE_S = 0.5


class Recovery:
    """Checkpoints of arrays on the server, to continue from after a loss; the server needs OPBOX_STATE_DIR.

    The handles stay good: arrays and executors have the numbers in the new session that they had in the lost one. What
    is neither watched nor bound in a watched executor is gone.

    Args:
        name: of the checkpoint: up to 64 letters, digits, dots, dashes and underlines.
        every: steps between two checkpoints, and the most that a loss costs.
        logger: says in a sentence what was lost.

    Raises:
        ValueError: a name or a number that is none.
    """

    def __init__(self, name: str, every: int, logger: Any = logging) -> None:
        if not NAME.fullmatch(name):
            raise ValueError(f"name: expected up to 64 letters, digits, dots, dashes and underlines, got {name!r}")
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"every: expected a number of steps from 1, got {every!r}")
        self.name = name
        self.every = every
        self.steps = 0
        self._confirmed = 0
        self._logger = logger
        self._session: Session | None = None
        self._executors: list[Executor] = []
        self._command: dict[str, Any] = {}

    def watch(self, arrays: Mapping[str, NDArray], executors: Sequence[Executor] = ()) -> None:
        """Save these arrays from now on, the first time at once; bind these executors again after a loss.

        Raises:
            MXNetError: the server has no place for checkpoints, or no more of it.
            ValueError: no arrays, or arrays of several devices.
        """
        first, sessions = self._session is None, {array._session for array in arrays.values()}
        if len(sessions) != 1:
            raise ValueError(f"watch: expected arrays of one device, got {len(sessions)}: save those of one")
        self._session = sessions.pop().of_context(0)  # of one session, whichever CPU contexts its arrays are on
        self._executors = list(executors)
        self._command = {
            "arrays": {name: array._id for name, array in arrays.items()},
            "executors": [executor._id for executor in executors],
        }
        self._record()
        if first:
            self._session.wait()

    def step(self) -> None:
        """Note that a step is complete. Every `every` steps this waits for the checkpoint, so that no more are lost.

        Raises:
            ValueError: nothing is watched.
            MXNetError: what has failed since the last time; for `recover`.
        """
        self.steps += 1
        self._record()
        if self._session is not None and self.steps - self._confirmed >= self.every:
            self._session.wait()
            self._confirmed = self.steps

    def _record(self) -> None:
        if self._session is None:
            raise ValueError("step: expected arrays to be watched first: call watch")
        command: Checkpoint = {"do": "checkpoint", "name": self.name, "every": self.every, "step": self.steps}
        further, self._command = self._command, {}
        command.update(further)  # type: ignore[typeddict-item]  # some of the same fields
        self._session.record(command)

    @property
    def lost(self) -> bool:
        """True if the session has been lost."""
        return self._session is not None and self._session.lost

    @property
    def saved(self) -> int:
        """The last step that is known to be in a checkpoint."""
        return self._confirmed

    def recover(
        self, error: MXNetError, passed_over: int = 0, repeats: Callable[[int], bool] = lambda step: False
    ) -> tuple[int, frozenset[str]]:
        """Continue from the last checkpoint in a new session; wait for a server that restarts.

        In a cluster the session is opened on a node that is there. The node of the lost one cannot save it any more.

        Args:
            error: what a step raised.
            passed_over: steps that were begun, and not noted as complete.
            repeats: says whether the program does those behind the checkpoint's step again, in the same order.

        Returns:
            The steps that are lost, and the names of the arrays that were saved.

        Raises:
            MXNetError: `error` itself, unless the session is lost; or there is no checkpoint.
        """
        session = self._session
        if session is None or not session.lost:
            raise error
        report = self._reopened(session, error)
        step = int(report["step"])
        lost = self.steps + passed_over - step
        self.steps = self._confirmed = step
        self._logger.warning(
            "the session on %s was lost (%s): going on from the checkpoint %r of step %d, %d step%s %s",
            session.device,
            session.loss,
            self.name,
            self.steps,
            lost,
            " is" if lost == 1 else "s are",
            "done again" if repeats(step) else "lost",
        )
        return lost, frozenset(report["arrays"])

    def _reopened(self, session: Session, error: MXNetError) -> dict[str, Any]:
        """The answer to `restore`; tried again while no server, or no worker, is there, and when it dies meanwhile."""
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                session.reopen()
                forget_sent(session)
                for executor in self._executors:
                    graph_for(session, executor._symbol)  # brings the operators of one's own that it needs
                report = session.ask({"do": "restore", "name": self.name, "takes_over": True})
                adopt(session)
                return report
            except (NotReadyError, WorkerDiedError, TransportError, GoneError):
                if time.monotonic() > until:
                    raise
                time.sleep(PAUSE_S)
            except NotFoundError as missing:
                raise error from missing
