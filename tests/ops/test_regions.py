"""Regions on images that are not there are pooled to zeros, forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.one_call import call_graph, run_call

SIZED = {"pooled_size": (2, 2), "spatial_scale": 1}
POOLS: list[tuple[str, dict[str, Any], int]] = [
    ("ROIPooling", SIZED, 5),
    ("_contrib_ROIAlign", SIZED, 5),
    ("_contrib_RROIAlign", SIZED, 6),
    ("_contrib_PSROIPooling", {"output_dim": 2, "pooled_size": 2, "spatial_scale": 1}, 5),
    (
        "_contrib_DeformablePSROIPooling",
        {"output_dim": 2, "group_size": 2, "pooled_size": 2, "spatial_scale": 1, "no_trans": True},
        5,
    ),
]


@pytest.mark.parametrize(("op", "attrs", "width"), POOLS, ids=[op for op, *_ in POOLS])
def test_no_images(op: str, attrs: dict[str, Any], width: int) -> None:
    rois = np.ones((3, width), np.float32)
    wanted = [] if op == "_contrib_RROIAlign" else ["data"]
    arrays = {"data": np.ones((0, 8, 4, 5), np.float32), "rois": rois}
    results = run_call(call_graph(op, attrs, list(arrays)), arrays, wanted, lambda k, out: np.ones_like(out))
    assert not results["out:0"].any()
    assert results["out:0"].shape[0] == 3


@pytest.mark.parametrize(("op", "attrs", "width"), POOLS[1:], ids=[op for op, *_ in POOLS[1:]])
@pytest.mark.parametrize("image", [-1, 2])
def test_a_region_on_no_image(op: str, attrs: dict[str, Any], width: int, image: int) -> None:
    rois = np.ones((2, width), np.float32)
    rois[:, 3:5] = 3
    rois[1, 0] = image
    arrays = {"data": np.ones((2, 8, 4, 5), np.float32), "rois": rois}
    out = run_call(call_graph(op, attrs, list(arrays)), arrays, [], None)["out:0"]
    assert out[0].all()
    assert not out[1].any()


def test_a_region_beside_the_image_has_no_gradient() -> None:
    arrays = {"data": np.ones((1, 2, 4, 5), np.float32), "rois": np.array([[0, 9, 7, 12, 8]], np.float32)}
    graph = call_graph("ROIPooling", {"pooled_size": (2, 3), "spatial_scale": 1}, list(arrays))
    results = run_call(graph, arrays, ["data"], lambda k, out: np.ones_like(out))
    assert not results["out:0"].any()
    assert not results["grad:data"].any()
