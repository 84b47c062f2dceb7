"""Configurations of HAProxy and Envoy: HAProxy takes its own, and what is no node is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from opbox_protocol.errors import BadRequestError
from opbox_service.cluster import command
from opbox_service.cluster.gateway.configurations import envoy_configuration, haproxy_configuration

NODES = {"b": "http://box2:8001", "a": "http://127.0.0.1:8000"}
ROOT = Path(__file__).resolve().parents[2]
HAPROXY = shutil.which("haproxy") or shutil.which(ROOT / ".haproxy" / "usr" / "sbin" / "haproxy")


@pytest.mark.skipif(HAPROXY is None, reason="no haproxy on this machine")
def test_haproxy_takes_its_configuration(tmp_path: Path) -> None:
    path = tmp_path / "haproxy.cfg"
    path.write_text(haproxy_configuration({**NODES, "b": "http://127.0.0.2:8001"}))
    libraries = {"LD_LIBRARY_PATH": ":".join(map(str, (ROOT / ".haproxy" / "usr" / "lib").glob("*-linux-gnu")))}
    assert HAPROXY is not None
    checked = subprocess.run(
        [HAPROXY, "-c", "-f", str(path)], capture_output=True, text=True, env={**os.environ, **libraries}, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_haproxy_routes_by_node() -> None:
    text = haproxy_configuration(NODES, 9000)
    assert "    bind :9000\n" in text
    assert "    use_backend node_a if { path_reg ^/v1/(sessions|history|admin/sessions)/a- }\n" in text
    assert "backend node_b\n    server b box2:8001\n" in text


def test_envoy_routes_by_node() -> None:
    resources = json.loads(envoy_configuration(NODES, 9000))["static_resources"]
    (listener,) = resources["listeners"]
    assert listener["address"]["socket_address"]["port_value"] == 9000
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    routes = manager["route_config"]["virtual_hosts"][0]["routes"]
    assert [route["route"]["cluster"] for route in routes] == ["node_a", "node_b", "nodes"]
    assert [cluster["name"] for cluster in resources["clusters"]] == ["node_a", "node_b", "nodes"]


@pytest.mark.parametrize(
    ("nodes", "sentence"),
    [
        ({}, "expected at least one"),
        ({"A": "http://a:1"}, "expected a name"),
        ({"a b": "http://a:1"}, "expected a name"),
        ({"a": "a:1"}, "expected a URL"),
        ({"a": "https://a:1"}, "expected a URL"),
        ({"a": "http://a:99999"}, "expected a URL"),
        ({"a": "http://a b\nserver:1"}, "expected a URL"),
    ],
)
def test_what_is_no_node_is_refused(nodes: dict[str, str], sentence: str) -> None:
    for write in (haproxy_configuration, envoy_configuration):
        with pytest.raises(BadRequestError, match=sentence):
            write(nodes)


def test_the_command_prints_it_for_the_nodes_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("a", "ready", "http://a:1"), ("b", "lost", "http://b:1")]
    nodes = [{"node": name, "state": state, "url": url} for name, state, url in rows]
    monkeypatch.setattr(command, "_ask", lambda method: {"nodes": nodes})
    printed = CliRunner().invoke(command.cluster, ["gateway-config", "haproxy", "--port", "9000"])
    assert printed.output == haproxy_configuration({"a": "http://a:1"}, 9000)
    assert CliRunner().invoke(command.cluster, ["gateway-config", "nginx"]).exit_code == 2
