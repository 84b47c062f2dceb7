"""Deconvolution, Convolution_v1, Pooling_v1, UpSampling, im2col, col2im, adaptive pooling, bilinear resizing, Crop."""

from typing import Any

from .case import FLOATS, Arg, Case

SUMS = "sums over channels, taps and positions"


def _deconvolution(data: tuple[int, ...], filters: int, kernel: tuple[int, ...], **attrs: Any) -> Case:
    inputs: dict[str, Any] = {
        "data": data,
        "weight": (data[1], filters // attrs.get("num_group", 1), *kernel),
    }
    if attrs.get("no_bias") is False:
        inputs["bias"] = (filters,)
    oracle = attrs.pop("oracle", True)
    params = {"kernel": kernel, "num_filter": filters, **attrs}
    why = SUMS if oracle else "oneDNN refuses a target_shape that leaves an odd surplus"
    # MXNet's float64 of one dimension, dilated, is not what its float32 is.
    unlike = ("float64",) if len(kernel) == 1 and "dilate" in attrs else ()
    return Case("Deconvolution", inputs, params, FLOATS, rtol=1e-4, atol=1e-5, oracle=oracle, unlike=unlike, why=why)


def _convolution(data: tuple[int, ...], filters: int, kernel: tuple[int, ...], **attrs: Any) -> Case:
    inputs: dict[str, Any] = {
        "data": data,
        "weight": (filters, data[1] // attrs.get("num_group", 1), *kernel),
    }
    if not attrs.get("no_bias"):
        inputs["bias"] = (filters,)
    params = {"kernel": kernel, "num_filter": filters, **attrs}
    return Case("Convolution_v1", inputs, params, FLOATS, rtol=1e-4, atol=1e-5, why=SUMS)


def _pooling(shape: tuple[int, ...], **attrs: Any) -> Case:
    data = Arg(shape, kind="distinct", low=-4.0, high=4.0)
    # Zeros around the data are among the values: a step may carry one across zero.
    return Case("Pooling_v1", {"data": data}, attrs, FLOATS, rtol=1e-5, atol=1e-5, why=SUMS)


def _upsampling(*shapes: tuple[int, ...], **attrs: Any) -> Case:
    inputs = {f"arg{k}": shape for k, shape in enumerate(shapes)}
    if attrs["sample_type"] == "bilinear":
        inputs = dict(zip(("data", "weight"), shapes, strict=True))
    return Case("UpSampling", inputs, {"num_args": len(shapes), **attrs}, FLOATS, rtol=1e-4, atol=1e-5, why=SUMS)


def _resize(shape: tuple[int, ...], *like: tuple[int, ...], **attrs: Any) -> Case:
    inputs: dict[str, Any] = {"data": shape}
    if like:
        inputs["like"] = Arg(like[0], grad=False)
    dtypes = ("float32", "float64") if like else FLOATS
    return Case("_contrib_BilinearResize2D", inputs, attrs, dtypes, rtol=1e-4, atol=1e-5, why="weights in float32")


def _adaptive(shape: tuple[int, ...], **attrs: Any) -> Case:
    return Case("_contrib_AdaptiveAvgPooling2D", {"data": shape}, attrs, FLOATS, rtol=1e-4, atol=1e-5, why=SUMS)


def _crop(*shapes: tuple[int, ...], **attrs: Any) -> Case:
    inputs = {f"arg{k}": shape for k, shape in enumerate(shapes)}
    return Case("Crop", inputs, {"num_args": len(shapes), **attrs}, FLOATS)


def _columns(op: str, shape: tuple[int, ...], **attrs: Any) -> Case:
    oracle = len(attrs["kernel"]) == 2
    why = SUMS if oracle else "MXNet 1.9.1 fails on all but two spatial dimensions"
    return Case(op, {"data": shape}, attrs, FLOATS, rtol=1e-5, atol=1e-5, oracle=oracle, why=why)


CASES = [
    _deconvolution((2, 3, 4), 4, (3,)),
    _deconvolution((2, 4, 5), 6, (3,), stride=(2,), pad=(1,), adj=(1,), dilate=(2,), num_group=2),
    _deconvolution((2, 3, 4, 5), 2, (3, 3), no_bias=False),
    _deconvolution((2, 4, 4, 3), 6, (3, 2), stride=(2, 3), pad=(1, 0), adj=(1, 2), num_group=2, no_bias=False),
    _deconvolution((2, 3, 4, 5), 2, (1, 3), pad=(0, 1)),
    _deconvolution((2, 3, 4, 5), 2, (3, 1), stride=(1, 2)),
    _deconvolution((2, 3, 4, 5), 2, (1, 1), stride=(2, 2)),
    _deconvolution((2, 4, 3, 4), 4, (4, 4), stride=(2, 2), target_shape=(7, 9), num_group=4, oracle=False),
    _deconvolution((2, 2, 3, 4), 3, (3, 3), stride=(2, 2), target_shape=(6, 8), pad=(1, 1), adj=(1, 1)),
    _deconvolution((1, 2, 3, 4), 2, (3, 3), dilate=(2, 2), pad=(1, 2), layout="NCHW", workspace=128),
    _deconvolution((1, 2, 2, 3, 3), 2, (2, 3, 2), stride=(1, 2, 2), pad=(0, 1, 0), no_bias=False),
    _convolution((2, 4, 7, 6), 6, (3, 3), pad=(1, 1)),
    _convolution((2, 4, 8, 9), 6, (3, 2), stride=(2, 3), pad=(1, 2), num_group=2),
    _convolution((2, 4, 7, 8), 4, (3, 3), dilate=(2, 2), num_group=4, no_bias=True),
    _convolution((2, 2, 5, 5), 2, (2, 2), layout="NCHW", workspace=512, cudnn_tune="off"),
    _pooling((2, 3, 6, 7), kernel=(2, 2), stride=(2, 2)),
    _pooling((2, 3, 6, 7), kernel=(3, 2), pad=(1, 1)),
    _pooling((2, 2, 5, 6), kernel=(3, 3), stride=(2, 3), pooling_convention="full"),
    _pooling((2, 2, 5, 6), kernel=(3, 3), stride=(2, 2), pool_type="avg", pooling_convention="full", pad=(1, 1)),
    _pooling((2, 2, 5, 6), kernel=(2, 3), stride=(2, 2), pool_type="sum", pad=(0, 1)),
    _pooling((2, 2, 5, 6), pool_type="avg", global_pool=True),
    _pooling((2, 2, 5, 6), global_pool=True, kernel=(2, 2)),
    _upsampling((2, 3, 3, 4), scale=2, sample_type="nearest"),
    _upsampling((2, 3, 2, 4), (2, 1, 4, 8), scale=4, sample_type="nearest", multi_input_mode="concat"),
    _upsampling((2, 3, 4, 4), (2, 3, 6, 6), scale=3, sample_type="nearest", multi_input_mode="sum"),
    _upsampling((2, 3, 4, 4), (3, 1, 4, 4), scale=2, sample_type="bilinear", num_filter=3),
    _upsampling((2, 2, 3, 4), (2, 1, 5, 5), scale=3, sample_type="bilinear", num_filter=2, workspace=64),
    _columns("im2col", (2, 3, 5, 6), kernel=(3, 2)),
    _columns("im2col", (2, 2, 5, 6), kernel=(2, 3), stride=(2, 1), dilate=(2, 1), pad=(1, 2)),
    _columns("im2col", (2, 2, 7), kernel=(3,), stride=(2,)),
    _columns("im2col", (1, 2, 3, 4, 4), kernel=(2, 2, 3), pad=(0, 1, 1)),
    _columns("col2im", (2, 18, 15), output_size=(5, 6), kernel=(3, 2)),
    _columns("col2im", (2, 12, 24), output_size=(5, 6), kernel=(2, 3), stride=(2, 1), dilate=(2, 1), pad=(1, 2)),
    _columns("col2im", (2, 6, 3), output_size=(7,), kernel=(3,), stride=(2,)),
    _adaptive((2, 3, 5, 7)),
    _adaptive((2, 3, 5, 7), output_size=(3,)),
    _adaptive((2, 3, 5, 7), output_size=(2, 9)),
    _resize((2, 3, 4, 5), height=7, width=3),
    _resize((2, 3, 4, 5), height=1, width=10),
    _resize((2, 3, 4, 5), height=6, width=4, align_corners=False),
    _resize((2, 3, 4, 5), height=2, width=9, align_corners=False),
    _resize((2, 3, 4, 5), scale_height=1.6, scale_width=0.5),
    _resize((2, 3, 4, 5), scale_height=1.5, scale_width=1.6, mode="odd_scale"),
    _resize((2, 3, 4, 5), (2, 3, 6, 7), mode="like"),
    *(_resize((2, 2, 4, 5), mode=mode) for mode in ("to_even_down", "to_even_up", "to_odd_down", "to_odd_up")),
    _crop((2, 3, 5, 6), h_w=(2, 3), offset=(1, 2)),
    _crop((2, 3, 5, 6), h_w=(3, 3), center_crop=True),
    _crop((2, 3, 5, 6), (1, 2, 3, 4), offset=(2, 1)),
    _crop((2, 3, 5, 6), (2, 1, 2, 4), center_crop=True),
    _crop((2, 3, 5, 6), (1, 2, 3, 4), center_crop=True, offset=(-2, 1, 7), h_w=(3, -1)),
]
