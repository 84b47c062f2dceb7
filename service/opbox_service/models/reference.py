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
        owner: who published it, and whose memory it takes; "" for a model of the server's folder.
        code: whether operators of its own came with it, so that it has a process of its own.
        memory_bytes: maximum device memory of that owner; 0: as the device has.
    """

    name: str
    version: int
    folder: str
    stamp: str
    config: dict[str, Any]
    owner: str = ""
    memory_bytes: int = 0
    code: bool = False

    @property
    def files_stamp(self) -> str:
        """The part of the stamp that is of the files."""
        return self.stamp.partition("-")[0]

    @property
    def key(self) -> ModelKey:
        """What tells it from other references."""
        return self.name, self.version, self.folder, self.stamp
