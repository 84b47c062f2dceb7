"""WorkerPool: the interface that process_pool and thread_pool share."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

from ..buffers import Lease
from ..carriers import RawRequest, RawResponse
from ..checkpoint_store import FileCheckpoints
from ..dataset_store import FileDatasets
from ..device_time import DeviceTime
from ..models.reference import ModelKey

__all__ = ["STARTING", "Stats", "WorkerPool"]

STARTING = "the server is starting or stopping: try again in a moment"
"""Why a pool takes no calls at its start and end."""


@dataclass(frozen=True, slots=True)
class Stats:
    """A pool's figures, for the metrics.

    Attributes:
        sessions: open now.
        restarts: workers replaced after they ended.
        resident: bytes of memory by process.
        buffer_bytes: of transfer buffers in use.
        sessions_of: open sessions by process.
        code_workers: processes of sessions with code.
        code_deaths: such processes that were ended, by cause.
        device_times: how long calls waited and ran, by owner and device.
    """

    sessions: int
    restarts: int
    resident: dict[str, int]
    buffer_bytes: int
    sessions_of: dict[str, int] = field(default_factory=dict)
    code_workers: int = 0
    code_deaths: dict[str, int] = field(default_factory=dict)
    device_times: dict[tuple[str, str], DeviceTime] = field(default_factory=dict)


class WorkerPool(Protocol):
    """Runs the calls of the API process, in processes or in threads."""

    @property
    def unready(self) -> str:
        """Why calls cannot be taken; empty where they can be."""

    async def start(self) -> None:
        """Get ready; raises when that cannot be."""

    @property
    def checkpoints(self) -> FileCheckpoints | None:
        """The store of checkpoints; None where there is no state directory."""

    @property
    def datasets(self) -> FileDatasets | None:
        """The store of datasets."""

    def announce_stop(self) -> None:
        """Save the sessions that asked for checkpoints, before a stop."""

    async def stop(self, grace_s: float) -> None:
        """Finish what is accepted, within the grace period, and end."""

    def lease(self, request: RawRequest, nbytes: int) -> Lease:
        """A buffer to receive this request's body in; NotReadyError when there is no room."""

    def call_at_once(self, request: RawRequest) -> RawResponse | None:
        """Make a call by this thread, where that takes less time than to hand it to another.

        None where it may take longer, or where others wait for their turn; nothing has been done then.
        """

    async def call(self, request: RawRequest) -> RawResponse:
        """Make a call, and release its body. MXNetError when it could not be made or brought to an end."""

    async def prepare(self, request: RawRequest, on_end: Callable[[str], None]) -> RawResponse:
        """Load a model, in a process of its own where it brings code.

        Args:
            request: of the route that loads models.
            on_end: called with the reason when that process ends and the model was still to be served.
        """

    def keep_models(self, name: str, keys: Collection[ModelKey]) -> None:
        """End the processes of a model's versions that are not among these."""

    def sessions_of(self, owner: str) -> int:
        """Return the number of an owner's sessions."""

    def device_times(self) -> dict[tuple[str, str], DeviceTime]:
        """Return the seconds that calls waited and ran, by owner and device."""

    def abandon(self) -> None:
        """Kill all processes at once."""

    def stats(self) -> Stats:
        """For the metrics."""
