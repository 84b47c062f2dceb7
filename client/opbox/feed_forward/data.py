"""Iterators over the arrays that FeedForward takes, and the outputs of several batches joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base import value_text
from ..foreign import host_values, is_array
from ..io import DataIter, NDArrayIter
from ..module.feed import label_value
from ..ndarray import NDArray

__all__ = ["Columns", "evaluation_iterator", "iterator"]


def iterator(X: Any, y: Any, batch_size: int, training: bool) -> Any:
    """Return an iterator as it is, and for an array one over its samples, shuffled for training.

    Args:
        X: an iterator, or samples (n, ...).
        y: labels (n,) or (n, 1), where X is an array; zeros when None, unless it is for training.
        batch_size: samples of a batch at most, where X is an array.

    Raises:
        TypeError: X or y is something else.
        ValueError: labels that do not go with the samples.
    """
    if isinstance(X, DataIter):
        return X
    if not is_array(X):
        raise TypeError(
            f"X: expected a DataIter such as mx.io.NDArrayIter(data, label, batch_size) or an array, "
            f"got {value_text(X)}"
        )
    samples = X if isinstance(X, NDArray) else host_values(X)
    count = samples.shape[0]
    if y is None:
        if training:
            raise ValueError("y: expected an array of labels, as X is an array, got None")
        y = np.zeros(count)
    if not is_array(y):
        raise TypeError(f"y: expected an array of labels, got {value_text(y)}")
    labels = y if isinstance(y, NDArray) else host_values(y)
    if labels.shape[0] != count:
        raise ValueError(f"y: expected a label for each of the {count} samples, got {labels.shape[0]}")
    if len(labels.shape) == 2 and labels.shape[1] == 1:
        labels = labels.reshape((count,))
    if len(labels.shape) != 1:
        raise ValueError(f"y: expected shape ({count},) or ({count}, 1), got {tuple(labels.shape)}")
    batch_size = min(count, batch_size)
    if training:
        return NDArrayIter(samples, labels, batch_size, shuffle=True, last_batch_handle="roll_over")
    return NDArrayIter(samples, labels, batch_size)


def evaluation_iterator(eval_data: Any, batch_size: int) -> Any:
    """Return an iterator for scoring, from one or from a pair (samples, labels); None for None.

    Raises:
        TypeError: `eval_data` is something else.
        ValueError: the pair has no samples, or labels that do not go with them.
    """
    if eval_data is None or isinstance(eval_data, DataIter):
        return eval_data
    if not isinstance(eval_data, (tuple, list)) or len(eval_data) != 2:
        raise TypeError(f"eval_data: expected a DataIter or a pair (samples, labels), got {value_text(eval_data)}")
    samples, labels = eval_data
    if samples is None:
        raise ValueError("eval_data: expected samples as the first of the pair, got None")
    if labels is None and isinstance(samples, DataIter):
        return samples
    samples, labels = (np.array(one) if isinstance(one, list) else one for one in (samples, labels))
    return iterator(samples, labels, batch_size, training=True)


class Columns:
    """Collects arrays of several batches that are being fetched."""

    def __init__(self) -> None:
        self._batches: list[list[tuple[Any, int]]] = []

    @property
    def empty(self) -> bool:
        return not self._batches

    def add(self, arrays: Sequence[Any], rows: int) -> None:
        """Ask for a batch's arrays; of each the first `rows` count."""
        self._batches.append([(label_value(array), rows) for array in arrays])

    def joined(self) -> Any:
        """Wait for all batches, joined along the first axis: an array, or a list when a batch has several."""
        columns = [
            np.concatenate(
                [(value.asnumpy() if isinstance(value, NDArray) else value.result())[:rows] for value, rows in column]
            )
            for column in zip(*self._batches, strict=True)
        ]
        return columns[0] if len(columns) == 1 else columns
