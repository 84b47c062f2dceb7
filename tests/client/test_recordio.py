"""Record files: what is damaged, closed, pickled, shared with a child; tests/compat has MXNet's own bytes."""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import opbox as mx
from opbox.recordio import MAGIC

RECORD = st.lists(st.sampled_from([MAGIC, b"\0", b"ab", b"1234", MAGIC[:2]]), max_size=12).map(b"".join)


@given(records=st.lists(RECORD, max_size=6))
def test_records_come_back(tmp_path_factory: pytest.TempPathFactory, records: list[bytes]) -> None:
    path = tmp_path_factory.getbasetemp() / "any.rec"
    writer = mx.recordio.MXRecordIO(path, "w")
    for record in records:
        writer.write(record)
    writer.close()
    assert path.stat().st_size % 4 == 0
    reader = mx.recordio.MXRecordIO(path, "r")
    assert [reader.read() for _ in records] == records
    assert reader.read() is None


@pytest.fixture
def record_file(tmp_path: Path) -> Path:
    path = tmp_path / "some.rec"
    writer = mx.recordio.MXIndexedRecordIO(tmp_path / "some.idx", path, "w")
    for key in range(4):
        writer.write_idx(key, b"record %d" % key)
    writer.close()
    return path


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda raw: raw[:-6], r"expected 8 bytes of a record at byte 48, got 2"),
        (lambda raw: raw[:53], r"expected the start of a record at byte 48, got "),
        (lambda raw: b"PK" + raw[2:], r"expected the start of a record at byte 0, got 504b"),
        (lambda raw: MAGIC + struct.pack("<I", 3 << 29 | 8) + raw[8:], r"another kind of piece at byte 0, got 3"),
        (lambda raw: MAGIC + struct.pack("<I", 1 << 29 | 8) + raw[8:], r"another kind of piece at byte 16, got 0"),
    ],
)
def test_a_damaged_file_says_where(record_file: Path, damage: Callable[[bytes], bytes], words: str) -> None:
    record_file.write_bytes(damage(record_file.read_bytes()))
    reader = mx.recordio.MXRecordIO(record_file, "r")
    with pytest.raises(mx.MXNetError, match=words):
        [reader.read() for _ in range(4)]


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda path: mx.recordio.MXRecordIO(path, "a"), ValueError, "flag: expected 'r' or 'w', got 'a'"),
        (lambda path: mx.recordio.MXRecordIO(path, "r").write(b""), AssertionError, "opened with 'w', got 'r'"),
        (lambda path: mx.recordio.MXRecordIO(path, "w").read(), AssertionError, "opened with 'r', got 'w'"),
        (lambda path: closed(path).read(), ValueError, "the record file is closed"),
        (lambda path: indexed(path).read_idx(9), KeyError, "expected one of 4 keys, got 9"),
        (lambda path: mx.recordio.pack((0, "one", 0, 0), b""), ValueError, "pack: header: expected IRHeader"),
        (lambda path: mx.recordio.pack((0, 1.0), b""), ValueError, "pack: header: expected IRHeader"),
        (lambda path: mx.recordio.pack((0, 1.0, -1, 0), b""), ValueError, "pack: header: expected IRHeader"),
        (lambda path: mx.recordio.unpack(b"short"), ValueError, "at least 24 bytes, got 5"),
        (lambda path: mx.recordio.unpack(struct.pack("<IfQQ", 3, 0, 0, 0)), ValueError, "3 numbers, got 0 bytes"),
    ],
)
def test_bad_use_is_one_sentence(
    record_file: Path, call: Callable[[Path], Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        call(record_file)


def test_a_damaged_index_says_which_line(record_file: Path) -> None:
    record_file.with_suffix(".idx").write_text("0\t0\n1;16\n")
    with pytest.raises(ValueError, match=r"some\.idx, line 2: expected a key, a tab and a place, got '1;16'"):
        indexed(record_file)


def closed(path: Path) -> mx.recordio.MXRecordIO:
    reader = mx.recordio.MXRecordIO(path, "r")
    reader.close()
    reader.close()
    return reader


def indexed(path: Path) -> mx.recordio.MXIndexedRecordIO:
    return mx.recordio.MXIndexedRecordIO(path.with_suffix(".idx"), path, "r")


def test_a_pickled_reader_opens_its_files_again(record_file: Path) -> None:
    reader = indexed(record_file)
    reader.read_idx(2)
    again = pickle.loads(pickle.dumps(reader))
    assert again.keys == [0, 1, 2, 3]
    assert again.read() == b"record 0"
    assert reader.read() == b"record 3"


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_reads_at_a_place_of_its_own(record_file: Path) -> None:
    reader = indexed(record_file)
    reader.read()
    pid = os.fork()
    if not pid:
        os._exit(0 if reader.read_idx(3) == b"record 3" and reader.read_idx(0) == b"record 0" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert reader.read() == b"record 1"


def test_labels_of_many_numbers_are_float32() -> None:
    header, data = mx.recordio.unpack(mx.recordio.pack(mx.recordio.IRHeader(0, range(3), 1, 0), b"x"))
    assert (header.flag, header.label.dtype, data) == (3, np.float32, b"x")
