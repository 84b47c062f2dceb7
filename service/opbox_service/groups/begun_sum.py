"""A sum that begins while its arrays are still being computed: a thread exchanges each bucket when it is final."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opbox_protocol.errors import CancelledError

from .all_reduce import Array, Bucket, all_reduce, buckets_of
from .membership import LOOK_S, Membership

__all__ = ["BegunSum"]


class BegunSum:
    """An all-reduce in a thread of its own, with the same bits as one behind the computation.

    Which buckets there are, and in which order they go, depends on the arrays alone. So ranks whose sum begins early
    and ranks where it begins at the end exchange the same.

    Args:
        member: this rank.
        arrays, outputs: as of `all_reduce`; contiguous.
        ends: for each array, after how many calls of the computation it has its values.
        check: raises what the call has been stopped with.

    Attributes:
        outputs: the sums, when `finish` has returned.
        stops: numbers of calls after which `reached` is to be called.
    """

    def __init__(
        self,
        member: Membership,
        arrays: Sequence[Array],
        outputs: Sequence[Any],
        ends: Sequence[int],
        check: Callable[[], None],
    ) -> None:
        self.outputs = outputs
        self._ends, self._check = ends, check
        self.stops = sorted({self._end(bucket) for bucket in buckets_of(arrays, outputs)})
        self._changed = threading.Condition()
        self._reached = -1
        self._abandoned: BaseException | None = None
        self._failed: BaseException | None = None
        self._done = False
        self._thread = threading.Thread(
            target=self._run, args=(member, arrays, outputs), name="opbox-all-reduce", daemon=True
        )
        self._thread.start()

    def reached(self, calls: int) -> None:
        """Note how many calls of the computation have ended."""
        with self._changed:
            self._reached = calls
            self._changed.notify_all()

    def finish(self, check: Callable[[], None]) -> None:
        """Wait for the sums.

        Args:
            check: raises what the call has been stopped with.

        Raises:
            MXNetError: as `all_reduce` does.
        """
        try:
            while True:
                with self._changed:
                    if self._done:
                        break
                    self._changed.wait(LOOK_S)
                check()
        except BaseException as error:
            self.abandon(error)
            raise
        self._thread.join()
        if self._failed is not None:
            raise self._failed

    def abandon(self, error: BaseException) -> None:
        """End the exchange, which breaks the group: what was to be added up does not come, for this reason."""
        with self._changed:
            self._abandoned = error
            self._changed.notify_all()
        self._thread.join()

    def _end(self, bucket: Bucket) -> int:
        return max(self._ends[number] for number in bucket.arrays)

    def _run(self, member: Membership, arrays: Sequence[Array], outputs: Sequence[Array]) -> None:
        failed: BaseException | None = None
        try:
            with np.errstate(all="ignore"):  # NaN and infinity are values like others
                all_reduce(member, arrays, outputs, self._look, self._wait)
        except BaseException as error:
            failed = error
        with self._changed:
            self._failed, self._done = failed, True
            self._changed.notify_all()

    def _look(self) -> None:
        if self._abandoned is not None:
            raise CancelledError(str(self._abandoned))
        self._check()

    def _wait(self, bucket: Bucket) -> None:
        end = self._end(bucket)
        with self._changed:
            while self._reached < end:
                self._look()
                self._changed.wait(LOOK_S)
