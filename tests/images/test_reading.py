"""Images and their iterators: wrong input, threads, forks, the two libraries, and training over HTTP."""

from __future__ import annotations

import gc
import multiprocessing
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox.imaging import library
from opbox.imaging.pillow import Pillow

from .cases import FILES

COLOUR = {"path_imgrec": str(FILES / "colour.rec"), "data_shape": (3, 12, 12), "batch_size": 4}
PICTURE = np.arange(90, dtype=np.uint8).reshape(5, 6, 3)


def record_iter(**arguments: Any) -> Any:
    return mx.io.ImageRecordIter(**{**COLOUR, **arguments})


def image_iter(**arguments: Any) -> Any:
    return mx.image.ImageIter(**{"batch_size": 2, "data_shape": (3, 8, 8), **arguments})


def det_iter() -> Any:
    return mx.image.ImageDetIter(2, (3, 8, 8), path_imgrec=str(FILES / "boxes.rec"))


def boxed(**arguments: Any) -> Any:
    fixed = {"path_imgrec": str(FILES / "boxes.rec"), "data_shape": (3, 8, 8), "batch_size": 7}
    return mx.io.ImageDetRecordIter(**{**fixed, **arguments})


def decode_garbage() -> None:
    mx.image.imdecode(b"no image")


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (decode_garbage, mx.MXNetError, r"imdecode: buf: expected a JPEG, .* got 8 bytes that are none"),
        (lambda: mx.image.imdecode(b""), mx.MXNetError, "got 0 bytes"),
        (
            lambda: mx.image.imdecode("text"),
            ValueError,
            "buf: expected bytes, a bytearray or an array of uint8, got 'text'",
        ),
        (lambda: mx.image.imdecode(np.zeros(3)), mx.MXNetError, "expected an array of uint8, got float64"),
        (lambda: mx.image.imdecode(b"x", flag=2), mx.MXNetError, "flag: expected 1 for colours or 0 for greys, got 2"),
        (lambda: mx.image.imread("nowhere.jpg"), mx.MXNetError, "nowhere.jpg: expected a file to read, got none"),
        (lambda: mx.image.imresize(PICTURE, 0, 3), mx.MXNetError, "w: expected an integer of at least 1, got 0"),
        (lambda: mx.image.imresize(PICTURE, 3, 3, 7), mx.MXNetError, "interp: expected 0 to 4, got 7"),
        (
            lambda: mx.image.imresize(PICTURE[0], 3, 3),
            mx.MXNetError,
            r"expected an image \(height, .* got shape \(6, 3\)",
        ),
        (lambda: mx.image.imresize(PICTURE.astype("int32"), 3, 3), mx.MXNetError, "expected one of uint8.* got int32"),
        (lambda: mx.image.imresize([1], 3, 3), mx.MXNetError, r"expected an image as an NDArray .* got \[1\]"),
        (lambda: mx.image.resize_short(PICTURE, 3, 11), ValueError, "interp: expected 0 to 4, 9 .* got 11"),
        (lambda: mx.image.fixed_crop(PICTURE, 9, 0, 2, 2), mx.MXNetError, "expected a box within an image of 6 x 5"),
        (lambda: mx.image.copyMakeBorder(PICTURE, -1, 0, 0, 0), mx.MXNetError, "widths of at least 0, got"),
        (lambda: mx.image.copyMakeBorder(PICTURE, 1, 0, 0, 0, type=9), mx.MXNetError, "type: expected 0 to 4, got 9"),
        (lambda: mx.image.color_normalize(PICTURE, 1), mx.MXNetError, "expected a float32 image, got uint8: .*CastAug"),
        (lambda: mx.image.HueJitterAug(0.1)(PICTURE), mx.MXNetError, "HueJitterAug: src: expected a float32 image"),
        (lambda: mx.image.imrotate(PICTURE, 3), TypeError, "expected float32 images, got uint8"),
        (lambda: mx.image.CreateAugmenter((3, 8, 8), rand_resize=True), AssertionError, "expected rand_crop=True"),
        (lambda: mx.image.CreateAugmenter((3, 8, 8), mean=5), AssertionError, "mean: expected True, or an array of"),
        (lambda: mx.recordio.pack_img((0, 1, 2, 0), "x"), ValueError, "pack_img: img: expected uint8 of"),
        (lambda: mx.recordio.pack_img((0, 1, 2, 0), PICTURE, img_fmt=".doc"), ValueError, "img_fmt: expected '.jpg'"),
        (lambda: record_iter(path_imgrec="no.rec"), mx.MXNetError, "no.rec: expected a file to read, got none"),
        (lambda: record_iter(path_imgrec=__file__), mx.MXNetError, "expected the start of a record at byte 0.*im2rec"),
        (lambda: record_iter(path_imgidx=__file__), mx.MXNetError, "expected lines of a key, a tab and a place"),
        (
            lambda: mx.io.ImageRecordIter(data_shape=(3, 8, 8), batch_size=2),
            mx.MXNetError,
            "path_imgrec: expected a value",
        ),
        (lambda: record_iter(resize="x"), mx.MXNetError, "ImageRecordIter: resize: expected int, got 'x'"),
        (
            lambda: record_iter(data_shape=(2, 8, 8)),
            mx.MXNetError,
            r"data_shape: expected \(channels, .* got \(2, 8, 8\)",
        ),
        (
            lambda: record_iter(num_parts=2, part_index=2),
            mx.MXNetError,
            "part_index: expected 0 to num_parts - 1, which is 1",
        ),
        (
            lambda: record_iter(dtype="float16"),
            mx.MXNetError,
            "dtype: expected one of float32, uint8, int8, got float16",
        ),
        (lambda: record_iter(batch_size=-1), mx.MXNetError, "batch_size: expected at least 1, got -1"),
        (
            lambda: record_iter(random_resized_crop=True, rand_crop=True),
            mx.MXNetError,
            "rand_crop: expected none beside",
        ),
        (
            lambda: record_iter(data_shape=(1, 8, 8), pca_noise=1),
            mx.MXNetError,
            "pca_noise: expected images of 3 channels",
        ),
        (lambda: record_iter(label_width=2).next(), mx.MXNetError, r"byte 0: label_width: expected 1 as .* got 2"),
        (lambda: record_iter(data_shape=(4, 8, 8)).next(), mx.MXNetError, "expected an image of 4 channels.* got 3"),
        (lambda: record_iter(max_crop_size=99).next(), mx.MXNetError, "expected images of at least 99 pixels each way"),
        (
            lambda: record_iter(path_imglist=str(FILES / "listed.lst")).next(),
            mx.MXNetError,
            "a line for the image of number 1",
        ),
        (lambda: mx.image.ImageIter(2, (3, 8, 8)), AssertionError, "expected path_imgrec, path_imglist or imglist"),
        (
            lambda: image_iter(path_imgrec=COLOUR["path_imgrec"], shuffle=True),
            AssertionError,
            "path_imgidx: expected the",
        ),
        (
            lambda: image_iter(imglist=[], data_shape=(1, 8, 8)),
            ValueError,
            r"expected \(3, height, width\), got \(1, 8, 8\)",
        ),
        (lambda: image_iter(imglist=[[1]]), ValueError, r"imglist: expected items \[label, path\], got \[1\]"),
        (lambda: image_iter(imglist=[], dtype="uint8"), AssertionError, "dtype: expected one of int32.* got 'uint8'"),
        (lambda: image_iter(imglist=[[1, "no.jpg"]]).next(), FileNotFoundError, "no.jpg: expected a file to read"),
        (
            lambda: image_iter(imglist=[[1, __file__]]).next(),
            RuntimeError,
            "broken image .*test_reading.py: .* that are none",
        ),
        (
            lambda: image_iter(imglist=[[1, 2, str(FILES / "a.png")]]).next(),
            mx.MXNetError,
            "label_width=1 numbers, got 2",
        ),
        (
            lambda: image_iter(imglist=[[1, str(FILES / "a.png")]], aug_list=[]).next(),
            mx.MXNetError,
            "after the augmenters",
        ),
        (lambda: boxed(label_pad_width=5), mx.MXNetError, "label_pad_width: expected at least 17 .* got 5"),
        (lambda: boxed(label_width=7), mx.MXNetError, "label_width: expected 12 as the label has numbers, got 7"),
        (lambda: boxed(resize_mode="x"), mx.MXNetError, "resize_mode: expected one of force, shrink, fit, got 'x'"),
        (lambda: boxed(dtype="uint8"), mx.MXNetError, "dtype: expected float32, got uint8"),
        (lambda: boxed(min_crop_scales=(0.1, 0.2)), mx.MXNetError, "for each of 1 crop samplers, got 2"),
        (
            lambda: boxed(min_crop_scales=2),
            mx.MXNetError,
            "min_crop_scales: expected at most max_crop_scales 1.0, got 2.0",
        ),
        (
            lambda: boxed(path_imgrec=COLOUR["path_imgrec"]).next(),
            mx.MXNetError,
            r"label: expected a head .* 1 numbers",
        ),
        (lambda: mx.image.DetBorrowAug(3), TypeError, "DetBorrowAug: expected an Augmenter, got 3"),
        (lambda: mx.image.DetRandomSelectAug([3]), ValueError, "DetRandomSelectAug: expected DetAugmenters, got 3"),
        (
            lambda: mx.image.CreateMultiRandCropAugmenter([1, 2, 3], [1, 2]),
            AssertionError,
            "expected lists of 3 values",
        ),
        (
            lambda: mx.image.ImageDetIter(2, (3, 8, 8), path_imgrec=COLOUR["path_imgrec"]),
            RuntimeError,
            "label: expected a head of 2 and an object of 5 numbers at least, got 1 numbers",
        ),
        (
            lambda: det_iter().reshape(None, (1, 5)),
            ValueError,
            r"label_shape: expected at least 3 objects of 5 .*\(1, 5\)",
        ),
        (
            lambda: det_iter().sync_label_shape(3),
            AssertionError,
            "expected an ImageDetIter of objects of 5 numbers, got 3",
        ),
    ],
)
def test_wrong_input_says_so(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as raised:
        call()
    assert "\n" not in str(raised.value)
    assert traceback.extract_tb(raised.tb)[1].filename == __file__


def test_an_unknown_argument_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="rand_mirorr is no argument of it, and is not used: did you mean rand_mirror"):
        record_iter(rand_mirorr=True)


