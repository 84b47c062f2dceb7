"""Record files, as `mx.recordio`: MXNet's format for many small pieces of data in one file, with or without an index.

A record is the bytes of MAGIC, a little-endian word of a kind (3 bits) and a length (29 bits), the data, and zeros up
to a multiple of four. Where the data has MAGIC at a multiple of four, it is cut there, and MAGIC left out: the kinds
are 0 for a whole record, 1, 2 and 3 for a first, middle and last piece. (dmlc-core, recordio.h)
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TextIO

import numpy as np

from opbox_protocol.errors import DamagedFileError, MXNetError
from opbox_protocol.excerpt import excerpt

from .absent import module_getattr
from .base import is_number, value_text
from .file_errors import file_errors, text_of
from .foreign import host_values
from .imaging import library

__all__ = ["IRHeader", "MXIndexedRecordIO", "MXRecordIO", "pack", "pack_img", "unpack", "unpack_img"]

MAGIC = struct.pack("<I", 0xCED7230A)
HEAD = struct.Struct("<4sI")
_LABEL = struct.Struct("<IfQQ")
LENGTH_BITS = 29
MAX_RECORD_BYTES = (1 << LENGTH_BITS) - 1
WHOLE, FIRST, MIDDLE, LAST = range(4)
"""Kinds of pieces of a record."""


class MXRecordIO:
    """A file of records, written or read one after the other.

    Args:
        uri: the file's path.
        flag: "w" to write it anew, "r" to read it.

    Attributes:
        is_open: whether the file is open.
        writable: whether it is open to write.

    Raises:
        ValueError: another flag.
        FileError: the file cannot be opened; an MXNetError and an OSError.

    Example:
        >>> writer = mx.recordio.MXRecordIO("digits.rec", "w")
        >>> writer.write(b"first")
        >>> writer.close()
        >>> mx.recordio.MXRecordIO("digits.rec", "r").read()
        b'first'
    """

    def __init__(self, uri: str | os.PathLike[str], flag: str) -> None:
        self.uri = os.fspath(uri)
        self.flag = flag
        self.is_open = False
        self.writable = flag == "w"
        self.pid: int | None = None
        self.open()

    def open(self) -> None:
        """Open the file."""
        if self.flag not in ("r", "w"):
            raise ValueError(f"MXRecordIO: flag: expected 'r' or 'w', got {self.flag!r}")
        with file_errors(self.uri, "written" if self.flag == "w" else "read"):
            self._file: BinaryIO = Path(self.uri).open("wb" if self.flag == "w" else "rb")  # noqa: SIM115  (see close)
        self.writable = self.flag == "w"
        self.pid = os.getpid()
        self.is_open = True

    def close(self) -> None:
        """Close the file."""
        if self.is_open:
            self._file.close()
            self.is_open = False
            self.pid = None

    def __del__(self) -> None:
        if getattr(self, "is_open", False):
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the open file, which the process that unpickles opens again at its start."""
        return {name: value for name, value in vars(self).items() if name not in ("_file", "fidx")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self.is_open:
            self.is_open = False
            self.open()

    def reset(self) -> None:
        """Begin at the first record again; a file that is written is emptied."""
        self.close()
        self.open()

    def _opened(self, to_write: bool) -> BinaryIO:
        """The open file of this process.

        Raises:
            ValueError: it is closed.
            AssertionError: it is open for the other thing.
            RuntimeError: another process has opened it to write.
        """
        if not self.is_open:
            raise ValueError(f"{self.uri}: the record file is closed: open() or reset() opens it")
        if to_write != self.writable:
            needed, opened = ("w", "r") if to_write else ("r", "w")
            raise AssertionError(f"{self.uri}: expected a record file opened with {needed!r}, got {opened!r}")
        if self.pid != os.getpid():
            if to_write:
                raise RuntimeError(f"{self.uri}: one process writes a record file: open one for each process")
            self.reset()  # a forked process shares the place in the file with its parent
        return self._file

    def write(self, buf: bytes) -> None:
        """Append a record.

        Raises:
            ValueError: it is longer than 512 MiB.
        """
        file = self._opened(to_write=True)
        buf = bytes(buf)
        if len(buf) > MAX_RECORD_BYTES:
            raise ValueError(f"{self.uri}: expected records of at most {MAX_RECORD_BYTES} bytes, got {len(buf)}")
        pieces = list(_pieces(buf))
        for number, piece in enumerate(pieces):
            first, last = number == 0, number == len(pieces) - 1
            kind = (WHOLE if last else FIRST) if first else (LAST if last else MIDDLE)
            file.write(HEAD.pack(MAGIC, kind << LENGTH_BITS | len(piece)))
            file.write(piece)
            file.write(bytes(-len(piece) % 4))

    def read(self) -> bytes | None:
        """The next record; None at the end.

        Raises:
            MXNetError: the file is damaged, or no record file.
        """
        file = self._opened(to_write=False)
        pieces: list[bytes] = []
        while True:
            start = file.tell()
            head = file.read(HEAD.size)
            if not head and not pieces:
                return None
            if len(head) < HEAD.size or not head.startswith(MAGIC):
                got = head.hex() or "the end"
                raise MXNetError(f"{self.uri}: expected the start of a record at byte {start}, got {got}")
            _, word = HEAD.unpack(head)
            kind, length = word >> LENGTH_BITS, word & MAX_RECORD_BYTES
            if kind not in ((MIDDLE, LAST) if pieces else (WHOLE, FIRST)):
                raise MXNetError(f"{self.uri}: expected another kind of piece at byte {start}, got {kind}")
            piece = file.read(length)
            if len(piece) < length:
                raise MXNetError(f"{self.uri}: expected {length} bytes of a record at byte {start}, got {len(piece)}")
            file.seek(-length % 4, os.SEEK_CUR)
            pieces.append(piece)
            if kind in (WHOLE, LAST):
                return MAGIC.join(pieces)


def _pieces(record: bytes) -> Iterator[bytes]:
    """A record cut where it has MAGIC at a multiple of four, without it."""
    begin = at = 0
    while (at := record.find(MAGIC, at)) >= 0:
        if at % 4:
            at += 1
            continue
        yield record[begin:at]
        begin = at = at + 4
    yield record[begin:]


class MXIndexedRecordIO(MXRecordIO):
    """A file of records with a file of their places, to read them in any order.

    Args:
        idx_path: the index: a line for each record, its key and its place.
        uri, flag: as of `MXRecordIO`.
        key_type: what the index's keys are read as.

    Attributes:
        idx: places by key.
        keys: the keys in the order of the index.

    Raises:
        DamagedFileError: the index is damaged; a ValueError as of MXNet.

    Example:
        >>> mx.recordio.MXIndexedRecordIO("digits.idx", "digits.rec", "r").read_idx(3)
    """

    fidx: TextIO

    def __init__(
        self,
        idx_path: str | os.PathLike[str],
        uri: str | os.PathLike[str],
        flag: str,
        key_type: Callable[[str], Any] = int,
    ) -> None:
        self.idx_path = os.fspath(idx_path)
        self.key_type = key_type
        self.idx: dict[Any, int] = {}
        self.keys: list[Any] = []
        super().__init__(uri, flag)

    def open(self) -> None:
        super().open()
        self.idx, self.keys = {}, []
        with file_errors(self.idx_path, "written" if self.writable else "read"):
            self.fidx = Path(self.idx_path).open("w" if self.writable else "r", encoding="utf-8")  # noqa: SIM115
        if not self.writable:
            text = text_of(Path(self.idx_path), "lines of a key, a tab and a place")
            for number, line in enumerate(text.splitlines(), 1):
                self._enter(line, number)

    def _enter(self, line: str, number: int) -> None:
        """Take over a line of the index."""
        try:
            key_text, place = line.strip().split("\t")
            key = self.key_type(key_text)
            self.idx[key] = int(place)
        except ValueError:
            raise DamagedFileError(
                f"{self.idx_path}, line {number}: expected a key, a tab and a place, got {excerpt(line.strip())}"
            ) from None
        self.keys.append(key)

    def close(self) -> None:
        """Close both files."""
        if self.is_open:
            super().close()
            self.fidx.close()

    def seek(self, idx: Any) -> None:
        """Read the record of a key next.

        Raises:
            KeyError: the index has no such key.
        """
        file = self._opened(to_write=False)
        if idx not in self.idx:
            raise KeyError(f"{self.idx_path}: expected one of {len(self.keys)} keys, got {idx!r}")
        place = self.idx[idx]
        if not 0 <= place < 1 << 63:
            raise DamagedFileError(f"{self.idx_path}: key {idx!r}: expected a place of 0 or more, got {place}")
        file.seek(place)

    def tell(self) -> int:
        """The place of the next record to be written."""
        return self._opened(to_write=True).tell()

    def read_idx(self, idx: Any) -> bytes | None:
        """The record of a key.

        Raises:
            KeyError: the index has no such key.
        """
        self.seek(idx)
        return self.read()

    def write_idx(self, idx: Any, buf: bytes) -> None:
        """Append a record under a key."""
        key, place = self.key_type(idx), self.tell()
        self.write(buf)
        self.fidx.write(f"{key}\t{place}\n")
        self.idx[key] = place
        self.keys.append(key)


class IRHeader(NamedTuple):
    """What stands before an image in its record.

    Attributes:
        flag: how many numbers the label has, or 0 for one.
        label: a number, or an array of float32.
        id: the image's number.
        id2: its upper half, mostly 0.
    """

    flag: int
    label: Any
    id: int
    id2: int


def pack(header: IRHeader | tuple[Any, ...], s: bytes) -> bytes:
    """A record of a label and data.

    Args:
        header: an `IRHeader`, or its four values; with several numbers as label, its flag becomes their count.
        s: the data.

    Raises:
        ValueError: the header has other values.
    """
    try:
        header = IRHeader(*header)
        if is_number(header.label):
            return _LABEL.pack(0, header.label, header.id, header.id2) + s
        label = np.asarray(header.label, dtype=np.float32)
        return _LABEL.pack(label.size, 0, header.id, header.id2) + label.tobytes() + s
    except (TypeError, ValueError, struct.error):
        raise ValueError(
            f"pack: header: expected IRHeader(flag, label, id, id2) of numbers, got {value_text(header)}"
        ) from None


def unpack(s: bytes) -> tuple[IRHeader, bytes]:
    """The label and the data of a record.

    Raises:
        ValueError: the record is too short for its label.
    """
    if len(s) < _LABEL.size:
        raise ValueError(f"unpack: expected a record of at least {_LABEL.size} bytes, got {len(s)}")
    header, data = IRHeader(*_LABEL.unpack_from(s)), s[_LABEL.size :]
    if header.flag > 0:
        if len(data) < 4 * header.flag:
            raise ValueError(f"unpack: expected a label of {header.flag} numbers, got {len(data)} bytes")
        label = np.frombuffer(data, np.float32, header.flag)
        return header._replace(label=label), data[4 * header.flag :]
    return header, data


def pack_img(header: IRHeader | tuple[Any, ...], img: Any, quality: int = 95, img_fmt: str = ".jpg") -> bytes:
    """A record of a label and an image, which becomes a JPEG or a PNG.

    Args:
        header: as of `pack`.
        img: an array (height, width, 3) in OpenCV's order, blue first; or (height, width) of greys.
        quality: of a JPEG 1 to 100; of a PNG the compression, 0 to 9.
        img_fmt: ".jpg" or ".png".

    Raises:
        ValueError: an array that is no image, or another format.
        ImportError: neither OpenCV nor Pillow is installed.
    """
    pixels = np.asarray(host_values(img))
    if pixels.ndim not in (2, 3) or not pixels.size or pixels.dtype != np.uint8:
        raise ValueError(f"pack_img: img: expected uint8 of (height, width, channels), got {value_text(img)}")
    encoded = library().encode(_reversed(pixels), img_fmt, int(quality))
    if encoded is None:
        raise ValueError(f"pack_img: img_fmt: expected '.jpg' or '.png', got {img_fmt!r} for {value_text(img)}")
    return pack(header, encoded)


def unpack_img(s: bytes, iscolor: int = -1) -> tuple[IRHeader, Any]:
    """The label and the image of a record.

    Args:
        s: the record.
        iscolor: 1 for colours, 0 for greys, -1 for what the file has.

    Returns:
        The header, and an array (height, width, 3) in OpenCV's order, blue first, or (height, width) of greys; None
        where the record holds no image.

    Raises:
        ValueError: the record is too short for its label.
        ImportError: neither OpenCV nor Pillow is installed.
    """
    header, data = unpack(s)
    image = library().decode(data, {0: 1, 1: 3}.get(iscolor))
    if image is not None:
        image = _reversed(image[:, :, 0] if image.shape[2] == 1 else image)
    return header, image


def _reversed(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """RGB for BGR, and the other way round."""
    if image.ndim == 2 or image.shape[2] < 3:
        return image
    return np.ascontiguousarray(image[:, :, [2, 1, 0, *range(3, image.shape[2])]])


__getattr__ = module_getattr(__name__, __all__)
