"""Alerts by Prometheus' and Alertmanager's own tools: when each is raised, how severe it is, and whom it reaches."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.docker.test_files import ROOT, compose, run, yaml

pytestmark = pytest.mark.compose

MONITORING = ROOT / "docker" / "monitoring"
ALERTMANAGER = MONITORING / "alertmanager.yml"
RECEIVERS = {"critical": "critical", "warning": "warning", "info": "shown"}
"""The receiver of each severity."""


def tool(name: str) -> str:
    """The path of one of their tools, of this machine or of .ci/prometheus.sh."""
    path = shutil.which(name) or shutil.which(ROOT / ".prometheus" / "usr" / "bin" / name)
    if path is None:
        pytest.skip(f"no {name} on this machine")
    return path


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml(MONITORING / "alerts.yml")["groups"] for rule in group["rules"]]


def rule_of(alert: str) -> dict[str, Any]:
    [rule] = [rule for rule in rules() if rule["alert"] == alert]
    return rule


def test_each_alert_has_a_severity_and_a_sentence() -> None:
    assert {rule["labels"]["severity"] for rule in rules()} == RECEIVERS.keys()
    for rule in rules():
        assert rule["annotations"]["summary"].endswith("."), rule["alert"]


def test_the_rules_are_right() -> None:
    assert [rule["alert"] for rule in rules()] == list(SERIES)
    done = run(tool("promtool"), "check", "rules", MONITORING / "alerts.yml")
    assert done.returncode == 0, done.stderr
    assert f"{len(rules())} rules found" in done.stdout
    done = run(tool("promtool"), "check", "config", "--syntax-only", MONITORING / "prometheus.yml")
    assert done.returncode == 0, done.stderr


SERIES = {
    "OpboxDown": (['up{job="opbox"}', "1x2 0x20"],),
    "OpboxServerErrors": (
        ['opbox_requests_total{status="200"}', "0+90x30"],
        ['opbox_requests_total{status="500"}', "0+10x30"],
    ),
    "OpboxWorkerRestarts": (["opbox_worker_restarts_total", "0x20 1 2 3 4 4x20"],),
    "OpboxQueueing": (
        ['opbox_queue_seconds_total{device="gpu:0"}', "0+30x40"],
        ['opbox_runs_total{device="gpu:0"}', "0+20x40"],
    ),
}
"""For each alert, series with one value a minute that raise it at the 25th. Their names choose the tests: `make test`
collects these without what reads the alerts' file."""
QUIET = (
    ['up{job="opbox"}', "1x40"],
    ['opbox_requests_total{status="200"}', "0+90x40"],
    ['opbox_requests_total{status="500"}', "0+1x40"],
    ["opbox_worker_restarts_total", "0x5 1x35"],
    ['opbox_queue_seconds_total{device="gpu:0"}', "0+1x40"],
    ['opbox_runs_total{device="gpu:0"}', "0+20x40"],
)
"""Series that raise none."""


def check_alerts(tmp_path: Path, series: tuple[list[str], ...], expected: dict[str, list[dict[str, Any]]]) -> str:
    """Have promtool evaluate the rules over the series; what it says against the expected alerts, "" where nothing."""
    from ruamel.yaml import YAML

    cases = [{"eval_time": "25m", "alertname": name, "exp_alerts": alerts} for name, alerts in expected.items()]
    rows = [{"series": name, "values": values} for name, values in series]
    document = {
        "rule_files": [str(MONITORING / "alerts.yml")],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": rows, "alert_rule_test": cases}],
    }
    file = tmp_path / "test.yml"
    YAML().dump(document, file)
    done = run(tool("promtool"), "test", "rules", file)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("name", SERIES)
def test_an_alert_is_raised_with_its_severity(name: str, tmp_path: Path) -> None:
    rule = rule_of(name)
    # The labels that stay behind an aggregation, and those of the rule.
    labels = {"OpboxDown": {"job": "opbox"}, "OpboxQueueing": {"device": "gpu:0"}}.get(name, {})
    summary = rule["annotations"]["summary"].replace("{{ $labels.device }}", "gpu:0")
    alert = {"exp_labels": labels | rule["labels"], "exp_annotations": {"summary": summary}}
    assert check_alerts(tmp_path, SERIES[name], {name: [alert]}) == ""


def test_a_server_without_trouble_raises_no_alert(tmp_path: Path) -> None:
    assert check_alerts(tmp_path, QUIET, {name: [] for name in SERIES}) == ""


def test_alertmanager_takes_its_configuration(tmp_path: Path) -> None:
    done = run(tool("amtool"), "check-config", ALERTMANAGER)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "alertmanager.yml"
    wrong.write_text(ALERTMANAGER.read_text("utf-8").replace("receiver: critical", "receiver: nobody"), "utf-8")
    assert run(tool("amtool"), "check-config", wrong).returncode == 1


@pytest.mark.parametrize("name", SERIES)
def test_an_alert_reaches_the_receiver_of_its_severity(name: str) -> None:
    rule = rule_of(name)
    labels = [f"{name}={value}" for name, value in rule["labels"].items()]
    route = ("config", "routes", "test", "--config.file", ALERTMANAGER)
    done = run(tool("amtool"), *route, f"alertname={rule['alert']}", *labels)
    assert done.stdout.split() == [RECEIVERS[rule["labels"]["severity"]]]


def test_prometheus_and_grafana_find_alertmanager() -> None:
    [alertmanager] = yaml(MONITORING / "prometheus.yml")["alerting"]["alertmanagers"]
    [target] = alertmanager["static_configs"][0]["targets"]
    host, _, port = target.partition(":")
    assert compose()["services"][host]["ports"] == [f"127.0.0.1:${{ALERTMANAGER_PORT:-{port}}}:{port}"]
    urls = {source["type"]: source["url"] for source in yaml(MONITORING / "grafana.yml")["datasources"]}
    assert urls["alertmanager"] == f"http://{target}"


def test_the_documents_say_how_to_be_called() -> None:
    text = (ROOT / "docs" / "tutorials" / "team.md").read_text("utf-8")
    assert set(re.findall(r"`(ALERTMANAGER_\w+)`", text)) == set(
        re.findall(r"\$\{(ALERTMANAGER_\w+):", (ROOT / "compose.yaml").read_text("utf-8"))
    )
