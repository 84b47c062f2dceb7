"""ModelPublishing: takes the models that owners upload, has them loaded, and removes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar
from weakref import WeakValueDictionary

from opbox_protocol.errors import BadRequestError, MXNetError, NotFoundError, NotReadyError, UnsupportedError

from ..models.model_store import Buffer, FileModels, Publication, Stamps, no_published_model, public_name
from ..store_threads import GoOn, StoreThreads
from .model_serving import ModelServing

__all__ = ["ModelPublishing"]

T = TypeVar("T")


class ModelPublishing:
    """Published models of a server. One owner's uploads and removals run one behind the other.

    Args:
        serving: loads them.
        store: has their files; None where there is none.
        threads: read and write the files.
        note: records an event, its owner and its fields in the audit log.

    Attributes:
        known: the stamps of the versions that this server has loaded last, or has tried to, by the model's full name.
    """

    def __init__(
        self, serving: ModelServing, store: FileModels | None, threads: StoreThreads, note: Callable[..., object]
    ) -> None:
        self._serving = serving
        self._store = store
        self._threads = threads
        self._note = note
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.known: dict[str, Stamps] = {}

    def lock(self, owner: str) -> asyncio.Lock:
        """What is taken while models of an owner's are published, removed, or loaded as another server has them."""
        return self._locks.setdefault(owner, asyncio.Lock())

    async def publish(self, publication: Publication, files: Mapping[str, Buffer], version: int | None = None) -> int:
        """Write a version, load it, and serve it in the place of the one before; return its number.

        A version that cannot be loaded is removed again, and the one before goes on serving.

        Args:
            publication: whose it is, its name, and who may call it.
            files: the bytes by the file's name; see `FileModels.save`.
            version: its number; by default the next.

        Raises:
            UnsupportedError: there is no store.
            MXNetError: why it was not written or not loaded.
        """
        store, owner, name = self._available(), publication.owner, publication.name
        full, models = public_name(owner, name), self._serving.repository
        async with self.lock(owner):
            await asyncio.to_thread(models.check_free, owner, name)
            number = await self._run(
                publication, lambda go_on: store.save(publication, files, version, go_on), writes=True
            )
            try:
                await self._serving.load(full)
            except Exception as problem:
                try:
                    await self._run(publication, lambda go_on: store.remove(owner, name, number), writes=True)
                except MXNetError:
                    raise NotReadyError(
                        f"model {name!r}, version {number}: stored, but not loaded ({problem}), and it cannot be "
                        "removed now: servers may serve it once they reach the store: publish again then, or remove it"
                    ) from problem
                raise
            rest = await self._run(publication, lambda go_on: store.prune(owner, name), writes=True)
            models.forget_all_but(full, rest)
            await self._know(publication)
        self._note("model.published", owner, model=name, version=number, callers=publication.callers)
        return number

    async def remove(self, owner: str, name: str, version: int | None = None) -> None:
        """Remove a version of a model, or all of them; the version before it serves again.

        Raises:
            NotFoundError: the owner has published no such model or version.
            MXNetError: the version before cannot be loaded; nothing is removed then.
        """
        store, publication = self._available(), Publication(owner, name)
        full, models = public_name(owner, name), self._serving.repository
        async with self.lock(owner):
            there = await self._run(publication, lambda go_on: store.versions(owner, name), writes=False)
            if not there and models.owner_of(full) != owner:
                raise no_published_model(name)
            if version is not None and version not in there:
                numbers = ", ".join(map(str, sorted(there))) or "none"
                raise NotFoundError(f"model {name!r}: version: expected one of {numbers}, got {version}")
            rest = [number for number in there if version is not None and number != version]
            if rest:
                await self._serving.load(full, without=[number for number in there if number not in rest])
            else:
                with suppress(BadRequestError):  # it has never been loaded
                    await self._serving.unload(full)
            await self._run(publication, lambda go_on: store.remove(owner, name, version), writes=True)
            models.forget_all_but(full, rest)
            await self._know(publication)
        self._note("model.removed", owner, model=name, version=version)

    async def _know(self, publication: Publication) -> None:
        """Note what is there now, which this server has loaded."""
        owner, name, store = publication.owner, publication.name, self._available()
        with suppress(MXNetError):  # a look at the store will tell
            self.known[publication.full_name] = await self._run(
                publication, lambda go_on: store.stamps(owner, name), writes=False
            )

    def _available(self) -> FileModels:
        if self._store is None:
            raise UnsupportedError("models: expected a server with a store of them, got one without")
        return self._store

    async def _run(self, publication: Publication, work: Callable[[GoOn], T], *, writes: bool) -> T:
        subject = f"model {publication.name[:80]!r}"
        return await self._threads.run(publication.owner, subject, work, writes=writes)
