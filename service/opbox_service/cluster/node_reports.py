"""What a node's server says of itself by its own HTTP routes, and what a node has it do."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from opbox_protocol import routes
from opbox_protocol.errors import NotReadyError

from .documents import NodeReport, ReplicaReport, SessionReport

__all__ = ["Refusals", "ServerApi", "devices_of", "report_of"]

READY, UNAVAILABLE = "READY", "UNAVAILABLE"
ANSWER_S = 10.0
"""Seconds without an answer after which a server counts as hung; on a busy machine an answer may take some."""


REFUSED_S = 5.0
"""Seconds for which a refused owner's share stays larger than its use, so that another try is admitted."""


class ServerApi:
    """Calls of one server, on one connection, with a token of every scope.

    Args:
        url: of the server.
        token: sent with each call.
        timeout_s: maximum seconds of silence.

    Example:
        >>> ServerApi("http://127.0.0.1:8002", token).get("/v2")["version"]  # doctest: +SKIP
        '0.1.0'
    """

    def __init__(self, url: str, token: str, timeout_s: float = ANSWER_S) -> None:
        parts = urlsplit(url)
        self.url = url
        self._token = token
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)

    def get(self, path: str) -> dict[str, Any]:
        """Return the answer's JSON; raises as `call` does."""
        return self.call("GET", path)

    def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Call the server.

        Raises:
            NotReadyError: it does not answer, or answers with an error.
        """
        try:
            status, answer = self._exchange(method, path, body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._connection.close()
            raise NotReadyError(
                f"{method} {self.url}{path}: expected an answer, got {type(error).__name__}: {error}"
            ) from None
        if status >= 400:
            raise NotReadyError(
                f"{method} {self.url}{path}: expected success, got {status}: {answer.get('error', answer)}"
            )
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _exchange(self, method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        headers = {"Authorization": f"Bearer {self._token}"}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        self._connection.request(method, path, data, headers)
        response = self._connection.getresponse()
        content = response.read()
        return response.status, json.loads(content) if content else {}

    def load(self, model: str) -> None:
        """Load a model, or load it anew."""
        self.call("POST", routes.MODEL_LOAD.format(model=quote(model, safe="")), {})

    def unload(self, model: str) -> None:
        """Unload a model."""
        self.call("POST", routes.MODEL_UNLOAD.format(model=quote(model, safe="")), {})

    def end(self, session: str) -> None:
        """End a session."""
        self.call("DELETE", routes.ADMIN_SESSION.format(id=quote(session, safe="")))


class Refusals:
    """Owners whom a quota refused of late, by the counts of `GET /v1/admin/usage`.

    Example:
        >>> refusals = Refusals()
        >>> refusals.since([{"owner": "ann", "days": [{"refused": 1}]}], 0.0)
        ('ann',)
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._until: dict[str, float] = {}

    def since(self, rows: Iterable[Mapping[str, Any]], now: float) -> tuple[str, ...]:
        """Return the owners who were refused in the last REFUSED_S seconds.

        Args:
            rows: of owners.
            now: seconds of a clock.
        """
        for row in rows:
            owner, count = row["owner"], sum(day["refused"] for day in row["days"][:1])
            if count > self._counts.get(owner, 0):
                self._until[owner] = now + REFUSED_S
            self._counts[owner] = count
        self._until = {owner: until for owner, until in self._until.items() if until > now}
        return tuple(sorted(self._until))


def devices_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the bytes that sessions may use of each device, over all its worker processes.

    Args:
        rows: of `GET /v1/devices`. The row with worker 0 is what sessions with code take of the same memory.

    Example:
        >>> devices_of([{"device": "cpu", "worker": 7, "limit_bytes": 5}, {"device": "cpu", "worker": 0}])
        {'cpu': 5}
    """
    devices: dict[str, int] = {}
    for row in rows:
        if row["worker"]:
            devices[row["device"]] = devices.get(row["device"], 0) + row["limit_bytes"]
    return devices


def report_of(
    devices: Mapping[str, Any], sessions: Mapping[str, Any], models: Mapping[str, Any], usage: Mapping[str, Any]
) -> NodeReport:
    """Return a node's report.

    Args:
        devices, sessions, models, usage: answers of `GET /v1/devices`, `/v1/admin/sessions`, `/v1/admin/models` and
            `/v1/admin/usage`.
    """
    free: dict[str, int] = {}
    for row in devices["devices"]:
        limit = row["limit_bytes"] if row["worker"] else 0
        free[row["device"]] = free.get(row["device"], 0) + limit - row["used_bytes"]
    replicas: dict[str, ReplicaReport] = {}
    for row in models["models"]:
        if row["state"] == UNAVAILABLE:
            continue
        versions, in_flight = replicas.get(row["name"], ReplicaReport(()))
        if row["state"] == READY:
            versions = (*versions, str(row["version"]))
        replicas[row["name"]] = ReplicaReport(versions, in_flight + row["in_flight"])
    return NodeReport(
        free={device: max(0, nbytes) for device, nbytes in free.items()},
        sessions=tuple(
            SessionReport(row["id"], row["owner"], row["device"], row.get("bytes", 0)) for row in sessions["sessions"]
        ),
        models=replicas,
        queue=sum(row.get("waiting", 0) for row in sessions["sessions"]),
        used={
            row["owner"]: {
                "sessions": row["now"]["sessions"],
                "memory_bytes": row["now"]["memory_bytes"],
                "worker_seconds": row["now"]["worker_seconds"],
            }
            for row in usage["owners"]
        },
    )
