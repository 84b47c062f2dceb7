"""Sentences for language models: words to numbers, and batches of sentences of about equal length."""

from __future__ import annotations

import bisect
import random
import warnings
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from ..base import value_text
from ..io import DataBatch, DataDesc, DataIter
from ..io.dataset_rows import SharedRows
from ..io.host_array import HostArray
from ..io.row_source import RowSource
from ..io.rows_array import RowsArray

__all__ = ["BucketSentenceIter", "encode_sentences"]


def encode_sentences(
    sentences: Sequence[Sequence[str]],
    vocab: MutableMapping[str, int] | None = None,
    invalid_label: int = -1,
    invalid_key: str = "\n",
    start_label: int = 0,
    unknown_token: str | None = None,
) -> tuple[list[list[int]], Mapping[str, int]]:
    """Sentences as lists of numbers, and the vocabulary.

    Args:
        sentences: lists of words.
        vocab: numbers by word; made, and numbered from `start_label`, when None.
        invalid_label, invalid_key: the number of padding, which no word gets, and its key.
        unknown_token: stands for words that a given vocabulary lacks.

    Raises:
        AssertionError: a given vocabulary lacks a word, and there is no `unknown_token`.
    """
    growing = vocab is None
    known: MutableMapping[str, int] = {invalid_key: invalid_label} if vocab is None else vocab
    following = start_label
    encoded = []
    for sentence in sentences:
        numbers = []
        for word in sentence:
            if word not in known:
                if not growing and not unknown_token:
                    raise AssertionError(f"Unknown token {word}")
                if unknown_token:
                    word = unknown_token
                if word not in known:
                    following += following == invalid_label
                    known[word] = following
                    following += 1
            numbers.append(known[word])
        encoded.append(numbers)
    return encoded, known


class BucketSentenceIter(DataIter):
    """Batches of sentences, each batch from one bucket of lengths; the label of a word is the word after it.

    Args:
        sentences: lists of numbers.
        batch_size: sentences of one batch.
        buckets: lengths; by default those that at least `batch_size` sentences have.
        invalid_label: fills sentences up.
        data_name, label_name, dtype: of the arrays.
        layout: "NT" (batch, time) or "TN".

    Raises:
        TypeError: sentences of words.
        ValueError: another layout, or no bucket holds a batch.

    Example:
        >>> batches = mx.rnn.BucketSentenceIter(sentences, 32, buckets=[10, 20, 40])
        >>> mx.mod.BucketingModule(network, batches.default_bucket_key).fit(batches, num_epoch=1)
    """

    def __init__(
        self,
        sentences: Sequence[Sequence[int]],
        batch_size: int,
        buckets: Sequence[int] | None = None,
        invalid_label: int = -1,
        data_name: str = "data",
        label_name: str = "softmax_label",
        dtype: Any = "float32",
        layout: str = "NT",
    ) -> None:
        super().__init__(batch_size)
        if layout not in ("NT", "TN"):
            raise ValueError(f"layout: expected NT (batch first) or TN (time first), got {layout!r}")
        if not buckets:
            counts = np.bincount([len(sentence) for sentence in sentences])
            buckets = [length for length, count in enumerate(counts) if count >= batch_size]
        lengths = sorted(buckets)
        filled: dict[int, list[Any]] = {length: [] for length in lengths}
        discarded = 0
        for sentence in sentences:
            place = bisect.bisect_left(lengths, len(sentence))
            if place == len(lengths):
                discarded += 1
                continue
            row = np.full(lengths[place], invalid_label, dtype)
            try:
                row[: len(sentence)] = sentence
            except (TypeError, ValueError):
                raise TypeError(
                    f"sentences: expected lists of numbers, got {value_text(sentence)}: mx.rnn.encode_sentences "
                    "numbers words"
                ) from None
            filled[lengths[place]].append(row)
        if discarded:
            warnings.warn(
                f"sentences left out: {discarded}; the longest bucket has {max(lengths, default=0)} places",
                stacklevel=2,
            )
        self.buckets = [length for length in lengths if filled[length]]
        if not self.buckets:
            raise ValueError(f"buckets: expected lengths that some sentence fits into, got {lengths}")
        self.data = [np.stack(filled[length]) for length in self.buckets]
        self._orders = [np.arange(len(rows)) for rows in self.data]
        self._sources = [(RowSource(rows), RowSource(self._labels(rows, invalid_label))) for rows in self.data]
        self._shared = SharedRows([source for pair in self._sources for source in pair])
        self.data_name = data_name
        self.label_name = label_name
        self.dtype = dtype
        self.invalid_label = invalid_label
        self.layout = layout
        self.major_axis = layout.find("N")
        self.default_bucket_key = max(self.buckets)
        shape = (batch_size, self.default_bucket_key)
        shape = shape if self.major_axis == 0 else shape[::-1]
        self.provide_data = [DataDesc(data_name, shape, dtype, layout)]
        self.provide_label = [DataDesc(label_name, shape, dtype, layout)]
        self.idx = [
            (bucket, begin)
            for bucket, rows in enumerate(self.data)
            for begin in range(0, len(rows) - batch_size + 1, batch_size)
        ]
        self.curr_idx = 0
        self.reset()

    def reset(self) -> None:
        """Start again, batches and sentences in a new order (Python's and numpy's global generators)."""
        self._shared.end_pass()
        self.curr_idx = 0
        random.shuffle(self.idx)
        # New arrays each time: batches handed out before are views of the old ones.
        for bucket, rows in enumerate(self.data):
            order = np.random.permutation(len(rows))
            self.data[bucket] = rows[order]
            self._orders[bucket] = self._orders[bucket][order]

    @staticmethod
    def _labels(data: np.ndarray[Any, Any], invalid_label: int) -> np.ndarray[Any, Any]:
        """The labels of rows of words: for each word the one after it."""
        label = np.full_like(data, invalid_label)
        label[:, :-1] = data[:, 1:]
        return label

    def next(self) -> DataBatch:
        if self.curr_idx == len(self.idx):
            self._shared.end_pass()
            raise StopIteration
        bucket, begin = self.idx[self.curr_idx]
        self.curr_idx += 1
        data: HostArray
        label: HostArray
        if self.major_axis == 1:
            values = self.data[bucket][begin : begin + self.batch_size]
            data, label = HostArray(values.T), HostArray(self._labels(values, self.invalid_label).T)
        else:
            rows = self._orders[bucket][begin : begin + self.batch_size]
            data, label = (RowsArray(source, rows, self._shared) for source in self._sources[bucket])
        return DataBatch(
            [data],
            [label],
            pad=0,
            bucket_key=self.buckets[bucket],
            provide_data=[DataDesc(self.data_name, data.shape, self.dtype, self.layout)],
            provide_label=[DataDesc(self.label_name, label.shape, self.dtype, self.layout)],
        )
