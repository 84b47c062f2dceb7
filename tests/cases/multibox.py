"""Anchors of a single-shot detector: where they are, what they are to predict, what they detect."""

from .boxes import CORNERS
from .case import Arg, Case

FLAT = "MXNet's gradient is zero."
MAP = (1, 2, 2, 3)
ANCHORS = Arg((1, 6, 4), values=CORNERS)
NONE = [-1.0, -1.0, -1.0, -1.0, -1.0]
LABELS = Arg(
    (3, 3, 5),
    values=[
        [[0, 0.0625, 0.0625, 0.5, 0.5], [1, 0.5, 0.5, 1, 1], NONE],
        [NONE, NONE, NONE],
        [[2, 0.375, 0.375, 1, 0.875], [1, 0.5, 0.25, 1, 0.5], [1, 0.25, 0.25, 0.75, 0.875]],
    ],
)
WIDE = Arg((1, 2, 6), values=[[[1, 0.0625, 0.0625, 0.5, 0.5, 9], [0, 0.5, 0.0, 1, 0.375, 9]]])
PRIORS = (
    {},
    {"sizes": (0.5, 0.25), "ratios": (1, 2, 0.5)},
    {"sizes": (0.25,), "ratios": (4, 2), "steps": (0.125, 0.25), "offsets": (0.25, 0.75)},
    {"sizes": (0.875,), "clip": True, "steps": (0, 0)},
)
TARGETS = (
    {},
    {"overlap_threshold": 0, "ignore_label": -7, "negative_mining_ratio": 1},
    {"overlap_threshold": 0.125, "variances": (1, 2, 0.5, 0.25)},
    {"negative_mining_ratio": 0.5, "minimum_negative_samples": 3},
    {"negative_mining_ratio": 0.5, "negative_mining_thresh": 0.3},
)
DETECTIONS = (
    {},
    {"clip": False, "threshold": 0.7},
    {"nms_threshold": 0.125, "variances": (0.5, 0.5, 1, 1)},
    {"nms_threshold": 0.125, "force_suppress": True, "background_id": 1},
    {"nms_threshold": 0},
    {"nms_topk": 2},
    {"threshold": 2},
)


def prior(**attrs: object) -> Case:
    return Case("_contrib_MultiBoxPrior", {"data": MAP}, attrs, numeric=False, why=FLAT)


def target(label: Arg, **attrs: object) -> Case:
    inputs = {"anchor": ANCHORS, "label": label, "cls_pred": (label.shape[0], 3, 6)}
    return Case("_contrib_MultiBoxTarget", inputs, attrs, numeric=False, zero_size=False, why=FLAT)


def detection(**attrs: object) -> Case:
    inputs = {"cls_prob": Arg((2, 3, 6), kind="distinct", low=0, high=1), "loc_pred": (2, 24), "anchor": ANCHORS}
    return Case("_contrib_MultiBoxDetection", inputs, attrs, numeric=False, why=FLAT)


CASES = [
    *(prior(**attrs) for attrs in PRIORS),
    *(target(LABELS, **attrs) for attrs in TARGETS),
    target(WIDE),
    *(detection(**attrs) for attrs in DETECTIONS),
]