def test_images_come_back_from_records() -> None:
    header = mx.recordio.IRHeader(0, 3.0, 7, 0)
    record = mx.recordio.pack_img(header, PICTURE, quality=9, img_fmt=".png")
    label, image = mx.recordio.unpack_img(record)
    assert label == header
    np.testing.assert_array_equal(image, PICTURE)
    rgb = mx.image.imdecode(mx.recordio.unpack(record)[1]).asnumpy()
    np.testing.assert_array_equal(rgb, PICTURE[:, :, ::-1])
    assert mx.recordio.unpack_img(record, 0)[1].shape == (5, 6)
    assert mx.recordio.unpack_img(mx.recordio.pack(header, b"none"))[1] is None


def test_random_arguments_draw_the_same_by_any_number_of_threads() -> None:
    arguments = {"rand_crop": True, "rand_mirror": True, "shuffle": True, "seed": 7, "max_rotate_angle": 20}
    colours = {"brightness": 0.3, "contrast": 0.3, "saturation": 0.3, "pca_noise": 0.1, "random_h": 9, "random_l": 9}
    one, other = (record_iter(**arguments, **colours, preprocess_threads=threads) for threads in (1, 4))
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a.data[0].asnumpy(), b.data[0].asnumpy())
        np.testing.assert_array_equal(a.index, b.index)
    another = next(record_iter(**arguments, **colours | {"seed_aug": 1}))
    one.reset()
    assert not np.array_equal(next(one).data[0].asnumpy(), another.data[0].asnumpy())


