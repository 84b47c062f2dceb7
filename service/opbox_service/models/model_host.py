"""ModelHost: the models that a worker has loaded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from pathlib import Path

from opbox_ops.backend import Backend, backend_for
from opbox_protocol.errors import MXNetError, NotReadyError

from ..device_time import DeviceTimes
from ..quota import Budget, Ledger
from ..settings import Settings
from .loaded_model import LoadedModel
from .model_config import ModelConfig
from .model_files import find_files, read_files, read_labels
from .onnx_files import read_onnx
from .reference import ModelKey, ModelReference

__all__ = ["ModelHost"]

MODELS = "\0models"
"""Whose memory models take: no owner's name begins so."""


class ModelHost:
    """Loads models and keeps them. Safe to call from many threads.

    Args:
        settings: the limits, and the device of models that name none.
        ledger: counts their memory.
        device_times: counts how long their runs take.
        check_device: the canonical name of a device; MXNetError for one that is not offered.
    """

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        device_times: DeviceTimes,
        check_device: Callable[[str | None, Settings], str],
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._device_times = device_times
        self._check_device = check_device
        self._models: dict[ModelKey, LoadedModel] = {}
        self._loading: dict[ModelKey, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, reference: ModelReference) -> LoadedModel:
        """The model of a reference, which is loaded when it is asked for first.

        Raises:
            NotReadyError: the files have changed since the reference was made.
            MXNetError: it cannot be loaded.
        """
        key = reference.key
        model = self._models.get(key)
        if model is not None:
            return model
        with self._lock:
            loading = self._loading.setdefault(key, threading.Lock())
        with loading:
            model = self._models.get(key)
            if model is None:
                model = self._models[key] = self._load(reference)
        with self._lock:
            self._loading.pop(key, None)
        return model

    def _load(self, reference: ModelReference) -> LoadedModel:
        settings, folder = self._settings, Path(reference.folder)
        config = ModelConfig.model_validate(reference.config)
        device = self._check_device(config.device, settings)
        try:
            files = find_files(folder)
            limits = {"max_nodes": settings.max_nodes, "max_edges": settings.max_edges}
            network = read_files(files, **limits) if files.onnx is None else read_onnx(files.onnx, **limits)
            unchanged = find_files(folder).stamp == files.stamp == reference.files_stamp
        except OSError as error:
            raise NotReadyError(f"model {reference.name!r}: a file cannot be read ({error.strerror})") from None
        except MXNetError:
            unchanged = find_files(folder).stamp == reference.files_stamp
            if unchanged:
                raise
        if not unchanged:
            raise NotReadyError(f"model {reference.name!r}: its files are being replaced: try again in a moment")
        backend: Backend = backend_for(device)
        memory: Budget = self._ledger.of(MODELS, device)
        labels = [] if config.labels is None else read_labels(folder, config.labels)

        def spend(owner: str, seconds: float) -> None:
            self._device_times.add(owner, device, 0.0, seconds)

        model = LoadedModel(reference.name, network, config, backend, memory, device, labels, spend)
        try:
            model.warm_up(config)
        except BaseException:
            model.close()
            raise
        return model

    def keep_only(self, name: str, keys: Collection[ModelKey]) -> None:
        """Drop the versions of a model that are not among these."""
        with self._lock:
            dropped = [key for key in self._models if key[0] == name and key not in keys]
            models = [self._models.pop(key) for key in dropped]
        for model in models:
            model.close()

    def close(self) -> None:
        """Drop all models."""
        with self._lock:
            models, self._models = list(self._models.values()), {}
        for model in models:
            model.close()
