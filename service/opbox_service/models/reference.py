"""ModelReference: how the API process tells a worker which model a call is for."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

__all__ = ["ModelKey", "ModelReference"]

ModelKey: TypeAlias = "tuple[str, int, str, str]"
"""Name, version, folder and stamp: what tells one reference from others."""


class ModelReference(NamedTuple):
    """A version of a model as it was found in its folder.

    Attributes:
        name, version: of the model.
        folder: with its files.
        stamp: of the files (`ModelFiles.stamp`), a dash, and of the config: a worker that finds other files does not
            serve them under this reference.
        config: the fields of its ModelConfig that were set.
    """

    name: str
    version: int
    folder: str
    stamp: str
    config: dict[str, Any]

    @property
    def files_stamp(self) -> str:
        """The part of the stamp that is of the files."""
        return self.stamp.partition("-")[0]

    @property
    def key(self) -> ModelKey:
        """What tells it from other references."""
        return self.name, self.version, self.folder, self.stamp