def test_a_shuffled_epoch_has_every_image_once() -> None:
    iterator = record_iter(shuffle=True, batch_size=5)
    orders = []
    for _ in range(2):
        labels = np.concatenate([batch.label[0].asnumpy() for batch in iterator])
        assert sorted(labels) == list(range(10))
        orders.append(labels.tolist())
        iterator.reset()
    assert orders[0] != orders[1]
    assert orders[0] != sorted(orders[0])


def test_random_pieces_are_pieces() -> None:
    arguments = {"random_resized_crop": True, "min_random_area": 0.2, "max_aspect_ratio": 0.3}
    pieces, whole = (next(record_iter(**one)).data[0].asnumpy() for one in (arguments, {}))
    assert pieces.shape == whole.shape
    assert not np.array_equal(pieces, whole)
    assert pieces.min() >= 0
    assert pieces.max() <= 255


def test_rows_that_are_not_filled_are_zeros() -> None:
    *_, last = record_iter(round_batch=False)
    assert last.pad == 2
    assert not last.data[0].asnumpy()[2:].any()
    assert last.label[0].asnumpy().tolist() == [8, 9, 0, 0]
    assert last.index.tolist() == [108, 109, 0, 0]


def test_a_reset_in_the_middle_begins_at_the_first_image() -> None:
    iterator = record_iter()
    next(iterator)
    iterator.reset()
    assert next(iterator).label[0].asnumpy().tolist() == [0, 1, 2, 3]


