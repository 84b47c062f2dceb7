"""Configurations of HAProxy and Envoy that route by the node in a session's id, in place of the gateway process.

They do what needs no controller. A new session goes to the node with the fewest connections, and not where the
controller would place it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from opbox_protocol.errors import BadRequestError

from ...session_ids import NODE_PATTERN

__all__ = ["envoy_configuration", "haproxy_configuration"]

_PATHS = "/v1/sessions/, /v1/history/ and /v1/admin/sessions/"
_BEFORE_ID = "/v1/(?:sessions|history|admin/sessions)/"
WAIT_S = 660
"""Seconds that an answer may take: more than a client waits."""


def haproxy_configuration(nodes: Mapping[str, str], port: int = 8000) -> str:
    """HAProxy's configuration for a cluster.

    Args:
        nodes: URLs by name.
        port: to listen on.

    Raises:
        BadRequestError: there is no node, or one's name or URL is none.

    Example:
        >>> print(haproxy_configuration({"a": "http://box1:8000"}))
    """
    places = _places(nodes)
    lines = [
        f"# Routes by the node in a session's id (below {_PATHS}).",
        "defaults",
        "    mode http",
        "    timeout connect 5s",
        f"    timeout client {WAIT_S}s",
        f"    timeout server {WAIT_S}s",
        "    timeout http-request 10s",
        "    timeout http-keep-alive 75s",
        "    option forwardfor",
        "    option http-keep-alive",
        "    http-reuse safe",
        "frontend opbox",
        f"    bind :{port}",
    ]
    paths = _BEFORE_ID.replace("?:", "")
    lines += [f"    use_backend node_{name} if {{ path_reg ^{paths}{name}- }}" for name in places]
    lines += ["    default_backend nodes", "backend nodes", "    balance leastconn", "    option httpchk"]
    lines += ["    http-check send meth GET uri /v2/health/ready"]
    lines += [f"    server {name} {host}:{number} check" for name, (host, number) in places.items()]
    for name, (host, number) in places.items():
        lines += [f"backend node_{name}", f"    server {name} {host}:{number}"]
    return "\n".join(lines) + "\n"


def envoy_configuration(nodes: Mapping[str, str], port: int = 8000) -> str:
    """Envoy's static configuration for a cluster, as JSON, which Envoy takes as YAML.

    Args, Raises: see haproxy_configuration.
    """
    places = _places(nodes)
    timeout = f"{WAIT_S}s"
    routes = [
        {
            "match": {"safe_regex": {"regex": f"{_BEFORE_ID}{name}-.*"}},
            "route": {"cluster": f"node_{name}", "timeout": timeout},
        }
        for name in places
    ]
    routes.append({"match": {"prefix": "/"}, "route": {"cluster": "nodes", "timeout": timeout}})
    kind = "type.googleapis.com/envoy.extensions.filters"
    manager = {
        "@type": f"{kind}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "opbox",
        "use_remote_address": True,
        "stream_idle_timeout": timeout,
        "route_config": {"virtual_hosts": [{"name": "opbox", "domains": ["*"], "routes": routes}]},
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{kind}.http.router.v3.Router"},
            }
        ],
    }
    listener = {
        "name": "opbox",
        "address": {"socket_address": {"address": "0.0.0.0", "port_value": port}},
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }
    clusters = [_envoy_cluster(f"node_{name}", [place]) for name, place in places.items()]
    clusters.append(_envoy_cluster("nodes", list(places.values())))
    return json.dumps({"static_resources": {"listeners": [listener], "clusters": clusters}}, indent=2) + "\n"


def _envoy_cluster(name: str, places: list[tuple[str, int]]) -> dict[str, object]:
    endpoints = [
        {"endpoint": {"address": {"socket_address": {"address": host, "port_value": number}}}}
        for host, number in places
    ]
    return {
        "name": name,
        "type": "STRICT_DNS",
        "connect_timeout": "5s",
        "lb_policy": "LEAST_REQUEST",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
    }


def _places(nodes: Mapping[str, str]) -> dict[str, tuple[str, int]]:
    """Host and port of each node."""
    if not nodes:
        raise BadRequestError("nodes: expected at least one, got none: join one first")
    places = {}
    for name, url in sorted(nodes.items()):
        if not re.fullmatch(NODE_PATTERN, name):
            raise BadRequestError(f"node: expected a name of 1 to 16 of a-z and 0-9, got {name!r}")
        try:
            parts = urlsplit(url)
            number = parts.port or 80
        except ValueError:
            parts, number = urlsplit(""), 0
        host = parts.hostname or ""
        if parts.scheme != "http" or not re.fullmatch(r"[A-Za-z0-9.:-]+", host):
            raise BadRequestError(f"node {name}: expected a URL such as http://box:8000, got {url!r}")
        places[name] = f"[{host}]" if ":" in host else host, number
    return places
