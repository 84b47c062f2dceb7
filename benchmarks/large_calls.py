"""Large calls of operators: layers as networks have them, and rows of the operator table with their sizes grown."""

from __future__ import annotations

import math
from typing import Any

from tests.cases.case import Arg, Case
from tests.cases.values import as_arg
from tests.conformance.drawing import resized
from tests.ops.one_call import call_graph

from opbox_protocol.errors import MXNetError
from opbox_service.graph.passes.infer_shape import infer_shape

__all__ = ["REDUCING_CALLS", "LARGE_CALLS", "grown"]

LARGE = 2**20
FACTORS = (512, 256, 128, 64, 32, 16, 8, 4, 3, 2)


def _boxes(count: int, size: float, columns: int = 5) -> Arg:
    """Regions of an image of `size`: image 0, corners in order."""
    rows = []
    for k in range(count):
        x, y = (k * 37) % int(size * 0.6), (k * 53) % int(size * 0.6)
        rows.append([0, x, y, x + 8 + (k * 7) % int(size * 0.35), y + 8 + (k * 11) % int(size * 0.35)][:columns])
    return Arg((count, columns), values=rows, grad=False)


IMAGES = (8, 64, 56, 56)
CHANNEL = (64,)
STATISTICS = {"moving_mean": Arg(CHANNEL, grad=False), "moving_var": Arg(CHANNEL, 0.5, 1.5, grad=False)}
NORM = {"data": IMAGES, "gamma": Arg(CHANNEL, 0.5, 1.5), "beta": CHANNEL}
CONV = {"data": IMAGES, "weight": (64, 64, 3, 3), "bias": CHANNEL}
KERNEL = {"kernel": (3, 3), "pad": (1, 1)}
CLASSES = (128, 1000)
FEATURES = (1, 64, 48, 64)
POOLED = {"spatial_scale": 1 / 16, "pooled_size": (7, 7)}
REGIONS = _boxes(128, 760)

