"""Rows for kernels of `cuda`: of several blocks, of several slices, with parts of a block that have nothing to do."""

from __future__ import annotations

from typing import Any

from tests.cases.case import Arg, Case

__all__ = ["LONG_ROWS"]

_WIDE = {"rtol": 1e-4, "atol": 1e-4}  # sums of thousands of numbers, in another order


def _softmax(op: str, shape: tuple[int, ...], **attrs: Any) -> Case:
    return Case(op, {"data": Arg(shape, low=-3.0, high=3.0)}, attrs, **_WIDE)


def _masked(shape: tuple[int, ...], axis: int, lengths: list[float], dtype: str) -> Case:
    rows = tuple(d for a, d in enumerate(shape) if a != axis % len(shape))
    length = Arg(rows, values=[[n] * rows[1] for n in lengths], dtype=dtype, grad=False)
    return Case("softmax", {"data": shape, "length": length}, {"use_length": True, "axis": axis}, **_WIDE)


def _affine(op: str, shape: tuple[int, ...], width: int, **attrs: Any) -> Case:
    gamma = Arg((width,), low=0.5, high=1.5)
    # Values far from zero: their variance is not the difference of two large numbers.
    inputs: dict[str, Any] = {"data": Arg(shape, low=98.0, high=102.0), "gamma": gamma, "beta": (width,)}
    return Case(op, inputs, attrs, rtol=1e-3, atol=1e-3)


def _batch(op: str, shape: tuple[int, ...], **attrs: Any) -> Case:
    channels = (shape[attrs.get("axis", 1)],)
    inputs: dict[str, Any] = {
        "data": Arg(shape, low=98.0, high=102.0),
        "gamma": Arg(channels, low=0.5, high=1.5, dtype="float32"),
        "beta": Arg(channels, dtype="float32"),
        "moving_mean": Arg(channels, dtype="float32"),
        "moving_var": Arg(channels, low=0.5, high=1.5, dtype="float32"),
    }
    return Case(op, inputs, {"fix_gamma": False, **attrs}, ("float32",), rtol=1e-3, atol=1e-3, is_train=True)


def _loss(op: str, shape: tuple[int, ...], labels: tuple[int, ...], **attrs: Any) -> Case:
    label = Arg(labels, low=-1, high=4, kind="int", grad=False)
    return Case(op, {"data": Arg(shape, low=-2.0, high=2.0), "label": label}, attrs, **_WIDE)


def _ctc(time: int, classes: int, labels: list[list[int]], **attrs: Any) -> Case:
    label = Arg((len(labels), len(labels[0])), values=labels, grad=False)
    return Case("CTCLoss", {"data": (time, len(labels), classes), "label": label}, attrs, rtol=1e-3, atol=1e-4)


LONG_ROWS = [
    _softmax("softmax", (3, 9000)),
    _softmax("softmax", (4500, 2), axis=0),
    _softmax("log_softmax", (2, 40, 67), axis=1, temperature=2.0),
    _softmax("softmin", (1, 2500, 9), axis=1),
    _softmax("softmax", (150, 10)),
    _softmax("SoftmaxActivation", (2, 9, 5, 8), mode="channel"),
    _masked((2, 3, 600), -1, [0, 600], "int32"),
    _masked((2, 2500, 3), 1, [2.5, 1300], "float32"),
    _affine("LayerNorm", (70, 33), 33),
    _affine("LayerNorm", (2, 9000), 9000),
    _affine("LayerNorm", (2, 40, 35), 40, axis=1),
    _affine("LayerNorm", (1400, 3), 3),
    _affine("GroupNorm", (2, 4, 70, 70), 2, num_groups=2),
    _affine("InstanceNorm", (3, 2, 9000), 2),
    _affine("InstanceNorm", (40, 5, 30), 5),
    Case("L2Normalization", {"data": (2, 9000)}, **_WIDE),
    Case("L2Normalization", {"data": (2, 40, 5, 9)}, {"mode": "channel"}, **_WIDE),
    Case("L2Normalization", {"data": (1, 4500, 2)}, {"mode": "channel"}, **_WIDE),
    Case("L2Normalization", {"data": (3, 5, 40)}, {"mode": "spatial"}, **_WIDE),
    Case("LRN", {"data": Arg((2, 7, 9, 5), low=-2.0, high=2.0)}, {"nsize": 5, "alpha": 0.5}, **_WIDE),
    Case("LRN", {"data": Arg((3, 300), low=-2.0, high=2.0)}, {"nsize": 9, "alpha": 0.5, "beta": 0.6}, **_WIDE),
    _batch("BatchNorm", (2, 3, 70, 70)),
    _batch("BatchNorm", (2, 70, 70, 3), axis=3),
    _batch("BatchNorm", (300, 40)),
    _batch("BatchNorm", (2, 300, 5)),
    _batch("_contrib_BatchNormWithReLU", (2, 2, 70, 70)),
    _batch("BatchNorm_v1", (2, 2, 70, 70)),
    _batch("_contrib_SyncBatchNorm", (300, 3), key="a"),
    *[
        Case(
            "Pooling", {"data": Arg(shape, kind="distinct")}, {"global_pool": True, "pool_type": kind, **more}, **_WIDE
        )
        for shape, more in (((1, 2, 100, 100), {}), ((2, 50, 50, 3), {"layout": "NHWC"}), ((5, 40, 7, 7), {}))
        for kind in ("max", "avg")
    ],
    _loss("softmax_cross_entropy", (150, 10), (150,)),
    _loss("softmax_cross_entropy", (2, 9000), (2,)),
    _loss("SoftmaxOutput", (1500, 4), (1500,), normalization="valid", use_ignore=True),
    _loss("SVMOutput", (300, 10), (300,)),
    _loss("SVMOutput", (2, 9000), (2,), use_linear=True),
    _loss("SoftmaxOutput", (2, 4, 30, 30), (2, 900), multi_output=True, normalization="valid"),
    *[
        Case("pick", {"data": shape, "index": Arg(rows, low=-3, high=40, kind="int", dtype=dtype, grad=False)}, attrs)
        for shape, rows, dtype, attrs in (
            ((300, 33), (300,), "float32", {"mode": "wrap"}),
            ((2, 20, 150), (2, 150), "int32", {"axis": 1}),
            ((2, 9000), (2,), None, {}),
        )
    ],
    _ctc(12, 7, [[1, 2, 2, 3, 0], [6, 6, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]]),
    _ctc(150, 5, [[1 + k % 4 for k in range(140)]], blank_label="last"),
]
