"""ModelServing: finds out which version of a model a call is for, and has models loaded and unloaded by workers."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from weakref import WeakValueDictionary

import structlog
from pydantic import BaseModel

from opbox_protocol.errors import InternalError, MXNetError, NotReadyError, error_from_json

from ..carriers import RawRequest, RawResponse
from ..models.conversions import ConversionQueue
from ..models.model_files import find_files
from ..models.overrides import ModelOverride, write_override
from ..models.reference import ModelKey, ModelReference
from ..models.repository import ModelRepository
from ..models.shared_memory import SharedMemory
from ..owner_terms import SCOPES
from ..routes.route import Route
from ..routes.served_models import DescribedModel, ModelFigures
from .bounded_json import read_bounded
from .pool import WorkerPool

__all__ = ["ModelServing"]

SERVER = "\0server"
"""The owner of calls that load models of the server's folder: nobody's name begins so."""
LOADS_AT_A_TIME = 4
"""Number of models that are loaded at a time when the server starts: while one's files are read, others compile."""
CONVERSION_WAIT_S = 60.0
"""Seconds that a request waits for the conversion of its ONNX file to begin: a few conversions of large files."""
ANSWER_BYTES = 1 << 20
"""Maximum bytes of what a model's own process says of it."""
_log = structlog.get_logger("opbox.models")