TABLE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("Convolution", CONV, {**KERNEL, "num_filter": 64}),
    ("Convolution_v1", CONV, {**KERNEL, "num_filter": 64}),
    (
        "Deconvolution",
        {"data": (8, 64, 28, 28), "weight": (64, 32, 4, 4)},
        {"kernel": (4, 4), "stride": (2, 2), "pad": (1, 1), "num_filter": 32},
    ),
    (
        "_contrib_DeformableConvolution",
        {"data": (1, 64, 28, 28), "offset": (1, 18, 28, 28), "weight": (64, 64, 3, 3), "bias": CHANNEL},
        {**KERNEL, "num_filter": 64},
    ),
    ("Pooling", {"data": IMAGES}, {**KERNEL, "stride": (2, 2), "pool_type": "max"}),
    ("Pooling_v1", {"data": IMAGES}, {**KERNEL, "stride": (2, 2), "pool_type": "max"}),
    ("FullyConnected", {"data": (128, 1024), "weight": (1000, 1024), "bias": (1000,)}, {"num_hidden": 1000}),
    ("BatchNorm", {**NORM, **STATISTICS}, {"fix_gamma": False}),
    ("BatchNorm_v1", {**NORM, **STATISTICS}, {"fix_gamma": False}),
    ("_contrib_SyncBatchNorm", {**NORM, **STATISTICS}, {"fix_gamma": False, "key": "bench"}),
    ("LayerNorm", {"data": (32, 128, 512), "gamma": (512,), "beta": (512,)}, {}),
    ("GroupNorm", {"data": IMAGES, "gamma": (8,), "beta": (8,)}, {"num_groups": 8}),
    ("InstanceNorm", NORM, {}),
    ("L2Normalization", {"data": IMAGES}, {}),
    ("LRN", {"data": IMAGES}, {"nsize": 5}),
    ("softmax", {"data": CLASSES}, {}),
    ("log_softmax", {"data": CLASSES}, {}),
    ("softmin", {"data": CLASSES}, {}),
    ("SoftmaxActivation", {"data": CLASSES}, {}),
    ("SoftmaxOutput", {"data": CLASSES, "label": Arg((128,), 0, 999, "int", grad=False)}, {}),
    (
        "Embedding",
        {"data": Arg((128, 35), 0, 9999, "int", grad=False), "weight": (10000, 200)},
        {"input_dim": 10000, "output_dim": 200},
    ),
    ("take", {"a": (10000, 64), "indices": Arg((128, 35), 0, 9999, "int", grad=False)}, {}),
    ("one_hot", {"indices": Arg((4480,), 0, 999, "int", grad=False)}, {"depth": 1000}),
    ("gather_nd", {"data": (512, 512), "indices": Arg((2, 65536), 0, 511, "int", grad=False)}, {}),
    ("pick", {"data": CLASSES, "index": Arg((128,), 0, 999, "int", grad=False)}, {}),
    ("topk", {"data": Arg((64, 1000), kind="distinct")}, {"k": 5, "ret_typ": "value"}),
    ("sort", {"data": Arg((64, 1000), kind="distinct")}, {}),
    ("argsort", {"data": Arg((64, 1000), kind="distinct")}, {}),
    ("CTCLoss", {"data": (50, 16, 40), "label": Arg((16, 20), 1, 39, "int", grad=False)}, {}),
    (
        "RNN",
        {
            "data": (35, 20, 200),
            "parameters": Arg((4 * 200 * 402 * 2,), -0.1, 0.1),
            "state": (2, 20, 200),
            "state_cell": (2, 20, 200),
        },
        {"mode": "lstm", "state_size": 200, "num_layers": 2},
    ),
    ("Crop", {"data": (8, 64, 64, 64)}, {"num_args": 1, "h_w": (56, 56), "offset": (4, 4)}),
    ("UpSampling", {"data": (8, 64, 28, 28)}, {"scale": 2, "sample_type": "nearest", "num_args": 1}),
    ("_contrib_BilinearResize2D", {"data": (8, 32, 28, 28)}, {"height": 56, "width": 56}),
    ("_contrib_AdaptiveAvgPooling2D", {"data": IMAGES}, {"output_size": 7}),
    ("Correlation", {"data1": (1, 64, 32, 32), "data2": (1, 64, 32, 32)}, {"max_displacement": 4, "pad_size": 4}),
    ("GridGenerator", {"data": (8, 6)}, {"transform_type": "affine", "target_shape": (56, 56)}),
    ("BilinearSampler", {"data": (8, 32, 56, 56), "grid": (8, 2, 56, 56)}, {}),
    (
        "SpatialTransformer",
        {"data": (8, 32, 56, 56), "loc": (8, 6)},
        {"transform_type": "affine", "sampler_type": "bilinear", "target_shape": (56, 56)},
    ),
    ("im2col", {"data": (8, 32, 28, 28)}, KERNEL),
    ("col2im", {"data": (8, 288, 784)}, {**KERNEL, "output_size": (28, 28)}),
    ("ROIPooling", {"data": FEATURES, "rois": REGIONS}, POOLED),
    ("_contrib_ROIAlign", {"data": FEATURES, "rois": REGIONS}, {**POOLED, "sample_ratio": 2}),
    (
        "_contrib_RROIAlign",
        {
            "data": FEATURES,
            "rois": Arg((128, 6), values=[[0, 300, 300, 120 + k, 90, k] for k in range(128)], grad=False),
        },
        {**POOLED, "sampling_ratio": 2},
    ),
    (
        "_contrib_PSROIPooling",
        {"data": (1, 98, 48, 64), "rois": REGIONS},
        {"spatial_scale": 1 / 16, "output_dim": 2, "pooled_size": 7},
    ),
    (
        "_contrib_DeformablePSROIPooling",
        {"data": (1, 98, 48, 64), "rois": REGIONS, "trans": (128, 2, 7, 7)},
        {
            "spatial_scale": 1 / 16,
            "output_dim": 2,
            "group_size": 7,
            "pooled_size": 7,
            "part_size": 7,
            "sample_per_part": 4,
            "trans_std": 0.1,
        },
    ),
    (
        "_contrib_Proposal",
        {
            "cls_prob": Arg((1, 24, 24, 32), 0.0, 1.0),
            "bbox_pred": Arg((1, 48, 24, 32), -0.2, 0.2),
            "im_info": Arg((1, 3), values=[[384, 512, 1.0]]),
        },
        {"rpn_pre_nms_top_n": 2000, "rpn_post_nms_top_n": 300},
    ),
    (
        "_contrib_MultiProposal",
        {
            "cls_prob": Arg((2, 24, 24, 32), 0.0, 1.0),
            "bbox_pred": Arg((2, 48, 24, 32), -0.2, 0.2),
            "im_info": Arg((2, 3), values=[[384, 512, 1.0]] * 2),
        },
        {"rpn_pre_nms_top_n": 2000, "rpn_post_nms_top_n": 300},
    ),
    ("_contrib_MultiBoxPrior", {"data": (1, 64, 38, 38)}, {"sizes": (0.1, 0.15), "ratios": (1.0, 2.0, 0.5)}),
    (
        "_contrib_box_nms",
        {"data": Arg((4, 1000, 6), 0.0, 1.0)},
        {"overlap_thresh": 0.5, "coord_start": 2, "score_index": 1, "id_index": -1},
    ),
    ("_contrib_box_iou", {"lhs": Arg((2000, 4), 0.0, 1.0, grad=False), "rhs": Arg((50, 4), 0.0, 1.0, grad=False)}, {}),
    ("_contrib_bipartite_matching", {"data": Arg((4, 1000, 20), 0.0, 1.0, kind="distinct")}, {"threshold": 0.3}),
]
"""Operator, inputs (data first), parameters."""

LARGE_CALLS: dict[str, Case] = {op: Case(op, ins, attrs, ("float32",)) for op, ins, attrs in TABLE}
"""By operator."""

