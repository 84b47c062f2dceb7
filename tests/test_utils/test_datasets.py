"""Data sets, matrices and comparisons of `mx.test_utils`."""

from __future__ import annotations

import bz2
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox import test_utils

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx(values: np.ndarray[Any, Any]) -> bytes:
    """An idx file of bytes."""
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.astype("u1").tobytes()


def test_mnist_comes_of_an_archive_beside_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(mx.MXNetError, match=r"the file of http://data.*mnist\.zip at .*opbox downloads nothing"):
        test_utils.get_mnist_iterator(2, (784,))
    (tmp_path / "data").mkdir()
    with zipfile.ZipFile(tmp_path / "data" / "mnist.zip", "w") as archive:
        for name in NAMES:
            shape = (4, 28, 28) if "images" in name else (4,)
            archive.writestr(name, idx(np.arange(np.prod(shape)).reshape(shape) % 10))
    train, test = test_utils.get_mnist_iterator(2, (784,))
    assert [batch.data[0].shape for batch in train] == [(2, 784)] * 2
    assert [batch.label[0].asnumpy().tolist() for batch in test] == [[0, 1], [2, 3]]
    assert next(test_utils.get_mnist_iterator(2, (1, 28, 28))[1]).data[0].shape == (2, 1, 28, 28)


def test_cifar10_and_the_pickled_mnist_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for function, name in ((test_utils.get_cifar10, "cifar10.zip"), (test_utils.get_mnist_pkl, "mnist.pkl.gz")):
        with pytest.raises(mx.MXNetError, match=rf"{name} at .*, but there is none"):
            function()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cifar10.zip").write_bytes(b"no archive")
    with pytest.raises(mx.MXNetError, match="expected a zip archive, got another file"):
        test_utils.get_cifar10()


def test_packed_files_are_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("inside.txt", "zipped")
    (tmp_path / "b.bz2").write_bytes(bz2.compress(b"packed"))
    test_utils.get_zip_data(str(tmp_path), "http://somewhere/a.zip", "a.zip")
    test_utils.get_bz2_data(str(tmp_path), "b.txt", "http://somewhere/b.bz2", "b.bz2")
    assert (tmp_path / "inside.txt").read_text() == "zipped"
    assert (tmp_path / "b.txt").read_bytes() == b"packed"
    assert not (tmp_path / "b.bz2").exists()
    (tmp_path / "c.bz2").write_bytes(b"no bz2")
    with pytest.raises(mx.MXNetError, match=r"c\.bz2: expected a file that can be read"):
        test_utils.get_bz2_data(str(tmp_path), "c.txt", "http://somewhere/c.bz2", "c.bz2")


def test_the_tool_of_mxnet_is_found_where_its_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MXNET_HOME", str(tmp_path))
    with pytest.raises(OSError, match=r"expected MXNet's folder with tools/im2rec\.py in MXNET_HOME, got"):
        test_utils.get_im2rec_path()
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "im2rec.py").touch()
    assert test_utils.get_im2rec_path() == str(tmp_path / "tools" / "im2rec.py")


def test_matrices_have_their_properties() -> None:
    np.random.seed(0)
    general = test_utils.new_matrix_with_real_eigvals_nd((2, 3, 3))
    assert general.shape == (2, 3, 3)
    assert not np.linalg.eigvals(general).imag.any()
    symmetric = test_utils.new_sym_matrix_with_real_eigvals_nd((2, 3, 3))
    np.testing.assert_allclose(symmetric, symmetric.swapaxes(1, 2), atol=1e-12)  # float64, a sum of 3 products
    q = test_utils.new_orthonormal_matrix_2d(4)
    np.testing.assert_allclose(q @ q.T, np.eye(4), atol=1e-12)
    with pytest.raises(ValueError, match=r"shape: expected that of square matrices, got \(2, 3\)"):
        test_utils.new_matrix_with_real_eigvals_nd((2, 3))


def test_identity_matrices() -> None:
    assert test_utils.get_identity_mat_batch(2).asnumpy().tolist() == [[[1, 0], [0, 1]]] * 2


def test_optimizers_are_compared() -> None:
    same = [mx.optimizer.SGD(learning_rate=0.1, momentum=0.9) for _ in range(2)]
    test_utils.compare_optimizer(*same, (3, 4), "float32")
    test_utils.compare_optimizer(*same, [(3, 4), (2,)], "float32", ntensors=2)
    with pytest.raises(AssertionError, match="a and b differ in 12 of 12 elements"):
        test_utils.compare_optimizer(same[0], mx.optimizer.SGD(learning_rate=0.2, momentum=0.9), (3, 4), "float32")
    with pytest.raises(ValueError, match="w_stype: expected 'default', as arrays are dense, got 'csr'"):
        test_utils.compare_optimizer(*same, (3, 4), "float32", w_stype="csr")


def test_what_is_said_of_arrays_that_differ() -> None:
    with pytest.raises(AssertionError, match=r"got a\.shape = \(2,\) and b\.shape = \(3,\)"):
        test_utils.checkShapes(np.ones(2), np.ones(3))
    test_utils.checkShapes(np.ones(2), np.zeros(2))
    said = test_utils.locationError(np.ones(2), np.zeros(2), (1,), ("x", "y"), maxError=True)
    assert said == "Location of maximum error: (1,), x=1.00000000, y=0.00000000"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("rand_sparse_ndarray", "opbox's arrays are dense"),
        ("check_gluon_hybridize_consistency", "networks are differentiated as symbols"),
        ("download_model", "MXNet's site of models is gone"),
    ],
)
def test_what_is_absent_says_why(name: str, why: str) -> None:
    with pytest.raises(AttributeError, match=why):
        getattr(test_utils, name)


def test_where_tests_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CD_JOB", "1")
    assert (test_utils.is_cd_run(), test_utils.is_op_runnable(), test_utils.has_tvm_ops()) == (True, True, False)
    assert isinstance(test_utils.is_aarch64_run(), bool)
