"""Boxes: overlap, encoding, decoding, suppression, bipartite matching."""

from .case import Arg, Case

CORNERS = [
    [0.0, 0.0, 0.5, 0.5],
    [0.0625, 0.0, 0.5, 0.4375],
    [0.25, 0.25, 0.75, 1.0],
    [0.5, 0.5, 0.25, 0.75],
    [0.625, 0.125, 1.0, 0.375],
    [0.25, 0.3125, 0.75, 1.0],
]
OTHERS = [[0.125, 0.0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]]
LHS = Arg((2, 3, 4), values=CORNERS)
RHS = Arg((3, 4), values=OTHERS)
FLAT = "MXNet's gradient is zero."


def rows(*parts: list[float]) -> list[list[float]]:
    """Class, score and corners of the boxes above."""
    return [[*head, *box] for head, box in zip(parts, CORNERS, strict=True)]


SCORED = rows([0, 0.75], [1, 0.875], [0, 0.25], [1, 0.5], [2, 0.375], [0, 0.625])
NMS = Arg((6, 6), values=SCORED)
BATCH = Arg((2, 6, 6), values=[SCORED, SCORED[::-1]])
CENTERS = Arg((2, 3, 6), values=[[0, 0.5, -0.5, 1, 2, 2], [0, 0.75, 0.5, 1, 2, 2], [0, 0.25, 4, 4, 1, 1]] * 2)
LATER = Arg((4, 7), values=[[0.5, *box, 7, label] for box, label in zip(CORNERS[:4], (0, 1, 0, 1), strict=True)])
SAMPLES = Arg((2, 3), values=[[1, 0, -1], [0.625, 0.5, 1]])
MATCHES = Arg((2, 3), values=[[1, 0, 0], [0, 1, 1]])
ENCODE = {
    "samples": SAMPLES,
    "matches": MATCHES,
    "anchors": Arg((2, 3, 4), values=[*CORNERS[:3], *CORNERS[:3]]),
    "refs": Arg((2, 2, 4), values=[*OTHERS, CORNERS[4]]),
    "means": Arg((4,), values=[0, 0.125, 0.25, 0.5]),
    "stds": Arg((4,), values=[0.125, 0.25, 0.5, 1]),
}
ANCHORS = Arg((1, 3, 4), values=[*CORNERS[:2], CORNERS[4]])
SCORES = Arg((2, 3, 4), kind="distinct", low=0.0, high=1.0)
TIES = Arg((3, 3), values=[[0.5, 0.5, 0.25], [0.5, 0.5, 0.25], [0.5, 0.25, 0.25]])


def nms(data: Arg, **attrs: object) -> Case:
    moved = attrs.get("in_format", "corner") != attrs.get("out_format", "corner")
    why = "The gradient passes the change of format by, as MXNet's does." if moved else ""
    why = "A class that is moved a little is another one." if "id_index" in attrs else why
    return Case("_contrib_box_nms", {"data": data}, attrs, numeric=not why, why=why)


CASES = [
    Case("_contrib_box_iou", {"lhs": LHS, "rhs": RHS}, numeric=False, why=FLAT),
    Case("_contrib_box_iou", {"lhs": RHS, "rhs": RHS}, {"format": "center"}, numeric=False, why=FLAT),
    nms(NMS),
    nms(BATCH, id_index=0),
    nms(Arg((2, 1, 6, 6), values=[SCORED, SCORED[::-1]]), id_index=0, force_suppress=True, overlap_thresh=0.25),
    nms(BATCH, id_index=0, background_id=0, topk=2),
    nms(BATCH, valid_thresh=0.5, topk=3),
    nms(BATCH, valid_thresh=2),
    nms(BATCH, overlap_thresh=0),
    nms(BATCH, overlap_thresh=1),
    nms(Arg((4, 6), values=rows([0, 0.5], [1, 0.5], [0, -0.5], [1, 0.25], [0, 0], [0, 0])[:4]), valid_thresh=-1),
    nms(NMS, out_format="center"),
    nms(CENTERS, in_format="center", overlap_thresh=0.1),
    nms(CENTERS, in_format="center", out_format="center", overlap_thresh=0.3),
    nms(LATER, coord_start=1, score_index=0, id_index=6),
    Case("_contrib_box_encode", ENCODE, numeric=False, why=FLAT, settled=False, zero_size=False),
    Case("_contrib_box_decode", {"data": (2, 3, 4), "anchors": ANCHORS}, numeric=False, why=FLAT),
    Case(
        "_contrib_box_decode",
        {"data": (2, 3, 4), "anchors": ANCHORS},
        {"format": "corner", "std0": 0.125, "std1": 0.25, "std2": 0.5, "std3": 2, "clip": 0.25},
        numeric=False,
        why=FLAT,
    ),
    Case("_contrib_bipartite_matching", {"data": SCORES}, {"threshold": 0.1}, numeric=False, why=FLAT),
    Case(
        "_contrib_bipartite_matching",
        {"data": SCORES},
        {"threshold": 0.6, "is_ascend": True},
        numeric=False,
        why=FLAT,
    ),
    Case("_contrib_bipartite_matching", {"data": SCORES}, {"threshold": 0, "topk": 1}, numeric=False, why=FLAT),
    Case("_contrib_bipartite_matching", {"data": TIES}, {"threshold": 0.25}, numeric=False, why=FLAT),
]
