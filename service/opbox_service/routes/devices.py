"""The devices that calls may run on, and their memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from ..carriers import Answer, Call, Done
from .sessions import UNREACHED

if TYPE_CHECKING:
    from ..engine import Engine

__all__ = ["DeviceList", "DeviceState", "devices"]


class DeviceState(BaseModel):
    """A device as one worker has it."""

    device: str = Field(description="cpu, gpu:0, …")
    node: str | None = Field(default=None, description="Added by a cluster's gateway: the node that has it.")
    worker: int = Field(
        description="The process's id: each has a part of the memory for its sessions. 0: all processes of sessions "
        "with code together, which may take what the other sessions leave."
    )
    used_bytes: int = Field(description="Bytes of arrays and executors of the worker's sessions.")
    limit_bytes: int = Field(description="Maximum bytes of them.")
    memory_used_bytes: int = Field(description="Bytes used by all programs on the device, or on the machine for cpu.")
    memory_bytes: int = Field(description="Bytes of memory of the device.")
    kernels: str = Field(
        default="", description="Of a GPU: which of opbox's kernels its self-check lets calls use, and why not others."
    )


class DeviceList(BaseModel):
    """Devices, of every worker."""

    devices: list[DeviceState]
    unreached: list[str] | None = Field(default=None, description=UNREACHED)


def devices(engine: Engine, call: Call, done: Done) -> None:
    """The devices that are in use or may be named, and their memory: a row for each and each worker."""
    done(Answer({"devices": engine.devices()}))