def test_an_error_of_one_image_leaves_the_others(tmp_path: Path) -> None:
    raw = bytearray((FILES / "colour.rec").read_bytes())
    at = raw.index(b"\xff\xd8\xff")  # the first JPEG's beginning
    raw[at : at + 3] = b"???"
    (tmp_path / "broken.rec").write_bytes(raw)
    iterator = record_iter(path_imgrec=str(tmp_path / "broken.rec"))
    with pytest.raises(mx.MXNetError, match=r"broken.rec: the record at byte 0: expected an image, got \d+ bytes"):
        next(iterator)
    assert next(iterator).label[0].asnumpy().tolist() == [4, 5, 6, 7]


def test_the_mean_image_is_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "mean.nd"
    plain = np.concatenate([b.data[0].asnumpy() for b in record_iter(batch_size=5)])
    iterator = record_iter(batch_size=5, mean_img=str(path))
    assert path.exists()
    less = np.concatenate([b.data[0].asnumpy() for b in iterator])
    np.testing.assert_allclose(less, plain - plain.mean(axis=0), atol=1e-4)  # sums in another order
    again = next(record_iter(batch_size=5, mean_img=str(path))).data[0].asnumpy()
    np.testing.assert_array_equal(again, less[:5])
    with pytest.raises(mx.MXNetError, match=r"mean.nd: expected a mean image of data_shape \(3, 8, 8\)"):
        record_iter(data_shape=(3, 8, 8), mean_img=str(path))


def test_threads_end_with_their_iterator() -> None:
    before = {thread for thread in threading.enumerate() if thread.name == "opbox-decode"}
    iterator = record_iter(preprocess_threads=2)
    next(iterator)
    threads = [t for t in threading.enumerate() if t.name == "opbox-decode" and t not in before]
    assert threads
    del iterator
    gc.collect()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def _labels(iterator: Any, queue: Any) -> None:
    queue.put([batch.label[0].asnumpy().tolist() for batch in iterator])


