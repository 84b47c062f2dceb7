"""Regions on images that are not there are pooled to zeros, forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_protocol.errors import MXNetError
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


@pytest.mark.parametrize(("op", "attrs", "width"), POOLS, ids=[op for op, *_ in POOLS])
@pytest.mark.parametrize("image", [-1, 2])
def test_a_region_on_no_image(op: str, attrs: dict[str, Any], width: int, image: int) -> None:
    rois = np.ones((2, width), np.float32)
    rois[:, 3:5] = 3
    rois[1, 0] = image
    arrays = {"data": np.ones((2, 8, 4, 5), np.float32), "rois": rois}
    wanted = [] if op == "_contrib_RROIAlign" else ["data"]
    results = run_call(
        call_graph(op, attrs, list(arrays)),
        arrays,
        wanted,
        lambda k, out: np.arange(len(out))[:, None, None, None] + 0 * out,
    )
    out = results["out:0"]
    assert out[0].all()
    assert not out[1].any()
    assert all(not results[f"grad:{name}"].any() for name in wanted)


def test_a_region_beside_the_image_has_no_gradient() -> None:
    arrays = {"data": np.ones((1, 2, 4, 5), np.float32), "rois": np.array([[0, 9, 7, 12, 8]], np.float32)}
    graph = call_graph("ROIPooling", {"pooled_size": (2, 3), "spatial_scale": 1}, list(arrays))
    results = run_call(graph, arrays, ["data"], lambda k, out: np.ones_like(out))
    assert not results["out:0"].any()
    assert not results["grad:data"].any()


PS_SIZED = {"output_dim": 4, "pooled_size": 3, "group_size": 2, "spatial_scale": 0.75}
MOVED = {"part_size": 2, "sample_per_part": 2, "trans_std": 0.25}
SLICED: list[tuple[str, dict[str, Any], dict[str, tuple[int, ...]]]] = [
    ("_contrib_PSROIPooling", PS_SIZED, {}),
    ("_contrib_DeformablePSROIPooling", PS_SIZED | {"no_trans": True}, {}),
    ("_contrib_DeformablePSROIPooling", PS_SIZED | MOVED, {"trans": (4, 4, 2, 2)}),
    ("_contrib_ROIAlign", {"pooled_size": (2, 3), "spatial_scale": 0.75, "sample_ratio": 2}, {}),
    ("_contrib_ROIAlign", {"pooled_size": (2, 3), "spatial_scale": 0.75}, {}),
    ("_contrib_ROIAlign", {"pooled_size": (2, 2), "spatial_scale": 0.75, "position_sensitive": True}, {}),
]


@pytest.mark.parametrize(("op", "attrs", "more"), SLICED)
def test_regions_are_pooled_alike_in_pieces_and_at_once(
    op: str, attrs: dict[str, Any], more: dict[str, tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(5)
    rois = np.array([[0, 0.5, 1, 3.25, 4.75], [1, -9, 0.25, 7, 30], [5, 1, 1, 3, 3], [1, 4, 1, np.nan, 3]], np.float64)
    shapes = {"data": (2, 16, 4, 5), **more}
    arrays = {name: random.normal(size=shape) for name, shape in shapes.items()}
    arrays = {"data": arrays["data"], "rois": rois, **{name: arrays[name] for name in more}}
    graph = call_graph(op, attrs, list(arrays))

    def results() -> dict[str, Any]:
        heads = np.random.default_rng(6)
        with np.errstate(invalid="ignore"):
            return run_call(graph, arrays, ["data", *more], lambda k, out: heads.normal(size=out.shape))

    whole = results()
    monkeypatch.setattr("opbox_ops.vision.regions.elements", lambda size: 1)
    monkeypatch.setattr("opbox_ops.vision.region_windows.elements", lambda size: 1)
    monkeypatch.setattr("opbox_ops.vision.region_samples.MAX_SAMPLES_AT_ONCE", 3)
    monkeypatch.setattr("opbox_ops.index.weighted_rows.CACHE_BYTES", 64)
    pieces = results()
    for name, array in whole.items():
        np.testing.assert_allclose(pieces[name], array, rtol=1e-10, atol=1e-12, err_msg=name)
        assert array.any()


def test_a_proposal_without_anchors_is_refused_in_one_sentence() -> None:
    arrays = {"cls_prob": np.ones((1, 2, 2, 2)), "bbox_pred": np.ones((1, 4, 2, 2)), "im_info": np.ones((1, 3))}
    with pytest.raises(MXNetError, match="at least one scale and ratio") as raised:
        run_call(call_graph("_contrib_Proposal", {"scales": ()}, list(arrays)), arrays, [], None)
    assert str(raised.value).count("_contrib_Proposal") == 1
