"""Random rows of layers: normalisation, transposed convolution, recurrence, sequences, sampling."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.cases.case import Arg, Case

from .generate import dims, family, row, signed_axis

MEANS = {"rtol": 1e-4, "atol": 1e-4, "why": "means and sums in another order"}


def affine(op: str, shape: tuple[int, ...], width: int, attrs: dict[str, Any]) -> Case:
    inputs = {
        "data": Arg(shape, low=-2.0, high=2.0),
        "gamma": Arg((width,), low=0.5, high=1.5),
        "beta": Arg((width,)),
    }
    return row(op, inputs, attrs, **MEANS)


@family
def normalisation(rng: Random) -> Case:
    op = rng.choice(["LayerNorm", "GroupNorm", "InstanceNorm", "L2Normalization", "LRN", "moments"])
    eps = {"eps": rng.choice([1e-3, 0.1])}
    if op == "LayerNorm":
        shape = dims(rng, rng.randint(1, 4), 2, 6)
        axis = signed_axis(rng, len(shape))
        return affine(op, shape, shape[axis], {"axis": axis, **eps})
    if op == "GroupNorm":
        groups = rng.randint(1, 3)
        shape = (rng.randint(1, 3), groups * rng.randint(1, 3), *dims(rng, rng.randint(1, 3), 2, 4))
        return affine(op, shape, groups, {"num_groups": groups, **eps})
    shape = dims(rng, rng.choice([3, 4]), 2, 5)
    if op == "InstanceNorm":
        return affine(op, shape, shape[1], eps)
    if op == "L2Normalization":
        return row(op, {"data": shape}, {"mode": rng.choice(["instance", "channel", "spatial"]), **eps}, **MEANS)
    if op == "LRN":
        attrs = {"nsize": rng.choice([1, 3, 5]), "alpha": rng.random(), "beta": 0.25 + rng.random(), "knorm": 1.5}
        return row(op, {"data": dims(rng, 4, 1, 6)}, attrs, **MEANS)
    axes = tuple(rng.sample(range(len(shape)), rng.randint(1, len(shape))))
    return row(op, {"data": shape}, {"axes": axes, "keepdims": rng.random() < 0.5}, **MEANS)


@family
def deconvolution(rng: Random) -> Case:
    n = rng.choice([1, 2, 2, 3])
    group = rng.choice([1, 1, 2, 3])
    channels, filters = group * rng.randint(1, 2), group * rng.randint(1, 2)
    kernel, stride = dims(rng, n, 1, 4), dims(rng, n, 1, 3)
    attrs: dict[str, Any] = {"kernel": kernel, "num_filter": filters, "num_group": group, "stride": stride}
    if rng.random() < 0.5:
        attrs["pad"] = tuple(rng.randint(0, (k - 1) // 2) for k in kernel)
    if rng.random() < 0.4:
        attrs["adj"] = tuple(rng.randint(0, s - 1) for s in stride)
    inputs = {
        "data": (rng.randint(1, 3), channels, *dims(rng, n, 2, 6)),
        "weight": (channels, filters // group, *kernel),
    }
    if rng.random() < 0.5:
        attrs["no_bias"] = False
        inputs["bias"] = (filters,)
    return row("Deconvolution", inputs, attrs, **MEANS)


@family
def windows(rng: Random) -> Case:
    op = rng.choice(
        ["Pooling_v1", "im2col", "UpSampling", "_contrib_AdaptiveAvgPooling2D", "_contrib_BilinearResize2D"]
    )
    shape = (rng.randint(1, 2), rng.randint(1, 3), *dims(rng, 2, 3, 7))
    if op == "Pooling_v1":
        kernel = dims(rng, 2, 1, 3)
        attrs: dict[str, Any] = {"kernel": kernel, "pool_type": rng.choice(["max", "avg", "sum"])}
        attrs["stride"], attrs["pad"] = dims(rng, 2, 1, 3), tuple(rng.randint(0, k - 1) for k in kernel)
        attrs["pooling_convention"] = rng.choice(["valid", "full"])
        return row(op, {"data": Arg(shape, kind="distinct", low=-2, high=2)}, attrs, **MEANS)
    if op == "im2col":
        attrs = {"kernel": dims(rng, 2, 1, 3), "stride": dims(rng, 2, 1, 3), "pad": dims(rng, 2, 0, 2)}
        return row(op, {"data": shape}, {**attrs, "dilate": dims(rng, 2, 1, 2)})
    if op == "UpSampling":
        scale = rng.randint(1, 4)
        return row(op, {"arg0": shape}, {"scale": scale, "sample_type": "nearest", "num_args": 1}, **MEANS)
    if op == "_contrib_AdaptiveAvgPooling2D":
        return row(op, {"data": shape}, {"output_size": dims(rng, rng.randint(1, 2), 1, 9)}, **MEANS)
    height, width = dims(rng, 2, 1, 9)
    attrs = {"height": height, "width": width, "align_corners": rng.random() < 0.5}
    return row(op, {"data": shape}, attrs, **MEANS)


@family
def recurrent(rng: Random) -> Case:
    mode = rng.choice(["rnn_relu", "rnn_tanh", "lstm", "gru"])
    gates = {"lstm": 4, "gru": 3}.get(mode, 1)
    time, batch, inputs, hidden = dims(rng, 4, 1, 5)
    layers, both = rng.randint(1, 3), rng.random() < 0.5
    sides = 2 if both else 1
    size = sides * gates * hidden * (inputs + hidden + 2)
    size += (layers - 1) * sides * gates * hidden * (sides * hidden + hidden + 2)
    args: dict[str, Any] = {
        "data": (time, batch, inputs),
        "parameters": Arg((size,), low=-0.7, high=0.7),
        "state": (layers * sides, batch, hidden),
    }
    if mode == "lstm":
        args["state_cell"] = (layers * sides, batch, hidden)
    attrs = {"mode": mode, "state_size": hidden, "num_layers": layers, "bidirectional": both}
    return row("RNN", args, {**attrs, "state_outputs": rng.random() < 0.5}, **MEANS)


@family
def sequences(rng: Random) -> Case:
    op = rng.choice(["SequenceLast", "SequenceMask", "SequenceReverse", "CTCLoss"])
    time, batch = dims(rng, 2, 2, 6)
    if op == "CTCLoss":
        classes, length = rng.randint(3, 6), rng.randint(1, time // 2)
        # Neighbours differ, so that every label fits.
        label = [[(first + k) % (classes - 1) + 1 for k in range(length)] for first in range(batch)]
        inputs: dict[str, Any] = {
            "data": Arg((time, batch, classes), low=-2.0, high=2.0),
            "label": Arg((batch, length), values=label, grad=False),
        }
        return row(op, inputs, {}, **MEANS)
    axis = 0 if op == "SequenceReverse" else rng.randint(0, 1)
    shape = ((time, batch), (batch, time))[axis] + dims(rng, rng.randint(0 if op != "SequenceLast" else 1, 2), 1, 4)
    inputs, attrs = {"data": shape}, {"axis": axis}
    if rng.random() < 0.7:
        lengths = [rng.randint(1, time) for _ in range(batch)]
        inputs["sequence_length"] = Arg((batch,), values=lengths, grad=False)
        attrs["use_sequence_length"] = True
    return row(op, inputs, attrs)


@family
def sampling(rng: Random) -> Case:
    op = rng.choice(["BilinearSampler", "GridGenerator", "Correlation", "ROIPooling", "_contrib_DeformableConvolution"])
    batch, channels = dims(rng, 2, 1, 3)
    size = dims(rng, 2, 4, 8)
    data: dict[str, Any] = {"data": (batch, channels, *size)}
    if op == "BilinearSampler":
        return row(op, {**data, "grid": Arg((batch, 2, *dims(rng, 2, 1, 5)), low=-1.5, high=1.5)}, {}, **MEANS)
    if op == "GridGenerator":
        if rng.random() < 0.5:
            return row(op, {"data": (batch, 2, *size)}, {"transform_type": "warp"}, **MEANS)
        attrs: dict[str, Any] = {"transform_type": "affine", "target_shape": dims(rng, 2, 2, 6)}
        return row(op, {"data": (batch, 6)}, attrs, **MEANS)
    if op == "Correlation":
        attrs = {
            "kernel_size": rng.choice([1, 3]),
            "max_displacement": rng.randint(0, 2),
            "pad_size": rng.randint(1, 3),
        }
        attrs |= {"stride1": rng.randint(1, 2), "stride2": rng.randint(1, 2), "is_multiply": rng.random() < 0.7}
        both = {"data1": data["data"], "data2": Arg(data["data"], low=-2.0, high=2.0)}
        return row(op, both, attrs, **MEANS)
    if op == "ROIPooling":
        rois = [[rng.randrange(batch), *(rng.randint(0, 12) for _ in range(4))] for _ in range(rng.randint(1, 4))]
        inputs = {
            "data": Arg(data["data"], kind="distinct", low=-4.0, high=4.0),
            "rois": Arg((len(rois), 5), values=rois, grad=False),
        }
        return row(op, inputs, {"pooled_size": dims(rng, 2, 1, 4), "spatial_scale": rng.choice([0.5, 0.6, 1.0])})
    group = rng.choice([1, 2])
    channels, kernel = group * rng.randint(1, 2), dims(rng, 2, 1, 3)
    attrs = {"kernel": kernel, "num_filter": 2, "num_deformable_group": group, "no_bias": True}
    attrs |= {"pad": dims(rng, 2, 0, 1), "stride": dims(rng, 2, 1, 2), "num_group": rng.choice([1, group])}
    out = [(n + 2 * q - k) // s + 1 for n, k, q, s in zip(size, kernel, attrs["pad"], attrs["stride"], strict=True)]
    inputs = {
        "data": (batch, channels, *size),
        "offset": Arg((batch, 2 * group * kernel[0] * kernel[1], *out), low=-1.5, high=1.5),
        "weight": (2, channels // attrs["num_group"], *kernel),
    }
    return row(op, inputs, attrs, **MEANS)
