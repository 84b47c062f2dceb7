"""Metrics from metrics and from functions, and `create`, which makes a metric from whatever names one."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .. import registry
from .eval_metric import Array, EvalMetric, HostMetric, Values, alias, check_label_shapes, host, pairs, register

__all__ = ["CompositeEvalMetric", "CustomMetric", "create", "np"]

_create = registry.get_create_func(EvalMetric, "metric")


def create(metric: Any, *args: Any, **kwargs: Any) -> Any:
    """A metric from a name, a metric, a function of (label, pred), a config, or a list of these (a composite).

    Raises:
        TypeError: a class of metrics that was not called.
        AssertionError: a name of no metric.

    Example:
        >>> mx.metric.create(["acc", "ce"])
    """
    if isinstance(metric, type) and issubclass(metric, EvalMetric):
        raise TypeError(f"metric: expected one such as {metric.__name__}(), got the class: call it")
    if callable(metric):
        return CustomMetric(metric, *args, **kwargs)
    if isinstance(metric, list):
        return CompositeEvalMetric([create(child, *args, **kwargs) for child in metric])
    return _create(metric, *args, **kwargs)


@register
@alias("composite")
class CompositeEvalMetric(EvalMetric):
    """Several metrics as one; `get` returns lists of names and values."""

    def __init__(
        self,
        metrics: Sequence[Any] | None = None,
        name: str = "composite",
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        self.metrics: list[Any] = [create(one) for one in metrics or []]
        super().__init__(name, output_names, label_names, has_global_stats=True)

    def add(self, metric: Any) -> None:
        """Take in a further metric, or what `create` makes one from."""
        self.metrics.append(create(metric))

    def get_metric(self, index: int) -> Any:
        """The metric at a position.

        Raises:
            ValueError: there is none.
        """
        if not -len(self.metrics) <= index < len(self.metrics):
            raise ValueError(f"get_metric: expected an index below {len(self.metrics)}, got {index}")
        return self.metrics[index]

    def _chosen(self, arrays: Mapping[str, Any], names: Sequence[str] | None) -> Mapping[str, Any]:
        return arrays if names is None else OrderedDict((n, v) for n, v in arrays.items() if n in names)

    def update_dict(self, label: Mapping[str, Any], pred: Mapping[str, Any]) -> None:
        label, pred = self._chosen(label, self.label_names), self._chosen(pred, self.output_names)
        for metric in self.metrics:
            metric.update_dict(label, pred)

    def update(self, labels: Any, preds: Any) -> None:
        for metric in self.metrics:
            metric.update(labels, preds)

    def update_later(self, label: Values, pred: Values) -> None:
        label, pred = self._chosen(label, self.label_names), self._chosen(pred, self.output_names)
        for metric in self.metrics:
            metric.update_later(label, pred)

    def drop_lost(self) -> list[tuple[EvalMetric, int]]:
        return [row for metric in self.metrics for row in metric.drop_lost()]

    def reset(self) -> None:
        for metric in self.metrics:
            metric.reset()

    def reset_local(self) -> None:
        for metric in self.metrics:
            metric.reset_local()

    def get(self) -> tuple[Any, Any]:
        return _columns(pairs(*metric.get()) for metric in self.metrics)

    def get_global(self) -> tuple[Any, Any]:
        return _columns(pairs(*metric.get_global()) for metric in self.metrics)

    def so_far(self) -> list[tuple[str, Any]]:
        return [pair for metric in self.metrics for pair in metric.so_far()]

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"metrics": [metric.get_config() for metric in self.metrics]}


def _columns(lists: Iterable[list[tuple[str, Any]]]) -> tuple[list[str], list[Any]]:
    """Names and values of all metrics, as two lists."""
    pairs = [pair for one in lists for pair in one]
    return [name for name, _ in pairs], [value for _, value in pairs]


@register
class CustomMetric(HostMetric):
    """A metric from a function of (label, pred), both numpy, that returns a value or (sum, count).

    Args:
        feval: the function.
        name: reported name; the function's when None.
        allow_extra_outputs: whether there may be more outputs than labels.
    """

    def __init__(
        self,
        feval: Callable[[Array, Array], Any],
        name: str | None = None,
        allow_extra_outputs: bool = False,
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        try:
            inspect.signature(feval).bind("label", "pred")
        except TypeError:
            function = getattr(feval, "__name__", type(feval).__name__)
            raise TypeError(
                f"metric: expected a function of (label, pred), got {function}{inspect.signature(feval)}"
            ) from None
        except ValueError:
            pass  # a builtin, which does not tell
        if name is None:
            name = feval.__name__
            if "<" in name:
                name = f"custom({name})"
        super().__init__(name, output_names, label_names, feval=feval, allow_extra_outputs=allow_extra_outputs)
        self._feval = feval
        self._allow_extra_outputs = allow_extra_outputs

    def update(self, labels: Any, preds: Any) -> None:
        if not self._allow_extra_outputs:
            labels, preds = check_label_shapes(labels, preds, True)
        for pred, label in zip(preds, labels, strict=False):
            value = self._feval(host(label), host(pred))
            total, count = value if isinstance(value, tuple) and len(value) == 2 else (value, 1)
            if total is None or isinstance(total, tuple | str):
                raise TypeError(f"{self.name}: expected its function to return a number or (sum, count), got {value!r}")
            self._add(total, count)

    def get_config(self) -> dict[str, Any]:
        raise NotImplementedError(
            "get_config: a metric made of a function has no configuration: make it anew where it is read"
        )


def np(
    numpy_feval: Callable[[Array, Array], Any], name: str | None = None, allow_extra_outputs: bool = False
) -> CustomMetric:
    """A metric from a function of numpy arrays (label, pred), reported under the function's name.

    Example:
        >>> mx.metric.np(lambda label, pred: ((label - pred) ** 2).mean(), name="mse")
    """
    return CustomMetric(numpy_feval, name, allow_extra_outputs)