@pytest.mark.skipif(not hasattr(multiprocessing, "get_context") or sys.platform == "win32", reason="needs fork")
def test_a_forked_child_reads_on() -> None:
    context = multiprocessing.get_context("fork")
    iterator = record_iter()
    queue = context.SimpleQueue()
    child = context.Process(target=_labels, args=(iterator, queue))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python's, of forks beside threads: what is tried here
        child.start()
    assert queue.get() == [batch.label[0].asnumpy().tolist() for batch in iterator]
    child.join()


def test_augmenters_of_ones_own_get_ndarrays() -> None:
    seen = []

    class Darker(mx.image.Augmenter):
        def __call__(self, src: Any) -> Any:
            seen.append(type(src))
            return src / 2

    augmenters = [
        mx.image.ForceResizeAug((8, 8)),
        mx.image.CastAug(),
        mx.image.SequentialAug([Darker()]),
        lambda src: src + 1,
    ]
    arguments = {"imglist": [[1, "a.png"], [2, "b.jpg"]], "path_root": str(FILES)}
    batch = next(image_iter(aug_list=augmenters, **arguments))
    plain = next(image_iter(aug_list=augmenters[:2], **arguments))
    np.testing.assert_allclose(batch.data[0].asnumpy(), plain.data[0].asnumpy() / 2 + 1)
    assert all(issubclass(kind, mx.nd.NDArray) for kind in seen)


def test_detection_iterators_get_one_label_shape() -> None:
    one, other = det_iter(), det_iter()
    one.reshape((3, 8, 9), (5, 5))
    assert one.sync_label_shape(other) is other
    assert other.provide_label == one.provide_label == [("label", (2, 5, 5))]
    assert (next(other).label[0].asnumpy()[:, 3:] == -1).all()
    assert one.provide_data == [("data", (2, 3, 8, 9))]


def test_random_changes_of_boxed_records() -> None:
    changes = {
        "rand_crop_prob": 1, "num_crop_sampler": 2, "min_crop_scales": (0.3, 0.5), "min_crop_overlaps": 0.05,
        "rand_pad_prob": 0.5, "max_pad_scale": 2, "rand_mirror_prob": 0.5, "max_random_hue": 20, "random_hue_prob": 0.5,
        "max_random_contrast": 0.5, "random_contrast_prob": 1, "min_crop_aspect_ratios": 0.5,
        "max_crop_aspect_ratios": 2,
    }  # fmt: skip
    for mode in ("center", "overlap"):
        batch, plain = next(boxed(crop_emit_mode=mode, **changes)), next(boxed())
        assert not np.array_equal(batch.data[0].asnumpy(), plain.data[0].asnumpy())
        for label, whole in zip(batch.label[0].asnumpy(), plain.label[0].asnumpy(), strict=True):
            count = int(label[3])
            assert 7 <= count <= whole[3]
            assert label[4:6].tolist() == [2, 5]
            objects = label[6 : 4 + count].reshape(-1, 5)
            assert set(objects[:, 0]) <= set(whole[6 : 4 + int(whole[3])].reshape(-1, 5)[:, 0])
            assert ((objects[:, 1:] >= 0) & (objects[:, 1:] <= 1)).all()
            assert (objects[:, 3:] > objects[:, 1:3]).all()
            assert (label[4 + count :] == -1).all()


def test_boxes_are_drawn() -> None:
    picture = next(det_iter().draw_next(color=(255, 0, 0), thickness=1))
    assert picture.shape == (8, 8, 3)
    assert picture.dtype == np.uint8
    assert (picture == (0, 0, 255)).all(axis=2).any()


def test_ranges_that_leave_nothing_to_draw_are_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"DetRandomCropAug: area_range: expected \(least, greatest\), got \(1, 0.5\)"):
        augmenter = mx.image.DetRandomCropAug(area_range=(1, 0.5))
    image, label = augmenter(PICTURE, np.ones((1, 5)))
    np.testing.assert_array_equal(image, PICTURE)
    assert label.tolist() == [[1, 1, 1, 1, 1]]


