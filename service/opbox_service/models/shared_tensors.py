"""Tensors in shared memory: a request that names regions becomes one with bytes, and its answer goes to regions."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from opbox_protocol import wire
from opbox_protocol.datatypes import DATATYPES
from opbox_protocol.errors import BadRequestError

from .. import json_text
from ..carriers import RawResponse
from .shared_memory import SharedMemory, SharedPlace

__all__ = ["GatheredRequest", "gathered", "names_regions", "scattered"]

REGION, SIZE, OFFSET = "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"
_MENTIONED = re.compile(REGION.encode())


@dataclass(frozen=True, slots=True)
class GatheredRequest:
    """A request whose tensors all come as bytes.

    Attributes:
        head: its JSON.
        pieces: the bytes behind that: of the body, or in shared memory.
        outputs: where outputs are to be written.
    """

    head: bytes
    pieces: list[memoryview | SharedPlace]
    outputs: Mapping[str, SharedPlace]

    @property
    def size(self) -> int:
        """Bytes of the whole body."""
        return len(self.head) + sum(map(_length, self.pieces))

    def write_to(self, view: memoryview) -> None:
        """Write the body.

        Raises:
            BadRequestError: a segment has been cut.
        """
        at = len(self.head)
        view[:at] = self.head
        for piece in self.pieces:
            end = at + _length(piece)
            if isinstance(piece, SharedPlace):
                piece.read_into(view[at:end])
            else:
                view[at:end] = piece
            at = end


def _length(piece: memoryview | SharedPlace) -> int:
    return piece.size if isinstance(piece, SharedPlace) else len(piece)


def names_regions(text: memoryview | bytes) -> bool:
    """Whether a request's JSON may name regions; it is not parsed."""
    return _MENTIONED.search(text) is not None


def gathered(
    body: memoryview | bytes, header_length: int | None, limits: wire.Limits, memory: SharedMemory, owner: str
) -> GatheredRequest | None:
    """The request with bytes in place of shared memory; None for one that names none.

    Args:
        body: as it came.
        header_length: bytes of its JSON; None where all of it is.
        limits: of the JSON.
        memory: has the regions.
        owner: whose request it is.

    Raises:
        BadRequestError: a region is unknown or too small, or the JSON is malformed.
    """
    view = memoryview(body)
    length = len(view) if header_length is None else header_length
    if not names_regions(view[:length]):
        return None
    header = wire.decode_header(view[:length], limits, "body" if header_length is None else "header")
    payload = view[length:]
    pieces: list[memoryview | SharedPlace] = []
    at = 0
    for entry in _entries(header, "inputs"):
        parameters = entry["parameters"] if isinstance(entry.get("parameters"), dict) else {}
        size = parameters.get("binary_data_size")
        if REGION in parameters:
            place = _input_place(entry, parameters, memory, owner)
            entry["parameters"] = {"binary_data_size": place.size}
            pieces.append(place)
        elif type(size) is int and size >= 0:
            if size and _is_aligned(header):
                at += -(length + at) % wire.ALIGNMENT
            pieces.append(payload[at : at + size])
            at += size
    pieces.append(payload[at:])
    outputs = {}
    for entry in _entries(header, "outputs"):
        parameters = entry["parameters"] if isinstance(entry.get("parameters"), dict) else {}
        if REGION in parameters:
            outputs[str(entry.get("name"))] = _place(f"output {entry.get('name')!r}", parameters, memory, owner)
            rest = {key: value for key, value in parameters.items() if key not in (REGION, SIZE, OFFSET)}
            entry["parameters"] = {**rest, "binary_data": True}
    if _is_aligned(header):
        del header["parameters"]["tensor_alignment"]
    if not outputs and not any(isinstance(piece, SharedPlace) for piece in pieces):
        return None
    return GatheredRequest(json_text.write(header), pieces, outputs)


def _entries(header: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    entries = header.get(key)
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _is_aligned(header: Mapping[str, Any]) -> bool:
    parameters = header.get("parameters")
    return isinstance(parameters, dict) and "tensor_alignment" in parameters


def _place(subject: str, parameters: Mapping[str, Any], memory: SharedMemory, owner: str) -> SharedPlace:
    if SIZE not in parameters:
        raise BadRequestError(f"{subject}: expected {SIZE} beside {REGION}, got nothing")
    return memory.place(owner, subject, parameters[REGION], parameters.get(OFFSET, 0), parameters[SIZE])


def _input_place(
    entry: Mapping[str, Any], parameters: Mapping[str, Any], memory: SharedMemory, owner: str
) -> SharedPlace:
    subject = f"input {entry.get('name')!r}"
    if "data" in entry or "binary_data_size" in parameters:
        raise BadRequestError(f"{subject}: expected values in one place, got them beside {REGION} too")
    place = _place(subject, parameters, memory, owner)
    shape = entry.get("shape")
    dtype = DATATYPES.get(str(entry.get("datatype")))
    if dtype is not None and isinstance(shape, list) and all(type(length) is int for length in shape):
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes != place.size:
            raise BadRequestError(f"{subject}: {SIZE}: expected {nbytes} by its shape and datatype, got {place.size}")
    return place


def scattered(response: RawResponse, outputs: Mapping[str, SharedPlace]) -> RawResponse:
    """An answer without the outputs that have been written to shared memory.

    Raises:
        BadRequestError: an output is larger than its place, or a segment has been cut.
    """
    if response.status != 200 or response.header_length is None:
        return response
    body = memoryview(response.body)
    length = response.header_length
    header = json_text.parse(bytes(body[:length]))
    rest: list[bytes | memoryview] = []
    at = length
    for entry in header["outputs"]:
        size = entry.get("parameters", {}).get("binary_data_size")
        if size is None:
            continue
        values = body[at : at + size]
        at += size
        place = outputs.get(entry["name"])
        if place is None:
            rest.append(values)
            continue
        if size > place.size:
            raise BadRequestError(f"output {entry['name']!r}: {SIZE}: expected {size} or more, got {place.size}")
        place.write(values)
        entry["parameters"] = {REGION: place.name, SIZE: size, **({OFFSET: place.offset} if place.offset else {})}
    head = json_text.write(header)
    return replace(response, parts=[head, *rest], header_length=len(head) if rest else None)
