"""Rows of images: sampled, pooled by regions, resized and coloured; boxes and anchors."""

from __future__ import annotations

from .row import Input, Row

__all__ = ["ROWS"]

_FLOATS = ("float32", "float16", "float64")
_COLOURS = {
    "brightness": {"min_factor": 0.5, "max_factor": 0.5},
    "contrast": {"min_factor": 0.5, "max_factor": 0.5},
    "saturation": {"min_factor": 0.5, "max_factor": 0.5},
    "hue": {"min_factor": 0.25, "max_factor": 0.25},
    "color_jitter": {"brightness": 0.5, "contrast": 0.25, "saturation": 0.5, "hue": 0.25},
}


def _regions(count: int, size: float) -> Input:
    return Input((count, 5), 0, size, "regions")


def _anchors(count: int) -> Input:
    return Input((1, count, 4), 0, 1, "boxes")


ROWS = [
    Row(
        "GridGenerator",
        [(2, 6)],
        [(3, 6)],
        {"transform_type": "affine", "target_shape": (3, 5)},
        {"target_shape": (90, 130)},
    ),
    Row("GridGenerator", [(2, 2, 3, 5)], [(3, 2, 70, 90)], {"transform_type": "warp"}),
    Row(
        "BilinearSampler",
        [(2, 3, 5, 6), Input((2, 2, 4, 3), -1.25, 1.25)],
        [(2, 5, 21, 19), Input((2, 2, 60, 70), -1.25, 1.25)],
        slack=10,
    ),
    Row(
        "SpatialTransformer",
        [(2, 3, 5, 6), (2, 6)],
        [(2, 5, 21, 19), (2, 6)],
        {"target_shape": (3, 4), "transform_type": "affine", "sampler_type": "bilinear"},
        {"target_shape": (40, 45)},
        slack=10,
        types=("float32", "float64"),
        why="In half precision the sampled places depend on how a product is rounded.",
    ),
    Row(
        "Correlation",
        [(2, 3, 5, 6), (2, 3, 5, 6)],
        [(2, 7, 21, 19), (2, 7, 21, 19)],
        {"max_displacement": 2, "pad_size": 2},
        slack=10,
    ),
    Row(
        "ROIPooling",
        [Input((2, 3, 8, 9), kind="distinct"), _regions(4, 8)],
        [Input((2, 7, 21, 19), kind="distinct"), _regions(90, 16)],
        {"pooled_size": (2, 3), "spatial_scale": 1.0},
        slack=10,
        types=_FLOATS,
    ),
    Row(
        "_contrib_ROIAlign",
        [(2, 3, 8, 9), _regions(4, 8)],
        [(2, 7, 21, 19), _regions(90, 16)],
        {"pooled_size": (2, 3), "spatial_scale": 1.0, "sample_ratio": 2},
        slack=10,
        types=_FLOATS,
    ),
    Row(
        "_contrib_RROIAlign",
        [(1, 3, 8, 9), Input((4, 6), 0, 0.96)],
        [(1, 7, 21, 19), Input((90, 6), 0, 0.96)],
        {"pooled_size": (2, 3), "spatial_scale": 8.0, "sampling_ratio": 2},
        slack=10,
        gradient=False,
        types=("float32", "float64"),
        why="In half precision the sampled places depend on how a product is rounded.",
    ),
    Row(
        "_contrib_PSROIPooling",
        [(2, 8, 8, 9), _regions(4, 8)],
        [(2, 27, 21, 19), _regions(90, 16)],
        {"pooled_size": 2, "output_dim": 2, "spatial_scale": 1.0},
        {"pooled_size": 3, "output_dim": 3},
        slack=10,
        types=_FLOATS,
    ),
    Row(
        "_contrib_DeformablePSROIPooling",
        [(2, 8, 8, 9), _regions(4, 8), (4, 4, 2, 2)],
        [(2, 8, 21, 19), _regions(90, 16), (90, 4, 2, 2)],
        {
            "spatial_scale": 1.0,
            "output_dim": 2,
            "group_size": 2,
            "pooled_size": 2,
            "part_size": 2,
            "trans_std": 0.125,
            "sample_per_part": 2,
        },
        slack=10,
        types=("float32", "float64"),
        why="In half precision the sampled places depend on how a product is rounded.",
    ),
    Row(
        "_image_resize",
        [Input((7, 5, 3), 0, 255)],
        [Input((2, 60, 40, 3), 0, 255)],
        {"size": (9, 4), "interp": 1},
        {"size": (90, 70)},
        gradient=False,
        types=_FLOATS,
    ),
    *(
        Row(
            f"_image_random_{name}",
            [Input((5, 3, 3), 0, 255)],
            [Input((40, 70, 3), 0, 255)],
            attrs,
            gradient=False,
            types=("float32", "float64"),
        )
        for name, attrs in _COLOURS.items()
    ),
    Row(
        "_image_random_lighting",
        [Input((5, 3, 3), 100, 101)],
        [Input((40, 70, 3), 100, 101)],
        {"alpha_std": 0.5},
        compares="finite",
        gradient=False,
        types=("float32", "float64"),
        why="It draws three numbers for an image, and others than NumPy.",
    ),
    Row(
        "_contrib_box_nms",
        [Input((2, 7, 6), 0, 1, "scored")],
        [Input((5, 100, 6), 0, 1, "scored")],
        {"id_index": 0, "overlap_thresh": 0.4567},
    ),
    Row(
        "_contrib_bipartite_matching",
        [Input((2, 3, 4), 0, 1, "distinct")],
        [Input((140, 5, 16), 0, 1, "distinct")],
        {"threshold": 0.1},
        gradient=False,
    ),
    Row(
        "_contrib_MultiBoxTarget",
        [_anchors(6), Input((3, 2, 5), 0, 1, "labelled"), (3, 3, 6)],
        [_anchors(200), Input((5, 4, 5), 0, 1, "labelled"), (5, 3, 200)],
        {"overlap_threshold": 0.4567},
        gradient=False,
        slack=10,
    ),
    Row(
        "_contrib_MultiBoxDetection",
        [Input((2, 3, 6), 0, 1, "distinct"), (2, 24), _anchors(6)],
        [Input((5, 3, 100), 0, 1, "distinct"), (5, 400), _anchors(100)],
        {"nms_threshold": 0.4567},
        gradient=False,
        slack=10,
        types=("float32", "float64"),
        why="In half precision many overlaps and scores are equal.",
    ),
    *(
        Row(
            op,
            [Input((count, 8, 3, 5), 0, 1, "distinct"), Input((count, 16, 3, 5), -0.5, 0.5), info],
            [Input((count, 8, 9, 13), 0, 1, "distinct"), Input((count, 16, 9, 13), -0.5, 0.5), info],
            {"scales": (1, 2), "ratios": (0.5, 1), "rpn_post_nms_top_n": 6, "rpn_pre_nms_top_n": 30},
            gradient=False,
            types=("float32", "float64"),
            why="In half precision many overlaps and scores are equal.",
        )
        for op, count in (("_contrib_Proposal", 1), ("_contrib_MultiProposal", 2))
        for info in [Input((count, 3), 48, 48)]
    ),
]
