"""The large calls of operators.py: layers as networks have them, where growing a unit test's sizes makes none."""

from __future__ import annotations

from typing import Any

from tests.cases.case import Arg, Case

__all__ = ["LARGE_CALLS"]


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
