"""libnccl as a library of C functions: ranks of one process and of several add up arrays, through files.

It is strict about what a caller may forget: sums are on the stream only when ncclCommGetAsyncError has said that they
are, a communicator at work takes no more, and an array of another device is refused. As NCCL does, it waits for a rank
that has ended until it is aborted; `faults` says what goes wrong.

Its files lie below PRETEND_NCCL_FOLDER, or among the temporary ones.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ..device import device_of, enter, next_id, note, queue, state
from .cublas_library import callback_library, status_of
from .memory import array_at

__all__ = ["faults", "library_file", "live"]

_OK, _INVALID_ARGUMENT, _INVALID_USAGE, _IN_PROGRESS = 0, 4, 5, 7
_MAGIC, _FIRST_WITH_CONFIG = 0xCAFEBEEF, 21400
_TYPES: list[Any] = [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64, np.float16, np.float32, np.float64]
_TYPES.append(ml_dtypes.bfloat16)
_LOOK_S = 0.001
_SIGNATURES = {
    "ncclGetVersion": "p",
    "ncclGetUniqueId": "p",
    "ncclCommInitRankConfig": "piuip",
    "ncclCommGetAsyncError": "pp",
    "ncclCommAbort": "p",
    "ncclGroupStart": "",
    "ncclGroupEnd": "",
    "ncclAllReduce": "ppqiipp",
}


@dataclass
class Faults:
    """What goes wrong.

    Attributes:
        version: of the library.
        unborn: ranks whose ncclCommInitRankConfig the others never hear of.
        mute: ranks whose arrays never reach the others.
        delays: by rank, an event before which it does not read the others' arrays.
        statuses: by rank, what ncclCommGetAsyncError says of a sum that has begun.
        refused: by function, what it answers.
    """

    version: int = int(os.environ.get("PRETEND_NCCL_VERSION", "22703"))
    unborn: set[int] = field(default_factory=set)
    mute: set[int] = field(default_factory=lambda: set(map(int, os.environ.get("PRETEND_NCCL_MUTE", "").split())))
    delays: dict[int, threading.Event] = field(default_factory=dict)
    statuses: dict[int, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)

    def reset(self) -> None:
        """Let all go well."""
        self.version = Faults().version
        for faults in (self.unborn, self.mute, self.delays, self.statuses, self.refused):
            faults.clear()


faults = Faults()


@dataclass
class _Sum:
    source: int
    target: int
    count: int
    kind: Any
    stream: int


@dataclass
class PretendCommunicator:
    """A rank: where its files are, and what it is doing."""

    folder: Path
    rank: int
    size: int
    device: int
    begun: bool = False
    waiting: list[_Sum] = field(default_factory=list)
    queued: bool = False
    rounds: int = 0
    done: int = 0
    failed: int = 0
    aborted: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)

    def write(self, name: str, text: bytes) -> None:
        """Let the other ranks read this rank's part of something."""
        partial = self.folder / f"partial-{name}-{self.rank}"
        partial.write_bytes(text)
        partial.rename(self.folder / f"{name}-{self.rank}")

    def read(self, name: str) -> list[bytes] | None:
        """All ranks' parts; None while one is missing."""
        files = [self.folder / f"{name}-{rank}" for rank in range(self.size)]
        return [file.read_bytes() for file in files] if all(file.exists() for file in files) else None

    def look(self) -> int:
        """How far it is: what ncclCommGetAsyncError says."""
        if self.failed:
            return self.failed
        if not self.begun:
            places = self.read("begun")
            self.begun = places is not None
            if places is None:
                return _IN_PROGRESS
            if len(set(places)) < self.size:
                self.failed = _INVALID_USAGE  # one GPU twice
            return self.failed
        if self.waiting and not self.queued:  # the first look comes too early
            self.queued = True
            return _IN_PROGRESS
        if self.waiting:
            sums, self.waiting, self.queued = self.waiting, [], False
            self._launch(sums)
            self.failed = faults.statuses.get(self.rank, 0)
        return self.failed

    def _launch(self, sums: list[_Sum]) -> None:
        self.rounds += 1
        name = f"sum-{self.rounds}"

        def run() -> None:
            """What the stream does when it comes to it: what is behind waits for the other ranks."""
            own = [array_at(one.source, one.kind, one.count).tobytes() for one in sums]
            if self.rank not in faults.mute:
                self.write(name, b"".join(own))
            state.closed[sums[0].stream] = gate = threading.Event()
            thread = threading.Thread(target=self._finish, args=(name, sums, gate), daemon=True)
            self.threads.append(thread)
            thread.start()

        note("ncclAllReduce", sums[0].stream)
        queue(sums[0].stream, run)

    def _finish(self, name: str, sums: list[_Sum], gate: threading.Event) -> None:
        while not self.aborted.is_set():
            delay = faults.delays.get(self.rank)
            parts = self.read(name) if delay is None or delay.is_set() else None
            if parts is not None:
                self._write_sums(parts, sums)
                self.done += 1
                break
            time.sleep(_LOOK_S)
        gate.set()

    def _write_sums(self, parts: list[bytes], sums: list[_Sum]) -> None:
        place = 0
        for one in sums:
            end = place + one.count * np.dtype(one.kind).itemsize
            arrays = [np.frombuffer(part[place:end], one.kind) for part in parts]
            total = arrays[-1].copy()
            for array in arrays[-2::-1]:  # in another order than through the machine's memory
                total += array
            array_at(one.target, one.kind, one.count)[...] = total
            place = end

    def abort(self) -> None:
        """End all that it is doing."""
        self.aborted.set()
        for thread in self.threads:
            thread.join()
        if self.rank == 0:
            shutil.rmtree(self.folder, ignore_errors=True)


