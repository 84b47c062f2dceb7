"""Callbacks for `fit` and `score` at the end of batches and epochs: speed, progress, checkpoints, logged metrics."""

from __future__ import annotations

import logging
import math
import time
from collections import namedtuple
from collections.abc import Callable
from typing import Any

from .checkpoint import save_checkpoint

__all__ = [
    "BatchEndParam",
    "LogValidationMetricsCallback",
    "ProgressBar",
    "Speedometer",
    "do_checkpoint",
    "log_train_metric",
    "module_checkpoint",
]

BatchEndParam = namedtuple("BatchEndParam", ["epoch", "nbatch", "eval_metric", "locals"])
"""The argument of batch-end callbacks."""


def _flat(pairs: list[tuple[str, float]]) -> tuple[Any, ...]:
    return tuple(value for pair in pairs for value in pair)


def module_checkpoint(
    mod: Any, prefix: str, period: int = 1, save_optimizer_states: bool = False
) -> Callable[..., None]:
    """An epoch-end callback that saves a module every `period` epochs, with the optimizer's states if asked."""
    period = int(max(1, period))

    def save(iter_no: int, sym: Any = None, arg: Any = None, aux: Any = None) -> None:
        if (iter_no + 1) % period == 0:
            mod.save_checkpoint(prefix, iter_no + 1, save_optimizer_states)

    return save


def do_checkpoint(prefix: str, period: int = 1) -> Callable[..., None]:
    """An epoch-end callback that saves symbol and parameters every `period` epochs, as `<prefix>-<epoch>.params`."""
    period = int(max(1, period))

    def save(iter_no: int, sym: Any, arg: Any, aux: Any) -> None:
        if (iter_no + 1) % period == 0:
            save_checkpoint(prefix, iter_no + 1, sym, arg, aux)

    return save


def log_train_metric(period: int, auto_reset: bool = False) -> Callable[[Any], None]:
    """A batch-end callback that logs the training metric every `period` batches."""

    if period < 1:
        raise ValueError(f"log_train_metric: period: expected 1 batch or more between two lines, got {period}")

    def log(param: Any) -> None:
        if param.nbatch % period == 0 and param.eval_metric is not None:
            for name, value in param.eval_metric.get_name_value():
                logging.info("Iter[%d] Batch[%d] Train-%s=%f", param.epoch, param.nbatch, name, value)
            if auto_reset:
                param.eval_metric.reset_local()

    return log


class Speedometer:
    """A batch-end callback that logs the training speed and the metric every `frequent` batches.

    Args:
        batch_size: samples of one batch.
        frequent: batches between two lines.
        auto_reset: whether the metric starts anew after each line.

    Example:
        Epoch[0] Batch [0-50]	Speed: 1023.45 samples/sec	accuracy=0.912000
    """

    def __init__(self, batch_size: int, frequent: int = 50, auto_reset: bool = True) -> None:
        if frequent < 1:
            raise ValueError(f"Speedometer: frequent: expected 1 batch or more between two lines, got {frequent}")
        self.batch_size = batch_size
        self.frequent = frequent
        self.init = False
        self.tic = 0.0
        self.last_count = 0
        self.auto_reset = auto_reset

    def __call__(self, param: Any) -> None:
        count = param.nbatch
        if self.last_count > count:
            self.init = False
        self.last_count = count
        if not self.init:
            self.init = True
            self.tic = time.time()
            return
        if count % self.frequent:
            return
        metric = param.eval_metric
        # Reading the metric waits for the steps still under way, so the clock is read after it: their time counts.
        name_value = metric.get_name_value() if metric is not None else []
        elapsed = time.time() - self.tic
        speed = self.frequent * self.batch_size / elapsed if elapsed > 0 else float("inf")
        if metric is None:
            logging.info("Iter[%d] Batch [%d]\tSpeed: %.2f samples/sec", param.epoch, count, speed)
        else:
            metrics = "\t%s=%f" * len(name_value)
            if self.auto_reset:
                metric.reset_local()
                logging.info(
                    "Epoch[%d] Batch [%d-%d]\tSpeed: %.2f samples/sec" + metrics,
                    param.epoch,
                    count - self.frequent,
                    count,
                    speed,
                    *_flat(name_value),
                )
            else:
                logging.info(
                    "Epoch[%d] Batch [0-%d]\tSpeed: %.2f samples/sec" + metrics,
                    param.epoch,
                    count,
                    speed,
                    *_flat(name_value),
                )
        self.tic = time.time()


class ProgressBar:
    """A batch-end callback that logs a bar of `length` characters, full at `total` batches."""

    def __init__(self, total: int, length: int = 80) -> None:
        if total <= 0:
            raise ValueError(f"ProgressBar: total: expected the number of an epoch's batches, got {total}")
        self.bar_len = length
        self.total = total

    def __call__(self, param: Any) -> None:
        filled = round(self.bar_len * param.nbatch / float(self.total))
        percents = math.ceil(100.0 * param.nbatch / float(self.total))
        bar = "=" * filled + "-" * (self.bar_len - filled)
        logging.info("[%s] %s%s\r", bar, percents, "%")


class LogValidationMetricsCallback:
    """An end-of-scoring callback that logs each validation metric."""

    def __call__(self, param: Any) -> None:
        if param.eval_metric is None:
            return
        for name, value in param.eval_metric.get_name_value():
            logging.info("Epoch[%d] Validation-%s=%f", param.epoch, name, value)
