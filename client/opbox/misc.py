"""MXNet's `mx.misc`: schedules of the learning rate by the name that they had before `mx.lr_scheduler`."""

from __future__ import annotations

import logging

from .absent import module_getattr

__all__ = ["FactorScheduler", "LearningRateScheduler"]


class LearningRateScheduler:
    """Base of schedules: called with the count of updates, they return the rate.

    Attributes:
        base_lr: the rate to begin with.
    """

    def __init__(self) -> None:
        self.base_lr = 0.01

    def __call__(self, iteration: int) -> float:
        """The rate after so many updates."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__(iteration)")


class FactorScheduler(LearningRateScheduler):
    """The rate is base_lr factor^floor(iteration / step).

    Args:
        step: updates between two changes.
        factor: less than 1.

    Raises:
        ValueError: a step below 1, or a factor that does not reduce the rate.
    """

    def __init__(self, step: int, factor: float = 0.1) -> None:
        super().__init__()
        if step < 1:
            raise ValueError(f"FactorScheduler: step: expected at least 1 update, got {step}")
        if factor >= 1.0:
            raise ValueError(f"FactorScheduler: factor: expected less than 1, got {factor}")
        self.step = step
        self.factor = factor
        self._logged: float | None = None

    def __call__(self, iteration: int) -> float:
        rate: float = self.base_lr * self.factor ** (iteration // self.step)
        if self._logged is not None and rate != self._logged:
            logging.info("FactorScheduler: update %d: the rate is %.5f from here on", iteration, rate)
        self._logged = rate
        return rate


__getattr__ = module_getattr(__name__, __all__)
