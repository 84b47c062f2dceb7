"""Kernels of our own beside the reference: sizes of more than a block, and values that no row has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_ops.compute import ArraySpec, CallSpec
from tests.cases.case import Arg, Case

from .harness import Run
from .test_cuda_kernels import as_gpu, compare_with_the_reference, emulate

FAR = float("inf")
NONE = float("nan")


def many_regions(count: int, side: float) -> list[list[float]]:
    """Regions of two images, some on none of them, some inside out, some far larger than their image."""
    rng = np.random.default_rng(count)
    rois = rng.uniform(-0.25 * side, 1.25 * side, (count, 5))
    rois[:, 0] = rng.integers(-1, 3, count)
    rois[: count // 4, 3:] += rois[: count // 4, 1:3]
    rois[1, 1:] = (-40 * side, -30 * side, 50 * side, 60 * side)
    rows: list[list[float]] = rois.round(3).tolist()
    return rows


STRANGE = [
    *([0, NONE, 1, 3, 4], [0, 1, 1, FAR, 4], [NONE, 1, 1, 3, 4], [0.75, 1, 1, 3, 4], [-0.5, 1, 1, 3, 4]),
    *([0, -FAR, 1, 3, 4], [0, 1, 1, -FAR, 4], [0, 1, 1, 3, FAR], [1, 5, 4, 1, 1], [1, 2, 2, 2, 2]),
]
MANY = Arg((300, 5), values=many_regions(300, 9), grad=False)
ODD = Arg((10, 5), values=STRANGE, grad=False)
ALIGNS: tuple[dict[str, Any], ...] = (
    {"sample_ratio": 2},
    {"aligned": True},
    {"aligned": True, "sample_ratio": 3},
    {"position_sensitive": True},
    {"position_sensitive": True, "sample_ratio": 2, "aligned": True},
)


def align(rois: Arg, **attrs: Any) -> Case:
    data = (2, 12 if attrs.get("position_sensitive") else 3, 9, 7)
    attrs = {"pooled_size": (2, 3), "spatial_scale": 0.75, **attrs}
    return Case("_contrib_ROIAlign", {"data": data, "rois": rois}, attrs, rtol=1e-4, atol=1e-5)


def rotated(rois: Arg, **attrs: Any) -> Case:
    rows = [[*roi, 23.0 * k - 200] for k, roi in enumerate(rois.values)]
    inputs = {"data": (2, 3, 9, 7), "rois": Arg((len(rows), 6), values=rows)}
    attrs = {"pooled_size": (2, 3), "spatial_scale": 0.75, **attrs}
    return Case("_contrib_RROIAlign", inputs, attrs, grad=False, rtol=1e-4, atol=1e-5)


def position_sensitive(rois: Arg, **attrs: Any) -> Case:
    data = (2, 2 * (attrs.get("group_size") or attrs["pooled_size"]) ** 2, 9, 7)
    attrs = {"spatial_scale": 0.75, "output_dim": 2, **attrs}
    return Case("_contrib_PSROIPooling", {"data": data, "rois": rois}, attrs, rtol=1e-4, atol=1e-5)


GROUPS: tuple[dict[str, Any], ...] = (
    {"pooled_size": 3},
    {"pooled_size": 5, "group_size": 2},
    {"pooled_size": 2, "group_size": 3},
)


def deformed(rois: Arg, **attrs: Any) -> Case:
    group, pooled = attrs["group_size"], attrs["pooled_size"]
    inputs: dict[str, Any] = {"data": (2, 4 * group**2, 9, 7), "rois": rois}
    if not attrs.get("no_trans"):
        part = attrs.get("part_size") or pooled
        inputs["trans"] = Arg((rois.shape[0], attrs.pop("offsets"), part, part), -2, 2)
    attrs = {"spatial_scale": 0.75, "output_dim": 4, "trans_std": 0.3, **attrs}
    return Case("_contrib_DeformablePSROIPooling", inputs, attrs, rtol=1e-4, atol=1e-4)


DEFORMED: tuple[dict[str, Any], ...] = (
    {"group_size": 2, "pooled_size": 3, "sample_per_part": 2, "offsets": 4},
    {"group_size": 1, "pooled_size": 2, "part_size": 3, "sample_per_part": 3, "offsets": 8},
    {"group_size": 3, "pooled_size": 5, "part_size": 2, "sample_per_part": 1, "offsets": 2},
    {"group_size": 2, "pooled_size": 3, "sample_per_part": 4, "no_trans": True},
)


def boxes(count: int, columns: int = 6) -> list[list[float]]:
    """Class, score (many alike) and corners; one score and one corner are no number, some boxes are inside out."""
    rng = np.random.default_rng(count)
    rows = rng.uniform(0, 1, (count, columns))
    rows[:, 0] = rng.integers(0, 4, count)
    rows[:, 1] = rng.integers(0, 50, count) / 64
    rows[:, 4:6] = rows[:, 2:4] + rng.uniform(-0.05, 0.4, (count, 2))
    rows = rows.round(3)
    if count > 8:
        rows[3, 1] = rows[5, 4] = NONE
    numbers: list[list[float]] = rows.tolist()
    return numbers


def nms(count: int, **attrs: Any) -> Case:
    data = Arg((2, count, 6), values=[boxes(count), boxes(count)[::-1]])
    return Case("_contrib_box_nms", {"data": data}, attrs)


NMS: tuple[dict[str, Any], ...] = (
    {"overlap_thresh": 0.9, "id_index": 0},
    {"overlap_thresh": 0.3, "topk": 700, "valid_thresh": 0.1},
    {"topk": 0, "out_format": "center"},
    {"overlap_thresh": 0.5, "id_index": 0, "background_id": 2, "in_format": "center"},
)


def proposal(size: tuple[int, int], **attrs: Any) -> Case:
    inputs = {
        "cls_prob": Arg((2, 8, *size), kind="distinct", low=0, high=1),
        "bbox_pred": Arg((2, 16, *size), low=-0.5, high=0.5),
        "im_info": Arg((2, 3), values=[[16 * size[0], 16 * size[1], 1], [300, 280, 0.5]]),
    }
    attrs = {"scales": (1, 4), "ratios": (0.5, 2), "output_score": True, **attrs}
    return Case("_contrib_MultiProposal", inputs, attrs, rtol=1e-4, atol=1e-4)


PROPOSALS: tuple[dict[str, Any], ...] = (
    {"rpn_post_nms_top_n": 40, "rpn_pre_nms_top_n": 1100, "threshold": 0.4},
    {"rpn_post_nms_top_n": 1000, "rpn_pre_nms_top_n": 0, "rpn_min_size": 24},
    {"rpn_post_nms_top_n": 300, "iou_loss": True, "feature_stride": 8},
)


def anchors(count: int) -> list[list[float]]:
    """Corners of anchors of all sizes, many of which overlap."""
    rng = np.random.default_rng(count)
    first = rng.uniform(-0.1, 0.8, (count, 2))
    rows: list[list[float]] = np.hstack([first, first + rng.uniform(0.02, 0.5, (count, 2))]).round(3).tolist()
    return rows


def probabilities(count: int) -> list[Any]:
    """Of two images and four classes, many alike, and one that is no number."""
    values = np.random.default_rng(count).integers(0, 64, (2, 4, count)) / 64
    values[1, 2, count // 2] = NONE
    rows: list[Any] = values.tolist()
    return rows


def detection(count: int, **attrs: Any) -> Case:
    inputs = {
        "cls_prob": Arg((2, 4, count), values=probabilities(count)),
        "loc_pred": (2, 4 * count),
        "anchor": Arg((1, count, 4), values=anchors(count)),
    }
    return Case("_contrib_MultiBoxDetection", inputs, attrs, rtol=1e-4, atol=1e-5)


DETECTIONS: tuple[dict[str, Any], ...] = (
    {"nms_threshold": 0.6},
    {"nms_threshold": 0.3, "nms_topk": 20, "threshold": 0.9, "clip": False},
    {"nms_threshold": 0.45, "force_suppress": True, "threshold": 0.5},
    {"nms_threshold": -1, "threshold": 0.8},
)


def truths(count: int) -> list[Any]:
    """True boxes of three images: fewer than there is room for, none, all; of the last one box is no number."""
    rows = [[float(k % 3), *box] for k, box in enumerate(anchors(3 * count))]
    none = [-1.0] * 5
    images = [rows[:count], rows[count : 2 * count], rows[2 * count :]]
    images[0][count // 2] = images[1][0] = none
    images[2][count // 3][2] = NONE
    return images


def target(count: int, true: int, **attrs: Any) -> Case:
    inputs = {
        "anchor": Arg((1, count, 4), values=anchors(count)),
        "label": Arg((3, true, 5), values=truths(true)),
        "cls_pred": (3, 4, count),
    }
    return Case("_contrib_MultiBoxTarget", inputs, attrs, rtol=1e-4, atol=1e-5)


TARGETS: tuple[dict[str, Any], ...] = (
    {},
    {"overlap_threshold": 0.2, "negative_mining_ratio": 3, "negative_mining_thresh": 0.3, "ignore_label": -7},
    {"overlap_threshold": 0, "negative_mining_ratio": 0.7, "variances": (1, 2, 0.5, 0.25)},
)


def pairing(rows: int, columns: int, levels: int, **attrs: Any) -> Case:
    scores = np.random.default_rng(rows).integers(0, levels, (2, rows, columns)) / levels
    scores[0, 0, 0] = NONE
    data = Arg(scores.shape, values=scores.tolist())
    return Case("_contrib_bipartite_matching", {"data": data}, attrs)


PAIRINGS: tuple[dict[str, Any], ...] = (
    {"threshold": 0.2},
    {"threshold": 0.7, "is_ascend": True},
    {"threshold": 1e-12, "topk": 3},
)


def histogram(bins: int, *dtypes: str) -> Case:
    values = np.random.default_rng(bins).integers(-20, 120, (3, 700)).astype(float)
    if dtypes[0].startswith("float"):
        values[0, :3] = (NONE, FAR, -FAR)
    data = Arg(values.shape, values=values.tolist())
    return Case("_histogram", {"data": data}, {"bin_cnt": bins, "range": (-10, 100)}, dtypes=dtypes, grad=False)


CASES = [
    *(rotated(rois, sampling_ratio=ratio) for rois in (MANY, ODD) for ratio in (-1, 3)),
    *(histogram(bins, dtype) for bins in (3, 5000) for dtype in ("float32", "float64", "float16", "int32", "int64")),
    histogram(11, "int8"),
    *(target(*size, **attrs) for size in ((2, 3), (50, 9), (2600, 40)) for attrs in TARGETS),
    *(pairing(*size, **attrs) for size in ((1, 1, 3), (40, 7, 16), (7, 70, 4), (600, 20, 1000)) for attrs in PAIRINGS),
    *(detection(count, **attrs) for count in (1, 33, 2600) for attrs in DETECTIONS),
    *(deformed(rois, **attrs) for rois in (MANY, ODD) for attrs in DEFORMED),
    *(position_sensitive(rois, **attrs) for rois in (MANY, ODD) for attrs in GROUPS),
    *(proposal(size, **attrs) for size in ((3, 5), (19, 23)) for attrs in PROPOSALS),
    *(nms(count, **attrs) for count in (1, 37, 1300) for attrs in NMS),
    nms(9300, overlap_thresh=0.8),
    nms(5000, overlap_thresh=0.2, topk=4500, id_index=0),
    *(align(rois, **attrs) for rois in (MANY, ODD) for attrs in ALIGNS),
]


TYPED = {case.op: case for case in CASES if "float16" in case.dtypes}
"""The last row of each operator."""


@pytest.mark.compiler
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.op)
def test_a_kernel_has_the_references_values(case: Case, folder: Path) -> None:
    compare_with_the_reference(case, folder, dtype=case.dtypes[0])


@pytest.mark.compiler
@pytest.mark.parametrize("case", TYPED.values(), ids=TYPED)
@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_a_kernel_has_the_references_values_in_every_type(case: Case, dtype: str, folder: Path) -> None:
    """Half precision is rounded as NumPy rounds it, so that the same boxes stay; sums differ by a rounding or two."""
    near = {"rtol": 4e-3, "atol": 4e-3} if dtype == "float16" else {}
    compare_with_the_reference(replace(case, **near), folder, dtype=dtype)


@pytest.mark.compiler
def test_a_region_far_larger_than_its_image_has_the_mean_of_its_samples(folder: Path) -> None:
    """The reference refuses as many samples as these; on a GPU those outside of data are skipped."""
    run = Run(align(Arg((1, 5), values=[[0, 0, 0, 5, 5]])), "float32", backend_for("cpu"))
    run.forward()
    call = run.calls[0]
    compute, spec = as_gpu(call)
    (data, rois), outputs = call.fresh(), call.empty()
    data[...] = 1
    rois[0, 1:] = (-50_000, -70_000, 80_000, 60_000)
    emulate(compute, call.node, spec, [data, rois], outputs, folder)
    shares = []
    for first, last, bins, size in ((-70_000, 60_000, 2, 9), (-50_000, 80_000, 3, 7)):
        start, step = first * 0.75, (last - first) * 0.75 / bins
        samples = int(np.ceil(step))
        places = start + (np.arange(bins)[:, None] + (np.arange(samples) + 0.5) / samples) * step
        shares.append(((places >= -1) & (places <= size)).mean(axis=1))
    expected = shares[0][:, None] * shares[1]
    assert expected.any()
    np.testing.assert_allclose(outputs[0], np.broadcast_to(expected, (1, 3, 2, 3)), rtol=1e-5)


@pytest.mark.parametrize(("size", "level"), [(11_000, "generated"), (12_000, "reference")])
def test_kernels_match_as_many_as_there_is_scratch_for(size: int, level: str) -> None:
    op = registry.get("_contrib_bipartite_matching")
    data, sides = ArraySpec((2, size, size), np.dtype("f")), ArraySpec((2, size), np.dtype("f"))
    assert op.choose(op.parse({"threshold": "0.5"}), CallSpec("gpu", (data,), (sides, sides))).level == level


@pytest.mark.parametrize(("ratio", "level"), [(-1, "generated"), (200, "generated"), (400, "reference")])
def test_as_many_samples_as_a_parameter_says_are_left_to_the_reference_to_refuse(ratio: int, level: str) -> None:
    shapes = ((1, 2, 9, 7), (1000, 5)), ((1000, 2, 1, 1),)
    inputs, outputs = (tuple(ArraySpec(shape, np.dtype("f")) for shape in side) for side in shapes)
    op = registry.get("_contrib_ROIAlign")
    params = op.parse({"pooled_size": "(1, 1)", "spatial_scale": "1", "sample_ratio": str(ratio)})
    assert op.choose(params, CallSpec("gpu", inputs, outputs)).level == level
