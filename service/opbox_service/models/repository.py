"""ModelRepository: the models in a folder, their versions, and which of them are served.

models/
  lenet/                    one model: its only version is 1
    lenet-symbol.json
    lenet-0012.params
  resnet/                   one model with versions
    model.toml
    1/ …
    2/ …
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from opbox_protocol.errors import BadRequestError, ModelNotReadyError, MXNetError, NotReadyError, UnknownModelError

from .model_config import CONFIG_FILE, ModelConfig, read_config
from .model_files import find_files
from .overrides import ModelOverride
from .reference import ModelReference

__all__ = ["MODEL_NAME", "ModelRepository", "ModelState", "VersionRow"]

MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
MAX_VERSION = 10**9
ModelState = Literal["UNAVAILABLE", "LOADING", "READY", "UNLOADING"]


@dataclass(slots=True)
class _ServedVersion:
    """A version of a model.

    Attributes:
        state, reason: of the Open Inference Protocol's index; the reason says why it is not ready, or why its newest
            files are not served.
        serving: what calls are for; None while it is not ready.
        metadata: its inputs and outputs, as the worker that loaded it says.
    """

    state: ModelState = "UNAVAILABLE"
    reason: str = ""
    serving: ModelReference | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A line of the index."""

    name: str
    version: int
    state: ModelState
    reason: str


