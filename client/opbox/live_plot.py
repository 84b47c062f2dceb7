"""LivePlot: the curves of metrics during a training, in a notebook a picture, at a terminal lines with small curves."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

from .file_errors import file_errors
from .live_display import LiveDisplay, in_notebook

__all__ = ["LivePlot"]

Points = list[tuple[float, float]]
WIDTH, HEIGHT, LEFT, TOP, GAP = 560.0, 150.0, 64.0, 22.0, 34.0
MAX_POINTS = 400
"""Maximum number of points of a drawn curve."""
SPARKS = "▁▂▃▄▅▆▇█"
STYLE = (
    ".opbox-plot text{font:11px Helvetica,Arial,sans-serif;fill:#5c6670}.opbox-plot .ground{fill:#fff}"
    ".opbox-plot .grid{stroke:#dde2e7;fill:none}.opbox-plot .train{stroke:#2f6fd0;fill:none;stroke-width:1.6}"
    ".opbox-plot .val{stroke:#c4549b;fill:#c4549b;stroke-width:1.6}.opbox-plot .line{fill:none}"
    "@media (prefers-color-scheme:dark){.opbox-plot text{fill:#a9b3bd}.opbox-plot .ground{fill:#15191e}"
    ".opbox-plot .grid{stroke:#333b44}.opbox-plot .train{stroke:#6ea2ee}.opbox-plot .val{stroke:#e884c2;fill:#e884c2}}"
)


class LivePlot:
    """A callback that draws metrics over the batches: of training as a curve, of validation as points.

    In a notebook one picture follows the training; elsewhere a line with the last values is printed. The object shows
    itself afterwards, and `save` writes it.

    Args:
        frequent: batches between two values, whose reading waits for the steps under way.
        interval: seconds between two drawings.
        metrics: names of those that are drawn; all when None.

    Raises:
        ValueError: a number that is not above 0.

    Example:
        >>> plot = mx.viz.LivePlot()
        >>> mod.fit(train, eval_data=val, eval_metric=["acc", "ce"], num_epoch=5, batch_end_callback=plot,
        ...         eval_end_callback=plot.validation)
    """

    def __init__(self, frequent: int = 10, interval: float = 1.0, metrics: list[str] | None = None) -> None:
        if frequent < 1 or interval <= 0:
            raise ValueError(f"LivePlot: expected frequent and interval above 0, got {frequent} and {interval}")
        self.frequent = int(frequent)
        self.interval = interval
        self.metrics = metrics
        self.curves: dict[str, Points] = {}
        self.validations: dict[str, Points] = {}
        self._batch = 0
        self._epochs: list[int] = []
        self._display = LiveDisplay() if in_notebook() else None
        self._shown_at = -float("inf")

    def __call__(self, param: Any) -> None:
        """The batch-end callback."""
        self._batch += 1
        if not self._epochs or param.nbatch == 0:
            self._epochs.append(self._batch)
        if param.eval_metric is None or param.nbatch % self.frequent:
            return
        self._take(self.curves, param.eval_metric)
        self._show(param.epoch)

    def validation(self, param: Any) -> None:
        """The end-of-scoring callback."""
        if param.eval_metric is not None:
            self._take(self.validations, param.eval_metric)
            self._show(param.epoch, now=True)

    def _take(self, curves: dict[str, Points], metric: Any) -> None:
        for name, value in metric.get_name_value():
            if self.metrics is None or name in self.metrics:
                curves.setdefault(name, []).append((float(self._batch), float(value)))

    def _show(self, epoch: int, now: bool = False) -> None:
        if not now and time.monotonic() - self._shown_at < self.interval:
            return
        self._shown_at = time.monotonic()
        if self._display is not None:
            self._display.show(self._repr_mimebundle_())
            return
        words = [f"{name} {points[-1][1]:.4f} {_spark(points)}" for name, points in self.curves.items()]
        words += [f"validation {name} {points[-1][1]:.4f}" for name, points in self.validations.items()]
        print(f"Epoch[{epoch}] Batch {self._batch}  " + "  ".join(words), file=sys.stderr, flush=True)

    @property
    def svg(self) -> str:
        """The curves as an SVG document, a panel for each metric."""
        names = list(dict.fromkeys([*self.curves, *self.validations]))
        height = TOP + max(len(names), 1) * (HEIGHT + GAP)
        size = f'width="{WIDTH:.0f}" height="{height:.0f}" viewBox="0 0 {WIDTH:.0f} {height:.0f}"'
        title = "Training curves"
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="opbox-plot" {size} role="img" aria-label="{title}">',
            f"<title>{title}</title><style>{STYLE}</style>",
            '<rect class="ground" width="100%" height="100%" rx="8"/>',
        ]
        for number, name in enumerate(names):
            lines += self._panel(name, TOP + number * (HEIGHT + GAP))
        return "\n".join([*lines, "</svg>", ""])

    def _panel(self, name: str, top: float) -> list[str]:
        train, validation = self.curves.get(name, []), self.validations.get(name, [])
        values = np.array([value for _, value in (*train, *validation) if np.isfinite(value)] or [0.0])
        low, high = float(values.min()), float(values.max())
        if high - low < 1e-12:
            low, high = low - 0.5, high + 0.5
        last = max(self._batch, 2)

        def at(point: tuple[float, float]) -> str:
            x = LEFT + (point[0] - 1) / (last - 1) * (WIDTH - LEFT - 16)
            return f"{x:.1f},{top + HEIGHT - (point[1] - low) / (high - low) * HEIGHT:.1f}"

        lines = [f'<text x="{LEFT}" y="{top - 7}">{escape(name)}</text>']
        for tick in np.linspace(low, high, 4):
            y = top + HEIGHT - (tick - low) / (high - low) * HEIGHT
            lines.append(f'<path class="grid" d="M{LEFT},{y:.1f}H{WIDTH - 16}"/>')
            lines.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:.3g}</text>')
        for batch in self._epochs[1:] if len(self._epochs) <= 20 else ():
            x = at((float(batch), low)).partition(",")[0]
            lines.append(f'<path class="grid" stroke-dasharray="2 3" d="M{x},{top}V{top + HEIGHT}"/>')
        shown = [point for point in train if np.isfinite(point[1])]
        if len(shown) > MAX_POINTS:
            shown = [shown[i] for i in np.linspace(0, len(shown) - 1, MAX_POINTS).astype(int)]
        if shown:
            lines.append(f'<polyline class="train" points="{" ".join(map(at, shown))}"/>')
        for point in validation:
            if np.isfinite(point[1]):
                x, y = at(point).split(",")
                lines.append(f'<circle class="val" cx="{x}" cy="{y}" r="3"/>')
        lines.append(f'<text x="{WIDTH - 16}" y="{top + HEIGHT + 15}" text-anchor="end">batch {self._batch}</text>')
        return lines

    def save(self, filename: str | Path) -> str:
        """Write the curves to an SVG file; returns its path."""
        with file_errors(filename, "written"):
            Path(filename).write_text(self.svg, encoding="utf-8")
        return str(filename)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"image/svg+xml": self.svg, "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"<LivePlot of {', '.join(self.curves) or 'nothing yet'} over {self._batch} batches>"


def _spark(points: Points, width: int = 20) -> str:
    """The last values as a row of small columns."""
    values = np.array([value for _, value in points if np.isfinite(value)][-width:])
    if values.size < 2:
        return ""
    scaled = (values - values.min()) / (np.ptp(values) or 1.0)
    return "".join(SPARKS[round(float(v) * (len(SPARKS) - 1))] for v in scaled)
