"""Monitor: statistics of a network's arrays every few batches."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from typing import Any

from . import ndarray as nd
from .base import value_text
from .ndarray import NDArray

__all__ = ["Monitor"]


def _rms(array: NDArray) -> NDArray:
    root_mean_square: NDArray = nd.norm(array) / math.sqrt(array.size)
    return root_mean_square


class Monitor:
    """Collect a statistic of every operator's outputs, of arguments and of auxiliary states.

    Args:
        interval: batches between two collections.
        stat_func: from an array to an array or a list of arrays; the root mean square when None.
        pattern: a regular expression; names that it matches at their start are collected.
        sort: order the result by name.
        monitor_all: also every operator's inputs, not only its outputs.

    Example:
        >>> mod.fit(train, monitor=mx.mon.Monitor(100, pattern=".*weight"), num_epoch=1)
    """

    def __init__(
        self,
        interval: int,
        stat_func: Callable[[NDArray], Any] | None = None,
        pattern: str = ".*",
        sort: bool = False,
        monitor_all: bool = False,
    ) -> None:
        if not isinstance(interval, int) or interval < 1:
            raise ValueError(f"interval: expected a number of batches, got {interval!r}")
        if stat_func is not None and not callable(stat_func):
            raise TypeError(f"stat_func: expected a function of an array, or None, got {value_text(stat_func)}")
        try:
            self.re_prog = re.compile(pattern)
        except re.error as error:
            raise ValueError(f"pattern: expected a regular expression, got {pattern!r}: {error}") from None
        self.interval = interval
        self.stat_func = stat_func or _rms
        self.sort = sort
        self.monitor_all = monitor_all
        self.activated = False
        self.step = 0
        self.queue: list[tuple[int, str, Any]] = []
        self.exes: list[Any] = []

    def stat_helper(self, name: str, array: NDArray) -> None:
        """Receive each operator's outputs, and with `monitor_all` its inputs, from an executor."""
        if self._collects(name):
            self.queue.append((self.step, name, self.stat_func(array)))

    def _collects(self, name: str) -> bool:
        return self.activated and self.re_prog.match(name) is not None

    def install(self, exe: Any) -> None:
        """Watch an executor.

        Raises:
            TypeError: it is none.
        """
        if not hasattr(exe, "set_monitor_callback"):
            raise TypeError(f"install: expected an executor, got {value_text(exe)}: a module has install_monitor")
        exe.set_monitor_callback(self.stat_helper, self.monitor_all, self._collects)
        self.exes.append(exe)

    def tic(self) -> None:
        """Begin a batch: collect in it, if its turn has come."""
        if self.step % self.interval == 0:
            self.queue = []
            self.activated = True
        self.step += 1

    def toc(self) -> list[tuple[int, str, str]]:
        """End a batch.

        Returns:
            (batch, name, statistic) of what was collected; empty when it was not its turn.
        """
        if not self.activated:
            return []
        for exe in self.exes:
            for name, array in [*exe.arg_dict.items(), *exe.aux_dict.items()]:
                if self.re_prog.match(name):
                    self.queue.append((self.step, name, self.stat_func(array)))
        self.activated = False
        records = sorted(self.queue, key=lambda one: one[1]) if self.sort else self.queue
        self.queue = []
        return [(step, name, _text_of(values)) for step, name, values in records]

    def toc_print(self) -> None:
        """End a batch, and log what was collected."""
        for step, name, text in self.toc():
            logging.info("Batch: %7d %-30s %s", step, name, text)


def _text_of(values: Any) -> str:
    """Statistics as text: single numbers as such, each followed by a tab."""
    text = ""
    for value in values if isinstance(values, (list, tuple)) else [values]:
        array = value.asnumpy()
        number = array.reshape(-1)[0] if array.size == 1 else array
        text += f"{number!s}\t"  # with the digits of its own type
    return text
