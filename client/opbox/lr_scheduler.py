"""Learning rates as functions of the number of updates made, with an optional warm-up.

A scheduler is called with `num_update`, the largest count of updates of any weight, and returns the rate. The values
are MXNet 1.9.1's.
"""

from __future__ import annotations

import bisect
import itertools
import logging
import math
from collections.abc import Sequence

__all__ = ["CosineScheduler", "FactorScheduler", "LRScheduler", "MultiFactorScheduler", "PolyScheduler"]


class LRScheduler:
    """Base of schedules: the warm-up, from `warmup_begin_lr` to `base_lr` over `warmup_steps` updates.

    Args:
        base_lr: the rate after the warm-up.
        warmup_steps: updates that the warm-up takes; 0 for none.
        warmup_begin_lr: the rate of the first update.
        warmup_mode: "linear", or "constant" (stays at `warmup_begin_lr`, then jumps).

    Raises:
        ValueError: a rate, a count or a mode that makes no schedule.
    """

    def __init__(
        self,
        base_lr: float = 0.01,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None:
        if not isinstance(warmup_steps, int):
            raise AssertionError(f"warmup_steps: expected an int, got {warmup_steps!r}")
        if warmup_begin_lr > base_lr:
            raise ValueError(f"warmup_begin_lr: expected at most base_lr, {base_lr:g}, got {warmup_begin_lr:g}")
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps: expected 0 or more, got {warmup_steps}")
        if warmup_mode not in ("linear", "constant"):
            raise ValueError(f"warmup_mode: expected linear or constant, got {warmup_mode!r}")
        self.base_lr = base_lr
        self.warmup_steps = warmup_steps
        self.warmup_final_lr = base_lr
        self.warmup_begin_lr = warmup_begin_lr
        self.warmup_mode = warmup_mode

    def get_warmup_lr(self, num_update: int) -> float:
        """The rate during the warm-up."""
        assert num_update < self.warmup_steps
        if self.warmup_mode == "constant":
            return self.warmup_begin_lr
        rise = self.warmup_final_lr - self.warmup_begin_lr
        return self.warmup_begin_lr + rise * float(num_update) / float(self.warmup_steps)

    def __call__(self, num_update: int) -> float:
        """The rate of update number `num_update`."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__(num_update)")


class _Stepwise(LRScheduler):
    """Schedules that multiply the rate by `factor`, down to `stop_factor_lr`, whenever a further update is passed."""

    def __init__(
        self, factor: float, stop_factor_lr: float, base_lr: float, steps: int, begin_lr: float, mode: str
    ) -> None:
        super().__init__(base_lr, steps, begin_lr, mode)
        if factor > 1.0:
            raise ValueError(f"factor: expected at most 1, so that the rate falls, got {factor:g}")
        self.factor = factor
        self.stop_factor_lr = stop_factor_lr
        self.count = 0

    def _next(self) -> float:
        """The update after which the rate falls next."""
        raise NotImplementedError(f"{type(self).__name__} must define _next()")

    def __call__(self, num_update: int) -> float:
        if num_update < self.warmup_steps:
            return self.get_warmup_lr(num_update)
        while num_update > (passed := self._next()):
            self.count = int(passed)
            self.base_lr = max(self.base_lr * self.factor, self.stop_factor_lr)
            lowest = ", the lowest it goes" if self.base_lr == self.stop_factor_lr else ""
            logging.info("Update[%d]: learning rate %0.5e%s", num_update, self.base_lr, lowest)
        return self.base_lr


class FactorScheduler(_Stepwise):
    """Multiply the rate by `factor` after every `step` updates, down to `stop_factor_lr`."""

    def __init__(
        self,
        step: int,
        factor: float = 1,
        stop_factor_lr: float = 1e-8,
        base_lr: float = 0.01,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None:
        super().__init__(factor, stop_factor_lr, base_lr, warmup_steps, warmup_begin_lr, warmup_mode)
        if step < 1:
            raise ValueError(f"step: expected 1 update or more, got {step}")
        self.step = step

    def _next(self) -> float:
        return self.count + self.step


class MultiFactorScheduler(_Stepwise):
    """Multiply the rate by `factor` once past each of the update numbers in `step`."""

    def __init__(
        self,
        step: Sequence[int],
        factor: float = 1,
        base_lr: float = 0.01,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None:
        super().__init__(factor, 0.0, base_lr, warmup_steps, warmup_begin_lr, warmup_mode)
        if not (isinstance(step, list) and step):
            raise AssertionError(f"step: expected a list of update numbers, got {step!r}")
        if any(later <= earlier for earlier, later in itertools.pairwise(step)):
            raise ValueError(f"step: expected rising update numbers, got {step}")
        if step[0] < 1:
            raise ValueError(f"step: expected update numbers of 1 or more, got {step}")
        self.step = step

    @property
    def cur_step_ind(self) -> int:
        """The number of update numbers that have been passed."""
        return bisect.bisect_right(self.step, self.count)

    def _next(self) -> float:
        passed = self.cur_step_ind
        return self.step[passed] if passed < len(self.step) else math.inf


class _ToFinal(LRScheduler):
    """Schedules that go from `base_lr` to `final_lr` in `max_update` updates, the warm-up among them."""

    def __init__(
        self,
        max_update: int,
        base_lr: float = 0.01,
        final_lr: float = 0,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None:
        super().__init__(base_lr, warmup_steps, warmup_begin_lr, warmup_mode)
        if not isinstance(max_update, int):
            raise AssertionError(f"max_update: expected an int, got {max_update!r}")
        if max_update < 1:
            raise ValueError(f"max_update: expected 1 or more, got {max_update}")
        self.base_lr_orig = base_lr
        self.max_update = max_update
        self.final_lr = final_lr
        self.max_steps = max_update - warmup_steps

    def _remaining(self, num_update: int) -> float:
        """The share of the way from `final_lr` back to `base_lr`, 1 at the start and 0 at the end."""
        raise NotImplementedError(f"{type(self).__name__} must define _remaining(num_update)")

    def __call__(self, num_update: int) -> float:
        if num_update < self.warmup_steps:
            return self.get_warmup_lr(num_update)
        if num_update <= self.max_update:
            self.base_lr = self.final_lr + (self.base_lr_orig - self.final_lr) * self._remaining(num_update)
        return self.base_lr


class PolyScheduler(_ToFinal):
    """lr = final_lr + (base_lr - final_lr) * (1 - t / max_steps) ** pwr."""

    def __init__(
        self,
        max_update: int,
        base_lr: float = 0.01,
        pwr: float = 2,
        final_lr: float = 0,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None:
        super().__init__(max_update, base_lr, final_lr, warmup_steps, warmup_begin_lr, warmup_mode)
        self.power = pwr

    def _remaining(self, num_update: int) -> float:
        return math.pow(1 - (num_update - self.warmup_steps) / self.max_steps, self.power)


class CosineScheduler(_ToFinal):
    """lr = final_lr + (base_lr - final_lr) * (1 + cos(pi t / max_steps)) / 2 (Loshchilov and Hutter, SGDR, 2016)."""

    def _remaining(self, num_update: int) -> float:
        return (1 + math.cos(math.pi * (num_update - self.warmup_steps) / self.max_steps)) / 2
