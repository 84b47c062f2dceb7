"""test_utils.download finds files of this machine, and says so where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

import opbox as mx

URL = "http://data.mxnet.io/data/digits.gz"


def test_a_file_that_lies_there_is_returned(tmp_path: Path) -> None:
    (tmp_path / "digits.gz").write_bytes(b"1")
    assert mx.test_utils.download(URL, dirname=str(tmp_path)) == str(tmp_path / "digits.gz")
    assert mx.test_utils.download(URL, fname=str(tmp_path / "digits.gz")) == str(tmp_path / "digits.gz")


def test_a_file_of_this_machine_is_copied(tmp_path: Path) -> None:
    source = tmp_path / "a b.txt"
    source.write_text("1")
    copy = mx.test_utils.download(source.as_uri(), fname="copy.txt", dirname=str(tmp_path / "new"))
    assert Path(copy).read_text() == "1"
    source.write_text("2")
    assert Path(mx.test_utils.download(str(source), fname=copy)).read_text() == "1"
    assert Path(mx.test_utils.download(str(source), fname=copy, overwrite=True)).read_text() == "2"
    assert mx.test_utils.download(copy, fname=copy, overwrite=True) == copy


def test_what_would_have_to_be_downloaded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        mx.MXNetError, match=r"download: expected the file of http.*digits\.gz at .*, but there is none"
    ):
        mx.test_utils.download(URL, dirname=str(tmp_path))
    (tmp_path / "digits.gz").write_bytes(b"1")
    with pytest.raises(mx.MXNetError, match="but overwrite=True asks for a new copy; opbox downloads nothing"):
        mx.test_utils.download(URL, dirname=str(tmp_path), overwrite=True)
    with pytest.raises(AssertionError, match="retries: expected 0 or more, got -1"):
        mx.test_utils.download(URL, retries=-1)


def test_one_batch_again_and_again() -> None:
    real = mx.io.NDArrayIter(mx.nd.ones((4, 2)), mx.nd.zeros((4,)), 2)
    same = mx.test_utils.DummyIter(real)
    assert same.next() is same.next() is next(same)
    assert same.batch_size == 2
    assert same.provide_data[0].shape == (2, 2)
