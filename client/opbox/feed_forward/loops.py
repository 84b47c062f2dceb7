"""FeedForward's passes over data: training an epoch, and scoring after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .. import metric as metrics
from ..callback import BatchEndParam
from ..module import BucketingModule, Module
from ..module.callbacks import Callbacks, listed

__all__ = ["AnyModule", "score_epoch", "train_epoch"]

AnyModule = Module | BucketingModule


def train_epoch(
    module: AnyModule,
    epoch: int,
    data: Any,
    epoch_size: int | None,
    eval_metric: metrics.EvalMetric,
    batch_end_callback: Callbacks,
    monitor: Any,
    logger: Any,
) -> None:
    """Train on `epoch_size` batches, or on all that the iterator has."""
    eval_metric.reset()
    for nbatch, batch in enumerate(_epoch_batches(epoch, data, epoch_size, logger), 1):
        if monitor is not None:
            monitor.tic()
        module.forward_backward(batch)
        module.update()
        if monitor is not None:
            monitor.toc_print()
        module.update_metric(eval_metric, batch.label)
        module._flush()
        if batch_end_callback is not None:
            param = BatchEndParam(epoch=epoch, nbatch=nbatch, eval_metric=eval_metric, locals=locals())
            for callback in listed(batch_end_callback):
                callback(param)


def _epoch_batches(epoch: int, data: Any, epoch_size: int | None, logger: Any) -> Iterator[Any]:
    """Yield the batches of one epoch. With `epoch_size` it may end within a pass over the data, or go on in the next.

    Raises:
        ValueError: the iterator has no batches, and `epoch_size` wants some.
    """
    count = 0
    while True:
        before = count
        for batch in data:
            yield batch
            count += 1
            if count == epoch_size:
                return
        logger.info("Epoch[%d] Resetting Data Iterator", epoch)
        data.reset()
        if epoch_size is None:
            return
        if count == before:
            raise ValueError(f"X: expected an iterator with batches, as epoch_size is {epoch_size}, got one with none")


def score_epoch(
    module: AnyModule,
    epoch: int,
    data: Any,
    eval_metric: metrics.EvalMetric,
    eval_end_callback: Callbacks,
    eval_batch_end_callback: Callbacks,
) -> None:
    """Score an iterator after an epoch of training."""
    eval_metric.reset()
    data.reset()
    batches = 0
    for nbatch, batch in enumerate(data):
        module.forward(batch, is_train=False)
        module.update_metric(eval_metric, batch.label)
        module._flush()
        batches += 1
        if eval_batch_end_callback is not None:
            param = BatchEndParam(epoch=epoch, nbatch=nbatch, eval_metric=eval_metric, locals=locals())
            for callback in listed(eval_batch_end_callback):
                callback(param)
    if eval_end_callback is not None:
        param = BatchEndParam(epoch=epoch, nbatch=batches, eval_metric=eval_metric, locals=locals())
        for callback in listed(eval_end_callback):
            callback(param)
    data.reset()
