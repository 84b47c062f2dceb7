"""CodeModels: the processes of models that bring operators of their own, one for each version that is served."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

import numpy as np

from opbox_ops.backend import device_name
from opbox_protocol import wire
from opbox_protocol.errors import NotReadyError

from ..carriers import OwnerQuota, RawRequest, RawResponse
from ..models.model_config import devices_of
from ..models.reference import ModelKey, ModelReference
from ..routes.model_table import PREPARE_CODE
from ..settings import Settings
from .code_worker import CodeWorker

__all__ = ["CodeModels"]


class CodeModels:
    """The processes of models.

    Args:
        settings: of the server.
        take: a process that is ready; QuotaError and NotReadyError where there is none.
        quota: an owner's in a process.
    """

    def __init__(
        self,
        settings: Settings,
        take: Callable[[], Awaitable[CodeWorker]],
        quota: Callable[[str, CodeWorker], OwnerQuota],
    ) -> None:
        self._settings = settings
        self._take = take
        self._quota = quota
        self._workers: dict[ModelKey, tuple[CodeWorker, Callable[[str], None]]] = {}
        self._opening: set[CodeWorker] = set()

    def workers(self) -> list[CodeWorker]:
        """The processes, those that are loading their models too."""
        return [*(worker for worker, _ in self._workers.values()), *self._opening]

    def worker_of(self, reference: ModelReference) -> CodeWorker:
        """The process that has a model; NotReadyError when it has none now."""
        worker, _ = self._workers.get(reference.key, (None, None))
        if worker is None or not worker.ready:
            raise NotReadyError(f"model {reference.name!r}: its own process is starting: try again in a moment")
        return worker

    async def open(self, request: RawRequest, on_end: Callable[[str], None]) -> RawResponse:
        """Load a model in a process of its own, which gets the files with the call.

        Args:
            request: of the model's owner, without a body.
            on_end: called with the reason when the process ends before it is told to.

        Raises:
            MXNetError: the process did not start, or ended.
        """
        reference = request.model
        assert reference is not None
        if reference.key in self._workers:
            worker = self.worker_of(reference)
            request.quota = self._quota(request.owner, worker)
            return await worker.call(request, self._settings.deadline_s)
        device = device_name(devices_of(reference.config)[0] or self._settings.device)
        contents = await asyncio.to_thread(_contents, Path(reference.folder))
        worker = await self._take()
        worker.model = reference
        worker.whose = reference.owner, device
        self._opening.add(worker)
        try:
            request.route, request.path = PREPARE_CODE, PREPARE_CODE.path.replace("{model}", reference.name)
            request.quota = self._quota(reference.owner, worker)
            head, buffers = wire.encode({}, contents, "inputs")
            request.body, request.header_length = worker.lease(wire.frame_size(head, buffers)), len(head)
            at = 0
            parts: list[bytes | memoryview] = [head, *buffers]
            for part in parts:
                request.body.view[at : at + len(part)] = part
                at += len(part)
            response = await worker.call(request, self._settings.deadline_s)
        except BaseException:
            self._give_up(worker)
            raise
        if response.status != 200 or worker.ended:
            self._give_up(worker)
        else:
            self._opening.discard(worker)
            self._workers[reference.key] = worker, on_end
        return response

    def _give_up(self, worker: CodeWorker) -> None:
        self._opening.discard(worker)
        worker.retire("its model was not loaded")

    def keep_only(self, name: str, keys: Collection[ModelKey]) -> None:
        """End the processes of a model's versions that are not among these."""
        for key in [key for key in self._workers if key[0] == name and key not in keys]:
            worker, _ = self._workers.pop(key)
            worker.retire(f"model {name!r} is not served any more")

    def ended(self, worker: CodeWorker) -> None:
        """A process has ended: whoever opened it learns why, unless it was told to."""
        self._opening.discard(worker)
        assert worker.model is not None
        key = worker.model.key
        if self._workers.get(key, (None, None))[0] is worker:
            _, on_end = self._workers.pop(key)
            if not worker.stopping:
                on_end(worker.epitaph or worker.reason)


def _contents(folder: Path) -> dict[str, np.ndarray[tuple[int], np.dtype[np.uint8]]]:
    """The bytes of the files of a version."""
    try:
        return {path.name: np.fromfile(path, np.uint8) for path in sorted(folder.iterdir()) if path.is_file()}
    except OSError as error:
        raise NotReadyError(f"model {folder.parent.name!r}: a file cannot be read ({error.strerror})") from None
