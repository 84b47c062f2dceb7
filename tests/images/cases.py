"""What is computed with MXNet and here: the image files, and a table of functions of the package and their folder."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

FILES = Path(__file__).parent / "files"
"""Made by make_files.py."""
Case: TypeAlias = Callable[[Any], list[Any]]
SHOWN = 2
"""Images of a batch that are compared: enough to see an order and both sizes, and small to record."""


def records(**arguments: Any) -> Case:
    """All batches of three epochs: labels, and some images; pads only where MXNet is right about them."""

    def run(mx: Any) -> list[Any]:
        options = {
            "path_imgrec": "colour.rec",
            "data_shape": (3, 12, 12),
            "batch_size": 4,
            "verbose": False,
            **arguments,
        }
        for name in options:
            if name.startswith("path"):
                options[name] = str(FILES / options[name])
        iterator = mx.io.ImageRecordIter(**options)
        values: list[Any] = [
            [(desc.name, tuple(desc.shape)) for desc in (*iterator.provide_data, *iterator.provide_label)]
        ]
        for epoch in range(3):
            for batch in iterator:
                values += [epoch, batch.label[0].asnumpy()]
                if epoch == 0 and len(values) < 6:
                    values += [batch.data[0].asnumpy()[:SHOWN], batch.data[0].asnumpy().shape]
            iterator.reset()
        return [*values, str(np.dtype(iterator.provide_data[0].dtype))]

    return run


def image(mx: Any, name: str = "a.png") -> Any:
    return mx.image.imread(str(FILES / name))


def on_image(function: Callable[[Any, Any], Any], name: str = "a.png", floats: bool = False) -> Case:
    """A function of an image: its values, type and shape. Random numbers begin at the same place."""

    def run(mx: Any) -> list[Any]:
        random.seed(3)
        np.random.seed(3)
        picture = image(mx, name)
        result = function(mx, picture.astype("float32") if floats else picture)
        result, rest = result if isinstance(result, tuple) else (result, ())
        values = result.asnumpy()
        return [values, str(values.dtype), values.shape, list(rest)]

    return run


def augmenter(name: str, *arguments: Any) -> Case:
    return on_image(lambda mx, picture: getattr(mx.image, name)(*arguments)(picture), floats=True)


BOXES = [[1.0, 0.1, 0.2, 0.5, 0.6], [0.0, 0.4, 0.3, 0.9, 0.95], [2.0, 0.7, 0.1, 0.95, 0.3]]


def on_boxes(make: Callable[[Any], Any], times: int = 6) -> Case:
    """What an augmenter makes of an image and its boxes, some times."""

    def run(mx: Any) -> list[Any]:
        random.seed(11)
        np.random.seed(11)
        one, values = make(mx.image), []
        for _ in range(times):
            picture, label = one(image(mx), np.array(BOXES))
            values += [picture.asnumpy().mean(axis=(0, 1)), tuple(picture.shape), label]
        return values

    return run


def det_iter(**arguments: Any) -> Case:
    """Two epochs of an ImageDetIter."""

    def run(mx: Any) -> list[Any]:
        random.seed(7)
        np.random.seed(7)
        iterator = mx.image.ImageDetIter(
            3, (3, 10, 12), path_imgrec=str(FILES / "boxes.rec"), path_imgidx=str(FILES / "boxes.idx"), **arguments
        )
        values: list[Any] = [iterator.provide_data, iterator.provide_label, iterator.label_shape]
        for _ in range(2):
            for batch in iterator:
                values += [batch.data[0].asnumpy()[:1], batch.label[0].asnumpy(), batch.pad]
            iterator.reset()
        return values

    return run


def boxed_records(**arguments: Any) -> Case:
    """All batches of three epochs of an ImageDetRecordIter."""

    def run(mx: Any) -> list[Any]:
        options = {"batch_size": 3, "verbose": False, **arguments}
        iterator = mx.io.ImageDetRecordIter(path_imgrec=str(FILES / "boxes.rec"), data_shape=(3, 10, 12), **options)
        values: list[Any] = [[tuple(desc.shape) for desc in (*iterator.provide_data, *iterator.provide_label)]]
        for epoch in range(3):
            for batch in iterator:
                label, data = batch.label[0].asnumpy(), batch.data[0].asnumpy()
                rows, columns = label[0, 1:3].astype(int)  # MXNet leaves the rest as its memory was
                values += [epoch, label, batch.pad, batch.index.tolist(), data[0, :, :rows, :columns]]
            iterator.reset()
        return values

    return run


def list_iter(**arguments: Any) -> Case:
    """Two epochs of an ImageIter over a list of images, or a record file."""

    def run(mx: Any) -> list[Any]:
        random.seed(5)
        np.random.seed(5)
        options: dict[str, Any] = {"batch_size": 2, "data_shape": (3, 10, 10), **arguments}
        for name in options:
            if name.startswith("path"):
                options[name] = str(FILES / options[name])
        iterator = mx.image.ImageIter(**options)
        values: list[Any] = [iterator.provide_data, iterator.provide_label]
        for _ in range(2):
            for batch in iterator:
                filled = len(batch.data[0]) - batch.pad if options.get("last_batch_handle") == "pad" else None
                values += [batch.data[0].asnumpy()[:filled][:SHOWN], batch.label[0].asnumpy()[:filled], batch.pad]
            iterator.reset()
        return values

    return run


def _decoded(flag: int, to_rgb: bool, name: str) -> Case:
    data = FILES / name
    return lambda mx: [mx.image.imdecode(data.read_bytes(), flag=flag, to_rgb=to_rgb).asnumpy()]


IMGLIST = [[1.0, "a.png"], [2.0, "b.jpg"], [3.0, "grey.jpg"]]
MEAN = {"mean_r": 123.68, "mean_g": 116.3, "mean_b": 103.5}
STD = {"std_r": 58.4, "std_g": 57.1, "std_b": 57.3}

RECORDS: dict[str, Case] = {
    "records": records(),
    "indexed": records(path_imgidx="colour.idx"),
    "batch of 7": records(batch_size=7),
    "batch of 5": records(batch_size=5),
    **{
        f"part {part} of {parts}": records(num_parts=parts, part_index=part, batch_size=2)
        for parts in (2, 4)
        for part in range(parts)
    },
    **{f"indexed part {p} of 3": records(num_parts=3, part_index=p, path_imgidx="colour.idx") for p in (0, 1)},
    "labels of 3": records(path_imgrec="wide.rec", label_width=3),
    "listed labels": records(path_imglist="colour.lst"),
    "greys": records(path_imgrec="grey.rec", data_shape=(1, 12, 12)),
    "greys as colours": records(path_imgrec="grey.rec"),
    "colours as greys": records(data_shape=(1, 12, 12)),
    "too small": records(data_shape=(3, 30, 30)),
    "too flat": records(data_shape=(3, 10, 40)),
    "mirror": records(mirror=True),
    "mean": records(**MEAN),
    "mean, std, scale": records(**MEAN, **STD, scale=0.5),
    "uint8": records(dtype="uint8"),
    "int8": records(dtype="int8", mean_r=128, mean_g=127.6, mean_b=3),
    "pad": records(pad=4),
    "pad with 7": records(pad=20, fill_value=7, resize=10, data_shape=(3, 30, 30)),
    "rotate by 90": records(rotate=90, fill_value=0),
    "rotate by 30": records(rotate=30),
    "scale": records(max_random_scale=0.9, min_random_scale=0.9),
    "image size": records(min_img_size=20.0, max_img_size=20.0),
    "crop size": records(max_crop_size=16, min_crop_size=16),
    "aspect ratio": records(min_aspect_ratio=1.2, max_aspect_ratio=1.2),
    "text": records(data_shape="(3, 12, 12)", rand_crop="False", batch_size="4"),
    **{f"resize, inter_method {method}": records(resize=14, inter_method=method) for method in (1, 2, 3, 4, 9)},
    **{f"enlarge, inter_method {method}": records(resize=31, inter_method=method) for method in (1, 2, 3, 4, 9)},
}

IMAGES: dict[str, Case] = {
    **{
        f"decode {name} {flag}": _decoded(flag, True, name)
        for name in ("a.png", "b.jpg", "grey.jpg")
        for flag in (0, 1)
    },
    "decode blue first": _decoded(1, False, "b.jpg"),
    **{
        f"imresize {interp} {w}x{h}": on_image(
            lambda mx, picture, w=w, h=h, interp=interp: mx.image.imresize(picture, w, h, interp)
        )
        for interp in range(5)
        for w, h in ((9, 7), (40, 33), (10, 40))
    },
    **{
        f"float imresize {interp}": on_image(
            lambda mx, picture, interp=interp: mx.image.imresize(picture, 9, 30, interp), floats=True
        )
        for interp in range(5)
    },
    "resize_short": on_image(lambda mx, picture: mx.image.resize_short(picture, 11, 1)),
    "resize_short 9": on_image(lambda mx, picture: mx.image.resize_short(picture, 11, 9)),
    "fixed_crop": on_image(lambda mx, picture: mx.image.fixed_crop(picture, 2, 3, 8, 7)),
    "fixed_crop over the edge": on_image(lambda mx, picture: mx.image.fixed_crop(picture, 15, 3, 30, 7)),
    "fixed_crop at a size": on_image(lambda mx, picture: mx.image.fixed_crop(picture, 2, 3, 8, 7, (5, 6), 1)),
    "center_crop": on_image(lambda mx, picture: mx.image.center_crop(picture, (9, 6))),
    "center_crop, enlarged": on_image(lambda mx, picture: mx.image.center_crop(picture, (40, 20), 1)),
    "random_crop": on_image(lambda mx, picture: mx.image.random_crop(picture, (9, 6))),
    "random_size_crop": on_image(
        lambda mx, picture: mx.image.random_size_crop(picture, (9, 6), (0.3, 0.6), (0.7, 1.4), 1)
    ),
    **{
        f"border {kind}": on_image(
            lambda mx, picture, kind=kind: mx.image.copyMakeBorder(picture, 1, 2, 3, 4, kind, values=(9, 8, 7))
        )
        for kind in (0, 1, 2, 3, 4, 16)
    },
    "border of a value": on_image(lambda mx, picture: mx.image.copyMakeBorder(picture, 1, 2, 3, 4, value=9)),
    "color_normalize": on_image(
        lambda mx, picture: mx.image.color_normalize(picture, mx.nd.array([1, 2, 3]), mx.nd.array([2, 4, 5])),
        floats=True,
    ),
    **{
        f"imrotate {zoom}": lambda mx, zoom=zoom: [
            mx.image.imrotate(mx.nd.array(np.arange(60, dtype="float32").reshape(3, 4, 5)), 30, **zoom).asnumpy()
        ]
        for zoom in ({}, {"zoom_in": True}, {"zoom_out": True})
    },
    "imrotate a batch": lambda mx: [
        mx.image.imrotate(
            mx.nd.array(np.arange(96, dtype="float32").reshape(2, 3, 4, 4)), mx.nd.array([10, -70])
        ).asnumpy()
    ],
    "scale_down": lambda mx: [
        mx.image.scale_down((640, 480), (720, 120)),
        mx.image.scale_down((360, 1000), (480, 500)),
    ],
    "ResizeAug": augmenter("ResizeAug", 12, 1),
    "ForceResizeAug": augmenter("ForceResizeAug", (12, 9), 1),
    "RandomCropAug": augmenter("RandomCropAug", (12, 9)),
    "RandomSizedCropAug": augmenter("RandomSizedCropAug", (12, 9), (0.3, 0.9), (0.8, 1.2), 1),
    "CenterCropAug": augmenter("CenterCropAug", (12, 9)),
    "HorizontalFlipAug": augmenter("HorizontalFlipAug", 1),
    "CastAug": augmenter("CastAug", "float64"),
    "BrightnessJitterAug": augmenter("BrightnessJitterAug", 0.3),
    "ContrastJitterAug": augmenter("ContrastJitterAug", 0.3),
    "SaturationJitterAug": augmenter("SaturationJitterAug", 0.3),
    "HueJitterAug": augmenter("HueJitterAug", 0.3),
    "ColorJitterAug": augmenter("ColorJitterAug", 0.3, 0.2, 0.1),
    "LightingAug": augmenter("LightingAug", 0.1, np.array([55.46, 4.794, 1.148]), np.arange(9.0).reshape(3, 3) / 9),
    "RandomGrayAug": augmenter("RandomGrayAug", 1),
    "ColorNormalizeAug": augmenter("ColorNormalizeAug", np.array([1.0, 2, 3]), np.array([2.0, 2, 4])),
    "dumps": lambda mx: [
        [
            one.dumps()
            for one in mx.image.CreateAugmenter(
                (3, 20, 20),
                resize=24,
                rand_crop=True,
                rand_resize=True,
                rand_mirror=True,
                mean=True,
                std=np.array([1.0, 2, 3]),
                brightness=0.1,
                contrast=0.1,
                saturation=0.1,
                hue=0.1,
                pca_noise=0.1,
                rand_gray=0.1,
            )
        ]
    ],
    "ImageIter of a list": list_iter(imglist=IMGLIST, path_root="."),
    "ImageIter of a file": list_iter(path_imglist="listed.lst", path_root="."),
    "ImageIter of records": list_iter(path_imgrec="colour.rec", batch_size=4),
    "ImageIter of labels of 3": list_iter(path_imgrec="wide.rec", label_width=3, batch_size=4),
    "ImageIter shuffled": list_iter(
        path_imgrec="colour.rec",
        path_imgidx="colour.idx",
        shuffle=True,
        batch_size=4,
        rand_crop=True,
        rand_mirror=True,
        mean=True,
        std=True,
        brightness=0.2,
        inter_method=1,
    ),
    "ImageIter part": list_iter(
        path_imgrec="colour.rec", path_imgidx="colour.idx", num_parts=3, part_index=1, resize=11, inter_method=1
    ),
    "ImageIter discard": list_iter(
        path_imgrec="colour.rec", path_imgidx="colour.idx", last_batch_handle="discard", batch_size=4
    ),
    "ImageIter roll_over": list_iter(
        path_imgrec="colour.rec", path_imgidx="colour.idx", last_batch_handle="roll_over", batch_size=4
    ),
}
DETECTION: dict[str, Case] = {
    "DetBorrowAug": on_boxes(lambda image: image.DetBorrowAug(image.HorizontalFlipAug(1))),
    "DetHorizontalFlipAug": on_boxes(lambda image: image.DetHorizontalFlipAug(0.5)),
    "DetRandomCropAug": on_boxes(lambda image: image.DetRandomCropAug()),
    "DetRandomCropAug of large pieces": on_boxes(lambda image: image.DetRandomCropAug(0.5, 1.2, (0.4, 0.9), 0.5, 30)),
    "DetRandomPadAug": on_boxes(lambda image: image.DetRandomPadAug(pad_val=(1, 2, 3))),
    "DetRandomSelectAug": on_boxes(
        lambda image: image.DetRandomSelectAug([image.DetHorizontalFlipAug(1), image.DetRandomCropAug()], 0.3)
    ),
    "several crops": on_boxes(
        lambda image: image.CreateMultiRandCropAugmenter(
            [0.1, 0.5], [(0.75, 1.33), (0.5, 2)], (0.1, 1.0), skip_prob=0.1
        )
    ),
    "dumps of detection": lambda mx: [
        [
            one.dumps()
            for one in mx.image.CreateDetAugmenter(
                (3, 20, 20),
                resize=24,
                rand_crop=0.5,
                rand_pad=0.5,
                rand_mirror=True,
                mean=True,
                brightness=0.1,
                hue=0.1,
            )
        ]
    ],
    "boxed records": boxed_records(),
    "boxed records padded": boxed_records(label_pad_width=30, label_pad_value=-5),
    "boxed records mirrored": boxed_records(rand_mirror_prob=1),
    "boxed records shrunk": boxed_records(resize_mode="shrink", resize=11),
    "boxed records fitted": boxed_records(resize_mode="fit"),
    "boxed records with a mean": boxed_records(mean_r=10, std_r=2, scale=0.5),
    "boxed records with a std": boxed_records(std_g=4.0),
    "boxed records of a part": boxed_records(num_parts=2, part_index=1),
    "ImageDetIter": det_iter(inter_method=1),
    "ImageDetIter, shuffled": det_iter(
        shuffle=True, rand_crop=0.6, rand_pad=0.6, rand_mirror=True, mean=True, brightness=0.2, inter_method=1
    ),
    "ImageDetIter, discard": det_iter(last_batch_handle="discard", inter_method=1),
}

CASES: Mapping[str, Case] = {**RECORDS, **IMAGES, **DETECTION}
