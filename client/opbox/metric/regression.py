"""Metrics of real-valued predictions, and the mean of an output that is itself a loss."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .classification import Names
from .eval_metric import Array, HostMetric, alias, check_label_shapes, host, register

__all__ = ["MAE", "MSE", "RMSE", "Caffe", "Loss", "PearsonCorrelation", "Torch"]


def _column(array: Array) -> Array:
    return array.reshape(-1, 1) if array.ndim == 1 else array


class _Difference(HostMetric):
    """A number of the difference label - pred of each batch, averaged over batches."""

    def __init__(self, name: str, output_names: Names, label_names: Names) -> None:
        super().__init__(name, output_names, label_names)

    def _of(self, difference: Array) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define _of(difference)")

    def update(self, labels: Any, preds: Any) -> None:
        labels, preds = check_label_shapes(labels, preds, True)
        for label, pred in zip(labels, preds, strict=True):
            true, guessed = _column(host(label)), _column(host(pred))
            try:
                difference = true - guessed
            except ValueError:
                raise ValueError(
                    f"{self.name}: expected labels of the predictions' shape {guessed.shape}, got {true.shape}"
                ) from None
            self._add(self._of(difference), 1)


@register
class MAE(_Difference):
    """The mean absolute error."""

    def __init__(self, name: str = "mae", output_names: Names = None, label_names: Names = None) -> None:
        super().__init__(name, output_names, label_names)

    def _of(self, difference: Array) -> Any:
        return np.abs(difference).mean()


@register
class MSE(_Difference):
    """The mean squared error."""

    def __init__(self, name: str = "mse", output_names: Names = None, label_names: Names = None) -> None:
        super().__init__(name, output_names, label_names)

    def _of(self, difference: Array) -> Any:
        return (difference**2.0).mean()


@register
class RMSE(_Difference):
    """The root of the mean squared error of each batch, averaged over batches."""

    def __init__(self, name: str = "rmse", output_names: Names = None, label_names: Names = None) -> None:
        super().__init__(name, output_names, label_names)

    def _of(self, difference: Array) -> Any:
        return np.sqrt((difference**2.0).mean())


@register
@alias("pearsonr")
class PearsonCorrelation(HostMetric):
    """Pearson's correlation of labels and predictions: averaged over batches ("macro"), or of all values ("micro").

    The micro average keeps running means and co-moments (Chan, Golub and LeVeque, 1979).
    """

    def __init__(
        self,
        name: str = "pearsonr",
        output_names: Names = None,
        label_names: Names = None,
        average: str = "macro",
    ) -> None:
        self.average = average
        super().__init__(name, output_names, label_names)

    def _reset_moments(self) -> None:
        self._count = 0
        self._means = np.zeros(2)
        self._moments = np.zeros((2, 2))

    def reset(self) -> None:
        super().reset()
        self._reset_moments()

    def update(self, labels: Any, preds: Any) -> None:
        labels, preds = check_label_shapes(labels, preds, True)
        for one_label, one_pred in zip(labels, preds, strict=True):
            label, pred = host(one_label), host(one_pred)
            check_label_shapes(label, pred, False, True)
            pair = np.stack([pred.ravel(), label.ravel()]).astype(np.float64)
            if self.average == "macro":
                self._add(np.asarray(np.corrcoef(pair))[0, 1], 1)
                continue
            count, means = pair.shape[1], pair.mean(axis=1)
            apart, total = means - self._means, self._count + count
            within = (pair - means[:, None]) @ (pair - means[:, None]).T
            self._moments += within + np.outer(apart, apart) * self._count * count / total
            self._means += apart * count / total
            self._count = total
            self._add(0.0, 1)

    def get(self) -> tuple[Any, Any]:
        if self.num_inst == 0:
            return self.name, float("nan")
        if self.average == "macro":
            return super().get()
        (pp, pl), (_, ll) = self._moments
        return self.name, float(pl / math.sqrt(pp * ll)) if pp > 0 and ll > 0 else float("nan")

    def get_global(self) -> tuple[Any, Any]:
        return super().get_global() if self.average == "macro" else self.get()


@register
class Loss(HostMetric):
    """The mean of the outputs' elements, for networks whose output is their loss (MakeLoss)."""

    def __init__(self, name: str = "loss", output_names: Names = None, label_names: Names = None) -> None:
        super().__init__(name, output_names, label_names)

    def update(self, labels: Any, preds: Any) -> None:
        for one in preds if isinstance(preds, (list, tuple)) else [preds]:
            pred = host(one)
            self._add(float(pred.sum()), pred.size)


@register
class Torch(Loss):
    """`Loss` under the name of an old plug-in."""

    def __init__(self, name: str = "torch", output_names: Names = None, label_names: Names = None) -> None:
        super().__init__(name, output_names, label_names)


@register
class Caffe(Loss):
    """`Loss` under the name of an old plug-in."""

    def __init__(self, name: str = "caffe", output_names: Names = None, label_names: Names = None) -> None:
        super().__init__(name, output_names, label_names)
