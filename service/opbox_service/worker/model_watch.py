"""ModelWatch: loads and unloads what owners publish and remove on other servers that share the store."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import structlog

from opbox_protocol.errors import BadRequestError, MXNetError

from ..models.model_store import FileModels, public_name
from .model_publishing import ModelPublishing
from .model_serving import ModelServing

__all__ = ["ModelWatch"]

LOOK_S = 2.0
"""Seconds between two looks at the store: each is one listing."""
AGAIN_S, LATEST_AGAIN_S = 4.0, 600.0
"""Seconds until a version that could not be loaded is tried again: the first time, and at most."""

_log = structlog.get_logger("opbox.models")


class ModelWatch:
    """Keeps a server's published models as the store has them. Models that are loaded serve on while it is not reached.

    Args:
        publishing: of the server; what it publishes itself is known.
        serving: loads models.
        store: has their files.
    """

    def __init__(self, publishing: ModelPublishing, serving: ModelServing, store: FileModels | None) -> None:
        assert store is not None
        self._publishing = publishing
        self._serving = serving
        self._store = store
        self._problem = ""
        self._again: dict[str, tuple[float, float]] = {}

    async def run(self) -> None:
        """Look again and again, until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Load what has come or changed, and unload what is gone; the log says what went wrong."""
        try:
            await self._follow_all()
        except Exception:
            _log.exception("a look at the store of published models failed")

    async def _follow_all(self) -> None:
        try:
            there = await asyncio.to_thread(self._store.all_stamps)
        except (MXNetError, OSError) as error:
            if str(error) != self._problem:
                _log.error("what other servers publish is not seen", reason=str(error))
            self._problem = str(error)
            return
        self._problem = ""
        known, now = self._publishing.known, time.monotonic()
        stamps = {public_name(owner, name): now_there for (owner, name), now_there in there.items()}
        owners = {public_name(owner, name): (owner, name) for owner, name in there}
        for full in sorted({*stamps, *known}):
            due = self._again.get(full, (now, 0.0))[0] <= now
            if stamps.get(full) != known.get(full) or (full in self._again and due):
                owner, name = owners.get(full) or _parts_of(full)
                await self._follow(full, owner, name)
        folders = {reference.folder for reference in self._serving.repository.serving()}
        await asyncio.to_thread(self._store.drop_copies, folders)

    async def _follow(self, full: str, owner: str, name: str) -> None:
        """Serve a model as the store has it now."""
        models, known = self._serving.repository, self._publishing.known
        async with self._publishing.lock(owner):
            try:
                stamps = await asyncio.to_thread(self._store.stamps, owner, name)
            except (MXNetError, OSError):
                return
            if stamps == known.get(full) and full not in self._again:
                return
            if not stamps:
                with suppress(BadRequestError):  # it has never been loaded
                    await self._serving.unload(full)
                models.forget_all_but(full, ())
                known.pop(full, None)
                self._again.pop(full, None)
                return
            is_newest = await self._serving.load_latest(full)
            models.forget_all_but(full, stamps)
            known[full] = stamps
            if is_newest:
                self._again.pop(full, None)
            else:
                wait = min(LATEST_AGAIN_S, 2 * self._again.get(full, (0.0, AGAIN_S / 2))[1])
                self._again[full] = time.monotonic() + wait, wait


def _parts_of(full: str) -> tuple[str, str]:
    """The owner and the name of a published model."""
    owner, _, name = full.rpartition(".")
    return owner.replace("%2F", "/").replace("%25", "%"), name