class ModelServing:
    """The models of a server.

    Args:
        pool: has the workers that load and run them.
        repository: the models' files and states.
        shared_memory: regions that clients registered.
        prepare, drop, figures: the workers' routes that load a version, drop all but some, and tell statistics.
    """

    def __init__(
        self,
        pool: WorkerPool,
        repository: ModelRepository,
        shared_memory: SharedMemory,
        prepare: Route,
        drop: Route,
        figures: Route,
    ) -> None:
        self.repository = repository
        self.shared_memory = shared_memory
        self._pool = pool
        self._prepare = prepare
        self._drop = drop
        self._figures = figures
        self._conversions = ConversionQueue()
        self._loading: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._calls: Counter[ModelKey] = Counter()
        self._retired: set[ModelKey] = set()
        self._deaths: defaultdict[ModelKey, list[float]] = defaultdict(list)
        self._tasks: set[asyncio.Task[None]] = set()
        self._private: dict[str, TemporaryDirectory[str]] = {}

    async def load_all(self, *, published: bool = True) -> None:
        """Load every model of the folder, and every published one. What cannot be loaded is in the log and the index.

        Args:
            published: whether those that owners published are loaded too.
        """
        try:
            names = self.repository.names()
        except NotReadyError as error:
            _log.error("models are not loaded", reason=str(error))
            names = []
        at_a_time = asyncio.Semaphore(LOADS_AT_A_TIME)

        async def load(name: str) -> None:
            async with at_a_time:
                try:
                    await self.load(name, wait_s=None)
                except MXNetError as error:
                    _log.error("a model is not loaded", model=name, reason=str(error))

        async def load_latest(name: str) -> None:
            async with at_a_time:
                await self.load_latest(name)

        owned = await asyncio.to_thread(self.repository.published_names) if published else ()
        async with asyncio.TaskGroup() as tasks:
            for name in names:
                tasks.create_task(load(name))
            for name in owned:
                tasks.create_task(load_latest(name))

    async def load_latest(self, name: str) -> bool:
        """Load a published model: its newest version, or the newest of those before it that can be loaded.

        Returns:
            Whether it is the newest.
        """
        without: set[int] = set()
        while True:
            try:
                await self.load(name, without=without, wait_s=None)
            except MXNetError as error:
                _log.error("a model is not loaded", model=name, reason=str(error))
            else:
                return not without
            try:
                rest = set(await asyncio.to_thread(self.repository.versions, name)) - without
            except MXNetError:
                return False
            if len(rest) < 2:
                return False
            without.add(max(rest))

    async def load(
        self,
        name: str,
        override: ModelOverride | None = None,
        *,
        without: Collection[int] = (),
        wait_s: float | None = CONVERSION_WAIT_S,
    ) -> None:
        """Load the versions of a model that its files ask for, and serve them instead of others.

        A version that cannot be loaded leaves the one serving that was there.

        Args:
            name: of the model; a published one's as every owner may say it.
            override: what takes the place of its own files, until it is loaded again.
            without: versions that count as absent.
            wait_s: seconds until an ONNX file's conversion is to begin; None: without end.

        Raises:
            MXNetError: why a version was not loaded.
        """
        async with self._loading.setdefault(name, asyncio.Lock()):
            private = None
            if override is not None and override.files:
                private = await asyncio.to_thread(write_override, override)
            try:
                await self._load_versions(name, without, override, private, wait_s)
            except BaseException:
                if private is not None and not self._is_served_from(name, private.name):
                    await asyncio.to_thread(private.cleanup)
                raise
            previous = self._private.pop(name, None)
            if private is not None:
                self._private[name] = private
            if previous is not None:
                await asyncio.to_thread(previous.cleanup)

    async def _load_versions(
        self,
        name: str,
        without: Collection[int],
        override: ModelOverride | None,
        private: TemporaryDirectory[str] | None,
        wait_s: float | None,
    ) -> None:
        """Load a model's versions, from a private folder where there is one."""
        try:
            folder = None if private is None else Path(private.name)
            references = await asyncio.to_thread(self.repository.find, name, without, override, folder)
        except MXNetError as error:
            published = self.repository.owner_of(name) is not None
            if published or name in await asyncio.to_thread(self.repository.names):
                self.repository.refuse(name, str(error))
            raise
        failures = []
        for reference in references:
            self.repository.begin(reference)
            try:
                if await asyncio.to_thread(_is_onnx, reference):
                    async with self._conversions.turn(reference.owner, wait_s):
                        metadata = await self._load(reference)
                else:
                    metadata = await self._load(reference)
            except MXNetError as error:
                self.repository.fail(reference, str(error))
                failures.append(error)
            else:
                self.repository.succeed(reference, metadata)
        if failures:
            raise failures[0]
        self.repository.retire(name, {reference.version for reference in references})
        await self._drop_others(name)

    def _is_served_from(self, name: str, folder: str) -> bool:
        """Whether a version of a model is served from a folder or one in it."""
        return any(
            reference.name == name and reference.folder.startswith(folder) for reference in self.repository.serving()
        )

    def close(self) -> None:
        """Remove the folders of models that were loaded from files in a request."""
        while self._private:
            self._private.popitem()[1].cleanup()

    async def _load(self, reference: ModelReference) -> dict[str, Any]:
        """Have a version loaded; its inputs and outputs."""
        request = _request(self._prepare, reference)
        response = await self._pool.prepare(request, partial(self._ended, reference))
        metadata: dict[str, Any] = _read(response, reference, DescribedModel)
        return metadata

    def _ended(self, reference: ModelReference, reason: str) -> None:
        """The process of a model has ended: start another, later if it ends again and again."""
        _log.warning("the process of a model ended; starting another", model=reference.name, reason=reason)
        self._spawn(self._revive(reference, reason))

    async def _revive(self, reference: ModelReference, reason: str) -> None:
        while reference in self.repository.serving():
            self.repository.fail(reference, reason)
            now = time.monotonic()
            deaths = self._deaths[reference.key] = [at for at in self._deaths[reference.key] if now - at < 60] + [now]
            await asyncio.sleep(min(10.0, 0.5 * max(0, len(deaths) - 3)))
            try:
                metadata = await self._load(reference)
            except MXNetError as error:
                reason = str(error)
            else:
                if reference in self.repository.serving():
                    self.repository.succeed(reference, metadata)
                else:
                    await self._drop_others(reference.name)
                return
        self._deaths.pop(reference.key, None)

    async def unload(self, name: str) -> None:
        """Serve a model no more.

        Raises:
            BadRequestError: no such model is known.
        """
        self.repository.retire(name)
        await self._drop_others(name)
        private = self._private.pop(name, None)
        if private is not None:
            await asyncio.to_thread(private.cleanup)

    async def all_statistics(self) -> list[dict[str, Any]]:
        """The figures of every version, with their full names."""
        return [{**answer["statistics"], "name": reference.name} for reference, answer in await self._figures_of(None)]

    async def statistics(self, owner: str) -> list[dict[str, Any]]:
        """The figures of every version that an owner may call."""
        return [
            {**answer["statistics"], "name": self.repository.name_for(reference.name, owner)}
            for reference, answer in await self._figures_of(owner)
        ]

    async def summaries(self, owner: str | None) -> list[dict[str, Any]]:
        """Device, size and traffic of every version that an owner may call; of all, with their full names, for None."""
        return [
            {
                "name": reference.name if owner is None else self.repository.name_for(reference.name, owner),
                "version": str(reference.version),
                **answer["summary"],
            }
            for reference, answer in await self._figures_of(owner)
        ]

    async def _figures_of(self, owner: str | None) -> list[tuple[ModelReference, dict[str, Any]]]:
        """What the workers tell; a version that cannot be asked now is left out."""
        answers = []
        for reference in self.repository.serving(owner):
            with suppress(MXNetError):
                answers.append((reference, await self._ask(self._figures, reference, form=ModelFigures)))
        return answers

    async def _ask(
        self,
        route: Route,
        reference: ModelReference,
        body: dict[str, Any] | None = None,
        form: type[BaseModel] | None = None,
    ) -> Any:
        """The answer of the worker that has a model."""
        return _read(await self._pool.call(_request(route, reference, body)), reference, form)

    async def _drop_others(self, name: str) -> None:
        """Have a model's worker drop the versions that are neither served nor in use."""
        serving = [reference.key for reference in self.repository.serving() if reference.name == name]
        self._retired |= {key for key in self._calls if key[0] == name and key not in serving}
        keys = [*serving, *(key for key in self._retired if key[0] == name)]
        with suppress(MXNetError):  # the worker has ended, and has nothing of it any more
            await self._ask(self._drop, ModelReference(name, 0, "", "", {}), {"keep": keys})
        self._pool.keep_models(name, set(keys))

    def find(self, request: RawRequest) -> ModelReference:
        """What a request is for, which may be dropped when others have their turn.

        Raises:
            BadRequestError: for no model that the owner may call, or one that is not ready.
        """
        parameters = request.parameters
        return self.repository.resolve(parameters["model"], parameters.get("version", ""), request.owner)

    @contextmanager
    def using(self, request: RawRequest) -> Iterator[None]:
        """Find out what a request is for, and keep that version in its worker until the request has been answered.

        Raises:
            BadRequestError: for no model that the owner may call, or one that is not ready.
        """
        reference = request.model = self.find(request)
        key = reference.key
        self._calls[key] += 1
        try:
            yield
        finally:
            self._calls[key] -= 1
            if not self._calls[key]:
                del self._calls[key]
                if key in self._retired:
                    self._retired.discard(key)
                    self._spawn(self._drop_others(reference.name))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _is_onnx(reference: ModelReference) -> bool:
    """Return whether a model's file is to be converted; False where that cannot be read, which its worker says."""
    try:
        return find_files(Path(reference.folder)).onnx is not None
    except (MXNetError, OSError):
        return False


def _request(route: Route, reference: ModelReference, body: dict[str, Any] | None = None) -> RawRequest:
    """A call of the server's own, for a model."""
    path = route.path.replace("{model}", reference.name)
    owner, text = reference.owner or SERVER, json.dumps(body or {}).encode()
    return RawRequest(route, {"model": reference.name}, path, owner, SCOPES, "models", text, model=reference)


def _read(response: RawResponse, reference: ModelReference, form: type[BaseModel] | None) -> Any:
    """What a worker answered; code that came with a model may answer anything, so that its answer is checked.

    Raises:
        MXNetError: the error that the answer tells.
    """
    try:
        answer = read_bounded(response.body, ANSWER_BYTES) if reference.code else json.loads(bytes(response.body))
        if response.status == 200 and form is not None and reference.code:
            answer = form.model_validate(answer, strict=True).model_dump()
    except ValueError as error:
        _log.error("a model's own process answered what it cannot", model=reference.name, reason=str(error)[:1000])
        raise InternalError("the model's own process: the server's log has the reason") from None
    finally:
        response.release()
    if response.status != 200:
        raise error_from_json(response.status, answer)
    return answer
