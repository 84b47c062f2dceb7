"""Regions: proposals, and pooling by aligned, rotated, position-sensitive and deformable bins."""

from typing import Any

from .case import Arg, Case

FLAT = "MXNet's gradient is zero."
NO_GRADIENT = "MXNet has no gradient."
CORNERS = [[0, 0.5, 1, 3.25, 4.75], [1, -0.75, 0.25, 7, 6], [0, 2.25, 2.25, 2.5, 2.5], [1, 4, 1, 9, 3]]
ROIS = Arg((4, 5), values=CORNERS, grad=False)
ROTATED_ROIS = [[0, 3, 2.5, 4, 2, 0], [1, 2.25, 3, 3.5, 5, 30], [0, 4, 1, 0.5, 0.25, -75], [1, 0, 0, 8, 8, 120]]
ROTATED = Arg((4, 6), values=ROTATED_ROIS, grad=False)
ALIGNS: tuple[dict[str, Any], ...] = (
    {"pooled_size": (2, 3), "spatial_scale": 1},
    {"pooled_size": (2, 2), "spatial_scale": 0.5, "sample_ratio": 2},
    {"pooled_size": (1, 2), "spatial_scale": 1, "sample_ratio": 3, "aligned": True},
    {"pooled_size": (2, 2), "spatial_scale": 1, "position_sensitive": True},
)
PS: tuple[dict[str, Any], ...] = (
    {"spatial_scale": 1, "output_dim": 2, "pooled_size": 2},
    {"spatial_scale": 0.5, "output_dim": 2, "pooled_size": 3, "group_size": 2},
)
DEFORMED: tuple[dict[str, Any], ...] = (
    {"spatial_scale": 1, "output_dim": 2, "group_size": 2, "pooled_size": 2, "no_trans": True, "sample_per_part": 2},
    {"spatial_scale": 1, "output_dim": 2, "group_size": 2, "pooled_size": 2, "trans_std": 0.125},
    {
        "spatial_scale": 0.5,
        "output_dim": 2,
        "group_size": 2,
        "pooled_size": 3,
        "part_size": 2,
        "sample_per_part": 3,
        "trans_std": 0.25,
    },
)
PROPOSALS: tuple[dict[str, Any], ...] = (
    {"rpn_post_nms_top_n": 6, "rpn_pre_nms_top_n": 30},
    {"rpn_post_nms_top_n": 8, "threshold": 0.3, "rpn_min_size": 4, "output_score": True},
    {"rpn_post_nms_top_n": 5, "iou_loss": True, "feature_stride": 24, "rpn_pre_nms_top_n": 0},
)


def align(channels: int = 2, **attrs: Any) -> Case:
    channels = 4 if attrs.get("position_sensitive") else channels
    inputs = {"data": (2, channels, 5, 6), "rois": ROIS}
    return Case("_contrib_ROIAlign", inputs, attrs, zero_size=False, rtol=1e-4, why="means of up to 36 samples")


def rotated(**attrs: Any) -> Case:
    inputs = {"data": (2, 2, 5, 6), "rois": ROTATED}
    return Case("_contrib_RROIAlign", inputs, attrs, grad=False, zero_size=False, rtol=1e-4, why=NO_GRADIENT)


def position_sensitive(**attrs: Any) -> Case:
    inputs = {"data": (2, 8, 5, 6), "rois": ROIS}
    return Case("_contrib_PSROIPooling", inputs, attrs, zero_size=False, rtol=1e-4, why="means of up to 30 pixels")


def deformed(**attrs: Any) -> Case:
    inputs: dict[str, Any] = {"data": (2, 8, 5, 6), "rois": ROIS}
    if not attrs.get("no_trans"):
        inputs["trans"] = (4, 4, 2, 2)
    why = "means of up to 9 samples, whose positions are sums"
    return Case("_contrib_DeformablePSROIPooling", inputs, attrs, zero_size=False, rtol=1e-4, atol=1e-5, why=why)


def proposal(batch: int, **attrs: Any) -> Case:
    attrs = {"scales": (1, 2), "ratios": (0.5, 1), **attrs}
    inputs = {
        "cls_prob": Arg((batch, 8, 3, 4), kind="distinct", low=0, high=1),
        "bbox_pred": Arg((batch, 16, 3, 4), low=-0.5, high=0.5),
        "im_info": Arg((batch, 3), values=[[48, 64, 1], [40, 44, 0.5]][:batch]),
    }
    name = "_contrib_Proposal" if batch == 1 else "_contrib_MultiProposal"
    return Case(name, inputs, attrs, numeric=False, zero_size=batch > 1, rtol=1e-4, atol=1e-4, why=FLAT)


CASES = [
    *(align(**attrs) for attrs in ALIGNS),
    # Enough channels for a sparse matrix to pay.
    align(64, pooled_size=(2, 2), spatial_scale=1, sample_ratio=2),
    rotated(pooled_size=(2, 3), spatial_scale=1),
    rotated(pooled_size=(2, 2), spatial_scale=0.5, sampling_ratio=2),
    *(position_sensitive(**attrs) for attrs in PS),
    *(deformed(**attrs) for attrs in DEFORMED),
    *(proposal(batch, **attrs) for batch in (1, 2) for attrs in PROPOSALS),
]