class ModelRepository:
    """The models of a folder. Safe to call from many threads; it reads files, and loads nothing itself.

    Args:
        root: the folder; None where the server has none.
    """

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._models: dict[str, dict[int, _ServedVersion]] = {}
        self._configs: dict[str, ModelConfig] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """The models that lie in the folder, loaded or not.

        Raises:
            NotReadyError: the folder cannot be read.
        """
        if self._root is None:
            return []
        try:
            folders = sorted(path for path in self._root.iterdir() if path.is_dir())
        except OSError as error:
            raise NotReadyError(f"models: {self._root.name}: cannot be read ({error.strerror})") from None
        return [path.name for path in folders if re.fullmatch(MODEL_NAME, path.name)]

    def find(
        self, name: str, override: ModelOverride | None = None, private: Path | None = None
    ) -> list[ModelReference]:
        """The versions of a model that its `model.toml` says to serve, as they lie in its folder now.

        A version whose files are not to be used is noted in the index, and left out.

        Args:
            name: of the model.
            override: what goes before its `model.toml`.
            private: a folder of files to use in place of the model's own.

        Raises:
            UnknownModelError: there is no such model.
            BadRequestError: its `model.toml` has a mistake, or no version can be used.
        """
        folder = self._folder(name, private)
        config = read_config(folder / CONFIG_FILE)
        if override is not None:
            config = override.merged(config)
        values = config.model_dump(exclude_unset=True)
        with self._lock:
            self._configs[name] = config
        numbered = {
            int(path.name): path
            for path in folder.iterdir()
            if path.is_dir() and re.fullmatch(r"[1-9]\d{0,8}", path.name)
        }
        versions = numbered or {1: folder}
        wanted = _wanted(config, versions, name)
        references, refusals = [], []
        for version in wanted:
            try:
                stamp = f"{find_files(versions[version]).stamp}-{_digest(values)}"
            except (MXNetError, OSError) as error:
                refusals.append(str(error))
                self.fail(ModelReference(name, version, "", "", {}), str(error))
                continue
            references.append(ModelReference(name, version, str(versions[version]), stamp, values))
        if not references:
            raise BadRequestError(refusals[0])
        return references

    def _folder(self, name: str, private: Path | None) -> Path:
        folder = private or self._root
        if private is None and folder is not None:
            folder = folder / name
        if not re.fullmatch(MODEL_NAME, name):
            folder = None
        if folder is None or not folder.is_dir():
            raise unknown(name)
        return folder

    # -- states ---------------------------------------------------------------------------------------------------

    def begin(self, reference: ModelReference) -> None:
        """Note that a version is being loaded; one that serves goes on serving."""
        with self._lock:
            version = self._version(reference)
            if version.serving is None:
                version.state, version.reason = "LOADING", ""

    def succeed(self, reference: ModelReference, metadata: dict[str, Any]) -> None:
        """Serve a version by what a worker has loaded."""
        with self._lock:
            version = self._version(reference)
            version.state, version.reason = "READY", ""
            version.serving, version.metadata = reference, metadata

    def fail(self, reference: ModelReference, reason: str) -> None:
        """Note why a version could not be loaded; one that serves goes on serving as it was."""
        with self._lock:
            version = self._version(reference)
            version.reason = reason
            if version.serving is None:
                version.state = "UNAVAILABLE"

    def refuse(self, name: str, reason: str) -> None:
        """Note why none of a model's versions could be looked at; those that serve go on serving."""
        with self._lock:
            for version in self._models.setdefault(name, {1: _ServedVersion()}).values():
                version.reason = reason

    def retire(self, name: str, keep: set[int] | None = None) -> None:
        """Stop serving a model's versions, but for those to keep.

        Raises:
            UnknownModelError: no such model is known.
        """
        with self._lock:
            versions = self._models.get(name)
            if versions is None:
                raise unknown(name)
            for number, version in versions.items():
                if number not in (keep or ()):
                    version.state, version.reason, version.serving = "UNAVAILABLE", "unloaded", None

    def _version(self, reference: ModelReference) -> _ServedVersion:
        return self._models.setdefault(reference.name, {}).setdefault(reference.version, _ServedVersion())

    # -- what is served -------------------------------------------------------------------------------------------

    def index(self, owner: str) -> list[VersionRow]:
        """The versions that an owner may call, and the models of the folder that have never been loaded."""
        with self._lock:
            rows = [
                VersionRow(name, number, version.state, version.reason)
                for name, versions in self._models.items()
                for number, version in versions.items()
                if self._may(name, owner)
            ]
            known = set(self._models)
        rows += [VersionRow(name, 1, "UNAVAILABLE", "not loaded") for name in self.names() if name not in known]
        return sorted(rows, key=lambda row: (row.name, row.version))

    def resolve(self, name: str, version: str, owner: str) -> ModelReference:
        """What a call for a model is for: the version that it names, or the newest that is ready.

        Raises:
            UnknownModelError: there is no such model or version for this owner.
            ModelNotReadyError: it is not ready.
        """
        with self._lock:
            versions = self._models.get(name)
            if versions is None or not self._may(name, owner):
                raise unknown(name)
            if version and (not version.isdecimal() or int(version) not in versions):
                raise UnknownModelError(
                    f"model {name!r}: expected version {', '.join(map(str, sorted(versions)))}, got {version[:20]!r}"
                )
            candidates = [int(version)] if version else sorted(versions, reverse=True)
            for number in candidates:
                serving = versions[number].serving
                if serving is not None:
                    return serving
            reason = versions[candidates[0]].reason if candidates else ""
        raise ModelNotReadyError(f"model {name!r}: not ready{': ' + reason if reason else ''}")

    def metadata(self, reference: ModelReference) -> dict[str, Any]:
        """A served version's metadata, with the numbers of all that are ready."""
        with self._lock:
            versions = self._models[reference.name]
            ready = [str(number) for number, version in sorted(versions.items()) if version.serving is not None]
            metadata = versions[reference.version].metadata
        return {"name": reference.name, "versions": ready, "platform": "opbox", **metadata}

    def serving(self, owner: str | None = None) -> list[ModelReference]:
        """Everything that is served now, to this owner or at all."""
        with self._lock:
            served = [
                version.serving
                for name, versions in self._models.items()
                for version in versions.values()
                if owner is None or self._may(name, owner)
            ]
        return [reference for reference in served if reference is not None]

    def _may(self, name: str, owner: str) -> bool:
        """Return whether an owner may call a model."""
        config = self._configs.get(name)
        return config is None or config.owners is None or owner in config.owners


def unknown(name: str) -> UnknownModelError:
    """The error for a model that is none, or not the caller's."""
    return UnknownModelError(f"model {name[:80]!r}: expected one of GET /v2/repository/index, got an unknown one")


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def _wanted(config: ModelConfig, versions: dict[int, Path], name: str) -> list[int]:
    """The versions to serve."""
    if config.versions == "latest":
        return [max(versions)]
    if config.versions == "all":
        return sorted(versions)
    absent = [number for number in config.versions if number not in versions]
    if absent:
        raise BadRequestError(
            f"model {name!r}: versions: expected some of {', '.join(map(str, sorted(versions)))}, got {absent[0]}"
        )
    return sorted(int(number) for number in config.versions)
