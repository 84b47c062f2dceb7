"""Metrics of classifiers. Labels hold class numbers; predictions (batch, classes) hold scores or probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .eval_metric import Array, HostMetric, alias, check_label_shapes, host, register

__all__ = ["F1", "MCC", "PCC", "Accuracy", "CrossEntropy", "NegativeLogLikelihood", "Perplexity", "TopKAccuracy"]

Names = Sequence[str] | None


@register
@alias("acc")
class Accuracy(HostMetric):
    """The share of samples whose highest score, along `axis`, is at their label."""

    def __init__(
        self, axis: int = 1, name: str = "accuracy", output_names: Names = None, label_names: Names = None
    ) -> None:
        super().__init__(name, output_names, label_names, axis=axis)
        self.axis = axis

    def update(self, labels: Any, preds: Any) -> None:
        labels, preds = check_label_shapes(labels, preds, True)
        for one_label, one_pred in zip(labels, preds, strict=True):
            label, pred = host(one_label), host(one_pred)
            if pred.shape != label.shape:
                pred = pred.argmax(axis=self.axis)
            guessed, true = pred.astype("int32").ravel(), label.astype("int32").ravel()
            check_label_shapes(true, guessed)
            self._add((guessed == true).sum(), len(guessed))


@register
@alias("top_k_accuracy", "top_k_acc")
class TopKAccuracy(HostMetric):
    """The share of samples whose label is among the `top_k` highest scores."""

    def __init__(
        self, top_k: int = 1, name: str = "top_k_accuracy", output_names: Names = None, label_names: Names = None
    ) -> None:
        if top_k <= 1:
            raise AssertionError(f"top_k: expected 2 or more, got {top_k}: for 1 there is Accuracy")
        super().__init__(name, output_names, label_names, top_k=top_k)
        self.top_k = top_k
        self.name += f"_{top_k}"

    def update(self, labels: Any, preds: Any) -> None:
        labels, preds = check_label_shapes(labels, preds, True)
        for one_label, one_pred in zip(labels, preds, strict=True):
            scores, label = host(one_pred).astype("float32"), host(one_label).astype("int32")
            if scores.ndim > 2:
                raise AssertionError(
                    f"TopKAccuracy: expected predictions of one or two dimensions, got shape {scores.shape}"
                )
            check_label_shapes(label, scores)
            if scores.shape[-1] < self.top_k:
                raise ValueError(f"{self.name}: expected {self.top_k} classes or more, got shape {scores.shape}")
            ranked = np.argpartition(scores, -self.top_k)
            if ranked.ndim == 1:
                hits = (ranked == label.ravel()).sum()
            else:
                top = ranked[:, ranked.shape[1] - min(ranked.shape[1], self.top_k) :]
                hits = (top == label.reshape(-1, 1)).sum()
            self._add(hits, ranked.shape[0])


@dataclass
class _Confusion:
    """Counts of a two-class problem, class 1 being the positive."""

    true_positives: int = 0
    false_positives: int = 0
    false_negatives: int = 0
    true_negatives: int = 0

    def add(self, label: Array, pred: Array, who: str) -> None:
        check_label_shapes(label, pred)
        if len(np.unique(label)) > 2:
            raise ValueError(f"{who}: expected labels of two classes, got {len(np.unique(label))}")
        if pred.ndim < 2:
            raise ValueError(f"{who}: expected predictions of shape (batch, 2), got {pred.shape}")
        guessed, true = pred.argmax(axis=1) == 1, label.astype("int32").reshape(len(label), -1)[:, 0] == 1
        self.true_positives += int((guessed & true).sum())
        self.false_positives += int((guessed & ~true).sum())
        self.false_negatives += int((~guessed & true).sum())
        self.true_negatives += int((~guessed & ~true).sum())

    @property
    def total(self) -> int:
        return self.true_positives + self.false_positives + self.false_negatives + self.true_negatives

    def f1(self) -> float:
        """2 P R / (P + R) with precision P and recall R."""
        claimed, real = self.true_positives + self.false_positives, self.true_positives + self.false_negatives
        precision = self.true_positives / claimed if claimed else 0.0
        recall = self.true_positives / real if real else 0.0
        return 2 * precision * recall / (precision + recall) if precision + recall else 0.0

    def matthews(self) -> float:
        """(TP TN - FP FN) / sqrt((TP+FP)(TP+FN)(TN+FP)(TN+FN)), factors of 0 left out (Matthews, 1975)."""
        if not self.total:
            return 0.0
        tp, fp, fn, tn = self.true_positives, self.false_positives, self.false_negatives, self.true_negatives
        factors = (tp + fp, tp + fn, tn + fp, tn + fn)
        return (tp * tn - fp * fn) / math.sqrt(math.prod(float(f) for f in factors if f))


class _BinaryMetric(HostMetric):
    """A score of a confusion table: averaged over updates ("macro"), or of all samples together ("micro")."""

    def __init__(self, name: str, output_names: Names, label_names: Names, average: str) -> None:
        self.average = average
        self._local = _Confusion()
        self._all = _Confusion()
        super().__init__(name, output_names, label_names)

    def _score(self, counts: _Confusion) -> float:
        raise NotImplementedError(f"{type(self).__name__} must define _score(counts)")

    def update(self, labels: Any, preds: Any) -> None:
        labels, preds = check_label_shapes(labels, preds, True)
        if self.average == "macro":
            batch = _Confusion()
            for label, pred in zip(labels, preds, strict=True):
                batch.add(host(label), host(pred), type(self).__name__)
            self._add(self._score(batch), 1)
            return
        for label, pred in zip(labels, preds, strict=True):
            for counts in (self._local, self._all):
                counts.add(host(label), host(pred), type(self).__name__)
        self.sum_metric = self._score(self._local) * self._local.total
        self.num_inst = self._local.total
        self.global_sum_metric = self._score(self._all) * self._all.total
        self.global_num_inst = self._all.total

    def reset(self) -> None:
        super().reset()
        self._local, self._all = _Confusion(), _Confusion()

    def reset_local(self) -> None:
        super().reset_local()
        self._local = _Confusion()


@register
class F1(_BinaryMetric):
    """The F1 score of class 1 in a two-class problem: the harmonic mean of precision and recall."""

    def __init__(
        self, name: str = "f1", output_names: Names = None, label_names: Names = None, average: str = "macro"
    ) -> None:
        super().__init__(name, output_names, label_names, average)

    def _score(self, counts: _Confusion) -> float:
        return counts.f1()


@register
class MCC(_BinaryMetric):
    """The Matthews correlation coefficient of a two-class problem."""

    def __init__(
        self, name: str = "mcc", output_names: Names = None, label_names: Names = None, average: str = "macro"
    ) -> None:
        super().__init__(name, output_names, label_names, average)

    def _score(self, counts: _Confusion) -> float:
        return counts.matthews()


@register
class PCC(HostMetric):
    """The correlation of predicted and true classes, of any number of classes (Gorodkin's R_K, 2004).

    With the confusion matrix c, n = sum(c), x and y its row and column sums:
    sum_k(c_kk n - x_k y_k) / sqrt(sum_k x_k (n - x_k) * sum_k y_k (n - y_k)).
    """

    def __init__(
        self,
        name: str = "pcc",
        output_names: Names = None,
        label_names: Names = None,
        has_global_stats: bool = True,
    ) -> None:
        self._counts = np.zeros((2, 2))
        self._all_counts = np.zeros((2, 2))
        super().__init__(name, output_names, label_names, has_global_stats=has_global_stats)

    @staticmethod
    def _correlation(counts: Array) -> float:
        n, x, y = counts.sum(), counts.sum(axis=1), counts.sum(axis=0)
        spread_x, spread_y = (x * (n - x)).sum(), (y * (n - y)).sum()
        if spread_x == 0 or spread_y == 0:
            return float("nan")
        return float((counts.diagonal() * n - x * y).sum() / math.sqrt(spread_x * spread_y))

    def update(self, labels: Any, preds: Any) -> None:
        labels, preds = check_label_shapes(labels, preds, True)
        for one_label, one_pred in zip(labels, preds, strict=True):
            label, pred = host(one_label).astype("int32"), host(one_pred)
            guessed = pred.argmax(axis=1) if pred.shape != label.shape else pred.astype("int32")
            grow = max(0, int(max(guessed.max(), label.max())) + 1 - len(self._counts))
            self._counts = np.pad(self._counts, (0, grow))
            self._all_counts = np.pad(self._all_counts, (0, grow))
            for counts in (self._counts, self._all_counts):
                np.add.at(counts, (guessed.ravel(), label.ravel()), 1)
        self._add(0.0, 1)
        self.sum_metric = self._correlation(self._counts) * self.num_inst
        self.global_sum_metric = self._correlation(self._all_counts) * self.global_num_inst

    def reset(self) -> None:
        super().reset()
        self._counts, self._all_counts = np.zeros_like(self._counts), np.zeros_like(self._all_counts)

    def reset_local(self) -> None:
        super().reset_local()
        self._counts = np.zeros_like(self._counts)


@register
class Perplexity(HostMetric):
    """exp of the mean negative log probability of the labels; those equal to `ignore_label` do not count.

    Args:
        ignore_label: a padding label, or None.
        axis: the axis of the classes.
    """

    def __init__(
        self,
        ignore_label: float | None,
        axis: int = -1,
        name: str = "perplexity",
        output_names: Names = None,
        label_names: Names = None,
    ) -> None:
        super().__init__(name, output_names, label_names, ignore_label=ignore_label)
        self.ignore_label = ignore_label
        self.axis = axis

    def update(self, labels: Any, preds: Any) -> None:
        assert len(labels) == len(preds)
        loss, count = 0.0, 0
        for one_label, one_pred in zip(labels, preds, strict=True):
            label, pred = host(one_label), host(one_pred)
            if label.size != pred.size / pred.shape[-1]:
                raise AssertionError(f"shape mismatch: {label.shape} vs. {pred.shape}")
            classes = pred.shape[self.axis]
            flat = np.moveaxis(pred, self.axis, -1).reshape(-1, classes)
            # Labels outside the classes are clipped to them, as the operator `pick` does.
            index = np.clip(label.ravel().astype("int32"), 0, classes - 1)
            chosen = np.take_along_axis(flat, index[:, None], axis=1)[:, 0]
            if self.ignore_label is not None:
                ignored = label.ravel() == self.ignore_label
                chosen = np.where(ignored, 1.0, chosen).astype(pred.dtype)
                count -= int(ignored.sum())
            loss -= float(np.log(np.maximum(np.asarray(1e-10, pred.dtype), chosen)).sum())
            count += chosen.size
        self._add(loss, count)

    def get(self) -> tuple[Any, Any]:
        if self.num_inst == 0:
            return self.name, float("nan")
        return self.name, math.exp(self.sum_metric / self.num_inst)

    def get_global(self) -> tuple[Any, Any]:
        if self.global_num_inst == 0:
            return self.name, float("nan")
        return self.name, math.exp(self.global_sum_metric / self.global_num_inst)


class _LogProbability(HostMetric):
    """The mean of -log(probability of the label + eps)."""

    def __init__(self, eps: float, name: str, output_names: Names, label_names: Names) -> None:
        super().__init__(name, output_names, label_names, eps=eps)
        self.eps = eps

    def update(self, labels: Any, preds: Any) -> None:
        labels, preds = check_label_shapes(labels, preds, True)
        for one_label, one_pred in zip(labels, preds, strict=True):
            label, pred = host(one_label).ravel(), host(one_pred)
            if pred.ndim != 2:
                raise IndexError(f"{self.name}: expected predictions of shape (batch, classes), got {pred.shape}")
            if label.shape[0] != pred.shape[0]:
                raise AssertionError(f"{self.name}: expected labels of {pred.shape[0]} rows, got {label.shape[0]}")
            classes, index = pred.shape[1], label.astype("int64")
            outside = np.flatnonzero((index < -classes) | (index >= classes))
            if outside.size:
                raise IndexError(
                    f"{self.name}: expected labels from 0 to {classes - 1}, as the predictions have {classes} columns, "
                    f"got {index[outside[0]]} in row {outside[0]}"
                )
            chosen = pred[np.arange(label.shape[0]), index]
            self._add((-np.log(chosen + self.eps)).sum(), label.shape[0])


@register
@alias("ce")
class CrossEntropy(_LogProbability):
    """The cross entropy of predicted probabilities against class labels."""

    def __init__(
        self,
        eps: float = 1e-12,
        name: str = "cross-entropy",
        output_names: Names = None,
        label_names: Names = None,
    ) -> None:
        super().__init__(eps, name, output_names, label_names)


@register
@alias("nll_loss")
class NegativeLogLikelihood(_LogProbability):
    """The negative log likelihood of class labels under predicted probabilities."""

    def __init__(
        self, eps: float = 1e-12, name: str = "nll-loss", output_names: Names = None, label_names: Names = None
    ) -> None:
        super().__init__(eps, name, output_names, label_names)
