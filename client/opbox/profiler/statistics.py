"""Sums of what was timed, by category and name, as `dumps` prints them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["SORT_KEYS", "SortKey", "Statistics"]

SortKey = Literal["total", "avg", "min", "max", "count"]
SORT_KEYS: tuple[SortKey, ...] = ("total", "avg", "min", "max", "count")
_HEAD = "\nProfile Statistics:\n\tNote the difference in units for different entries.\n"
_COLUMNS = ("Time (ms)", "Min Time (ms)", "Max Time (ms)", "Avg Time (ms)")


@dataclass(slots=True)
class Sum:
    """Of one name.

    Attributes:
        count: how many there were.
        total, min, max: milliseconds; of a counter thousandths of its values, as MXNet has it, the last one as `total`.
        counter: whether it is a counter's.
    """

    count: int = 0
    total: float = 0.0
    min: float = float("inf")
    max: float = 0.0
    counter: bool = False

    @property
    def avg(self) -> float:
        """The mean; of a counter half the range of its values, as MXNet has it."""
        return (self.max - self.min) / 2 if self.counter else self.total / self.count

    def row(self) -> dict[str, float]:
        """The numbers by their names in JSON."""
        return {"Count": self.count, "Total": self.total, "Min": self.min, "Max": self.max, "Avg": self.avg}


class Statistics:
    """Sums by category and name."""

    def __init__(self) -> None:
        self._sums: dict[str, dict[str, Sum]] = {}

    def category(self, name: str) -> dict[str, Sum]:
        """The sums of a category, which is there from now on."""
        return self._sums.setdefault(name, {})

    def add(self, category: str, name: str, ms: float) -> None:
        """Count a duration."""
        entry = self.category(category).setdefault(name, Sum())
        entry.count += 1
        entry.total += ms
        entry.min, entry.max = min(entry.min, ms), max(entry.max, ms)

    def add_value(self, category: str, name: str, value: int) -> None:
        """Count a counter's value."""
        entry = self.category(category).setdefault(name, Sum(counter=True))
        entry.count += 1
        entry.total = value / 1000
        entry.min, entry.max = min(entry.min, entry.total), max(entry.max, entry.total)

    def clear(self) -> None:
        """Reset the statistics."""
        self._sums.clear()

    def table(self, key: SortKey, ascending: bool) -> str:
        """The sums as MXNet's table: a piece for each category, its columns 80 and more characters wide."""
        text = _HEAD
        for category, rows in self._sorted(key, ascending).items():
            text += f"{category}\n=================\n{'Name':<25} {'Total Count':>15}"
            text += "".join(f" {column:>16}" for column in _COLUMNS) + "\n"
            text += f"{'----':<25} {'-----------':>15}"
            text += "".join(f" {'-' * len(column):>16}" for column in _COLUMNS) + "\n"
            for name, entry in rows.items():
                text += f"{name:<25} {entry.count:>15}"
                text += "".join(f" {value:>16.4f}" for value in (entry.total, entry.min, entry.max, entry.avg)) + "\n"
            text += "\n"
        return text + "\n"

    def json(self, key: SortKey, ascending: bool) -> str:
        """The sums as MXNet's JSON: `Time`, category, name, `Count`, `Total`, `Min`, `Max`, `Avg`; and the units."""
        rows: dict[str, Any] = {
            category: {name: entry.row() for name, entry in entries.items()}
            for category, entries in self._sorted(key, ascending).items()
        }
        return json.dumps({"Time": rows, "Memory": {}, "Unit": {"Time": "ms", "Memory": "kB"}}, indent=4) + "\n"

    def _sorted(self, key: SortKey, ascending: bool) -> dict[str, dict[str, Sum]]:
        return {
            category: dict(sorted(entries.items(), key=lambda row: getattr(row[1], key), reverse=not ascending))
            for category, entries in sorted(self._sums.items())
        }
