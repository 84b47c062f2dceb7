"""ModelRepository: the models of a server, their versions, which are served, and who may call them.

A published model's name is `OWNER.NAME`; its owner may say `NAME`. A model of the folder of the same name goes first.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from opbox_protocol.errors import BadRequestError, ConflictError, ModelNotReadyError, MXNetError, NotReadyError

from .model_config import ModelConfig
from .model_folders import ModelFolders, unknown_model, versions_to_serve
from .model_store import FileModels, Publication, public_name
from .overrides import ModelOverride
from .reference import ModelKey, ModelReference

__all__ = ["ModelRepository", "ModelState", "VersionRow"]

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
    """A line of the index.

    Attributes:
        name: by which the owner that asked calls it.
        owner: who published it; None for a model of the server's folder.
        callers: who may call it beside that owner; None for everyone.
    """

    name: str
    version: int
    state: ModelState
    reason: str
    owner: str | None = None
    callers: tuple[str, ...] | None = None


class ModelRepository:
    """The models of a server. Safe to call from many threads; it reads files, and loads nothing itself.

    Args:
        root: the folder of the server's own; None where it has none.
        store: the files of published ones; None where there are none.

    Attributes:
        loading: whether models are being loaded for the first time: one that is not known may be among them.
    """

    def __init__(self, root: Path | None, store: FileModels | None = None) -> None:
        self._folders = ModelFolders(root, store)
        self._publications: dict[str, Publication] = {}
        self._coming: dict[ModelKey, Publication] = {}
        self._models: dict[str, dict[int, _ServedVersion]] = {}
        self._configs: dict[str, ModelConfig] = {}
        self._lock = threading.Lock()
        self.loading = False

    def names(self) -> list[str]:
        """The models that lie in the folder, loaded or not.

        Raises:
            NotReadyError: the folder cannot be read.
        """
        return self._folders.names()

    def published_names(self) -> list[str]:
        """The models that owners published, loaded or not."""
        return self._folders.published_names()

    def find(
        self,
        name: str,
        without: Collection[int] = (),
        override: ModelOverride | None = None,
        private: Path | None = None,
    ) -> list[ModelReference]:
        """The versions of a model that its `model.toml` says to serve, as they lie in its folder now.

        A version whose files are not to be used is noted in the index, and left out.

        Args:
            name: of the model; a published one's as every owner may say it.
            without: versions that count as absent.
            override: what goes before its `model.toml`.
            private: a folder of files to use in place of the model's own.

        Raises:
            UnknownModelError: there is no such model.
            BadRequestError: its `model.toml` has a mistake, or no version can be used.
        """
        owner, versions = self._folders.versions(name, private)
        if owner and override is not None:
            raise BadRequestError(
                f"parameters: expected none for a published model, got some for {name!r}: publish its files again"
            )
        versions = {number: path for number, path in versions.items() if number not in without}
        if not versions:
            raise unknown_model(name)
        config = self._config(name, owner, versions, override, private)
        references, refusals = [], []
        for version in versions_to_serve(config, versions, name):
            try:
                if owner:
                    references.append(self._published(name, owner, version))
                else:
                    references.append(self._folders.reference(name, version, versions[version], config))
            except (MXNetError, OSError) as error:
                refusals.append(str(error))
                self.fail(ModelReference(name, version, "", "", {}), str(error))
        if not references:
            raise BadRequestError(refusals[0])
        return references

    def versions(self, name: str) -> list[int]:
        """The numbers of the versions that lie in a model's folder; UnknownModelError where there is no such model."""
        return sorted(self._folders.versions(name)[1])

    def check_free(self, owner: str, name: str) -> None:
        """Raise ConflictError where a model of the server's folder has the name that an owner wants to publish."""
        names = self.names()
        taken = [full for full in (name, public_name(owner, name)) if full in names and self._may(full, owner)]
        if taken:
            raise ConflictError(
                f"model {name!r}: expected a name that none of the server's own models has, got one of theirs: choose "
                "another"
            )

    def _config(
        self,
        name: str,
        owner: str,
        versions: dict[int, Path],
        override: ModelOverride | None,
        private: Path | None,
    ) -> ModelConfig:
        """What says which versions to serve: the model's file, or that of a published one's newest version."""
        if owner:
            with self._lock:  # nobody else is to see it before it is loaded
                self._publications.setdefault(name, Publication(owner, name.rpartition(".")[2]))
            newest = max(versions)
            try:
                return self._folders.published_config(name, owner, newest)
            except MXNetError as error:
                self.fail(ModelReference(name, newest, "", "", {}), str(error))
                raise
        config = self._folders.config(name, private)
        if override is not None:
            config = override.merged(config)
        with self._lock:
            self._configs[name] = config
            self._publications.pop(name, None)
        return config

    def _published(self, name: str, owner: str, version: int) -> ModelReference:
        """The reference of a published version."""
        reference, publication = self._folders.published_reference(name, owner, version)
        with self._lock:
            self._coming[reference.key] = publication
        return reference

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
            publication = self._coming.pop(reference.key, None)
            if publication is not None:
                self._publications[reference.name] = publication

    def fail(self, reference: ModelReference, reason: str) -> None:
        """Note why a version could not be loaded; one that serves goes on serving as it was."""
        with self._lock:
            version = self._version(reference)
            version.reason = reason
            if version.serving is None:
                version.state = "UNAVAILABLE"
            self._coming.pop(reference.key, None)

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
                raise unknown_model(name)
            for number, version in versions.items():
                if number not in (keep or ()) and (version.serving is not None or keep is None):
                    version.state, version.reason, version.serving = "UNAVAILABLE", "unloaded", None

    def forget_all_but(self, name: str, versions: Collection[int]) -> None:
        """Leave the versions of a model out of the index whose files are gone; the whole model where none is left."""
        with self._lock:
            known = self._models.get(name, {})
            for version in [version for version in known if version not in versions]:
                del known[version]
            if not known:
                self._models.pop(name, None)
                self._publications.pop(name, None)

    def _version(self, reference: ModelReference) -> _ServedVersion:
        return self._models.setdefault(reference.name, {}).setdefault(reference.version, _ServedVersion())

    # -- what is served -------------------------------------------------------------------------------------------

    def index(self, owner: str | None) -> list[VersionRow]:
        """The versions that an owner may call (None: all), and the models of the folder that have never been loaded.

        Who may call one of these is what its `model.toml` says now. One with a mistake is shown to everyone, as nobody
        knows whom it would exclude; it cannot be called.
        """
        with self._lock:
            rows = [
                VersionRow(
                    name if owner is None else self._name_for(name, owner),
                    number,
                    version.state,
                    version.reason,
                    *self._access(name),
                )
                for name, versions in self._models.items()
                for number, version in versions.items()
                if owner is None or self._may(name, owner)
            ]
            known = set(self._models)
        for name in self.names():
            if name not in known:
                callers = self._stated_callers(name)
                if callers is None or owner is None or owner in callers:
                    state: ModelState = "LOADING" if self.loading else "UNAVAILABLE"
                    rows.append(VersionRow(name, 1, state, "" if self.loading else "not loaded", None, callers))
        return sorted(rows, key=lambda row: (row.name, row.version))

    def _stated_callers(self, name: str) -> tuple[str, ...] | None:
        """Who may call a model of the folder, by its file; None: everyone, or the file has a mistake."""
        try:
            owners = self._folders.config(name).owners
        except MXNetError:
            return None
        return None if owners is None else tuple(owners)

    def resolve(self, name: str, version: str, owner: str) -> ModelReference:
        """What a call for a model is for: the version that it names, or the newest that is ready.

        Raises:
            UnknownModelError: there is no such model or version for this owner.
            ModelNotReadyError: it is not ready.
            NotReadyError: it is being loaded, or may be among those that are.
        """
        with self._lock:
            versions = self._models.get(self._full_name(name, owner))
            if versions is None and self.loading:
                raise NotReadyError(f"model {name[:80]!r}: the server is loading its models: try again in a moment")
            if versions is None:
                raise unknown_model(name)
            if version and (not version.isdecimal() or int(version) not in versions):
                raise unknown_model(name, version, sorted(versions))
            candidates = [int(version)] if version else sorted(versions, reverse=True)
            for number in candidates:
                serving = versions[number].serving
                if serving is not None:
                    return serving
            if any(versions[number].state == "LOADING" for number in candidates):
                raise NotReadyError(f"model {name!r}: it is being loaded: try again in a moment")
            reason = versions[candidates[0]].reason if candidates else ""
        raise ModelNotReadyError(f"model {name!r}: not ready{': ' + reason if reason else ''}")

    def metadata(self, reference: ModelReference) -> dict[str, Any]:
        """A served version's metadata, with the numbers of all that are ready."""
        with self._lock:
            versions = self._models.get(reference.name, {})
            if reference.version not in versions:
                raise unknown_model(reference.name)
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

    def name_for(self, name: str, owner: str) -> str:
        """The name by which an owner calls a model: the short one for its own, where no other model has it."""
        with self._lock:
            return self._name_for(name, owner)

    def _name_for(self, name: str, owner: str) -> str:
        publication = self._publications.get(name)
        if publication is None or publication.owner != owner or self._full_name(publication.name, owner) != name:
            return name
        return publication.name

    def full_name(self, name: str, owner: str) -> str:
        """The name of the model that an owner means; "" where the owner may call none of this name."""
        with self._lock:
            return self._full_name(name, owner)

    def _full_name(self, name: str, owner: str) -> str:
        own = public_name(owner, name)
        return next((full for full in (name, own) if full in self._models and self._may(full, owner)), "")

    def _access(self, name: str) -> tuple[str | None, tuple[str, ...] | None]:
        """Who published a model, and who may call it beside."""
        publication, config = self._publications.get(name), self._configs.get(name)
        if publication is not None:
            return publication.owner, publication.callers
        return None, None if config is None or config.owners is None else tuple(config.owners)

    def owner_of(self, name: str) -> str | None:
        """Who published a model; None for one that nobody did."""
        with self._lock:
            return self._access(name)[0]

    def _may(self, name: str, owner: str) -> bool:
        """Return whether an owner may call a model."""
        publication = self._publications.get(name)
        if publication is not None:
            return publication.may_call(owner)
        config = self._configs.get(name)
        return config is None or config.owners is None or owner in config.owners
