"""Progress that `fit` shows while it trains: a bar at a terminal or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import logging
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

from .live_display import LiveDisplay, in_notebook

__all__ = ["TrainingBar", "training_bar"]

BAR_S = 0.2
"""Seconds between two drawings of a bar."""
METRIC_S = 1.0
"""Seconds between two readings of the metric, which wait for the steps under way."""
LINES_S = 10.0
"""Seconds between two plain lines."""
BLOCKS = " ▏▎▍▌▋▊▉█"


def training_bar(progress: bool | None, callbacks: Any, epochs: range, train_data: Any) -> TrainingBar | None:
    """The bar of a training; None for none.

    Args:
        progress: True or False; None for what OPBOX_PROGRESS says (1 or 0), and without it a bar for whoever looks on,
            at a terminal or in a notebook, and gave `fit` no batch-end callback that may print.
        callbacks: the batch-end callbacks.
        epochs: the epochs to come.
        train_data: the iterator, which may know how many batches it has.

    Raises:
        ValueError: OPBOX_PROGRESS is neither.
    """
    if progress is None:
        setting = os.environ.get("OPBOX_PROGRESS", "")
        if setting not in ("", "0", "1"):
            raise ValueError(f"OPBOX_PROGRESS: expected 0 or 1, got {setting!r}")
        progress = setting == "1" if setting else callbacks is None and (in_notebook() or _at_a_terminal())
    return TrainingBar(epochs, _batches(train_data)) if progress else None


def _at_a_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _batches(data: Any) -> int | None:
    """Return the number of batches of an iterator; None if it does not tell its number of samples."""
    samples, size = getattr(data, "num_data", None), getattr(data, "batch_size", None)
    if not isinstance(samples, int) or not isinstance(size, int) or size < 1:
        return None
    whole = getattr(data, "last_batch_handle", "pad") != "pad"
    return max(samples // size, 1) if whole else math.ceil(samples / size)


class TrainingBar:
    """A batch-end callback that shows how far a training is, its speed and its metrics.

    Args:
        epochs: their numbers.
        batches: those of an epoch; None when nobody knows before the first has ended.

    Example:
        Epoch 2/10  62% ██████████████▉          373/600  12345 samples/s  accuracy=0.9713  ETA 0:41
    """

    def __init__(self, epochs: range, batches: int | None = None) -> None:
        self._epochs = epochs
        self._batches = batches
        self._display = LiveDisplay() if in_notebook() else None
        self._terminal = self._display is None and _at_a_terminal()
        self._begin = time.monotonic()
        self._steps = 0
        self._since, self._samples, self._rate = self._begin, 0, 0.0
        self._metrics: list[tuple[str, Any]] = []
        self._metrics_at = self._shown_at = -math.inf
        self._drawn = False

    def __call__(self, param: Any) -> None:
        """Take note of a batch, and show it if it is time to."""
        now = time.monotonic()
        done = param.nbatch + 1
        self._steps += 1
        self._samples += _samples(param)
        last = self._batches is not None and done >= self._batches
        between = BAR_S if self._terminal or self._display is not None else LINES_S
        if not last and now - self._shown_at < between:
            return
        if last or now - self._metrics_at >= METRIC_S:
            # The reading waits for what is under way, so the clock is read after it.
            self._metrics = param.eval_metric.get_name_value() if param.eval_metric is not None else []
            now = self._metrics_at = time.monotonic()
        if now - self._since >= min(between, 1.0) or not self._rate:
            rate = self._samples / max(now - self._since, 1e-9)
            self._rate = rate if not self._rate else 0.6 * self._rate + 0.4 * rate
            self._since, self._samples = now, 0
        self._shown_at = now
        self._show(param.epoch, done, now, last)

    def epoch_ended(self, batches: int) -> None:
        """Note how many batches an epoch has, and leave its line."""
        self._batches = batches or self._batches
        self._end_line()

    def _words(self, epoch: int, done: int, now: float) -> tuple[str, float | None, str]:
        """Return the text before the bar, the share of the bar that is full, and the text behind it."""
        head = f"Epoch {epoch - self._epochs.start + 1}/{len(self._epochs)}"
        part = done / self._batches if self._batches else None
        count = f"{done}/{self._batches}" if self._batches else f"{done} batches"
        words = [count, f"{self._rate:.0f} samples/s", *(f"{name}={_value(value)}" for name, value in self._metrics)]
        if self._batches:
            left = self._batches * (self._epochs.stop - epoch) - done
            words.append(f"ETA {_clock((now - self._begin) / self._steps * max(left, 0))}")
        return head, part, "  ".join(words)

    def _show(self, epoch: int, done: int, now: float, last: bool) -> None:
        head, part, tail = self._words(epoch, done, now)
        percent = "" if part is None else f"{min(part, 1):4.0%} "
        if self._display is not None:
            value = "" if part is None else f" value='{min(part, 1):.3f}'"
            html = f"<div>{escape(head)} <progress{value} max='1'></progress> {escape(percent + tail)}</div>"
            self._display.show({"text/html": html, "text/plain": f"{head} {percent}{tail}"})
        elif self._terminal:
            columns = shutil.get_terminal_size().columns
            bar_width = min(30, columns - len(head) - len(percent) - len(tail) - 5)
            bar = f"{_bar(part, bar_width)} " if part is not None and bar_width >= 5 else ""
            sys.stderr.write(f"\r{f'{head} {percent}{bar} {tail}'[: columns - 1]}\x1b[K")
            sys.stderr.flush()
            self._drawn = True
        else:
            print(f"{head} {percent}{tail}", file=sys.stderr, flush=True)

    def _end_line(self) -> None:
        if self._drawn:
            sys.stderr.write("\n")
            sys.stderr.flush()
            self._drawn = False

    def _clear(self, record: logging.LogRecord) -> bool:
        """A handler's filter that lets everything pass, on a line of its own."""
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = False
        return True

    @contextmanager
    def beside_logs(self, *loggers: Any) -> Iterator[None]:
        """While this lasts, lines of these loggers do not run into the bar."""
        sources = [logging.getLogger(), *(one for one in loggers if isinstance(one, logging.Logger))]
        handlers = {handler for source in sources for handler in source.handlers}
        for handler in handlers:
            handler.addFilter(self._clear)
        try:
            yield
        finally:
            for handler in handlers:
                handler.removeFilter(self._clear)
            self._end_line()


def _samples(param: Any) -> int:
    """The samples of the batch that a callback is told of; 0 when it is not told."""
    batch = (param.locals or {}).get("data_batch")
    data = getattr(batch, "data", None)
    if not data:
        return 0
    return int(data[0].shape[0]) - int(getattr(batch, "pad", 0) or 0)


def _bar(part: float, width: int) -> str:
    eighths = round(min(part, 1.0) * width * 8)
    return ("█" * (eighths // 8) + BLOCKS[eighths % 8]).ljust(width)[:width]


def _value(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
