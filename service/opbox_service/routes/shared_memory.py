"""Routes of shared memory, by which clients on the server's machine hand over tensors without a socket."""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic import BaseModel, Field, RootModel

from opbox_protocol.errors import BadRequestError, UnsupportedError

from ..carriers import Answer, Call, Done
from ..models.shared_memory import REGION_NAME
from .health import Place
from .models import Body

__all__ = ["CudaRegionRequest", "RegionList", "RegionRequest", "cuda_region", "cuda_regions", "drop_cuda_region"]
__all__ += ["drop_region", "drop_regions", "register", "register_cuda", "region", "regions"]

MAX_OFFSET = 1 << 62
NO_CUDA = (
    "CUDA shared memory: expected system shared memory, or tensors as bytes, got a region of a GPU, which is not served"
)


class RegionRequest(Body):
    """A piece of a segment of POSIX shared memory."""

    key: str = Field(max_length=256, description="The segment's name, as POSIX has it.")
    offset: int = Field(default=0, ge=0, lt=MAX_OFFSET, description="The first byte of the piece.")
    byte_size: int = Field(ge=1, lt=MAX_OFFSET)


class CudaRegionRequest(Body):
    """Memory of a GPU; refused."""

    raw_handle: dict[str, str]
    device_id: int
    byte_size: int


class RegisteredRegion(BaseModel):
    """A registered piece of a segment."""

    name: str
    key: str
    offset: int
    byte_size: int


class RegionList(RootModel[list[RegisteredRegion]]):
    """The regions of the caller."""


def _name(call: Call) -> str:
    name = call.parameters["region"]
    if not re.fullmatch(REGION_NAME, name):
        raise BadRequestError(f"shared memory region: expected a name of 1 to 256 characters, got {name[:80]!r}")
    return name


def _listed(rows: list[dict[str, Any]]) -> Answer:
    return Answer({}, text=json.dumps(rows).encode())


def regions(place: Place, call: Call, done: Done) -> None:
    """List your regions."""
    done(_listed(place.served_models.shared_memory.status(call.owner)))


def region(place: Place, call: Call, done: Done) -> None:
    """Describe one of your regions, in a list."""
    done(_listed(place.served_models.shared_memory.status(call.owner, _name(call))))


def register(place: Place, call: Call, done: Done) -> None:
    """Register a piece of shared memory of this machine under a name, for inputs and outputs of models."""
    body = call.body
    place.served_models.shared_memory.register(call.owner, _name(call), body.key, body.offset, body.byte_size)
    done(Answer({}))


def drop_region(place: Place, call: Call, done: Done) -> None:
    """Forget one of your regions, if there is one of that name."""
    place.served_models.shared_memory.unregister(call.owner, _name(call))
    done(Answer({}))


def drop_regions(place: Place, call: Call, done: Done) -> None:
    """Forget all of your regions."""
    place.served_models.shared_memory.unregister(call.owner)
    done(Answer({}))


def cuda_regions(place: Place, call: Call, done: Done) -> None:
    """List your regions of GPUs' memory: there are none."""
    done(_listed([]))


def cuda_region(place: Place, call: Call, done: Done) -> None:
    """Refuse to describe a region of a GPU's memory: there is none."""
    raise UnsupportedError(NO_CUDA)


def register_cuda(place: Place, call: Call, done: Done) -> None:
    """Refuse a region of a GPU's memory."""
    raise UnsupportedError(NO_CUDA)


def drop_cuda_region(place: Place, call: Call, done: Done) -> None:
    """Forget regions of GPUs' memory: there are none."""
    done(Answer({}))
