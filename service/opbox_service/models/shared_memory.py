"""SharedMemory: pieces of POSIX shared memory that clients on this machine registered, for tensors that need no socket.

Nothing is mapped: bytes are read and written through a descriptor, so that a segment that its owner has cut meanwhile
is an error of one request, and no signal for the server.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from opbox_protocol.errors import BadRequestError, QuotaError, UnsupportedError

__all__ = ["REGION_NAME", "SharedMemory", "SharedPlace"]

REGION_NAME = r"[^/\x00-\x1f]{1,256}"
_KEY = re.compile(r"/?(?!\.{1,2}$)(?!sem\.)([^/\x00]{1,255})")
"""The name of a segment; files whose names begin with sem. are POSIX semaphores."""


class _Segment:
    """An open segment, closed when nobody uses it any more.

    Attributes:
        key: as the client named it.
        begin, size: the registered bytes of it.
    """

    def __init__(self, descriptor: int, key: str, begin: int, size: int) -> None:
        self._descriptor = descriptor
        self.key, self.begin, self.size = key, begin, size

    def check(self, name: str) -> None:
        """Raise BadRequestError if the segment has become smaller than what was registered."""
        there = os.fstat(self._descriptor).st_size
        if there < self.begin + self.size:
            raise BadRequestError(
                f"shared memory region {name!r}: expected a segment of {self.begin + self.size} bytes or more, got "
                f"{there}: it has been cut since it was registered"
            )

    def read(self, at: int, view: memoryview) -> int:
        """Read bytes from a position on; their number, which is smaller at the segment's end."""
        return os.preadv(self._descriptor, [view], self.begin + at)

    def write(self, at: int, data: memoryview) -> int:
        """Write bytes from a position on; their number."""
        return os.pwrite(self._descriptor, data, self.begin + at)

    def __del__(self) -> None:
        os.close(self._descriptor)


class SharedPlace(NamedTuple):
    """Bytes of a region that a tensor lies in, or is to be written to.

    Attributes:
        name: of the region.
        segment: where they are.
        offset, size: in the region.
    """

    name: str
    segment: _Segment
    offset: int
    size: int

    def read_into(self, view: memoryview) -> None:
        """Copy the bytes to `view`, which has as many.

        Raises:
            BadRequestError: the segment has been cut.
        """
        self.segment.check(self.name)
        at = 0
        while at < self.size:
            count = self.segment.read(self.offset + at, view[at:])
            if not count:
                self.segment.check(self.name)
                break
            at += count

    def write(self, data: memoryview) -> None:
        """Copy bytes to the region, no more than the place has.

        Raises:
            BadRequestError: the segment has been cut.
        """
        self.segment.check(self.name)
        at = 0
        while at < len(data):
            at += self.segment.write(self.offset + at, data[at:])


class SharedMemory:
    """The registered regions of all owners; nobody sees another's. Safe to call from many threads.

    Args:
        user: whose segments may be registered: "own", those of the server's own user; a user's number; "off", none.
        most: how many regions an owner may have.
        folder: where the system has the segments.
    """

    def __init__(self, user: str = "off", most: int = 64, folder: Path = Path("/dev/shm")) -> None:
        self._user = None if user == "off" else os.getuid() if user == "own" else int(user)
        self._most = most
        self._folder = folder
        self._regions: dict[str, dict[str, _Segment]] = {}
        self._lock = threading.Lock()

    @property
    def is_on(self) -> bool:
        """Whether regions may be registered at all."""
        return self._user is not None

    def register(self, owner: str, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register a piece of a segment under a name.

        Args:
            owner: whose it is.
            name: for requests.
            key: the segment's name, as POSIX has it.
            offset, byte_size: the piece.

        Raises:
            UnsupportedError: the server takes none.
            BadRequestError: the name is taken, there is no such segment of the user, or it is too small.
            QuotaError: the owner has too many.
        """
        if self._user is None:
            raise UnsupportedError(
                "shared memory: expected a server that takes it, got one where it is off: start it with "
                "OPBOX_SHARED_MEMORY=own, or send tensors as bytes"
            )
        with self._lock:
            self._check_new(owner, name)
        segment = self._open(key, offset, byte_size)
        with self._lock:
            self._check_new(owner, name)
            self._regions.setdefault(owner, {})[name] = segment

    def _check_new(self, owner: str, name: str) -> None:
        regions = self._regions.get(owner, {})
        if name in regions:
            raise BadRequestError(f"shared memory region {name!r}: expected a new name, got one that is registered")
        if len(regions) >= self._most:
            raise QuotaError(
                f"shared memory regions: expected at most {self._most} of an owner, got one more: unregister others"
            )

    def _open(self, key: str, offset: int, byte_size: int) -> _Segment:
        match = _KEY.fullmatch(key)
        absent = BadRequestError(
            f"key: expected the name of a shared memory segment that belongs to user {self._user}, got {key[:80]!r}"
        )
        if match is None:
            raise absent
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        try:
            descriptor = os.open(self._folder / match[1], flags)
        except (OSError, ValueError):
            raise absent from None
        segment = _Segment(descriptor, key, offset, byte_size)  # which closes it, whatever comes
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != self._user:
            raise absent
        if offset + byte_size > status.st_size:
            raise BadRequestError(
                f"byte_size: expected at most the segment's {status.st_size} bytes, got {byte_size} from byte {offset} "
                "on"
            )
        return segment

    def unregister(self, owner: str, name: str | None = None) -> None:
        """Forget one of an owner's regions, or all; no error where there is none. Requests at work keep theirs."""
        with self._lock:
            if name is None:
                self._regions.pop(owner, None)
            else:
                self._regions.get(owner, {}).pop(name, None)

    def status(self, owner: str, name: str | None = None) -> list[dict[str, Any]]:
        """An owner's regions, or one of them, as the Open Inference Protocol's clients know them.

        Raises:
            BadRequestError: there is no region of that name.
        """
        with self._lock:
            regions = dict(self._regions.get(owner, {}))
        if name is not None:
            regions = {name: self._segment(owner, name)}
        return [
            {"name": name, "key": segment.key, "offset": segment.begin, "byte_size": segment.size}
            for name, segment in sorted(regions.items())
        ]

    def place(self, owner: str, subject: str, name: Any, offset: Any, byte_size: Any) -> SharedPlace:
        """The bytes that a request names.

        Args:
            owner: whose request it is.
            subject: the tensor, for errors.
            name, offset, byte_size: as they came.

        Raises:
            BadRequestError: there is no such region of the owner's, or it is smaller.
        """
        for field, value in (("shared_memory_byte_size", byte_size), ("shared_memory_offset", offset)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise BadRequestError(f"{subject}: {field}: expected a number of bytes, got {str(value)[:80]!r}")
        segment = self._segment(owner, str(name), f"{subject}: ")
        if offset + byte_size > segment.size:
            raise BadRequestError(
                f"{subject}: expected a place in the {segment.size} bytes of shared memory region {name!r}, got "
                f"{byte_size} bytes from byte {offset} on"
            )
        return SharedPlace(str(name), segment, offset, byte_size)

    def _segment(self, owner: str, name: str, subject: str = "") -> _Segment:
        with self._lock:
            regions = self._regions.get(owner, {})
            segment = regions.get(name)
        if segment is None:
            known: Sequence[str] = sorted(regions)[:20]
            raise BadRequestError(
                f"{subject}shared memory region: expected one that you registered ({', '.join(known) or 'none is'}), "
                f"got {name[:80]!r}"
            )
        return segment
