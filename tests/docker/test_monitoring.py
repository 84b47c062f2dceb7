"""The dashboard and the alerts ask for metrics that the server exports, by labels that these have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from opbox_service.api.metrics import Metrics
from opbox_service.device_time import DeviceTime
from opbox_service.models.statistics import ModelStatistics
from opbox_service.worker.pool import Stats

MONITORING = Path(__file__).parents[2] / "docker" / "monitoring"
DASHBOARD = MONITORING / "dashboards" / "opbox.json"
_NAME = re.compile(r"\b(?:opbox|process|nv)_\w+")
_LABELS = re.compile(r"\bby \(([^)]*)\)|\{(\w+)=~?|\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}")


def exported() -> dict[str, set[str]]:
    """The labels of each metric that a server with some traffic exports."""
    stats = Stats(1, 0, {"api": 1}, 0, code_deaths={"deadline": 1}, device_times={("ann", "gpu:0"): DeviceTime()})
    metrics = Metrics(lambda: stats, 300.0)
    metrics.count("POST", "/v1/forward", 200, 0.1, 10, 10, "ann")
    metrics.count_commands(1)
    labels: dict[str, set[str]] = {}
    model = {**ModelStatistics().to_json(), "name": "digits", "version": "1"}
    for family in text_string_to_metric_families(metrics.text([model]).decode()):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


def queries() -> list[str]:
    """Every expression, with its legend behind it."""
    document = json.loads(DASHBOARD.read_text("utf-8"))
    panels = [f"{t['expr']} {t['legendFormat']}" for panel in document["panels"] for t in panel["targets"]]
    panels += [note["expr"] for note in document["annotations"]["list"]]
    alerts = re.findall(r"expr: (.*(?:\n(?! *- alert:).*)*)", (MONITORING / "alerts.yml").read_text("utf-8"))
    assert len(alerts) == 4
    return panels + alerts


@pytest.mark.parametrize("query", queries())
def test_a_query_asks_for_what_there_is(query: str) -> None:
    labels = exported()
    names = set(_NAME.findall(query))
    assert names <= labels.keys() | {"opbox"}, names - labels.keys()
    known = {"le", "job"}.union(*(labels[name] for name in names if name in labels))
    asked = {label.strip() for match in _LABELS.findall(query) for part in match for label in part.split(",")} - {""}
    assert asked <= known, asked - known


def test_the_dashboard_shows_every_metric_of_ours() -> None:
    shown = set(_NAME.findall(" ".join(queries())))
    missing = {
        name for name in exported() if name.startswith("opbox_") and not name.endswith(("_sum", "_count"))
    } - shown
    assert not missing


def test_panels_do_not_overlap() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells, panel["title"]
        assert place["x"] + place["w"] <= 24  # Grafana's columns
        assert panel["description"]
        cells |= own
