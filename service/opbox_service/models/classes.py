"""Classification: the best classes of an output, as the Open Inference Protocol's extension has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from opbox_protocol.errors import BadRequestError

__all__ = ["top_classes"]


def top_classes(
    name: str, values: np.ndarray[Any, Any], count: int, labels: Sequence[str]
) -> np.ndarray[Any, np.dtype[np.bytes_]]:
    """The largest values of each example, the largest first, as texts "value:index" or "value:index:label".

    Values of integers stand there as integers.

    Args:
        name: of the output, for errors.
        values: the first axis counts examples, if there is another.
        count: of classes for each example, at most as many as there are.
        labels: of classes, in order; those without one have none.

    Raises:
        BadRequestError: values that have no order.

    Example:
        >>> top_classes("softmax", np.array([[0.25, 0.75]], np.float32), 1, ["cat", "dog"])
        array([[b'0.750000:1:dog']], dtype='|S14')
    """
    if values.dtype.kind not in "fiuV" or not values.size:
        raise BadRequestError(
            f"output {name!r}: classification: expected numbers, got {values.dtype} of {values.shape}"
        )
    whole = values.dtype.kind in "iu"
    numbers: np.ndarray[Any, Any] = values if whole else values.astype(np.float64)
    rows = numbers.reshape(len(numbers), -1) if numbers.ndim > 1 else numbers.reshape(1, -1)
    # An integer's complement falls as it rises, and never overflows.
    best = np.argsort(~rows if whole else -rows, axis=1, kind="stable")[:, :count]
    texts = [
        [f"{row[i]:{'d' if whole else 'f'}}:{i}{':' + labels[i] if i < len(labels) else ''}".encode() for i in indices]
        for row, indices in zip(rows, best, strict=True)
    ]
    array = np.array(texts, dtype=np.bytes_)
    return array if values.ndim > 1 else array[0]
