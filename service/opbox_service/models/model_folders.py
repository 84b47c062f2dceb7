"""ModelFolders: where the versions of models lie, on the server's own folder and among what owners published.

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
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from opbox_protocol.errors import BadRequestError, NotReadyError, UnknownModelError

from .model_config import CONFIG_FILE, ModelConfig, read_config
from .model_files import ModelFiles, find_files
from .model_store import FileModels, Publication, public_name
from .reference import ModelReference

__all__ = ["MODEL_NAME", "ModelFolders", "unknown_model", "versions_to_serve"]

MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


class ModelFolders:
    """The files of models. It reads, and remembers nothing.

    Args:
        root: the folder of the server's own; None where it has none.
        store: the files of published ones; None where there are none.
    """

    def __init__(self, root: Path | None, store: FileModels | None = None) -> None:
        self._root = root
        self._store = store

    def names(self) -> list[str]:
        """The models that lie in the server's folder.

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

    def published_names(self) -> list[str]:
        """The models that owners published."""
        return [] if self._store is None else [public_name(owner, name) for owner, name in self._store.all()]

    def versions(self, name: str, private: Path | None = None) -> tuple[str, dict[int, Path]]:
        """Whose a model is ("": the server's), and the folders of its versions.

        Args:
            name: of the model; a published one's as every owner may say it.
            private: a folder of files to use in place of the model's own.

        Raises:
            UnknownModelError: there is no such model.
        """
        own = None if self._root is None or not re.fullmatch(MODEL_NAME, name) else self._root / name
        if self._store is not None and (own is None or not own.is_dir()):
            owner, _, short = name.rpartition(".")
            owner = owner.replace("%2F", "/").replace("%25", "%")
            versions = self._store.versions(owner, short) if owner else {}
            if versions:
                return owner, versions
        folder = self.folder(name, private)
        numbered = {
            int(path.name): path
            for path in folder.iterdir()
            if path.is_dir() and re.fullmatch(r"[1-9]\d{0,8}", path.name)
        }
        return "", numbered or {1: folder}

    def folder(self, name: str, private: Path | None = None) -> Path:
        """The folder of a model of the server's own, or the private one; UnknownModelError where there is none."""
        folder = private or self._root
        if private is None and folder is not None:
            folder = folder / name
        if not re.fullmatch(MODEL_NAME, name):
            folder = None
        if folder is None or not folder.is_dir():
            raise unknown_model(name)
        return folder

    def config(self, name: str, private: Path | None = None) -> ModelConfig:
        """What the `model.toml` of a model of the server's own says."""
        return read_config(self.folder(name, private) / CONFIG_FILE)

    def published_config(self, name: str, owner: str, version: int) -> ModelConfig:
        """What the `model.toml` of a published version says."""
        return read_config(self._fetched(name, owner, version) / CONFIG_FILE)

    def reference(self, name: str, version: int, folder: Path, config: ModelConfig) -> ModelReference:
        """The reference of a version of the server's own.

        Raises:
            BadRequestError: its files are not to be used.
            OSError: they cannot be read.
        """
        files, values = find_files(folder), config.model_dump(exclude_unset=True)
        return ModelReference(name, version, str(folder), _stamp(files, values), values)

    def published_reference(self, name: str, owner: str, version: int) -> tuple[ModelReference, Publication]:
        """The reference of a published version, whose files are on this machine then, and who may call it.

        Raises:
            BadRequestError: its files are not to be used.
            OSError: they cannot be read.
        """
        assert self._store is not None
        folder = self._fetched(name, owner, version)
        files = find_files(folder)
        publication = self._store.publication(folder)
        values = read_config(folder / CONFIG_FILE).model_dump(exclude_unset=True)
        if publication.labels is not None:
            values.setdefault("labels", publication.labels)
        publisher = publication.owner
        memory_bytes, code = self._store.memory_bytes(publisher), files.operators is not None
        stamp = _stamp(files, values)
        reference = ModelReference(name, version, str(folder), stamp, values, publisher, memory_bytes, code)
        return reference, publication

    def _fetched(self, name: str, owner: str, version: int) -> Path:
        """The folder of a published version's files, which are on this machine then."""
        assert self._store is not None
        return self._store.fetch(owner, name.rpartition(".")[2], version)


def unknown_model(name: str, version: str = "", versions: Sequence[int] = ()) -> UnknownModelError:
    """The error for a model that is none, or not the caller's; it begins as Triton's, which its clients look for.

    Args:
        name: of the model.
        version: that was asked for, where the model has no such version.
        versions: those that it has.
    """
    asked = f" version {version[:20]}" if version else ""
    expected = f"version {', '.join(map(str, versions))}" if version else "one of POST /v2/repository/index"
    return UnknownModelError(f"Request for unknown model: {name[:80]!r}{asked} is not found: expected {expected}")


def versions_to_serve(config: ModelConfig, versions: Collection[int], name: str) -> list[int]:
    """The versions that a model's `model.toml` says to serve, of those that there are.

    Raises:
        BadRequestError: one of them is not there.

    Example:
        >>> versions_to_serve(ModelConfig(versions="latest"), [1, 2, 10], "lenet")
        [10]
    """
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


def _stamp(files: ModelFiles, values: Mapping[str, Any]) -> str:
    """What changes with the files of a version or with its configuration."""
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
    return f"{files.stamp}-{digest}"