live: dict[int, PretendCommunicator] = {}
"""Communicators that have not ended, by their handles."""


class _Group(threading.local):
    depth = 0
    sums: list[tuple[PretendCommunicator, _Sum]]


_group = _Group()


def _version(place: int) -> int:
    array_at(place, np.int32, 1)[0] = faults.version
    return _OK


def _unique_id(place: int) -> int:
    if "ncclGetUniqueId" in faults.refused:
        return faults.refused["ncclGetUniqueId"]
    folder = tempfile.mkdtemp(prefix="pretend-nccl-", dir=os.environ.get("PRETEND_NCCL_FOLDER"))
    array_at(place, np.uint8, 128)[...] = np.frombuffer(folder.encode().ljust(128, b"\0"), np.uint8)
    return _OK


def _init(place: int, size: int, id: int, rank: int, config: int) -> int:
    enter("ncclCommInitRankConfig")
    if "ncclCommInitRankConfig" in faults.refused:
        return faults.refused["ncclCommInitRankConfig"]
    nbytes = int(array_at(config, np.uint64, 1)[0])
    magic, version = (int(number) for number in array_at(config + 8, np.uint32, 2))
    blocking = int(array_at(config + 16, np.int32, 1)[0])
    if nbytes != 24 or magic != _MAGIC or not _FIRST_WITH_CONFIG <= version <= faults.version or blocking:
        return _INVALID_ARGUMENT
    folder = Path(array_at(id, np.uint8, 128).tobytes().rstrip(b"\0").decode())
    begun = PretendCommunicator(folder, rank, size, state.current)
    if rank not in faults.unborn:
        begun.write("begun", str(state.current).encode())
    handle = next_id()
    live[handle] = begun
    array_at(place, np.uintp, 1)[0] = handle
    return _IN_PROGRESS


def _async_error(handle: int, place: int) -> int:
    if handle not in live:
        return _INVALID_ARGUMENT
    array_at(place, np.int32, 1)[0] = live[handle].look()
    return _OK


def _abort(handle: int) -> int:
    if handle not in live:
        return _INVALID_ARGUMENT
    live.pop(handle).abort()
    return _OK


def _group_start() -> int:
    _group.depth, _group.sums = 1, []
    return _OK


def _group_end() -> int:
    if not _group.depth:
        return _INVALID_USAGE
    _group.depth = 0
    for own, one in _group.sums:
        own.waiting.append(one)
    return _IN_PROGRESS if _group.sums else _OK


def _all_reduce(source: int, target: int, count: int, kind: int, op: int, handle: int, stream: int) -> int:
    enter("ncclAllReduce")
    own = live.get(handle)
    if own is None or not 0 <= kind < len(_TYPES) or op != 0 or count <= 0:
        return _INVALID_ARGUMENT
    if "ncclAllReduce" in faults.refused:
        return faults.refused["ncclAllReduce"]
    last = count * np.dtype(_TYPES[kind]).itemsize - 1
    if any(device_of(place) != own.device for place in (source, target, source + last, target + last)):
        return _INVALID_ARGUMENT
    if not _group.depth or not own.begun or own.waiting or own.device != state.current:
        return _INVALID_USAGE
    _group.sums.append((own, _Sum(source, target, count, _TYPES[kind], stream)))
    return _OK


_FUNCTIONS = (_version, _unique_id, _init, _async_error, _abort, _group_start, _group_end, _all_reduce)


def library_file() -> str:
    """The file to load in the place of libnccl."""
    return callback_library(_SIGNATURES, [status_of(function) for function in _FUNCTIONS])
