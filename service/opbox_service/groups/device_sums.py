"""Sums of a group whose arrays are on GPUs: NCCL adds them up there, and this looks that nobody waits for ever.

NCCL waits for a rank that has ended until somebody aborts it. So this thread asks again and again, in small pauses, how
far NCCL is, whether the call has been stopped, and whether a rank has said its last words on the group's own sockets.
When all have their sums, the ranks say so to each other: none leaves while another one is still adding up.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

from opbox_ops.cuda import nccl
from opbox_protocol.errors import CancelledError, DeadlineError, MXNetError, PeerLostError

from .membership import LAST_WORDS_S, Membership

__all__ = ["DeviceSums"]

_OFFER = struct.Struct(f"<I{nccl.PLACE_BYTES}s")
_FIRST_PAUSE_S, _LAST_PAUSE_S = 20e-6, 1e-3
_log = logging.getLogger(__name__)


class DeviceSums:
    """A rank's communicator, from the first sum on, and what it is asked for.

    Args:
        member: the rank.
    """

    def __init__(self, member: Membership) -> None:
        self._member = member
        self._communicator: nccl.Communicator | None = None
        self._refused = False

    def can(self, backend: Any, arrays: Sequence[Any]) -> bool:
        """Whether this rank can add up these arrays by NCCL; the library is looked for at the first call.

        Args:
            backend: a GPU.
            arrays: without any there is nothing to add up.
        """
        if self._refused or not arrays or any(array.dtype.name not in nccl.TYPES for array in arrays):
            return False
        if self._communicator is not None:
            return bool(self._communicator.device == backend.device.id)
        return nccl.offer_on(backend) is not None

    def sum(self, backend: Any, arrays: Sequence[Any], outputs: Sequence[Any], check: Callable[[], None]) -> bool:
        """Write the sums over all ranks, which `can`, to outputs.

        Args:
            backend: the arrays' GPU.
            arrays, outputs: contiguous; the same number, shapes and types on all ranks.
            check: raises what the call has been stopped with.

        Returns:
            False where the ranks cannot by NCCL, as two are on one GPU; then nothing is written, on no rank.

        Raises:
            PeerLostError: a rank has ended.
            MXNetError: NCCL has failed. The group is broken.
        """
        try:
            if self._communicator is None and not self._begin(backend, check):
                return False
            self._add_up(backend, arrays, outputs, check)
        except PeerLostError:
            raise
        except (CancelledError, DeadlineError) as error:
            self._member.break_off(f"its exchange was stopped: {error}")
            raise
        except MXNetError as error:
            # It may have failed as another rank has ended, which is then told by its number.
            self._member.look(LAST_WORDS_S)
            self._member.break_off(f"its sum on the GPU failed: {error}")
            raise
        except BaseException as error:
            self._member.break_off(f"its exchange was stopped: {error}")
            raise
        return True

    # -- inside -------------------------------------------------------------------------------------------------

    def _begin(self, backend: Any, check: Callable[[], None]) -> bool:
        """Make the communicator, if the ranks go together."""
        member = self._member
        own = nccl.offer_on(backend)
        assert own is not None
        offers = self._exchanged(_OFFER.pack(own.version, own.place), check)
        reason = _obstacle([_OFFER.unpack(offers[rank]) for rank in range(member.size)])
        if reason is not None:
            _log.warning("group: its sums go through the machines' memory: %s", reason)
            self._refused = True
            return False
        # Only now: an id makes NCCL listen for the ranks, and nothing ends that when none comes.
        id = self._from_first(nccl.unique_id() if member.rank == 0 else b"", check)
        with backend.scope():
            communicator = self._communicator = nccl.Communicator(member.rank, member.size, id)
        member.when_left(communicator.abort)
        self._until(communicator.ready, check)
        return True

    def _add_up(self, backend: Any, arrays: Sequence[Any], outputs: Sequence[Any], check: Callable[[], None]) -> None:
        communicator = self._communicator
        assert communicator is not None
        with backend.scope():
            communicator.begin(list(zip(arrays, outputs, strict=True)))
            self._until(communicator.ready, check)  # it has been queued then
            come = communicator.come()
            self._until(lambda: communicator.ready() and come(), check)
        self._exchanged(b"\1", check)

    def _until(self, ended: Callable[[], bool], check: Callable[[], None]) -> None:
        """Wait, in pauses that grow."""
        pause = _FIRST_PAUSE_S
        while not ended():
            check()
            self._member.look()
            time.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE_S)

    def _exchanged(self, own: bytes, check: Callable[[], None]) -> dict[int, bytes]:
        """What all ranks have, as many bytes on each."""
        others = self._member.others
        received = {rank: bytearray(len(own)) for rank in others}
        self._member.exchange(
            {rank: [memoryview(own)] for rank in others},
            {rank: [memoryview(received[rank])] for rank in others},
            check,
        )
        return {self._member.rank: own, **{rank: bytes(received[rank]) for rank in others}}

    def _from_first(self, id: bytes, check: Callable[[], None]) -> bytes:
        """The id that rank 0 has."""
        others, received = self._member.others, bytearray(nccl.ID_BYTES)
        if self._member.rank == 0:
            self._member.exchange({rank: [memoryview(id)] for rank in others}, {rank: [] for rank in others}, check)
            return id
        self._member.exchange({0: []}, {0: [memoryview(received)]}, check)
        return bytes(received)


def _obstacle(offers: Sequence[tuple[int, bytes]]) -> str | None:
    """Why the ranks, with these versions and places, cannot begin together; None where they can."""
    for rank, (version, place) in enumerate(offers):
        if version != offers[0][0]:
            return f"expected one NCCL on all ranks, got {offers[0][0]} on rank 0 and {version} on rank {rank}"
        for other in range(rank):
            if offers[other][1] == place:
                return f"expected ranks on GPUs of their own, got ranks {other} and {rank} on one"
    return None
