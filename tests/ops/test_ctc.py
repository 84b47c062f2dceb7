"""CTCLoss beside its definition: the sum over every alignment, one by one."""

import itertools
from typing import Any

import numpy as np
import pytest

from opbox_ops.backend import backend_for
from tests.cases.case import Case
from tests.ops.harness import Run

TIME, CLASSES = 4, 3


def _spelled(path: tuple[int, ...], blank: int) -> list[int]:
    """A path without what repeats, and without blanks."""
    return [c for k, c in enumerate(path) if c != blank and (k == 0 or path[k - 1] != c)]


def _expected(data: np.ndarray, label: list[int], blank: int) -> float:
    shares = np.exp(data) / np.exp(data).sum(axis=1, keepdims=True)
    paths = itertools.product(range(data.shape[1]), repeat=len(data))
    total = sum(np.prod(shares[range(len(data)), path]) for path in paths if _spelled(path, blank) == label)
    return -np.log(total) if total else 0.0


def _loss(data: np.ndarray, label: list[list[int]], **attrs: Any) -> np.ndarray:
    values = {"data": data, "label": np.array(label, np.float64)}
    values |= {key: np.array(attrs.pop(key)) for key in ("data_lengths", "label_lengths") if key in attrs}
    attrs |= {f"use_{key}": True for key in values if key.endswith("_lengths")}
    case = Case("CTCLoss", {name: array.shape for name, array in values.items()}, attrs)
    return np.array(Run(case, "float64", backend_for("cpu"), values).forward()[0])


@pytest.mark.parametrize("label", [[1, 2, 0], [1, 1, 0], [2, 0, 0], [0, 0, 0], [1, 2, 1], [2, 2, 2]])
def test_sums_over_all_alignments(label: list[int]) -> None:
    data = np.random.default_rng(5).uniform(-2, 2, (TIME, 1, CLASSES))
    counted = label[: label.index(0)] if 0 in label else label
    assert _loss(data, [label])[0] == pytest.approx(_expected(data[:, 0], counted, 0))
    last = [c - 1 for c in label]
    assert _loss(data, [last], blank_label="last")[0] == pytest.approx(
        _expected(data[:, 0], [c - 1 for c in counted], CLASSES - 1)
    )


def test_lengths_cut_data_and_labels() -> None:
    data = np.random.default_rng(6).uniform(-2, 2, (TIME, 2, CLASSES))
    loss = _loss(data, [[1, 2, 1], [2, 2, 1]], data_lengths=[3, 4], label_lengths=[2, 1])
    assert loss[0] == pytest.approx(_expected(data[:3, 0], [1, 2], 0))
    assert loss[1] == pytest.approx(_expected(data[:, 1], [2], 0))


def test_a_number_that_is_no_class_has_no_alignment() -> None:
    data = np.random.default_rng(8).uniform(-2, 2, (TIME, 1, CLASSES))
    assert _loss(data, [[1, CLASSES, 0]])[0] == 0
