"""Iterators: MXNet's batches and orders, files, wrapping iterators."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest

import opbox as mx
from opbox.io.host_array import HostArray
from tests.training.recorded import VALUES


@pytest.mark.parametrize("row", VALUES["iterators"], ids=lambda row: f"{row['handle']}-{row['shuffle']}")
def test_batches_are_mxnets(row):
    data = np.arange(10).reshape(5, 2)
    one = mx.io.NDArrayIter({"b": data, "a": data + 100}, np.arange(5), 2, last_batch_handle=row["handle"])
    if row["shuffle"]:
        np.random.seed(3)
        one = mx.io.NDArrayIter(
            {"b": data, "a": data + 100}, np.arange(5), 2, shuffle=True, last_batch_handle=row["handle"]
        )
    assert [[d.name, list(d.shape)] for d in one.provide_data + one.provide_label] == row["shapes"]
    for expected in row["epochs"]:
        got = [[b.label[0].asnumpy().tolist(), b.data[0].asnumpy().tolist(), b.pad] for b in one]
        assert got == expected
        one.reset()


def test_types_and_names():
    one = mx.io.NDArrayIter([np.zeros((4, 2), np.int64), np.zeros((4, 3))], np.zeros(4, np.int8), 2)
    assert [(d.name, d.dtype) for d in one.provide_data] == [("_0_data", np.float32), ("_1_data", np.float32)]
    assert repr(one.provide_label[0]) == "DataDesc[softmax_label,(2,),<class 'numpy.float32'>,NCHW]"
    assert one.provide_data[0] == ("_0_data", (2, 2))
    assert mx.io.NDArrayIter(np.zeros((4, 2)), batch_size=2).provide_label == []
    assert str(next(one)) == "DataBatch: data shapes: [(2, 2), (2, 3)] label shapes: [(2,)]"


def test_host_data_is_not_copied():
    data = np.arange(8, dtype=np.float32).reshape(4, 2)
    batch = mx.io.NDArrayIter(data, batch_size=2).next()
    assert isinstance(batch.data[0], HostArray)
    assert np.shares_memory(batch.data[0].host(), data)
    copied = batch.data[0].asnumpy()
    copied[:] = 9
    assert data.max() == 7


def test_host_arrays_are_arrays():
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    array = HostArray(values)
    assert isinstance(array, mx.nd.NDArray)
    assert (array.shape, array.dtype, array.size, array.ndim, len(array)) == ((2, 3), np.float32, 6, 2, 2)
    assert array.context == mx.cpu()
    assert array.astype("int32").here
    assert array.here
    np.testing.assert_array_equal((array * 2 + 1).asnumpy(), values * 2 + 1)
    np.testing.assert_array_equal(mx.nd.sum(array, axis=0).asnumpy(), values.sum(axis=0))
    assert not array.here
    array[0] = 7
    assert array.asnumpy().tolist() == [[7, 7, 7], [3, 4, 5]]
    assert values.max() == 5
    assert array[1].asnumpy().tolist() == [3, 4, 5]
    assert "<HostArray 2x3 @cpu(0)>" in repr(array)
    assert float(HostArray(np.float32(3.0).reshape(1))) == 3.0


def test_the_batch_axis_of_a_layout():
    data = np.arange(24).reshape(3, 4, 2)
    one = mx.io.NDArrayIter(data, None, 3, layout="TNC")
    first, second = list(one)
    assert one.provide_data[0].shape == (3, 3, 2)
    np.testing.assert_array_equal(first.data[0].asnumpy(), data[:, :3])
    np.testing.assert_array_equal(second.data[0].asnumpy(), data[:, [3, 0, 1]])
    assert second.pad == 2
    assert mx.io.DataDesc.get_batch_axis("TNC") == 1
    assert mx.io.DataDesc.get_batch_axis(None) == 0


def test_hard_reset_forgets_what_rolled_over():
    one = mx.io.NDArrayIter(np.arange(5), batch_size=2, last_batch_handle="roll_over")
    list(one)
    one.hard_reset()
    assert next(one).data[0].asnumpy().tolist() == [0, 1]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: mx.io.NDArrayIter(None), AssertionError, "expected arrays"),
        (lambda: mx.io.NDArrayIter("text"), TypeError, "expected an NDArray"),
        (lambda: mx.io.NDArrayIter(np.zeros(4), np.zeros(3), 2), ValueError, "expected 4 samples"),
        (lambda: mx.io.NDArrayIter(np.zeros(4), last_batch_handle="keep"), ValueError, "pad, discard, roll_over"),
        (lambda: mx.io.DataBatch(np.zeros(3)), AssertionError, "expected a list of arrays"),
    ],
)
def test_what_makes_no_iterator(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_resize_starts_anew_when_the_data_end():
    inner = mx.io.NDArrayIter(np.arange(4), batch_size=2)
    one = mx.io.ResizeIter(inner, 3)
    assert [b.data[0].asnumpy()[0] for b in one] == [0, 2, 0]
    one.reset()
    assert len(list(one)) == 3
    assert one.provide_data == inner.provide_data


def test_prefetching_joins_and_renames():
    first = mx.io.NDArrayIter(np.arange(4), np.arange(4), 2)
    second = mx.io.NDArrayIter(np.arange(4) + 10, np.arange(4), 2)
    one = mx.io.PrefetchingIter(
        [first, second], rename_data=[{"data": "x"}, {"data": "y"}], rename_label=[{"softmax_label": "l"}] * 2
    )
    assert [d.name for d in one.provide_data] == ["x", "y"]
    for _ in range(2):
        batches = [[a.asnumpy().tolist() for a in b.data] for b in one]
        assert batches == [[[0, 1], [10, 11]], [[2, 3], [12, 13]]]
        with pytest.raises(StopIteration):
            one.next()
        one.reset()


def test_prefetching_passes_errors_on():
    class Broken(mx.io.NDArrayIter):
        def next(self):
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        mx.io.PrefetchingIter(Broken(np.arange(4), batch_size=2)).next()


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("".join(f"{i},{i + 1},{i + 2}\n" for i in range(1, 6)))
    return str(path)


def test_csv_rounds_into_the_next_epoch(csv):
    one = mx.io.CSVIter(data_csv=csv, data_shape=(3,), batch_size=3)
    epochs = []
    for _ in range(3):
        epochs.append([(b.data[0].asnumpy()[:, 0].tolist(), b.pad) for b in one])
        one.reset()
    assert epochs == [[([1, 2, 3], 0), ([4, 5, 1], 1)], [([2, 3, 4], 0), ([5, 1, 2], 2)], [([3, 4, 5], 0)]]
    assert [repr(d) for d in one.provide_data + one.provide_label] == [
        "DataDesc[data,(3, 3),<class 'numpy.float32'>,NCHW]",
        "DataDesc[softmax_label,(3,),<class 'numpy.float32'>,NCHW]",
    ]


def test_csv_without_rounding(csv):
    one = mx.io.CSVIter(
        data_csv=csv, data_shape=(3, 1), batch_size=3, round_batch=False, dtype="int32", label_csv=csv, label_shape=(3,)
    )
    for _ in range(2):
        batches = list(one)
        assert [b.data[0].asnumpy()[:, 0, 0].tolist() for b in batches] == [[1, 2, 3], [4, 5, 3]]
        assert batches[0].label[0].shape == (3, 3)
        assert batches[0].data[0].dtype == np.int32
        one.reset()


def test_csv_of_another_width(csv):
    with pytest.raises(ValueError, match="expected 2 values a row for shape"):
        mx.io.CSVIter(data_csv=csv, data_shape=(2,), batch_size=1)


@pytest.fixture
def mnist(tmp_path):
    images = np.arange(7 * 28 * 28, dtype=np.uint8).reshape(7, 28, 28)
    labels = np.arange(7, dtype=np.uint8)
    for prefix in ("train", "t10k"):
        (tmp_path / f"{prefix}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, 7, 28, 28) + images.tobytes())
        raw = struct.pack(">II", 2049, 7) + labels.tobytes()
        (tmp_path / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(raw))
    return tmp_path, images


def test_mnist_files(mnist):
    folder, images = mnist
    arguments = {"image": str(folder / "train-images-idx3-ubyte"), "label": str(folder / "train-labels-idx1-ubyte")}
    one = mx.io.MNISTIter(**arguments, batch_size=3, shuffle=False)
    batches = list(one)
    assert [b.label[0].asnumpy().tolist() for b in batches] == [[0, 1, 2], [3, 4, 5]]
    np.testing.assert_array_equal(batches[1].data[0].asnumpy()[0, 0], images[3].astype(np.float32) / 256)
    flat = mx.io.MNISTIter(**arguments, batch_size=3, shuffle=True, flat=True, seed=1)
    assert flat.provide_data[0].shape == (3, 784)
    part = mx.io.MNISTIter(**arguments, batch_size=1, shuffle=False, num_parts=2, part_index=1)
    assert [int(b.label[0].asscalar()) for b in part] == [3, 4, 5, 6]
    arrays = mx.test_utils.get_mnist(folder)
    assert arrays["train_data"].shape == (7, 1, 28, 28)
    assert arrays["test_label"].dtype == np.int8
    assert arrays["train_data"].max() == 1.0


def test_files_that_are_not_there_or_not_idx(tmp_path):
    with pytest.raises(mx.MXNetError, match="train-images-idx3-ubyte"):
        mx.test_utils.get_mnist(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"with or without \.gz"):
        mx.io.MNISTIter(image=str(tmp_path / "no"), label=str(tmp_path / "no"))
    (tmp_path / "odd").write_bytes(b"something else")
    with pytest.raises(ValueError, match="expected an idx file"):
        mx.io.read_idx(tmp_path / "odd")
    (tmp_path / "short").write_bytes(struct.pack(">II", 2049, 7) + b"123")
    with pytest.raises(ValueError, match="expected 7 values"):
        mx.io.read_idx(tmp_path / "short")


class Unlabelled(mx.io.DataIter):
    """Two batches, by what an iterator must have."""

    provide_data = [mx.io.DataDesc("data", (2, 3))]
    provide_label: list[mx.io.DataDesc] = []
    position = 0

    def iter_next(self):
        self.position += 1
        return self.position <= 2

    def getdata(self):
        return [mx.nd.ones((2, 3))]


def test_an_iterator_needs_neither_labels_nor_padding():
    (first, _) = Unlabelled()
    assert (first.label, first.pad, first.index) == (None, None, None)
    module = mx.mod.Module(mx.sym.identity(mx.sym.Variable("data")), label_names=())
    module.bind(Unlabelled.provide_data, for_training=False)
    module.init_params()
    assert module.predict(Unlabelled()).shape == (4, 3)


def test_arrays_of_an_iterator_can_be_set():
    np.random.seed(1)
    data = np.arange(12, dtype=np.float32).reshape(6, 2)
    one = mx.io.NDArrayIter(data, batch_size=2, shuffle=True)
    shuffled = one.data[0][1].asnumpy()
    one.label = [("sums", mx.nd.array(shuffled.sum(axis=1)))]
    assert one.provide_label == [("sums", (2,))]
    assert [array.shape for array in one.data_list] == [(6, 2), (6,)]
    for _ in range(2):  # the arrays stay together in the next order
        for batch in one:
            np.testing.assert_array_equal(batch.label[0].asnumpy(), batch.data[0].asnumpy().sum(axis=1))
        one.reset()
    one.data = [("data", shuffled + 100)]
    assert next(one).data[0].asnumpy().min() >= 100
    with pytest.raises(ValueError, match="label: expected 6 samples"):
        one.label = [("label", np.zeros(5))]
    assert len(one.label[0][1].asnumpy()) == 6
