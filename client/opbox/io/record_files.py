"""RecordFiles: the records of one or several record files, at their places, read by any number of threads."""

from __future__ import annotations

import mmap
from pathlib import Path

from opbox_protocol.errors import MXNetError

from ..file_errors import file_errors, path_of
from ..recordio import FIRST, HEAD, LAST, LENGTH_BITS, MAGIC, MAX_RECORD_BYTES, MIDDLE, WHOLE
from .arguments import PARTS

__all__ = ["RecordFiles"]


class RecordFiles:
    """The records of files, in their order.

    Args:
        paths: a file, a folder of files, or several with ";" between.
        index: the index of a single file; without it the file is looked through once.
        part, parts: read only this part. With an index parts have equally many records, without one equally many bytes.

    Raises:
        MXNetError: a file is missing, or no record file; or there is no such part.
    """

    def __init__(self, paths: str, index: str, part: int, parts: int) -> None:
        self._maps = [(path, _mapped(path)) for path in _files(paths)]
        if not 0 <= part < parts:
            raise MXNetError(PARTS.format(last=parts - 1, got=part))
        if index:
            places = sorted((0, place) for place in _indexed(index))
            step = -(-len(places) // parts)
            self.places = places[step * part : step * (part + 1)]
        else:
            total = sum(len(data) for _, data in self._maps)
            step = -(-total // parts)
            step += -step % 4
            begin = 0
            self.places = []
            for number, (path, data) in enumerate(self._maps):
                self.places += [
                    (number, place) for place in _places(path, data) if step * part <= begin + place < step * (part + 1)
                ]
                begin += len(data)

    def __len__(self) -> int:
        return len(self.places)

    def name(self, number: int) -> str:
        """Return a record's file and byte offset, for errors."""
        file, place = self.places[number]
        return f"{self._maps[file][0]}: the record at byte {place}"

    def read(self, number: int) -> bytes:
        """The record of a number.

        Raises:
            MXNetError: there is no whole record at its place.
        """
        file, place = self.places[number]
        path, data = self._maps[file]
        pieces: list[bytes] = []
        while True:
            kind, length = _head(path, data, place)
            if kind not in ((MIDDLE, LAST) if pieces else (WHOLE, FIRST)):
                raise MXNetError(f"{path}: expected another kind of piece at byte {place}, got {kind}")
            pieces.append(data[place + HEAD.size : place + HEAD.size + length])
            if len(pieces[-1]) < length:
                raise MXNetError(f"{path}: expected {length} bytes at byte {place}, got {len(pieces[-1])}")
            if kind in (WHOLE, LAST):
                return MAGIC.join(pieces)
            place += HEAD.size + length + -length % 4


def _files(paths: str) -> list[Path]:
    """The files that a text names."""
    files: list[Path] = []
    for one in paths.split(";"):
        path = path_of(one, "path_imgrec")
        files += sorted(item for item in path.iterdir() if item.is_file()) if path.is_dir() else [path]
    return files


def _mapped(path: Path) -> mmap.mmap | bytes:
    """A file's bytes, which the system reads as they are used."""
    with file_errors(path, "read"), path.open("rb") as file:
        if not path.stat().st_size:
            raise MXNetError(f"{path}: expected records, got an empty file")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _head(path: Path, data: mmap.mmap | bytes, place: int) -> tuple[int, int]:
    """The kind and the length of a piece."""
    head = data[place : place + HEAD.size]
    if len(head) < HEAD.size or not head.startswith(MAGIC):
        raise MXNetError(
            f"{path}: expected the start of a record at byte {place}, got {head.hex() or 'the end'}: "
            "tools/im2rec.py and mx.recordio write such files"
        )
    word = HEAD.unpack(head)[1]
    return word >> LENGTH_BITS, word & MAX_RECORD_BYTES


def _places(path: Path, data: mmap.mmap | bytes) -> list[int]:
    """Return the offsets of a file's records."""
    places, place, size = [], 0, len(data)
    while place < size:
        kind, length = _head(path, data, place)
        if kind in (WHOLE, FIRST):
            places.append(place)
        place += HEAD.size + length + -length % 4
    return places


def _indexed(index: str) -> list[int]:
    """The places in an index file."""
    path = path_of(index, "path_imgidx")
    with file_errors(path, "read"):
        lines = path.read_text(encoding="utf-8").splitlines()
    try:
        return [int(line.split("\t")[1]) for line in lines if line.strip()]
    except (IndexError, ValueError):
        raise MXNetError(f"{path}: expected lines of a key, a tab and a place, got another file") from None