REDUCING_CALLS: list[Case] = [
    *(
        Case(op, {"data": shape}, attrs, ("float32",))
        for op in ("sum", "mean", "prod", "nansum", "nanprod", "max", "min", "norm")
        for shape, attrs in (
            ((65536, 16), {"axis": 0}),
            ((64, 16384), {"axis": 1}),
            ((16, 4096, 16), {"axis": 1}),
            ((16, 16, 4096), {"axis": (0, 2)}),
        )
    ),
    *(
        Case(op, {"data": shape}, attrs, ("float32",))
        for op in ("argmax", "argmin")
        for shape, attrs in (((65536, 16), {"axis": 0}), ((64, 16384), {"axis": 1}), ((16, 4096, 16), {"axis": 1}))
    ),
    Case("sum", {"data": (1024, 1024)}, {}, ("float16",)),
    Case("sum", {"data": (1024, 1024)}, {}, ("int32",)),
    Case("moments", {"data": (16, 16, 4096)}, {"axes": (0, 2)}, ("float32",)),
    Case("_npi_var", {"a": (65536, 16)}, {"axis": 0}, ("float32",)),
    Case("_npi_average", {"a": (65536, 16), "weights": (65536, 16)}, {"axis": 0}, ("float32",)),
    *(
        Case(op, {"lhs": (16384, 64), "rhs": (1, 64)}, {}, ("float32",))
        for op in ("broadcast_add", "broadcast_mul", "broadcast_maximum")
    ),
    Case("broadcast_to", {"data": (1, 64)}, {"shape": (16384, 64)}, ("float32",)),
    Case("_npi_add", {"lhs": (16384, 64), "rhs": (64,)}, {}, ("float32",)),
    Case("FullyConnected", {"data": (16384, 64), "weight": (16, 64), "bias": (16,)}, {"num_hidden": 16}, ("float32",)),
    Case("softmax", {"data": (524288, 2)}, {"axis": 0}, ("float32",)),
    Case("softmax_cross_entropy", {"data": (1024, 1000), "label": Arg((1024,), 0, 999, "int", grad=False)}),
    Case("LayerNorm", {"data": (16384, 64), "gamma": (64,), "beta": (64,)}),
    Case(
        "BatchNorm",
        {
            "data": (8, 3, 224, 224),
            "gamma": Arg((3,), 0.5, 1.5),
            "beta": (3,),
            "moving_mean": Arg((3,), grad=False),
            "moving_var": Arg((3,), 0.5, 1.5, grad=False),
        },
        {"fix_gamma": False},
        ("float32",),
    ),
    Case(
        "Deconvolution",
        {"data": (8, 16, 64, 64), "weight": (16, 3, 4, 4), "bias": (3,)},
        {"kernel": (4, 4), "stride": (2, 2), "pad": (1, 1), "num_filter": 3, "no_bias": False},
        ("float32",),
    ),
    *(
        Case(
            "Pooling",
            {"data": (4, 64, 64, 64)},
            {"global_pool": True, "pool_type": kind, "kernel": (1, 1), "layout": layout},
            ("float32",),
        )
        for kind in ("avg", "max")
        for layout in ("NCHW", "NHWC")
    ),
    Case(
        "Embedding",
        {"data": Arg((256, 64), 0, 1, "int", grad=False), "weight": (10000, 64)},
        {"input_dim": 10000, "output_dim": 64},
        ("float32",),
    ),
]
"""Calls that bring many numbers to few, or whose rows are few: what a GPU has to share out among its processors."""


def grown(case: Case, *, largest: bool = False) -> Case | None:
    """The row with all its sizes grown, or those of its first axis: by the largest factor for LARGE numbers.

    With `largest`, the call of these that has the most numbers.
    """
    calls = [_renaming(case, factor, axes) for factor in FACTORS for axes in ("all", "first")]

    def count(sizes: dict[int, int]) -> int:
        return sum(math.prod(sizes.get(d, d) for d in as_arg(arg).shape) for arg in case.inputs.values())

    for sizes in sorted(calls, key=count, reverse=True) if largest else calls:
        if sizes and count(sizes) <= 2 * LARGE and (larger := _resized(case, sizes)) is not None:
            return larger
    return None


def _resized(case: Case, sizes: dict[int, int]) -> Case | None:
    """The row with these sizes; None where that is no call of the operator, or its outputs are too large."""
    larger = resized(case, sizes)
    try:
        graph = call_graph(case.op, larger.attrs, list(case.inputs))
        inferred = infer_shape(graph, {name: tuple(arg.shape) for name, arg in larger.inputs.items()})
    except MXNetError:
        return None
    return larger if sum(math.prod(shape) for shape in inferred.entries if shape) <= 8 * LARGE else None


def _renaming(case: Case, factor: int, axes: str) -> dict[int, int]:
    shapes = [tuple(as_arg(arg).shape) for arg in case.inputs.values()]
    chosen = {d for shape in shapes for d in (shape if axes == "all" else shape[:1])}
    return {d: d * factor for d in chosen if d > 1}
