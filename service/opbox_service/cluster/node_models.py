"""A node's models: what their files say of replicas, and which orders it carries out now."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from opbox_protocol.errors import MXNetError

from ..models.model_config import CONFIG_FILE, read_config
from .documents import ModelTerms, NodeOrders, kind_of
from .replicas import terms_of

__all__ = ["ModelWork", "StatedModels"]

AGAIN_S = 30.0
"""Seconds before a version is loaded again that was not ready after it had been loaded."""


class StatedModels:
    """The models of a folder whose `model.toml` has `replicas`, read again when a file changes.

    Args:
        folder: of the models; None: there are none.
        device: of models whose file names none.

    Example:
        >>> StatedModels(None).now()
        {}
    """

    def __init__(self, folder: Path | None, device: str = "cpu") -> None:
        self._folder, self._device = folder, kind_of(device)
        self._read: dict[Path, tuple[int, ModelTerms | None]] = {}

    def now(self) -> dict[str, ModelTerms]:
        """The terms by model. A file with a mistake has those that it had before; the server says what is wrong."""
        if self._folder is None:
            return {}
        stated: dict[str, ModelTerms] = {}
        read: dict[Path, tuple[int, ModelTerms | None]] = {}
        for path in sorted(self._folder.glob(f"*/{CONFIG_FILE}")):
            try:
                changed = path.stat().st_mtime_ns
                versions = [
                    int(entry.name) for entry in os.scandir(path.parent) if re.fullmatch(r"[1-9]\d{0,8}", entry.name)
                ]
            except OSError:  # it goes
                continue
            known = self._read.get(path, (0, None))
            terms = known[1] if known[0] == changed else self._terms(path, known[1])
            read[path] = changed, terms
            if terms is not None:
                newest = str(max(versions, default=1)) if not terms.version else ""
                stated[path.parent.name] = replace(terms, version=newest)
        self._read = read
        return stated

    def _terms(self, path: Path, before: ModelTerms | None) -> ModelTerms | None:
        """What a file says; its version is "" where it serves the newest, and "*" where it names some."""
        try:
            config = read_config(path)
            if config.replicas is None:
                return None
            terms = terms_of(config, version="" if config.versions == "latest" else "*")
        except MXNetError:
            return before
        return terms if config.device is not None else replace(terms, device=self._device)


class ModelWork:
    """Which of the orders to load and unload a node begins now: none that it is busy with or that has just failed.

    Example:
        >>> work = ModelWork()
        >>> work.begin(NodeOrders(load=(("net", "2"),)), 0.0), work.begin(NodeOrders(load=(("net", "2"),)), 1.0)
        ((['net'], []), ([], []))
    """

    def __init__(self) -> None:
        self._busy: set[str] = set()
        self._loaded: dict[str, tuple[str, float]] = {}

    def begin(self, orders: NodeOrders, now: float) -> tuple[list[str], list[str]]:
        """Return the models to load, and those to unload; `ended` says when that has been done.

        A version is loaded by loading the model, which serves what its file says; so no single version is unloaded.

        Args:
            orders: of the controller.
            now: seconds of a clock.
        """
        unload = [name for name, version in orders.unload if not version and name not in self._busy]
        load = [
            name
            for name, version in orders.load
            if name not in self._busy and not self._is_recent(self._loaded.get(name), version, now)
        ]
        self._busy.update(load, unload)
        self._loaded.update((name, (version, now)) for name, version in orders.load if name in load)
        for name in unload:
            self._loaded.pop(name, None)
        return load, unload

    @staticmethod
    def _is_recent(loaded: tuple[str, float] | None, version: str, now: float) -> bool:
        return loaded is not None and loaded[0] == version and now - loaded[1] < AGAIN_S

    def ended(self, names: Iterable[str]) -> None:
        """Note that these have been loaded or unloaded, or have not been able to."""
        self._busy.difference_update(names)
