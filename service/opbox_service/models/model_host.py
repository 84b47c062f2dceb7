"""ModelHost: the models that a worker has loaded."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from opbox_ops.backend import backend_for
from opbox_protocol.errors import BadRequestError, MXNetError, NotFoundError, NotReadyError

from ..device_time import DeviceTimes
from ..memory_shares import HOST
from ..quota import Budget, Ledger
from ..settings import Settings
from .conversions import Conversions, conversion_bytes
from .loaded_model import LoadedModel
from .model_config import ModelConfig, devices_of
from .model_files import ModelFiles, ModelNetwork, find_files, read_files, read_labels
from .onnx_files import read_onnx
from .own_code import OpenCode, OwnCode
from .reference import ModelKey, ModelReference
from .response_cache import ResponseCache

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
        open_code: has operators that came with models; None in a process that runs none.
    """

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        device_times: DeviceTimes,
        check_device: Callable[[str | None, Settings], str],
        open_code: OpenCode | None = None,
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._device_times = device_times
        self._check_device = check_device
        self._open_code = open_code
        self._conversions = Conversions()
        self._answers: ResponseCache | None = None
        if settings.response_cache_bytes:
            memory = Budget(settings.response_cache_bytes, ledger.of(MODELS, HOST), "memory of kept answers")
            self._answers = ResponseCache(memory)
        self._models: dict[ModelKey, list[LoadedModel]] = {}
        self._loading: dict[ModelKey, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, reference: ModelReference) -> LoadedModel:
        """The model of a reference, loaded when it is asked for first; of several devices on the least busy one.

        Raises:
            NotReadyError: the files have changed since the reference was made.
            MXNetError: it cannot be loaded.
        """
        key = reference.key
        model = self.loaded(reference)
        if model is not None:
            return model
        with self._lock:
            loading = self._loading.setdefault(key, threading.Lock())
        with loading:
            model = self.loaded(reference)
            if model is None:
                model = (self._models.setdefault(key, self._load(reference)))[0]
        with self._lock:
            self._loading.pop(key, None)
        return model

    def take(self, reference: ModelReference, contents: Mapping[str, bytes]) -> LoadedModel:
        """Load a model from its files' contents, in a process that cannot read its folder.

        Raises:
            MXNetError: it cannot be loaded.
        """
        with tempfile.TemporaryDirectory(prefix="opbox-model-") as name:
            folder = Path(name)
            for file, content in contents.items():
                (folder / Path(file).name).write_bytes(content)
            models = self._load(reference._replace(folder=name, stamp=find_files(folder).stamp))
        with self._lock:
            self._models[reference.key] = models
        return models[0]

    def loaded(self, reference: ModelReference) -> LoadedModel | None:
        """The model of a reference, as `get` has it; None where it has not been loaded."""
        models = self._models.get(reference.key)
        if models is None:
            return None
        return models[0] if len(models) == 1 else min(models, key=lambda model: model.busy)

    def busy(self, reference: ModelReference) -> int:
        """Number of requests that run or wait for a run, on all devices."""
        return sum(model.busy for model in self._models.get(reference.key, ()))

    def devices(self, reference: ModelReference) -> list[str]:
        """Where a loaded model runs."""
        return [model.device for model in self._models.get(reference.key, ())]

    def _load(self, reference: ModelReference) -> list[LoadedModel]:
        settings, folder = self._settings, Path(reference.folder)
        config = ModelConfig.model_validate(reference.config)
        devices = [self._check_device(name, settings) for name in devices_of(reference.config)]
        if len(set(devices)) < max(1, len(devices)):
            raise BadRequestError("device: expected each device once, and at least one, got another list")
        device, backend = devices[0], backend_for(devices[0])
        memory = self._memory(reference, device)
        code: OwnCode | None = None
        inside: Callable[[], AbstractContextManager[None]] = nullcontext
        try:
            files = find_files(folder)
            if reference.owner:  # it is read before its arrays are counted
                memory.check(files.nbytes)
            if files.operators is not None and reference.code and self._open_code is not None:
                if len(devices) > 1:
                    raise BadRequestError("device: expected one for a model with operators of its own, got several")
                code = self._open_code(files.operators.read_bytes(), backend, device, memory)
                inside = code.inside
            limits = {"max_nodes": settings.max_nodes, "max_edges": settings.max_edges}
            if files.onnx is None:
                with inside():
                    network = _read(files, limits, code)
            else:
                beside = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())  # arrays of their own
                nbytes = conversion_bytes(beside, settings.code_memory_bytes)
                with self._conversions.running(reference.owner, self._memory(reference, HOST), nbytes):
                    network = read_onnx(files.onnx, settings, memory=nbytes)
            unchanged = find_files(folder).stamp == files.stamp == reference.files_stamp
        except OSError as error:
            raise NotReadyError(f"model {reference.name!r}: a file cannot be read ({error.strerror})") from None
        except MXNetError:
            unchanged = find_files(folder).stamp == reference.files_stamp
            if unchanged:
                raise
        if not unchanged:
            raise NotReadyError(f"model {reference.name!r}: its files are being replaced: try again in a moment")
        labels = [] if config.labels is None else read_labels(folder, config.labels)

        models: list[LoadedModel] = []
        with inside():
            try:
                for device in devices:
                    models.append(
                        LoadedModel(
                            reference.name,
                            network,
                            config,
                            backend_for(device),
                            self._memory(reference, device),
                            device,
                            labels,
                            partial(self._spend, device),
                            code,
                            reference.owner,
                            self._answers,
                            models[0] if models else None,
                        )
                    )
                    models[-1].warm_up(config)
            except BaseException:
                for model in models:
                    model.close()
                raise
        return models

    def _spend(self, device: str, owner: str, seconds: float) -> None:
        self._device_times.add(owner, device, 0.0, seconds)

    def _memory(self, reference: ModelReference, device: str) -> Budget:
        """Whose memory a model takes: that of the owner who published it, or the server's."""
        if reference.owner:
            self._ledger.limit_unknown(reference.owner, reference.memory_bytes)
        return self._ledger.of(reference.owner or MODELS, device)

    def memory(self) -> list[tuple[str, str, int]]:
        """Owner, device and bytes of the published models that are loaded."""
        with self._lock:
            models = [model for models in self._models.values() for model in models]
        return [(model.owner, model.device, model.memory_bytes) for model in models if model.owner]

    def keep_only(self, name: str, keys: Collection[ModelKey]) -> None:
        """Drop the versions of a model that are not among these."""
        with self._lock:
            dropped = [key for key in self._models if key[0] == name and key not in keys]
            models = [model for key in dropped for model in self._models.pop(key)]
        for model in models:
            model.close()

    def close(self) -> None:
        """Drop all models."""
        with self._lock:
            loaded, self._models = list(self._models.values()), {}
        for model in (model for models in loaded for model in models):
            model.close()


def _read(files: ModelFiles, limits: Mapping[str, int], code: OwnCode | None) -> ModelNetwork:
    """The network of two files, and the operators that came with them."""
    try:
        return read_files(files, **limits, code=code)
    except NotFoundError:
        if code is not None:
            raise
        raise BadRequestError(
            "operators of the network's own: expected their sources in a NAME-ops.json beside the symbol, as "
            "Symbol.save writes it, and a model that is published, got none"
        ) from None