def test_arrays_are_of_the_kind_that_was_passed() -> None:
    array = mx.nd.array(PICTURE, dtype="uint8")
    small = mx.image.imresize(array, 3, 2)
    assert isinstance(small, mx.nd.NDArray)
    assert isinstance(mx.image.imresize(PICTURE, 3, 2), np.ndarray)
    np.testing.assert_array_equal(small.asnumpy(), mx.image.imresize(PICTURE, 3, 2))
    out = mx.nd.zeros((2, 3, 3), dtype="uint8")
    assert mx.image.imresize(array, 3, 2, out=out) is out
    np.testing.assert_array_equal(out.asnumpy(), small.asnumpy())
    with pytest.raises(mx.MXNetError, match=r"out: expected an array of shape \(2, 3, 3\), got \(1, 3, 3\)"):
        mx.image.imresize(array, 3, 2, out=out[:1])


@pytest.mark.parametrize("name", ["a.png", "b.jpg", "grey.jpg"])
@pytest.mark.parametrize("channels", [1, 3, None])
def test_pillow_decodes_as_opencv(name: str, channels: int | None) -> None:
    data = (FILES / name).read_bytes()
    ours, theirs = library().decode(data, channels), Pillow().decode(data, channels)
    assert ours is not None
    assert theirs is not None
    assert ours.shape == theirs.shape
    # Greys of colours are rounded another way, and chroma of JPEGs is enlarged by another version of libjpeg-turbo.
    assert abs(ours.astype(int) - theirs).max() <= 2


@pytest.mark.parametrize("interp", range(5))
@pytest.mark.parametrize("size", [(11, 9), (46, 34)])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_pillow_resizes_nearly_as_opencv(interp: int, size: tuple[int, int], dtype: str) -> None:
    image = mx.image.imread(FILES / "a.png").asnumpy().astype(dtype)
    ours, theirs = (one.resize(image, *size, interp) for one in (library(), Pillow()))
    assert theirs.shape == ours.shape
    assert theirs.dtype == ours.dtype
    # Other coefficients of cubic and Lanczos, other places of the nearest pixel: some edges differ, the image does not.
    assert abs(ours.astype(float) - theirs).mean() < 6


def test_pillow_does_without_opencv() -> None:
    """All but the changes of hue, in a process that has no OpenCV."""
    program = (
        "import sys; sys.modules['cv2'] = None\n"
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'cv2' else real(name, package)\n"
        "import opbox as mx\n"
        f"it = mx.io.ImageRecordIter(path_imgrec={COLOUR['path_imgrec']!r}, data_shape=(3, 12, 12), batch_size=4,"
        " resize=14, max_rotate_angle=10, rand_crop=True)\n"
        "print(next(it).data[0].shape)\n"
        "image = mx.image.imread({!r})\n".format(str(FILES / "a.png"))
        + "header, back = mx.recordio.unpack_img(mx.recordio.pack_img((0, 1, 2, 0), image.asnumpy(), 9, '.png'))\n"
        "again = mx.recordio.unpack_img(mx.recordio.pack_img((0, 1, 2, 0), back))[1]\n"
        "print((back == image.asnumpy()).all(), again.shape)\n"
        "u.find_spec = lambda name, package=None: None if name in ('cv2', 'PIL') else real(name, package)\n"
        "from opbox.imaging import library; library.cache_clear()\n"
        "try: mx.image.imresize(image, 3, 3)\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, second, third = done.stdout.splitlines()
    assert first == "(4, 3, 12, 12)"
    assert second == "True (17, 23, 3)"
    assert third == (
        "images: expected OpenCV or Pillow to decode them, got neither: pip install 'opbox[image]' installs OpenCV"
    )


def test_nothing_is_loaded_before_it_is_used() -> None:
    program = (
        "import opbox as mx, sys; mx.io.NDArrayIter; mx.recordio.MXRecordIO; mx.image.ImageIter\n"
        "print({'cv2', 'PIL'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
